"""A model's tokenizer: text to tokens, and tokens to text that can be sent, without half characters and without what
may become a stop string."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

# What a decoder writes for bytes that are not a character, or not yet.
REPLACEMENT = "�"
# An incomplete character has at most three bytes, so at most three tokens and three of the marks above.
_MAX_INCOMPLETE = 3
# Tokens without text, such as end tokens, and bytes of no character can go on for a whole answer. After `_MOST`, only
# the last `_KEPT` are kept, or each further token would take longer.
_MOST, _KEPT = 64, 16

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
DECODED_TOGETHER = 5
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
        added = self._tokenizer.get_added_tokens_decoder()
        names = sorted(re.escape(token.content) for token in added.values() if token.special and len(token.content) > 1)
        self._special = re.compile("|".join(names)) if names else None
        self._special_ids = {token.content: at for at, token in added.items() if token.special}
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
            # Up to the next special token it goes on with the text before it, so that no space belongs between them.
            found = self._special.search(part) if self._special else None
            place = found.start() if found else len(part)
            ids += self._continuing.encode(part[:place], add_special_tokens=False).ids
            ids += self._tokenizer.encode(part[place:], add_special_tokens=False).ids
        return ids

    @cached_property
    def _continuing(self) -> Tokenizer:
        """The same tokenizer, but it writes no space before a text."""
        file = json.loads(self._tokenizer.to_str())
        for stage in ("normalizer", "pre_tokenizer"):
            file[stage] = _without_prefix(file[stage])
        return Tokenizer.from_str(json.dumps(file))

    def divide_special(self, text: str) -> str:
        """The same text, but `encode` makes no special tokens of it where it has their names: it stays text."""
        # Names may overlap, so that more of them are found when one is divided.
        while self._special and (names := set(self._special.findall(text))):
            for name in names:
                text = text.replace(name, name[0] + _DIVISION + name[1:])
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens))

    def decoder(self, marks: Collection[str]) -> Callable[[Sequence[int]], str]:
        """Decodes tokens; of the special ones only `marks` are text."""
        ids = {name: at for name, at in self._special_ids.items() if name in marks}
        if not ids:
            return self.decode
        left_out = set(self._special_ids.values()) - set(ids.values())

        def decode(tokens: Sequence[int]) -> str:
            return self._tokenizer.decode([at for at in tokens if at not in left_out], skip_special_tokens=False)

        return decode

    def special_id(self, name: str) -> int | None:
        """The special token of this name; None if there is none."""
        return self._special_ids.get(name)

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


def _without_prefix(step: Any) -> Any:
    """A step of a tokenizer, or a sequence of them, that adds nothing before a text; None if it does nothing else."""
    if not isinstance(step, dict) or step.get("type") == "Prepend":
        return None
    for name in ("normalizers", "pretokenizers"):
        if name in step:
            step[name] = [each for each in map(_without_prefix, step[name]) if each is not None]
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    return step | {name: value for name, value in changes.items() if name in step}


def _read_config(folder: Path) -> Mapping[str, Any]:
    if not (folder / TOKENIZER_CONFIG).is_file():
        return {}
    config = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        raise ValueError(f"`{TOKENIZER_CONFIG}` is not a JSON object")
    return config


def template_source(folder: Path) -> str | None:
    """The chat template of a folder, from its own file or else from the tokenizer's configuration; None without one."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    source = _read_config(folder).get("chat_template")
    if isinstance(source, list):
        # Several, by their names, such as one for tools.
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def special_names(folder: Path) -> dict[str, str]:
    """The special tokens that a template may name."""
    config = _read_config(folder)
    return {name: text for name in _SPECIAL if (text := _text(config.get(name)))}


def _text(token: object) -> str:
    """The text of a special token, which is written as text or as an object; empty if there is none."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


class Detokenizer:
    """Decodes a growing list of tokens, and holds text back while its last character is incomplete.

    Tokens are decoded together with the tokens before them, because a decoder may add or drop a space between words.
    So the first tokens of an answer are decoded together with the last ones of its prompt, `before`."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        # If the prompt ends with half a character, the answer completes it, and the character belongs to the answer.
        self._tokens = [] if decode(before).endswith(REPLACEMENT) else list(before)
        # Of the text of `_tokens`, the first `_returned` characters were returned. The first `_done` tokens are only
        # context: all their text was returned.
        self._returned = len(decode(self._tokens))
        self._done = len(self._tokens)

    def feed(self, token: int) -> str:
        """Adds one token; returns the text that it completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(REPLACEMENT) and len(self._tokens) - self._done <= _MAX_INCOMPLETE:
            return ""
        # After more tokens than that, some of the bytes are not part of a character: only the last ones are held back.
        whole = len(text) - min(_MAX_INCOMPLETE, len(text) - len(text.rstrip(REPLACEMENT)))
        new = text[self._returned : whole]
        self._returned = max(self._returned, whole)
        if new and whole == len(text):
            # A character ends here, so the tokens before `_done` are not needed as context any longer.
            del self._tokens[: self._done]
            self._done, self._returned = len(self._tokens), len(self._decode(self._tokens))
        elif len(self._tokens) > _MOST:
            del self._tokens[:-_KEPT]
            self._done, self._returned = 0, len(self._decode(self._tokens)) - (len(text) - whole)
        return new

    def flush(self) -> str:
        """The text that was held back, complete or not."""
        text = self._decode(self._tokens)
        new, self._returned = text[self._returned :], len(text)
        return new


class StopFinder:
    """Finds the first stop string in text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Adds text; returns what cannot be part of a stop string, or is before one, and whether one was found."""
        if not self._stops:
            return text, False
        whole = self._held + text
        places = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self._held = ""
            return whole[: min(places)], True
        end = len(whole) - self._stop_beginning(whole)
        self._held = whole[end:]
        return whole[:end], False

    def flush(self) -> str:
        """The text that was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _stop_beginning(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = max(map(len, self._stops)) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((at for at in lengths if any(stop.startswith(text[-at:]) for stop in self._stops)), 0)
