"""A model's tokenizer and its chat template, as they lie in the package."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from handlers.generation.template import ChatTemplate
from handlers.generation.words import BROKEN, Unfolding

TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"

# How some tokenizers write a space, and one byte by itself.
_SPACE, _BYTE = "▁", re.compile("<0x([0-9A-F]{2})>")
# Others have a letter for each byte: the byte itself where that can be printed, and the next free ones for the rest.
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
_OF_LETTERS = {chr(byte): byte for byte in _PRINTED} | {chr(256 + place): byte for place, byte in enumerate(_HIDDEN)}

# So many tokens of a prompt say whether a space belongs before its answer.
_BEFORE = 5
# A token has more characters than that seldom.
_CHARACTERS = 8
# The tokens at a cut are others than those of the whole text.
_BOUNDARY = 64


class Tokens:
    """Text to tokens and back."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as err:  # the library raises nothing narrower
            raise ValueError(f"`{TOKENIZER}` cannot be read: {err}") from err
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.count = self._tokenizer.get_vocab_size()
        self.template = read_template(folder)
        self._end = _read_end(folder)

    @property
    def end(self) -> int | None:
        """The token that ends a text, where the tokenizer's configuration names one."""
        return self._tokenizer.token_to_id(self._end) if self._end else None

    def has(self, token: int) -> bool:
        return self._tokenizer.id_to_token(token) is not None

    def encode(self, text: str, *, special: bool = True, most: int | None = None) -> list[int]:
        """`special` adds what a text begins with; a chat template has written that already. Of a text with more than
        `most` tokens there may come those of its beginning, which are more than that, too."""
        # Megabytes take seconds, in which no stream goes on.
        length = len(text) if most is None else _CHARACTERS * most
        while most is not None and length < len(text):
            ids = self._tokenizer.encode(text[:length], add_special_tokens=special).ids
            if len(ids) > most + _BOUNDARY:
                return ids
            length *= 2
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens))

    def unfold(self, prompt: Sequence[int]) -> Unfolding:
        """For the text of an answer to a prompt."""
        return Unfolding(self.decode, prompt[-_BEFORE:])

    def name(self, token: int) -> str:
        """One token by itself, as log-probabilities name it."""
        name = self._tokenizer.decode([token], skip_special_tokens=False)
        # At the beginning of a text some decoders drop the space.
        is_cut = (self._tokenizer.id_to_token(token) or "").startswith(_SPACE) and not name.startswith(" ")
        return f" {name}" if is_cut else name

    def bytes_of(self, token: int) -> bytes:
        """What it is of a text: of half a character its bytes."""
        name, piece = self.name(token), self._tokenizer.id_to_token(token) or ""
        if BROKEN in name:
            if byte := _BYTE.fullmatch(piece):
                return bytes.fromhex(byte[1])
            if all(letter in _OF_LETTERS for letter in piece):
                return bytes(_OF_LETTERS[letter] for letter in piece)
        return name.encode()


def _read_config(folder: Path) -> Mapping[str, Any]:
    if not (folder / TOKENIZER_CONFIG).is_file():
        return {}
    config = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        raise ValueError(f"`{TOKENIZER_CONFIG}` is not a JSON object")
    return config


def _read_end(folder: Path) -> str:
    return _text(_read_config(folder).get("eos_token"))


def read_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a folder, from its own file or from the tokenizer's configuration; None without one."""
    config = _read_config(folder)
    source = config.get("chat_template")
    if (folder / TEMPLATE).is_file():
        source = (folder / TEMPLATE).read_text(encoding="utf-8")
    if not isinstance(source, str):
        return None
    names = {name: _text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return ChatTemplate(source, names)


def _text(token: object) -> str:
    """A special token is written as text, or as an object with its text."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
