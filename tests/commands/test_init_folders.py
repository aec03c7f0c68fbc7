"""`marina init --source hf:./folder`: language models, encoders, and folders that hold neither."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from specs import ROOT, TALES

import marina
from marina.config.load import load_spec

LANGUAGE = ROOT / "config/examples/language/model"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str) -> int:
    return marina.main(["init", "mine", "--quiet", *arguments])


def copy_tales(here: Path, **changes: object) -> None:
    """Puts the tales' model into the folder `model`, with changes of its configuration."""
    copy_model(TALES.parent / "model", here, **changes)


def copy_model(model: Path, here: Path, **changes: object) -> None:
    """The same for any model's folder."""
    shutil.copytree(model, here / "model")
    config = json.loads((here / "model/config.json").read_text())
    (here / "model/config.json").write_text(json.dumps(config | changes))


@pytest.mark.slow
def test_an_embedding_is_made_as_its_folder_says_and_no_library_says_anything(here: Path) -> None:
    copy_model(LANGUAGE, here)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (here / "model/modules.json").write_text(json.dumps(modules))
    (here / "model/1_Pooling").mkdir()
    (here / "model/1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (here / "model/config_sentence_transformers.json").write_text(json.dumps(prompts))
    (here / "model/sentence_roberta_config.json").write_text('{"max_seq_length": 24}')
    # In a process of its own, because a library speaks up only when it is first imported.
    command = [sys.executable, "-m", "marina", "init", "mine", "--quiet", "--source", "hf:model", "--task", "embed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    encoding = load_spec(here / "mine/spec.yaml").encoding
    assert (encoding.pooling, encoding.max_tokens) == ("cls", 24)
    assert "a guess" not in done.stdout


def test_a_language_model_gets_limits_for_its_size_and_no_warnings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = here / "model"
    shutil.copytree(TALES.parent / "model", model)
    assert init("--source", "hf:model") == 0
    small = load_spec(here / "mine/spec.yaml")
    assert (small.text.max_tokens, small.text.context, small.slo.itl_p99_ms, small.slo.throughput_rps) == (
        256,
        512,
        250,
        10,
    )
    assert marina.main(["check", "mine/spec.yaml"]) == 0
    assert "warning" not in capsys.readouterr().err
    # As large as a billion weights in bfloat16; the file is sparse, so it takes no space.
    with (model / "more.safetensors").open("wb") as file:
        file.truncate(2_200_000_000)
    shutil.rmtree(here / "mine")
    assert init("--source", "hf:model") == 0
    large = load_spec(here / "mine/spec.yaml")
    assert (large.slo.ttft_p99_ms, large.slo.itl_p99_ms, large.slo.throughput_rps) == (8850, 1800, 1)


def test_a_language_model_of_another_family_gets_vllm(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_tales(here, architectures=["GemmaForCausalLM"], model_type="gemma")
    assert init("--source", "hf:model") == 0
    spec = load_spec(here / "mine/spec.yaml")
    assert (spec.text.engine, spec.model.compile, spec.serving.device) == ("vllm", "eager", "cuda")
    assert "because Marina's own engines do not compute this model: `architectures`: got `GemmaForCausalLM`" in (
        capsys.readouterr().out
    )


def test_a_language_model_that_also_sees_pictures_gets_vllm_with_the_context_of_its_texts(here: Path) -> None:
    kind = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    copy_tales(here, **kind, text_config={"max_position_embeddings": 1024})
    assert init("--source", "hf:model") == 0
    spec = load_spec(here / "mine/spec.yaml")
    assert (spec.text.engine, spec.text.context) == ("vllm", 1024)


def test_a_model_that_writes_one_text_for_another_is_refused_with_the_task_that_works(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_tales(here, architectures=["T5ForConditionalGeneration"], model_type="t5", is_encoder_decoder=True)
    assert init("--source", "hf:model") == 2
    assert (
        "`hf:../model` is a `T5ForConditionalGeneration`, which writes one text for another, and Marina serves none "
        "such\n\nhint: --task embed, for the embeddings of its encoder"
    ) in capsys.readouterr().err


def test_a_folder_whose_model_lies_in_another_one_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "model").mkdir()
    (here / "model/modules.json").write_text("[]")
    assert init("--source", "hf:model") == 2
    said = (
        "`model` has `modules.json`, but no `config.json` beside it\n\nhint: SentenceTransformer('model').save('model-"
    )
    assert said in capsys.readouterr().err


def test_an_adapter_without_its_model_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_tales(here)
    (here / "model/config.json").rename(here / "model/adapter_config.json")
    assert init("--source", "hf:model") == 2
    assert (
        "`model` holds an adapter, such as of LoRA, allowed: a whole model\n\nhint: --source hf:./base, the model"
        in (capsys.readouterr().err)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("BertForNextSentencePrediction", "says whether one text follows another"),
        ("BertForMultipleChoice", "chooses one of several texts"),
    ],
)
def test_a_model_for_a_task_that_is_not_served_is_embedded_only_if_asked(
    kind: str, told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_model(LANGUAGE, here, architectures=[kind])
    assert init("--source", "hf:model") == 2
    said = capsys.readouterr().err
    assert f"is a `{kind}`, which {told}, and Marina serves none such\n\nhint: --task embed" in said
    assert init("--source", "hf:model", "--task", "embed", "--pooling", "cls") == 0


@pytest.mark.slow
def test_the_pooling_of_a_plain_encoder_is_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_model(LANGUAGE, here, architectures=["RoFormerModel"])
    assert init("--source", "hf:model") == 2
    assert "hint: --pooling mean, or cls or last, as it was trained" in capsys.readouterr().err
    assert init("--source", "hf:model", "--pooling", "last") == 0
    assert load_spec(here / "mine/spec.yaml").encoding.pooling == "last"
    shutil.rmtree(here / "mine")
    assert init("--source", "hf:model", "--task", "classify", "--pooling", "last") == 2
    assert "only an embedding by an encoder of texts" in capsys.readouterr().err


def test_a_language_model_that_makes_embeddings_is_not_taken_for_one_that_writes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_tales(here)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (here / "model/modules.json").write_text(json.dumps(modules))
    (here / "model/1_Pooling").mkdir()
    pooling = here / "model/1_Pooling/config.json"
    pooling.write_text('{"pooling_mode_mean_tokens": true}')
    assert init("--source", "hf:model") == 0
    assert load_spec(here / "mine/spec.yaml").model.task == "embed"
    assert "no task does" not in capsys.readouterr().out


def test_the_context_of_a_language_model_is_no_longer_than_its_window(here: Path) -> None:
    copy_tales(here, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=64)
    assert init("--source", "hf:model") == 0
    assert load_spec(here / "mine/spec.yaml").text.context == 64


def test_a_broken_language_model_is_named_as_the_user_wrote_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_tales(here, num_hidden_layers=None)
    assert init("--source", "hf:./model") == 2
    assert capsys.readouterr().err.startswith("error: `--source`: `model`: `num_hidden_layers`: missing")


def test_a_folder_with_a_model_of_sound_says_how_to_serve_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "ears").mkdir()
    (here / "ears/config.json").write_text('{"num_mel_bins": 80}')
    (here / "ears/preprocessor_config.json").write_text('{"feature_size": 80}')
    assert init("--source", "hf:ears") == 2
    assert capsys.readouterr().err.startswith(
        "error: `--source`: `ears` holds a model of pictures or sound, allowed as a folder: a model of texts\n\n"
        "hint: in model.py: `def build(): return AutoModel….from_pretrained('ears')`, then `--source ./model.py:build`"
    )
