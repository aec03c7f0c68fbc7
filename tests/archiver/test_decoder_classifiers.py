"""Classifiers that have a decoder, such as BART, answer as `transformers` answers each text alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from specs import ROOT

from marina.archiver.compiling import export_graph
from marina.archiver.encoders import EncoderGraph, load_encoder
from marina.archiver.graph import examples
from marina.archiver.sources import load_source
from marina.config.errors import SourceError
from marina.config.load import parse_spec
from marina.config.spec import Spec
from marina.handlers.encoder import TextReader
from marina.handlers.record import EncodingSpec

SPEC = """
name: decoder
model:
  source: hf:./model
  handler: text
  task: classify
  encoding: {max_tokens: 16}
"""
SIZES = {
    **dict.fromkeys(("num_layers", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_heads", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("d_model", "d_ff", "d_kv", "encoder_ffn_dim", "decoder_ffn_dim"), 16),
    "vocab_size": 700,
    "max_position_embeddings": 32,
    "num_labels": 3,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "forced_eos_token_id": None, "decoder_start_token_id": 2}


def saved(family: str, folder: Path, end: int = 2) -> tuple[Any, Spec]:
    """A classifier, and the spec of its folder; `end` is the token at which it decides."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **TOKENS, eos_token_id=end)
    network = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
    network.save_pretrained(folder / "model")
    shutil.copy(ROOT / "config/examples/language/model/tokenizer.json", folder / "model")
    return network, parse_spec(SPEC, folder / "spec.yaml")


@pytest.mark.parametrize("family", ["Bart", "MBart", "T5"])
def test_texts_of_one_batch_are_answered_as_each_alone(family: str, tmp_path: Path) -> None:
    network, spec = saved(family, tmp_path)
    graph = EncoderGraph(load_encoder(spec)[0], spec)
    how = EncodingSpec("classify", 16, "error", "tokenizer.json")
    reader = TextReader(str(tmp_path / "model/tokenizer.json"), how, ["input_ids"])
    # Its own code refuses a batch whose texts have not equally many of these tokens.
    texts = ["a cat", "un chat noir", "[SEP] one [SEP]", ""]
    rows = [torch.tensor(row[0]) for row, _ in reader.read(texts)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    with torch.no_grad():
        probabilities, indices = graph(ids, mask)
        expected = torch.cat([network(row[None]).logits.softmax(-1) for row in rows])
    assert torch.allclose(probabilities, expected.gather(1, indices), atol=1e-6)


@pytest.mark.slow
def test_it_can_be_exported(tmp_path: Path) -> None:
    _, spec = saved("Bart", tmp_path)
    source = load_source(spec)
    graph, rows = EncoderGraph(source.network, spec), examples(spec, source, 4)
    program = export_graph(spec, graph, rows, source)
    with torch.no_grad():
        assert torch.allclose(program.module()(*rows)[0], graph(*rows)[0], atol=1e-6)


def test_a_tokenizer_that_does_not_add_its_end_is_refused(tmp_path: Path) -> None:
    _, spec = saved("Bart", tmp_path, end=600)
    with pytest.raises(SourceError, match=r"`tokenizer.json` adds no token 600 to a text, the `eos_token_id`"):
        load_encoder(spec)
