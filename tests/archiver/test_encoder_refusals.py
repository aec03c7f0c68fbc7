"""Encoders that cannot be served are refused before anything is compiled, with what to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from specs import ROOT
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    DPRConfig,
    DPRQuestionEncoder,
    FNetConfig,
    FNetModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    LongformerConfig,
    LongformerModel,
    MPNetConfig,
    MPNetModel,
    XLNetConfig,
    XLNetModel,
)

from marina.archiver.encoders import load_encoder
from marina.archiver.package import package
from marina.config.errors import SourceError
from marina.config.load import parse_spec
from marina.config.progress import Progress

SPEC = """
name: encoder
model:
  source: hf:./model
  handler: text
  task: embed
  encoding: {max_tokens: LENGTH}
  compile: aot
slo: {p99_ms: 100}
"""
SMALL = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}


def refused(network: Any, folder: Path, length: int, task: str = "embed") -> SourceError:
    """The error that packaging of an encoder for texts of this length ends with."""
    network.save_pretrained(folder / "model")
    shutil.copy(ROOT / "config/examples/language/model/tokenizer.json", folder / "model")
    spec = parse_spec(SPEC.replace("LENGTH", str(length)).replace("embed", task), folder / "spec.yaml")
    with pytest.raises(SourceError) as raised:
        package(spec, folder / "build", progress=Progress(quiet=True))
    assert not (folder / "build").exists()
    return raised.value


def test_one_that_reads_its_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.archiver.compiling.export_graph", lambda *_: pytest.fail("exported"))
    err = refused(FNetModel(FNetConfig(**SMALL, max_position_embeddings=16)), tmp_path, 8)
    assert "the model answers an input differently if it is padded to the length of longer ones" in err.message
    assert err.hint == "use a model that ignores the tokens whose `attention_mask` is 0; this one reads them too"


@pytest.mark.slow
def test_one_whose_code_cannot_be_exported(tmp_path: Path) -> None:
    shape = {"num_attention_heads": 2, "attention_window": 4, "max_position_embeddings": 18}
    err = refused(LongformerModel(LongformerConfig(**SMALL, **shape)), tmp_path, 8)
    assert "`hf:./model` cannot be exported: Could not guard on data-dependent expression" in err.message
    assert err.hint == "use a model of another architecture: torch cannot compile this one's code"


def test_one_that_takes_fewer_tokens_than_its_configuration_says(tmp_path: Path) -> None:
    # Its code counts positions from 2, whatever its configuration says about padding.
    shape = {"num_attention_heads": 2, "max_position_embeddings": 18, "pad_token_id": 0}
    err = refused(MPNetModel(MPNetConfig(**SMALL, **shape)), tmp_path, 17)
    assert "the model fails on some inputs: IndexError: index out of range" in err.message
    assert str(err.hint).endswith("or with `max_tokens` of `model.encoding`")


def test_a_classifier_that_cannot_tell_its_padding(tmp_path: Path) -> None:
    network = GPT2ForSequenceClassification(GPT2Config(vocab_size=12, n_embd=16, n_layer=1, n_head=2, n_positions=18))
    err = refused(network, tmp_path, 8, "classify")
    assert "Cannot handle batch sizes > 1 if no padding token is defined" in err.message
    assert err.hint == "add `pad_token_id` to its `config.json`, the number of a token that no text holds"


def test_one_that_answers_in_a_form_of_its_own(tmp_path: Path) -> None:
    shape = {"num_attention_heads": 2, "max_position_embeddings": 18}
    err = refused(DPRQuestionEncoder(DPRConfig(**SMALL, **shape)), tmp_path, 8)
    assert "'DPRQuestionEncoderOutput' object has no attribute 'last_hidden_state'" in err.message
    assert err.hint == "use a model of another architecture, or `source: ./model.py:build` with a network of your own"


def test_one_whose_tokenizer_has_settings_that_its_file_contradicts(tmp_path: Path) -> None:
    shape = {"num_attention_heads": 2, "max_position_embeddings": 18}
    BertModel(BertConfig(**SMALL, **shape)).save_pretrained(tmp_path / "model")
    words = {word: at for at, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "12"))}
    BertTokenizer(words, do_lower_case=False).save_pretrained(tmp_path / "model")
    spec = parse_spec(SPEC.replace("LENGTH", "8"), tmp_path / "spec.yaml")
    load_encoder(spec)
    settings = tmp_path / "model/tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": True}))
    with pytest.raises(SourceError, match="makes other tokens of") as raised:
        load_encoder(spec)
    path = tmp_path / "model"
    assert raised.value.hint == f"AutoTokenizer.from_pretrained('{path}').save_pretrained('{path}')"
    AutoTokenizer.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "model")
    load_encoder(spec)


def test_one_that_reads_the_types_of_its_tokens_gets_them(tmp_path: Path) -> None:
    XLNetModel(XLNetConfig(vocab_size=12, d_model=16, n_layer=1, n_head=2, d_inner=32)).save_pretrained(
        tmp_path / "model"
    )
    shutil.copy(ROOT / "config/examples/language/model/tokenizer.json", tmp_path / "model")
    ports = load_encoder(parse_spec(SPEC.replace("LENGTH", "8"), tmp_path / "spec.yaml"))[1]
    assert [port.name for port in ports] == ["input_ids", "attention_mask", "token_type_ids"]
