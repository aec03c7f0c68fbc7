"""From tokens to text and back: no byte is lost, whatever tokens a model writes and however a tokenizer splits text."""

import json
from pathlib import Path

import pytest
from generating import Rounds, events, serving, write_text_package
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from marina.handlers.generation.tokenizer import Detokenizer, ModelTokenizer

WORDS = ["▁Once", "▁upon", "▁a", "▁time", "ly", "▁", "é"]


def as_bytes(tokens) -> str:
    return bytes(tokens).decode("utf-8", "replace")


@given(st.lists(st.sampled_from([0x61, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82, 0xC3, 0xA9, 0xFF]), max_size=30))
@example([0xFF, 0xFF, 0xFF, 0xFF, 0xE2, 0x82, 0xAC])
@example([0xF0, 0x9F, 0x99, 0xE2, 0x82, 0x61])
def test_text_decoded_in_pieces_is_the_same_as_text_decoded_at_once(tokens: list[int]) -> None:
    detokenizer = Detokenizer(as_bytes)
    assert "".join([*map(detokenizer.feed, tokens), detokenizer.flush()]) == as_bytes(tokens)


# A byte of no character; half a character again and again; and a token without text, as an end token is.
@pytest.mark.parametrize("run", [[0xFF], [0xF0, 0x9F, 0xFF], [256]])
def test_a_token_takes_no_longer_the_more_tokens_without_text_come_before_it(run: list[int]) -> None:
    decoded: list[int] = []

    def decode(tokens) -> str:
        decoded.append(len(tokens))
        return as_bytes(token for token in tokens if token < 256)

    detokenizer, tokens = Detokenizer(decode), [*b"one", *run * 500, *"€ two".encode()]
    text = "".join([*map(detokenizer.feed, tokens), detokenizer.flush()])
    assert max(decoded) < 100
    assert text == decode(tokens)


@given(st.text(max_size=8), st.integers(0, 8), st.text(max_size=8))
def test_an_answer_continues_where_its_prompt_ends(before: str, cut: int, after: str) -> None:
    whole = (before + after).encode()
    cut = min(cut, len(whole))
    detokenizer = Detokenizer(as_bytes, whole[max(0, cut - 5) : cut])
    text = "".join([*map(detokenizer.feed, whole[cut:]), detokenizer.flush()])
    # If the prompt ends with half a character, the answer begins with the other half by itself.
    assert text == as_bytes(whole[cut:])


def write_words(folder: Path) -> Path:
    """A tokenizer like SentencePiece's: its tokens are words with their spaces, and single bytes."""
    pieces = ["<unk>", *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    return folder


@pytest.fixture
def words(tmp_path: Path):
    with serving(write_words(write_text_package(tmp_path))) as rounds:
        yield rounds


def test_the_space_between_prompt_and_answer_is_kept(words: Rounds) -> None:
    # The engine repeats its prompt: after "Once upon" comes " Once upon".
    body = {"prompt": [1, 2], "max_tokens": 4, "temperature": 0, "logprobs": 1}
    (choice,) = json.loads(words.ask("v1/completions", body))["choices"]
    assert choice["text"] == " Once upon Once upon"
    assert choice["logprobs"]["tokens"] == [" Once", " upon", " Once", " upon"]
    assert choice["logprobs"]["text_offset"] == [0, 5, 10, 15]
    streamed = events(words.ask("v1/completions", body | {"stream": True}))
    assert "".join(event["choices"][0]["text"] for event in streamed[:-1]) == choice["text"]


@pytest.mark.parametrize("kind", ["letters", "pieces"])
def test_logprobs_have_the_bytes_of_parts_of_a_character(kind: str, tmp_path: Path) -> None:
    folder = write_text_package(tmp_path)
    if kind == "pieces":
        write_words(folder)
    bytes_of = ModelTokenizer(folder / "model").bytes_of
    with serving(folder) as rounds:
        tokens = ModelTokenizer(folder / "model")._tokenizer
        names = [f"<0x{byte:02X}>" for byte in "€".encode()] if kind == "pieces" else ["â", "Ĥ", "¬"]
        prompt = [tokens.token_to_id(name) for name in names]
        assert b"".join(map(bytes_of, prompt)) == "€".encode()
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 1}
        (choice,) = json.loads(rounds.ask("v1/completions", body))["choices"]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == ("€€", [0, 0, 0, 1, 1, 1])
        halves = [rf"bytes:\x{byte:02x}" for byte in "€€".encode()]
        assert choice["logprobs"]["tokens"] == halves
        assert [list(likeliest) for likeliest in choice["logprobs"]["top_logprobs"]] == [[half] for half in halves]
