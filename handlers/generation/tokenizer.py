"""A model's tokenizer and its chat template, read from the package."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from marina.handlers.generation.detokenizer import REPLACEMENT, Detokenizer
from marina.handlers.generation.template import ChatTemplate

TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
# How SentencePiece tokenizers write a space, and a single byte.
_SPACE, _BYTE = "▁", re.compile("<0x([0-9A-F]{2})>")
# Byte-level tokenizers have a letter for each byte: the byte itself if it can be printed, else one from 256 on.
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
_BYTES_OF_LETTERS = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + place): byte for place, byte in enumerate(_HIDDEN)
}

# How many of a prompt's last tokens an answer is decoded with, to see whether a space belongs between them.
_CONTEXT = 5
# Few tokens have more characters than this.
_CHARACTERS = 8
# Where a text was cut, the last tokens may differ from those of the whole text.
_BOUNDARY = 64
# Stands where a special token's name is divided. No text of a client has it, because it is half a character.
_DIVISION = "\udfff"


class ModelTokenizer:
    """Turns text into tokens and back."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as err:  # the library raises nothing narrower
            raise ValueError(f"`{TOKENIZER}` cannot be read: {err}") from err
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _read_config(folder)
        self._mark_special(config)
        self.count = self._tokenizer.get_vocab_size()
        self.longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        """How many characters the longest token has."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        names = sorted(re.escape(token.content) for token in added if token.special and len(token.content) > 1)
        self._special = re.compile("|".join(names)) if names else None
        self.template = _read_template(folder)
        self._end = _text(config.get("eos_token"))

    def _mark_special(self, config: Mapping[str, Any]) -> None:
        """Makes the tokens special that the tokenizer's configuration names, as `transformers` does, too."""
        added = {token.content: token for token in self._tokenizer.get_added_tokens_decoder().values()}
        listed = config.get("added_tokens_decoder")
        names = [_text(token) for token in listed.values()] if isinstance(listed, Mapping) else []
        self.missing = [name for name in names if name and self._tokenizer.token_to_id(name) is None]
        """Tokens of the configuration that are not in the tokenizer's own file; `transformers` adds them."""
        for name in (_text(config.get(role)) for role in _SPECIAL):
            if self._tokenizer.token_to_id(name) is not None:
                token = added.get(name, AddedToken(name))
                token.special = True
                self._tokenizer.add_special_tokens([token])

    @property
    def end(self) -> int | None:
        """The end token that the tokenizer's configuration names; None without."""
        return self._tokenizer.token_to_id(self._end) if self._end else None

    def has(self, token: int) -> bool:
        return self._tokenizer.id_to_token(token) is not None

    def encode(self, text: str, *, special: bool = True, limit: int | None = None) -> list[int]:
        """The tokens of a text. `special` adds the tokens that every text begins with, which a chat template writes
        itself. Of a text with more than `limit` tokens, only the beginning may be encoded: still more than `limit`."""
        # To encode megabytes takes seconds, during which all streams would stand still.
        length = len(text) if limit is None else _CHARACTERS * limit
        while limit is not None and length < len(text):
            ids = self._encode(text[:length], special)
            if len(ids) > limit + _BOUNDARY:
                return ids
            length *= 2
        return self._encode(text, special)

    def _encode(self, text: str, special: bool) -> list[int]:
        begin, *parts = text.split(_DIVISION)
        ids: list[int] = self._tokenizer.encode(begin, add_special_tokens=special).ids
        for part in parts:
            ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def divide_special(self, text: str) -> str:
        """The same text, but `encode` makes no special tokens of it where it has their names: it stays text."""
        # Names may overlap, so that more of them are found when one is divided.
        while self._special and (names := set(self._special.findall(text))):
            for name in names:
                text = text.replace(name, name[0] + _DIVISION + name[1:])
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens))

    def make_detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Makes the detokenizer of one answer to this prompt."""
        return Detokenizer(self.decode, prompt[-_CONTEXT:])

    def name(self, token: int) -> str:
        """The text of a single token, as log-probabilities name it."""
        name = self._tokenizer.decode([token], skip_special_tokens=False)
        # Some decoders drop the space at the beginning of a text.
        is_cut = (self._tokenizer.id_to_token(token) or "").startswith(_SPACE) and not name.startswith(" ")
        return f" {name}" if is_cut else name

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token's text, also if it is a part of a character."""
        name, piece = self.name(token), self._tokenizer.id_to_token(token) or ""
        if REPLACEMENT in name:
            if byte := _BYTE.fullmatch(piece):
                return bytes.fromhex(byte[1])
            if all(letter in _BYTES_OF_LETTERS for letter in piece):
                return bytes(_BYTES_OF_LETTERS[letter] for letter in piece)
        return name.encode()


def _read_config(folder: Path) -> Mapping[str, Any]:
    if not (folder / TOKENIZER_CONFIG).is_file():
        return {}
    config = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        raise ValueError(f"`{TOKENIZER_CONFIG}` is not a JSON object")
    return config


def _read_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a folder, from its own file or else from the tokenizer's configuration; None without one."""
    config = _read_config(folder)
    source = config.get("chat_template")
    if isinstance(source, list):
        # Several, by their names, such as one for tools.
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
        source = named.get("default")
    if (folder / TEMPLATE).is_file():
        source = (folder / TEMPLATE).read_text(encoding="utf-8")
    if not isinstance(source, str):
        return None
    special = {name: _text(config.get(name)) for name in _SPECIAL}
    return ChatTemplate(source, {name: text for name, text in special.items() if text})


def _text(token: object) -> str:
    """The text of a special token, which is written as text or as an object; empty if there is none."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
