"""Packaging of language models: which files are packed, and how the answers are compared with fp32."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packages import standin_python
from safetensors.torch import load_file, save_file
from specs import TALES, tales_spec
from tokenizers import Tokenizer, models

from marina.archiver.agreement import check_agreement
from marina.archiver.language_model import calibration_texts, compare_text, folder_warnings, stage_language_model
from marina.archiver.package import package
from marina.config.errors import AgreementError, SourceError
from marina.config.progress import Progress
from marina.config.record import Artifact, Draft
from marina.handlers.generation.engines import weights
from marina.handlers.generation.engines.compiled import CompiledDecoder

# The network is too small to keep two threads busy.
torch.set_num_threads(1)
MODEL = TALES.parent / "model"


TEXT = {"context": 128, "max_tokens": 64}
SPEC = tales_spec({"model.precision": "int8", "model.compile": "aot", "text": TEXT})


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, Path]:
    folder = tmp_path_factory.mktemp("compiled")
    return stage_language_model(SPEC, folder), folder


@pytest.fixture
def staged(compiled: tuple[Draft, Path], tmp_path: Path) -> Path:
    """A copy of the staged folder that a test may spoil."""
    copy: Path = shutil.copytree(compiled[1], tmp_path / "staged")
    return copy


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def spoil(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Changes one tensor of a folder."""
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: change(weights[name]).contiguous()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "biases", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"},
            [],
            "`architectures`: got `GemmaForCausalLM`, allowed: `Llama",
        ),
        ({"mlp_bias": True}, [], "`mlp_bias`: got `true`, allowed: `false`"),
        ({"attention_bias": True}, ["o_proj"], "`attention_bias`: the attention's output has a bias"),
    ],
)
def test_a_model_of_another_kind_is_refused_with_the_engine_that_may_serve_it(
    changes: dict[str, object], biases: list[str], message: str, tmp_path: Path
) -> None:
    other = shutil.copytree(MODEL, tmp_path / "other")
    change_config(other, **changes)
    names = [f"model.layers.0.self_attn.{name}.bias" for name in biases]
    save_file(load_file(other / "model.safetensors") | dict.fromkeys(names, torch.ones(1)), other / "model.safetensors")
    with pytest.raises(SourceError, match=message) as raised:
        stage_language_model(tales_spec({"model.source": f"hf:{other}"}), tmp_path)
    assert raised.value.hint == "engine: vllm under `text`, with `compile: eager`"


@pytest.mark.slow
def test_the_tales_are_packed_completely_and_agree_with_fp32(tmp_path: Path) -> None:
    draft = stage_language_model(tales_spec({"model.precision": "bf16", "text": TEXT}), tmp_path)
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert draft.text is not None
    assert (draft.text.ends, draft.text.waiting, draft.batch_sizes) == ((0,), 16, ())
    assert list(folder_warnings(draft, tmp_path)) == []
    agreed = compare_text(draft, tmp_path, MODEL)
    assert agreed.count > 500
    assert agreed.agreement > 0.95
    assert agreed.perplexity_ratio == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_a_compiled_decoder_is_packed_once_and_agrees_in_8_bits(compiled: tuple[Draft, Path]) -> None:
    draft, folder = compiled
    assert draft.artifacts == (Artifact(file="model/decoder.so", batch=16),)
    assert draft.text is not None
    assert draft.text.engine == "aot"
    agreed = compare_text(draft, folder, MODEL, calibration_texts(SPEC))
    assert agreed.agreement > 0.97
    assert agreed.perplexity_ratio == pytest.approx(1, abs=0.02)
    # docs/reference/language-models.md quotes this figure; guessing among 512 tokens would have a perplexity of 512.
    assert (agreed.perplexity, agreed.guessing) == (pytest.approx(1.35, abs=0.01), 512)
    assert agreed.text.endswith("generated inputs), perplexity 1.35")
    check_agreement(SPEC, agreed)


@pytest.mark.slow
def test_the_tales_agree_in_4_bits(tmp_path: Path) -> None:
    spec = tales_spec({"model.precision": "int4", "model.compile": "aot", "text": TEXT, "model.min_agreement": 0.95})
    agreed = compare_text(stage_language_model(spec, tmp_path), tmp_path, MODEL, calibration_texts(spec))
    assert agreed.agreement > 0.95
    assert agreed.perplexity_ratio == pytest.approx(1, abs=0.02)
    check_agreement(spec, agreed)
    with pytest.raises(AgreementError, match=r"perplexity of int4 is 1\.0300 times.*\n*.*hint: precision: int8"):
        check_agreement(spec, agreed.model_copy(update={"perplexity_ratio": 1.03}))


@pytest.mark.slow
def test_a_decoder_that_answers_differently_in_a_batch_is_refused(compiled: tuple[Draft, Path], monkeypatch) -> None:
    draft, folder = compiled
    step = CompiledDecoder.step

    def leaning(self, tokens, slots, positions, wanted):
        return step(self, tokens, slots, positions, wanted) * (1 + 1e-6 * len(tokens))

    monkeypatch.setattr(CompiledDecoder, "step", leaning)
    with pytest.raises(AgreementError, match="writes a different text alone than in a batch"):
        compare_text(draft, folder, MODEL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("model.layers.1.mlp.down_proj.weight", torch.neg, id="a layer's sign"),
        pytest.param(
            "model.layers.2.self_attn.q_proj.weight", lambda rows: rows.roll(1, 0), id="rows in another place"
        ),
        pytest.param("model.layers.0.input_layernorm.weight", lambda norm: norm * 1.5, id="a norm"),
    ],
)
def test_a_package_whose_weights_are_spoiled_is_refused(
    compiled: tuple[Draft, Path], staged: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    spoil(staged / "model", name, change)
    with pytest.raises(AgreementError, match=r"perplexity of int8 is|`model.min_agreement`"):
        check_agreement(SPEC, compare_text(compiled[0], staged, MODEL))


@pytest.mark.slow
def test_an_engine_with_other_rotary_positions_is_refused(compiled: tuple[Draft, Path], monkeypatch) -> None:
    draft, folder = compiled
    other = lambda shape, context: weights.rotary_tables(replace(shape, rope_theta=2 * shape.rope_theta), context)  # noqa: E731
    monkeypatch.setattr("marina.handlers.generation.engines.compiled.rotary_tables", other)
    with pytest.raises(AgreementError, match=r"perplexity of int8 is|`model.min_agreement`"):
        check_agreement(SPEC, compare_text(draft, folder, MODEL))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"rope_theta": 1000.0}, {"num_attention_heads": 8, "num_key_value_heads": 4}])
def test_a_wrong_configuration_agrees_with_itself_but_does_not_know_its_texts(
    compiled: tuple[Draft, Path], staged: Path, change: dict[str, object]
) -> None:
    wrong = staged / "model"
    change_config(wrong, **change)
    agreed = compare_text(compiled[0], staged, wrong, calibration_texts(SPEC))
    assert agreed.agreement > 0.97
    assert agreed.perplexity_ratio == pytest.approx(1, abs=0.02)
    assert agreed.perplexity is not None
    assert agreed.guessing is not None
    assert agreed.perplexity > 1.4
    with pytest.raises(AgreementError, match=r"`model.calibration`: its texts have a perplexity of .* allowed: "):
        check_agreement(SPEC, agreed.model_copy(update={"agreement": 1.0, "perplexity": agreed.guessing + 1.0}))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "aot"])
def test_weights_that_are_not_finite_are_refused(compiled: tuple[Draft, Path], staged: Path, engine: str) -> None:
    draft = compiled[0]
    assert draft.text is not None
    draft = draft.model_copy(update={"precision": "bf16", "text": draft.text.model_copy(update={"engine": engine})})
    spoil(staged / "model", "model.norm.weight", lambda norm: norm * float("nan"))
    with pytest.raises(AgreementError, match="the model's scores are not finite numbers"):
        compare_text(draft, staged, staged / "model")


@pytest.mark.slow
def test_a_model_whose_tokens_are_no_english_is_compared_all_the_same(
    compiled: tuple[Draft, Path], staged: Path
) -> None:
    Tokenizer(models.BPE(vocab={"A": 0, "C": 1, "G": 2}, merges=[])).save(str(staged / "model/tokenizer.json"))
    agreed = compare_text(compiled[0], staged, MODEL)
    assert (agreed.count > 500, agreed.perplexity) == (True, None)


@pytest.mark.slow
def test_a_model_no_better_than_guessing_gets_a_warning_without_calibration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = shutil.copytree(MODEL, tmp_path / "model")
    change_config(wrong, num_attention_heads=2, num_key_value_heads=1)
    text = {"context": 128, "max_tokens": 64}
    changes = {"model.source": f"hf:{wrong}", "model.calibration": None, "model.min_agreement": 0, "text": text}
    packaged = package(tales_spec(changes), tmp_path / "out", progress=Progress())
    perplexity = packaged.record.agreement.perplexity
    assert perplexity > 512
    said = f"the model predicts plain English no better than by guessing (perplexity {perplexity:.4g} with 512 tokens)"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("config", "generation", "message"),
    [
        (600, None, "`eos_token_id` in `config.json`: got `600`, allowed: tokens of `tokenizer.json`"),
        ([0, -1], None, "`eos_token_id` in `config.json`"),
        (0, {"eos_token_id": [0, True]}, "`eos_token_id` in `generation_config.json`"),
        (0, {"eos_token_id": 2**40}, "`eos_token_id` in `generation_config.json`"),
        (0, [], "`generation_config.json` is not a JSON object"),
        (0, {"top_p": "0.9"}, '`top_p` in `generation_config.json`: got `"0.9"`, allowed: a number from 0 to 1'),
    ],
)
def test_an_end_token_that_is_not_a_token_is_refused(
    config: object, generation: object, message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(MODEL, tmp_path / "broken")
    change_config(folder, eos_token_id=config)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "staged").mkdir()
    with pytest.raises(SourceError, match=message):
        stage_language_model(
            tales_spec({"model.source": f"hf:{folder}", "model.compile": "eager"}), tmp_path / "staged"
        )


@pytest.mark.parametrize(
    ("ends", "doubt"),
    [
        (
            None,
            "no `eos_token_id` in `config.json` or `generation_config.json`: every answer will have its maximum length",
        ),
        (
            [7, 5],
            "`eos_token_id` is `5`, `7`, but the `eos_token` of the tokenizer is `0`: answers may go on after it",
        ),
        ([7, 0], ""),
    ],
)
def test_end_tokens_that_look_like_a_mistake_get_a_warning(ends: object, doubt: str, tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL, tmp_path / "other")
    change_config(folder, eos_token_id=ends)
    (tmp_path / "staged").mkdir()
    draft = stage_language_model(tales_spec({"model.source": f"hf:{folder}"}), tmp_path / "staged")
    assert "".join(folder_warnings(draft, tmp_path / "staged")) == doubt


def test_a_token_that_only_the_tokenizers_configuration_has_gets_a_warning(tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL, tmp_path / "other")
    added = {"0": {"content": "<end>"}, "512": {"content": "<start>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (tmp_path / "staged").mkdir()
    draft = stage_language_model(tales_spec({"model.source": f"hf:{folder}"}), tmp_path / "staged")
    (warning,) = folder_warnings(draft, tmp_path / "staged")
    assert warning.startswith("`tokenizer.json` has no `<start>`, which `tokenizer_config.json` adds: prompts will")


def test_a_chat_template_that_refuses_every_user_gets_a_warning(tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL, tmp_path / "other")
    (folder / "chat_template.jinja").write_text("{% for each in documents %}{% endfor %}", encoding="utf-8")
    (tmp_path / "staged").mkdir()
    draft = stage_language_model(tales_spec({"model.source": f"hf:{folder}"}), tmp_path / "staged")
    assert list(folder_warnings(draft, tmp_path / "staged")) == [
        "the chat template refuses a conversation of one message, and such requests will get 400: 'NoneType' object "
        "is not iterable"
    ]


@pytest.mark.parametrize("written", [None, " \n\n", b"\xff"])
def test_calibration_texts_must_be_readable(written: str | bytes | None, tmp_path: Path) -> None:
    if written is not None:
        (tmp_path / "a.txt").write_bytes(written.encode() if isinstance(written, str) else written)
    with pytest.raises(SourceError, match=r"`model.calibration`: (nothing to read in|`.*/a.txt`: cannot be read)"):
        calibration_texts(tales_spec({"model.calibration": str(tmp_path)}))


def test_an_engine_that_computes_nothing_packs_no_weights(tmp_path: Path) -> None:
    draft = stage_language_model(tales_spec({"text": {"engine": "fake"}}), tmp_path)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert compare_text(draft, tmp_path, MODEL).count == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", '{"architectures": ["GPT2LMHeadModel"]}', "`architectures`: got `GPT2LMHeadModel`"),
        ("chat_template.jinja", "{% for %}", "the chat template cannot be read"),
        ("tokenizer.json", "{}", "`tokenizer.json` cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    broken, staged = tmp_path / "broken", tmp_path / "staged"
    shutil.copytree(MODEL, broken)
    (broken / name).write_text(text)
    staged.mkdir()
    with pytest.raises(SourceError, match=message):
        stage_language_model(tales_spec({"model.source": f"hf:{broken}"}), staged)


def test_a_model_that_vllm_cannot_run_here_is_packed_but_not_judged(tmp_path: Path) -> None:
    mounted = {"python": "/nowhere/python", "weights": "/models/tales"}
    changes = {"model.precision": "bf16", "serving.device": "cuda", "kubernetes.resources.gpu": 1}
    draft = stage_language_model(
        tales_spec(changes | {"text": {"engine": "vllm", "context": 128, "max_tokens": 64, "vllm": mounted}}), tmp_path
    )
    assert draft.key.device == "cuda"
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert draft.text is not None
    assert draft.text.vllm is not None
    weights = draft.text.vllm.files["model.safetensors"]
    assert weights.bytes == (TALES.parent / "model/model.safetensors").stat().st_size
    agreed = compare_text(draft, tmp_path, MODEL)
    assert agreed.agreement is None
    assert agreed.text == "not judged: no vLLM on this machine, no `/nowhere/python`"


@pytest.mark.slow
def test_a_model_that_vllm_can_run_is_compared_with_fp32(tmp_path: Path) -> None:
    text = {"engine": "vllm", "context": 128, "max_tokens": 64, "vllm": {"python": standin_python()}}
    draft = stage_language_model(tales_spec({"text": text}), tmp_path)
    agreed = compare_text(draft, tmp_path, MODEL)
    # The stand-in for vLLM repeats the prompt, which the real model does not.
    assert agreed.count > 500
    assert agreed.agreement is not None
    assert agreed.agreement < 0.5
    unknown = tmp_path / "model" / "config.json"
    unknown.write_text(unknown.read_text().replace("LlamaForCausalLM", "MixtralForCausalLM"))
    assert (
        "not judged: nothing to compare with: `architectures`: got `Mix"
        in compare_text(draft, tmp_path, unknown.parent).text
    )


def test_the_models_own_values_and_tools_in_an_unknown_form_are_said(tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL, tmp_path / "other")
    values = {"temperature": 0.6, "top_k": 20, "eos_token_id": 0, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{% if tools %}{% endif %}{{ messages }}", encoding="utf-8")
    (tmp_path / "staged").mkdir()
    draft = stage_language_model(tales_spec({"model.source": f"hf:{folder}"}), tmp_path / "staged")
    assert draft.text is not None
    assert draft.text.defaults == {"temperature": 0.6, "top_k": 20}
    form, own = folder_warnings(draft, tmp_path / "staged")
    assert form.endswith("name the form as `text.tools`")
    assert (
        own
        == "requests that say nothing else have the values of `generation_config.json`: `temperature` 0.6, `top_k` 20"
    )
    named = draft.model_copy(update={"text": draft.text.model_copy(update={"tools": "hermes"})})
    assert list(folder_warnings(named, tmp_path / "staged")) == [own]
