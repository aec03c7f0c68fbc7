"""Which form a model writes, told by its chat template, and the grammar of calls in that form.

A grammar is written in the language of `llguidance`, and binds the arguments to the schemas of the tools."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marina.handlers.generation.dialects import granite, hermes, llama, mistral, pythonic
from marina.handlers.generation.dialects.reading import Read
from marina.handlers.generation.dialects.reasoning import KINDS, Reasoning, as_content

# How many calls a forced answer may have.
_MOST_CALLS = 16
_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Dialect:
    """How a family calls tools. `read` takes an answer apart; `marks` are its tokens that are text to it, also if they
    are special. Calls are written with `opening` before them, `between` them and `closing` after them; a call has
    `before`, with the name for `NAME`, its arguments, and `after`."""

    read: Read
    marks: tuple[str, ...]
    opening: str
    before: str
    after: str
    between: str
    closing: str
    is_pythonic: bool = False


@dataclass(frozen=True)
class CallGrammar:
    """The grammar of an answer with calls. `special` is the id of a special token, `options` are those of JSON. With
    `reasoning` the answer begins within one; with `schema` it may be JSON as well as calls."""

    special: Callable[[str], int | None]
    options: Mapping[str, Any]
    reasoning: Reasoning | None
    schema: str | None

    def calls(
        self, dialect: Dialect, tools: Mapping[str, Mapping[str, Any] | None], *, many: bool, is_forced: bool
    ) -> str:
        """The grammar of calls of these tools, named with the schemas of their arguments."""
        rules = []
        for number, (name, schema) in enumerate(tools.items()):
            before, after = self._literal(dialect.before.replace("NAME", name)), self._literal(dialect.after)
            rules.append(f"call{number}: {before} arguments{number} {after}")
            arguments = self._keywords if dialect.is_pythonic else self._json
            rules += arguments(f"arguments{number}", schema or _OBJECT)
        more = f"({self._literal(dialect.between)} call){{0,{_MOST_CALLS - 1}}}" if many else ""
        rules.append(f"calls: {self._literal(dialect.opening)} call {more} {self._literal(dialect.closing)}")
        rules.append("call: " + " | ".join(f"call{number}" for number in range(len(tools))))
        return self._start("calls" if is_forced else "calls | json") + "\n".join([*rules, *self._schema()])

    def answer(self) -> str | None:
        """The grammar of JSON alone; just its schema if it is not after a reasoning."""
        return self.schema if self.reasoning is None else self._start("json") + "\n".join(self._schema())

    def _start(self, answer: str) -> str:
        if self.reasoning is None:
            return f"start: {answer}\n"
        end, rest = self._literal(self.reasoning.end), f"spaces answer\nspaces: /\\s*/\nanswer: {answer}\n"
        if end.startswith("<["):
            return f"start: thoughts {end} {rest}thoughts: /(.|\\n)*/\n"
        last = re.escape(self.reasoning.end).replace("/", r"\/")
        return f"start: thoughts {rest}thoughts[lazy]: /(.|\\n)*{last}/\n"

    def _schema(self) -> list[str]:
        return [] if self.schema is None else self._json("json", json.loads(self.schema))

    def _json(self, rule: str, schema: Mapping[str, Any]) -> list[str]:
        return [f"{rule}: %json {json.dumps({'x-guidance': self.options, **schema})}"]

    def _keywords(self, rule: str, schema: Mapping[str, Any]) -> list[str]:
        """The rules of arguments as Python writes them, those that are required and then any of the others."""
        named = schema.get("properties") or {}
        required = [name for name in named if name in (schema.get("required") or ())]
        order = [*required, *(name for name in named if name not in required)]
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        parts, rules = [], []
        for place, name in enumerate(order):
            separator = "" if not place else '", " ' if required else '(", ")? '
            part = f"{separator}{json.dumps(name + '=')} {rule}_{place}"
            parts.append(part if name in required else f"({part})?")
            rules += self._json(f"{rule}_{place}", {**shared, **named[name]})
        return [f"{rule}: {' '.join(parts)}" if parts else f'{rule}: ""', *rules]

    def _literal(self, text: str) -> str:
        """A text as the grammar writes it, in which the names of special tokens stand for these tokens."""
        parts = re.split(r"(<\|?/?\w+\|?>|\[/?[A-Z_]+\])", text)
        tokens = [(part, self.special(part)) for part in parts if part]
        return " ".join(json.dumps(part) if token is None else f"<[{token}]>" for part, token in tokens)


_HERMES = Dialect(
    hermes.read,
    hermes.MARKS,
    f"{hermes.BEGIN}\n",
    '{"name": "NAME", "arguments": ',
    "}",
    f"\n{hermes.END}\n{hermes.BEGIN}\n",
    f"\n{hermes.END}",
)
_MISTRAL = Dialect(mistral.read, mistral.MARKS, f"{mistral.BEGIN} [", '{"name": "NAME", "arguments": ', "}", ", ", "]")
DIALECTS = {
    "hermes": _HERMES,
    "llama": Dialect(llama.read, llama.MARKS, "", '{"name": "NAME", "parameters": ', "}", "; ", ""),
    "mistral": _MISTRAL,
    "granite": replace(_MISTRAL, read=granite.read, marks=granite.MARKS, opening=f"{granite.BEGINS[0]}["),
    "pythonic": Dialect(pythonic.read, pythonic.MARKS, "[", "NAME(", ")", ", ", "]", is_pythonic=True),
}
# What only the templates of a family have, and what they must not have.
_SIGNS: Sequence[tuple[str, str, str]] = (
    ("granite", r"<\|tool_call\|>", ""),
    ("mistral", r"\[TOOL_CALLS\]", ""),
    ("hermes", r"<tool_call>", r"<function="),
    ("pythonic", r"\[func_name1\(", ""),
    ("llama", r"<\|python_tag\|>|\"parameters\": (dictionary|')", ""),
)


@dataclass(frozen=True)
class ChatForm:
    """What a chat template tells: whether it shows tools, how its model calls them, and how it reasons."""

    source: str
    has_tools: bool
    dialect: Dialect | None
    reasoning: Reasoning | None

    @classmethod
    def of(cls, template: str, named: str = "auto") -> "ChatForm":
        """The form that a template has; `named` is the dialect if the template does not tell it, or `auto`."""
        has_tools = re.search(r"\btools\b", template) is not None
        dialect = DIALECTS.get(_told(template) if named == "auto" else named) if has_tools else None
        if dialect is not None and dialect.read is mistral.read and mistral.ARGUMENTS in template:
            begin = f"{mistral.BEGIN}NAME{mistral.ARGUMENTS}"
            dialect = replace(dialect, opening="", before=begin, after="", between="", closing="")
        reasoning = next((kind for kind in KINDS if kind.end in template), None)
        return cls(template, has_tools, dialect, reasoning)

    @property
    def marks(self) -> tuple[str, ...]:
        """The tokens that have a meaning in an answer, which are needed also if they are special."""
        marks = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        return marks if self.dialect is None else (*marks, *self.dialect.marks)

    def open_reasoning(self, prompt: str) -> Reasoning | None:
        """The reasoning within which a prompt ends."""
        return self.reasoning if self.reasoning and self.reasoning.is_open(prompt) else None

    def reading(self, *, calls: bool, prompt: str) -> Read:
        """Takes an answer to this prompt apart; without `calls` all but the reasoning is content."""
        read = self.dialect.read if calls and self.dialect else as_content
        return self.reasoning.before(read, is_open=self.reasoning.is_open(prompt)) if self.reasoning else read


def _told(template: str) -> str:
    """The dialect that a template tells; empty if it tells none."""
    found = (
        name for name, sign, never in _SIGNS if re.search(sign, template) and not (never and re.search(never, template))
    )
    return next(found, "")
