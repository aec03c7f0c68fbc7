"""From a text or a conversation to the tokens of a prompt, in a process of its own: this module, run as a program."""

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marina.handlers.generation.limited import LONGEST_S, LimitedProcess, TookTooMuch, limited, serve
from marina.handlers.generation.tokenizer import ModelTokenizer, special_names, template_source

# The messages of a conversation: each has its role, its content, and what else its role has.
Messages: TypeAlias = list[dict[str, Any]]
# Memory for one conversation's template, in bytes.
_MEMORY = 128 << 20
# What each message adds to the time for it: some templates take eight milliseconds on an old processor.
_MESSAGE_S = 0.03
_DEVELOPER = "developer"


class TemplateRefused(Exception):
    """The template refuses these messages, or any: then it `is_broken`. `reason` is what its packager may read, too."""

    def __init__(self, message: str, reason: str | None = None, *, is_broken: bool = False) -> None:
        super().__init__(message)
        self.reason, self.is_broken = reason or message, is_broken


@dataclass(frozen=True)
class Conversation:
    """What a chat template makes a prompt of: messages, the tools that may be called, and its own variables."""

    messages: Messages
    tools: list[dict[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PendingPrompt:
    """A prompt that becomes tokens."""

    tokens: Future[list[Any]]

    @property
    def is_ready(self) -> bool:
        return self.tokens.done()

    def cancel(self) -> None:
        """Its client has left: it is not read any longer if it still waits."""
        self.tokens.cancel()


class Prompts:
    """Makes tokens of prompts with a model's tokenizer and template, one after the other. Of a prompt with more than
    `limit` tokens only the beginning may be encoded: still more than `limit`."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._process = LimitedProcess(__name__, str(folder), str(limit))
        self._thread = ThreadPoolExecutor(1, "prompts")

    def begin(self, prompt: str | list[str] | Conversation, when_ready: Callable[[], None]) -> PendingPrompt:
        """Starts with a prompt; calls `when_ready` when it is tokens or was refused."""
        future = self._thread.submit(self.read, prompt)
        future.add_done_callback(lambda _: when_ready())
        return PendingPrompt(future)

    def read(self, prompt: str | list[str] | Conversation) -> list[Any]:
        """The tokens of a prompt, or those of each of several prompts; raises TemplateRefused."""
        try:
            answer = self._process.ask(prompt)
        except TookTooMuch as err:
            raise TemplateRefused("the chat template takes too much time or memory for these messages") from err
        if isinstance(answer, dict):
            raise TemplateRefused(**answer)
        tokens: list[Any] = answer
        return tokens

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._process.close()


class ChatTemplate:
    """A chat template as `transformers` uses them. It is a program that comes with a model, so it runs in a sandbox."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        self._special = dict(special)
        # Templates from before OpenAI's new name for `system` would leave out such a message, and say nothing.
        self._names_developer = _DEVELOPER in source
        try:
            self._template = environment.from_string(source)
        except (TemplateError, SyntaxError, RecursionError) as err:
            raise TemplateRefused(f"the chat template cannot be read: {err}", is_broken=True) from err

    @cached_property
    def reads_parts(self) -> bool:
        """Whether it takes a content in parts, and not only as one text."""
        parts = [{"type": "text", "text": text} for text in ("first part", "second part")]
        try:
            text = self.render([{"role": "user", "content": parts}])
        except TemplateRefused:
            return False
        return "first part" in text and "second part" in text and "'type'" not in text and '"type"' not in text

    def render(
        self, messages: Messages, tools: object = None, variables: Mapping[str, Any] = MappingProxyType({})
    ) -> str:
        """The prompt of a conversation, up to where the assistant's answer begins."""
        # Templates test `tools is not none`, so these must not be undefined.
        given = {**variables, "tools": tools, "documents": None, **self._special}
        if not self._names_developer:
            names = {_DEVELOPER: "system"}
            messages = [{**message, "role": names.get(message["role"], message["role"])} for message in messages]
        try:
            return self._template.render(given, messages=messages, add_generation_prompt=True)
        except (MemoryError, TemplateRefused):
            raise
        except (TemplateError, RecursionError) as err:
            raise TemplateRefused(str(err) or type(err).__name__) from err
        except Exception as err:  # a template may raise anything
            raise TemplateRefused("the chat template cannot render these messages", str(err)) from err


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own, which remembers what may be read: that depends on the type and the name alone, and to find it out
    takes longer than all the rest of a template."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        safe = self._safe.get(key := (type(obj), attr))
        if safe is None:
            safe = self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return safe


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for a training: it is written as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise(message: str) -> None:
    raise TemplateRefused(str(message))


class _PromptReader:
    """What the process does."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._tokenizer = ModelTokenizer(folder)
        self._template: ChatTemplate | None = None

    def read(self, prompt: str | list[str] | dict[str, Any]) -> list[Any] | dict[str, Any]:
        """The tokens, or the arguments of TemplateRefused."""
        if isinstance(prompt, list):
            return [self._tokenizer.encode(each, limit=self._limit) for each in prompt]
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, limit=self._limit)
        try:
            with limited(_MEMORY, LONGEST_S + _MESSAGE_S * len(prompt["messages"])):
                template = self._read_template()
                for message in prompt["messages"]:
                    if isinstance(message["content"], list) and not template.reads_parts:
                        message["content"] = "\n".join(part["text"] for part in message["content"])
                # Or else a message could end its turn and begin another one, as the system's.
                text = template.render(*map(self._divided, (prompt["messages"], prompt["tools"], prompt["variables"])))
        except TemplateRefused as err:
            # The template may repeat a divided text.
            message, reason = (text.encode(errors="ignore").decode()[:300] for text in (str(err), err.reason))
            return {"message": message, "reason": reason, "is_broken": err.is_broken}
        return self._tokenizer.encode(text, special=False, limit=self._limit)

    def _divided(self, value: Any) -> Any:
        """The same value, of whose texts no special tokens are made."""
        if isinstance(value, str):
            return self._tokenizer.divide_special(value)
        if isinstance(value, list):
            return [self._divided(item) for item in value]
        if isinstance(value, dict):
            return {self._divided(name): self._divided(item) for name, item in value.items()}
        return value

    def _read_template(self) -> ChatTemplate:
        """Here and not before, because to read one may take too much, too."""
        if self._template is None:
            self._template = ChatTemplate(template_source(self._folder) or "", special_names(self._folder))
        return self._template


if __name__ == "__main__":
    serve(_PromptReader(Path(sys.argv[1]), int(sys.argv[2])).read)
