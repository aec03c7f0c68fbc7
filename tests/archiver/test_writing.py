"""A language model into a package: what of its folder is packed, and how its answers are held against fp32."""

import shutil
from pathlib import Path

import pytest
from packages import standin_python
from specs import TALES, tales_spec

from archiver.writing import compare_text, stage_text
from config.errors import AgreementError, SourceError
from config.record import Artifact
from handlers.generation.engines.compiled import CompiledDecoder


@pytest.mark.slow
def test_the_tales_are_packed_whole_and_agree_with_fp32(tmp_path: Path) -> None:
    draft = stage_text(tales_spec({"model.precision": "bf16", "text": {"context": 128, "max_tokens": 64}}), tmp_path)
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert draft.text is not None
    assert (draft.text.ends, draft.text.waiting, draft.batch_sizes) == ((0,), 16, ())
    agreed = compare_text(draft, tmp_path)
    assert agreed.count > 500
    assert agreed.agreement > 0.95
    assert agreed.perplexity_ratio == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_a_compiled_decoder_is_packed_once_and_agrees_in_8_bits(tmp_path: Path) -> None:
    changes = {"model.precision": "int8", "model.compile": "aot", "text": {"context": 128, "max_tokens": 64}}
    draft = stage_text(tales_spec(changes), tmp_path)
    assert draft.artifacts == (Artifact(file="model/decoder.so", batch=16),)
    assert draft.text is not None
    assert draft.text.engine == "aot"
    agreed = compare_text(draft, tmp_path)
    assert agreed.agreement > 0.97
    assert agreed.perplexity_ratio == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_a_decoder_that_answers_otherwise_beside_others_is_refused(tmp_path: Path, monkeypatch) -> None:
    changes = {"model.precision": "fp32", "model.compile": "aot", "text": {"context": 128, "max_tokens": 64}}
    draft = stage_text(tales_spec(changes), tmp_path)
    step = CompiledDecoder.step

    def leaning(self, tokens, slots, positions, wanted):
        return step(self, tokens, slots, positions, wanted) * (1 + 1e-6 * len(tokens))

    monkeypatch.setattr(CompiledDecoder, "step", leaning)
    with pytest.raises(AgreementError, match="writes another text alone than beside others"):
        compare_text(draft, tmp_path)


def test_an_engine_that_computes_nothing_packs_no_weights(tmp_path: Path) -> None:
    draft = stage_text(tales_spec({"text": {"engine": "fake"}}), tmp_path)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert compare_text(draft, tmp_path).count == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", '{"architectures": ["GPT2LMHeadModel"]}', "`architectures`: got `GPT2LMHeadModel`"),
        ("chat_template.jinja", "{% for %}", "the chat template cannot be read"),
        ("tokenizer.json", "{}", "`tokenizer.json` cannot be read"),
    ],
)
def test_a_folder_that_would_not_serve_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    broken, staged = tmp_path / "broken", tmp_path / "staged"
    shutil.copytree(TALES.parent / "model", broken)
    (broken / name).write_text(text)
    staged.mkdir()
    with pytest.raises(SourceError, match=message):
        stage_text(tales_spec({"model.source": f"hf:{broken}"}), staged)


def test_what_vllm_cannot_run_here_is_packed_and_not_judged(tmp_path: Path) -> None:
    mounted = {"python": "/nowhere/python", "weights": "/models/tales"}
    changes = {"model.precision": "bf16", "serving.device": "cuda", "kubernetes.resources.gpu": 1}
    draft = stage_text(
        tales_spec(changes | {"text": {"engine": "vllm", "context": 128, "max_tokens": 64, "vllm": mounted}}), tmp_path
    )
    assert draft.key.device == "cuda"
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert draft.text is not None
    assert draft.text.vllm is not None
    weights = draft.text.vllm.files["model.safetensors"]
    assert (weights.bytes, len(weights.sha256)) == ((TALES.parent / "model/model.safetensors").stat().st_size, 64)
    agreed = compare_text(draft, tmp_path)
    assert agreed.agreement is None
    assert agreed.text == "not judged: no vLLM on this machine, no `/nowhere/python`"


def test_vllm_that_can_be_run_is_held_against_fp32(tmp_path: Path) -> None:
    text = {"engine": "vllm", "context": 128, "max_tokens": 64, "vllm": {"python": standin_python()}}
    draft = stage_text(tales_spec({"text": text}), tmp_path)
    agreed = compare_text(draft, tmp_path)
    # What stands in for vLLM says the prompt again, which the tales do not.
    assert agreed.count > 500
    assert agreed.agreement is not None
    assert agreed.agreement < 0.5
    unknown = tmp_path / "model" / "config.json"
    unknown.write_text(unknown.read_text().replace("LlamaForCausalLM", "MixtralForCausalLM"))
    assert "not judged: nothing to compare with, `architectures`: got `Mix" in compare_text(draft, tmp_path).text
