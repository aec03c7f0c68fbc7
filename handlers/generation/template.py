"""Chat templates: programs that come with a model's files, so they run where they can reach nothing, and in bounds."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST_SOURCE = 100_000
# Of a prompt made of messages, characters.
LONGEST_TEXT = 4_000_000
# Lines of Python that a template may run for one conversation, its own and those of what it calls.
_MOST_LINES = 1_000_000


class TemplateRefused(Exception):
    """The template does not take these messages, or is none that can be run."""


class ChatTemplate:
    """A template of `transformers`' kind."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        if len(source) > LONGEST_SOURCE:
            raise TemplateRefused(f"the chat template has {len(source)} characters, allowed: {LONGEST_SOURCE}")
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: date.today().strftime(form)
        self._special = dict(special)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as err:
            raise TemplateRefused(f"the chat template cannot be read: {err}") from err

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a conversation, up to where the assistant speaks."""
        before = sys.gettrace()
        sys.settrace(_Bound().trace)
        try:
            prompt = self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except (TemplateError, SecurityError, OverflowError, MemoryError, RecursionError) as err:
            raise TemplateRefused(str(err) or type(err).__name__) from err
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as err:
            raise TemplateRefused("the chat template does not take these messages") from err
        finally:
            sys.settrace(before)
        if len(prompt) > LONGEST_TEXT:
            raise TemplateRefused("the chat template makes too long a prompt of these messages")
        return prompt


class _Bound:
    """Counts the lines that run, so that a loop without an end has one."""

    def __init__(self) -> None:
        self._lines = 0

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines += 1
            if self._lines > _MOST_LINES:
                raise TemplateRefused("the chat template takes too long for these messages")
        return self.trace


class _Environment(ImmutableSandboxedEnvironment):
    """Without the ways to take memory or time in one operation: powers, repetitions, formats, ever longer texts."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"`{operator}` is not for templates")
        if operator == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise SecurityError("text and lists cannot be repeated in templates")
        if operator == "+" and isinstance(left, str) and isinstance(right, str) and len(left + right) > LONGEST_TEXT:
            raise SecurityError("the text becomes too long")
        return super().call_binop(context, operator, left, right)


def _raise(message: str) -> None:
    raise TemplateRefused(message)
