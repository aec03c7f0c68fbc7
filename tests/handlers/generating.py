"""Shared by the tests of text generation: a tokenizer of bytes, a package with the fake engine, TorchServe's rounds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from ts.context import Context, RequestProcessor

from marina.handlers.generation.handler import TextHandler

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXT = {
    "folder": "model",
    "engine": "fake",
    "context": 512,
    "slots": 2,
    "waiting": 2,
    "prefill_chunk": 64,
    "max_tokens": 256,
    "flush_ms": 0,
    "step_ms": 1,
    "speculation": "auto",
    "ends": [],
}


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """A tokenizer of single bytes: a text has as many tokens as bytes of UTF-8."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def write_text_package(folder: Path, **text: Any) -> Path:
    write_tokenizer(folder / "model")
    # Tokens: with a text the process that reads prompts would start for every test.
    sample = {"prompt": [71, 72], "max_tokens": 2}
    (folder / "sample.json").write_text(json.dumps(sample))
    record = {
        "schema": "marina.package/1",
        "name": "tales",
        "version": "1.0",
        "precision": "fp32",
        "compile": "eager",
        "device": "cpu",
        "threads": 1,
        "image": None,
        "inputs": [],
        "outputs": [],
        "labels": None,
        "max_request_bytes": 100_000,
        "sample": {"file": "sample.json", "content_type": "application/json"},
        "key": {},
        "artifacts": [],
        "program": None,
        "cache": None,
        "batch_sizes": [],
        "text": TEXT | text,
    }
    (folder / "marina.json").write_text(json.dumps(record))
    return folder


class Rounds:
    """Plays TorchServe's part in continuous batching: each round names the requests that are still open."""

    def __init__(self, handler: Any, directory: Path) -> None:
        self.handler, self.directory = handler, directory
        self.open: list[str] = []
        # The open requests that have not been sent anything yet, not even a status.
        self.unanswered: set[str] = set()
        self.bodies: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.headers: dict[str, Mapping[str, str]] = {}

    def round(self, new: Mapping[str, tuple[Any, Mapping[str, str]]] | None = None, left: Sequence[str] = ()) -> None:
        self.open = [each for each in self.open if each not in left]
        fresh = dict(new or {})
        names = [*self.open, *fresh]
        context = Context("tales", str(self.directory), {}, 8, None, "0.12.0")
        context.request_ids = dict(enumerate(names))
        context.request_processor = [RequestProcessor(dict(fresh[name][1]) if name in fresh else {}) for name in names]
        rows = [{"body": fresh[name][0]} if name in fresh and fresh[name][0] is not None else {} for name in names]
        answers = self.handler.handle(rows, context)
        assert len(answers) == len(names)
        self.open += fresh
        self.unanswered = self.unanswered & set(names) | set(fresh)
        for index, name in context.request_ids.items():
            body = answers[index]
            is_last = context.stopping_criteria[index](body)
            assert not (is_last and name in self.unanswered), "TorchServe would never answer"
            self.bodies[name] = self.bodies.get(name, b"") + body
            if name in self.unanswered:
                self.status[name] = context.get_response_status(index)[0]
                self.headers[name] = dict(context.get_response_headers(index))
                self.unanswered.remove(name)
            if is_last is not False:
                self.open.remove(name)

    def close(self) -> None:
        for part in (self.handler.loop, self.handler.grammars, self.handler.prompts):
            part.close()

    def begin(self, new: Mapping[str, tuple[Any, Mapping[str, str]]]) -> None:
        """Opens requests, with as many rounds as it takes until each has a status."""
        self.round(new)
        while self.unanswered & set(new):
            self.round()

    def ask(self, path: str, body: object, **headers: str) -> bytes:
        """Runs a single request from its first round to its last."""
        name = f"request-{len(self.bodies)}"
        raw = bytearray(body if isinstance(body, bytes) else json.dumps(body).encode())
        self.round({name: (raw, {"url_path": path, "content-type": "application/json"} | headers)})
        while name in self.open:
            self.round()
        self.last = name
        return self.bodies[name]


@contextmanager
def serving(folder: Path) -> Iterator[Rounds]:
    """The handler of this package; it is closed at the end of the block."""
    handler = TextHandler()
    handler.initialize(Context("tales", str(folder), {}, 8, None, "0.12.0"))
    rounds = Rounds(handler, folder)
    try:
        yield rounds
    finally:
        rounds.close()


def events(body: bytes) -> list[Any]:
    """The events of a stream, parsed, except for `[DONE]`, which stays a string."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    texts = [part.removeprefix("data: ") for part in parts]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]
