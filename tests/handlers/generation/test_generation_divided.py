"""Names of special tokens in a client's text stay text, and change nothing around them."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from marina.handlers.generation.tokenizer import ModelTokenizer

METASPACE = pre_tokenizers.Metaspace
KINDS: dict[str, dict[str, Any]] = {
    "as Llama 2": {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
    "at the beginning": {"pre_tokenizer": METASPACE(prepend_scheme="first", split=False)},
    "always": {"pre_tokenizer": METASPACE(prepend_scheme="always", split=False)},
    "never": {"pre_tokenizer": METASPACE(prepend_scheme="never", split=False)},
    "bytes": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
}


def saved(folder: Path, kind: str) -> ModelTokenizer:
    letters = [*pre_tokenizers.ByteLevel.alphabet(), "▁", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.BPE(vocab={each: at for at, each in enumerate(dict.fromkeys(letters))}, merges=[]))
    for stage, step in KINDS[kind].items():
        setattr(tokenizer, stage, step)
    spaces = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.decoder = decoders.ByteLevel() if kind == "bytes" else spaces
    tokenizer.add_special_tokens(["</s>", "<s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelTokenizer(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a</s>b", "</s>", "a </s> b", "a<s></s>b", "x</s"])
def test_a_text_with_the_name_of_a_special_token_stays_as_it_is(kind: str, text: str, tmp_path) -> None:
    tokenizer = saved(tmp_path, kind)
    tokens = tokenizer.encode(tokenizer.divide_special(text))
    assert tokenizer.special_id("</s>") not in tokens
    assert tokenizer.decode(tokens).strip() == text


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_the_next_special_token_is_read_as_ever(kind: str, tmp_path) -> None:
    tokenizer = saved(tmp_path, kind)
    plain = tokenizer.encode("a</s>bcd")
    divided = tokenizer.encode(tokenizer.divide_special("<s>x") + "a</s>bcd")
    after = plain.index(tokenizer.special_id("</s>"))
    assert divided[divided.index(tokenizer.special_id("</s>")) :] == plain[after:]
