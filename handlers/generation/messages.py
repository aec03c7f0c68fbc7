"""The messages of a conversation, the tools that may be called in it, and the variables of its template."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from marina.handlers.generation.dialects.choosing import ChatForm
from marina.handlers.generation.prompts import Messages
from marina.handlers.generation.refusals import RequestRefused, as_json, quote_choice, wrong_value
from marina.handlers.generation.response_format import read_object_schema
from marina.handlers.generation.values import check_keys, check_unicode, read_flag

MAX_MESSAGES, MAX_TOOLS = 1000, 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What each role's message may have beside its role and its content.
_ROLES: dict[str, set[str]] = {
    "assistant": {"name", "tool_calls", "reasoning_content", "reasoning"},
    "developer": {"name"},
    "system": {"name"},
    "tool": {"name", "tool_call_id"},
    "user": {"name"},
}
# OpenAI's server and clients add these to an assistant's message, and clients send it back like that: lists, accepted
# if they are empty, and the text as the JavaScript client has parsed it, which may have any value.
_EMPTY, _PARSED = "annotations", "parsed"
# The variables of templates that the body itself decides.
_OWN_VARIABLES = {"messages", "tools", "documents", "add_generation_prompt"}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def read_messages(messages: object) -> Messages:
    """A conversation's messages, as a chat template gets them."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise wrong_value("messages", messages, f"a list of 1 to {MAX_MESSAGES} messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise wrong_value(where, message, "an object with `role` and `content`")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        allowed = ", ".join(f"`{role}`" for role in _ROLES)
        raise RequestRefused(f"`{where}.role`: got {quote_choice(role)}, allowed: {allowed}", param=where)
    read: dict[str, Any] = {"role": role}
    for name, value in message.items():
        if value is None or name in ("role", "content"):
            continue
        if role == "assistant" and (name == _PARSED or (name == _EMPTY and value == [])):
            continue
        if name not in _ROLES[role]:
            raise RequestRefused(
                f"`{where}.{str(name)[:80]}` is not supported", param=where, code="unsupported_parameter"
            )
        if name == "tool_calls":
            read |= {name: _calls(value, f"{where}.{name}", where)} if value else {}
        elif not isinstance(value, str):
            raise wrong_value(f"{where}.{name}", value, "a text", param=where)
        else:
            read["reasoning_content" if name == "reasoning" else name] = check_unicode(value, where)
    content = message.get("content")
    if content is None and "tool_calls" in read:
        content = ""
    return {"role": role, "content": _content(content, where), **read}


def _content(content: object, where: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return check_unicode(content, where)
    if not isinstance(content, list) or not all(map(_is_text, content)):
        raise wrong_value(f"{where}.content", content, "a text, or parts of type `text`", param=where)
    return [{"type": "text", "text": check_unicode(part["text"], where)} for part in content]


def _is_text(part: object) -> bool:
    """Whether a part of a message is plain text, without further fields."""
    return (
        isinstance(part, Mapping)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _calls(calls: object, where: str, message: str) -> list[dict[str, Any]]:
    """An assistant's calls, with their arguments as values, as templates write them."""
    if not isinstance(calls, list) or len(calls) > MAX_TOOLS:
        raise wrong_value(where, calls, f"a list of up to {MAX_TOOLS} calls", param=message)
    return [_call(call, f"{where}[{index}]", message) for index, call in enumerate(calls)]


def _call(call: object, where: str, message: str) -> dict[str, Any]:
    allowed = "an object with `id`, `type` and `function`"
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise wrong_value(where, call, allowed, param=message)
    name, text = function.get("name"), function.get("arguments") or "{}"
    identity, kind = call.get("id", ""), call.get("type", "function")
    if not isinstance(name, str) or not isinstance(identity, str) or kind != "function":
        raise wrong_value(where, call, allowed, param=message)
    try:
        arguments = orjson.loads(text) if isinstance(text, str) else text
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise wrong_value(f"{where}.function.arguments", text, "an object as a text of JSON", param=message)
    return {
        "id": identity,
        "type": "function",
        "function": {"name": check_unicode(name, where), "arguments": arguments},
    }


def count_characters(value: object) -> int:
    """How many characters a prompt has at least that contains all texts of a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(count_characters(item) for item in value.values())
    return sum(map(count_characters, value)) if isinstance(value, list) else 0


@dataclass(frozen=True)
class Tools:
    """The tools that a model may call, and whether it has to: any of them or `named`; `many` in one answer or one."""

    shown: list[dict[str, Any]]
    choice: Literal["auto", "required"] = "auto"
    named: str | None = None
    many: bool = True

    @property
    def schemas(self) -> dict[str, Mapping[str, Any] | None]:
        """The schemas of the arguments of the tools that may be called."""
        functions = [tool["function"] for tool in self.shown]
        return {each["name"]: each.get("parameters") for each in functions if self.named in (None, each["name"])}


def read_tools(given: Mapping[str, Any], form: ChatForm) -> Tools | None:
    """The request's tools; None without any, or if none may be called."""
    tools, choice = given.get("tools") or [], given.get("tool_choice", "auto")
    many = read_flag(given, "parallel_tool_calls", default=True)
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise wrong_value("tools", tools, f"a list of up to {MAX_TOOLS} tools")
    shown = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in shown]
    if len(set(names)) < len(names):
        raise RequestRefused("`tools`: two of them have the same name", param="tools")
    named = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if isinstance(named, Mapping) and named.get("name") in names:
        return _callable(Tools(shown, "required", str(named["name"]), many=False), form)
    if choice not in ("none", "auto", "required") or (choice == "required" and not shown):
        text = '`none`, `auto`, `required`, or {"type": "function", "function": {"name": …}} with the name of a tool'
        raise RequestRefused(f"`tool_choice`: got {quote_choice(choice)}, allowed: {text}", param="tool_choice")
    if choice == "none" or not shown:
        return None
    return _callable(Tools(shown, choice, many=many), form)


def _callable(tools: Tools, form: ChatForm) -> Tools:
    if form.dialect is None:
        how = "in a form that is not known, so the package has to name it as `text.tools`" if form.has_tools else "none"
        text = f"`tools` is not supported: this model's chat template shows {how}"
        raise RequestRefused(text, param="tools", code="unsupported_parameter")
    if tools.choice == "required":
        for name, schema in tools.schemas.items():
            where = f"tools[{[each['function']['name'] for each in tools.shown].index(name)}].function.parameters"
            read_object_schema(schema or {}, where)
    return tools


def _tool(tool: object, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise wrong_value(where, tool, "an object with `type`: `function` and `function`", param="tools")
    check_keys(tool, {"type", "function"}, where)
    check_keys(function, {"name", "description", "parameters", "strict"}, f"{where}.function")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong_value(f"{where}.function.name", name, "1 to 64 letters, digits, `_`, `.` and `-`", param="tools")
    if not isinstance(function.get("description") or "", str):
        raise wrong_value(f"{where}.function.description", function["description"], "a text", param="tools")
    if schema is not None and not isinstance(schema, Mapping):
        raise wrong_value(f"{where}.function.parameters", schema, "a JSON schema of an object", param="tools")
    read_flag(function, "strict", f"{where}.function")
    shown = {key: value for key, value in function.items() if key != "strict" and value is not None}
    try:
        orjson.dumps(shown)
    except TypeError as err:
        text = f"`{where}`: it is nested too deeply, or a text in it is not valid Unicode"
        raise RequestRefused(text, param="tools") from err
    return {"type": "function", "function": shown}


def read_variables(given: Mapping[str, Any], form: ChatForm) -> dict[str, Any]:
    """The variables of the chat template that a request sets: its own, and how much the model reasons."""
    variables = given.get("chat_template_kwargs", {})
    if not isinstance(variables, Mapping) or _OWN_VARIABLES & variables.keys():
        text = (
            f"an object with variables of the template, not {', '.join(f'`{name}`' for name in sorted(_OWN_VARIABLES))}"
        )
        raise wrong_value("chat_template_kwargs", variables, text)
    try:
        own: dict[str, Any] = json.loads(as_json(variables))
    except TypeError as err:
        raise RequestRefused("`chat_template_kwargs`: it is nested too deeply", param="chat_template_kwargs") from err
    if (effort := given.get("reasoning_effort")) is None:
        return own
    if effort not in _EFFORTS:
        allowed = ", ".join(f"`{each}`" for each in _EFFORTS)
        raise RequestRefused(
            f"`reasoning_effort`: got {quote_choice(effort)}, allowed: {allowed}", param="reasoning_effort"
        )
    if "reasoning_effort" in form.source:
        return {"reasoning_effort": effort, **own}
    if "enable_thinking" in form.source:
        # It reasons, or it does not.
        return {"enable_thinking": effort != "none", **own}
    if effort == "none" and form.reasoning is None:
        return own
    text = "`reasoning_effort` is not supported: this model's chat template does not know it"
    raise RequestRefused(text, param="reasoning_effort", code="unsupported_parameter")
