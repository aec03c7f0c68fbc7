"""OpenAI's requests, checked: what of them is understood becomes a wish, everything else is refused by its name.

A parameter that would change the answer and is not supported is never ignored; it may be sent with the value that
changes nothing, as clients do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from handlers.generation.engine import Sampling
from handlers.generation.grammars import read_schema
from handlers.generation.refusals import Refused, as_json, in_few_words, named, unfit
from handlers.generation.template import TemplateRefused
from handlers.generation.tokens import Tokens

Form = Literal["chat", "completion"]

# Parameters with the only values that are taken, because they ask for nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_ONLY: dict[Form, dict[str, tuple[object, ...]]] = {
    "completion": {"best_of": (1,), "echo": (False,), "suffix": ("",)},
    "chat": {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "modalities": (["text"],),
    },
}
_OF_EVERY_FORM = (
    *("model", "user", "metadata", "stream", "stream_options", "max_tokens", "stop", "seed"),
    *("response_format", "ignore_eos"),
)
_TAKEN: dict[Form, tuple[str, ...]] = {
    "completion": (*_OF_EVERY_FORM, "prompt", "temperature", "top_p", "top_k", "logprobs"),
    "chat": (
        *(*_OF_EVERY_FORM, "messages", "temperature", "top_p", "top_k", "logprobs", "top_logprobs"),
        "max_completion_tokens",
    ),
}
_MOST_STOPS, _LONGEST_STOP, _MOST_MESSAGES = 4, 200, 1000
_MOST_LOGPROBS: dict[Form, int] = {"completion": 5, "chat": 20}
_STREAM_OPTIONS = {"include_usage", "include_obfuscation", "continuous_usage_stats"}
_ROLES = ("assistant", "developer", "system", "user")
# OpenAI's answers and clients add these to the message of an assistant, and clients send it back as it is: lists of
# nothing, and what the client for JavaScript has made of the text.
_EMPTY, _MADE_OF_TEXT = ("annotations", "tool_calls"), "parsed"


@dataclass(frozen=True)
class Asked:
    """A request of OpenAI's, checked and in tokens; with `usage_so_far` every event has it; `schema` is what its answer
    has to match, as JSON's text."""

    form: Form
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    with_logprobs: bool
    usage_so_far: bool = False
    schema: str | None = None


@dataclass(frozen=True)
class Limits:
    """What this server gives at most; `vocabulary` is how many tokens have weights, where that is known."""

    model: str
    context: int
    max_tokens: int
    vocabulary: int | None = None


def read_asked(body: object, form: Form, tokens: Tokens, limits: Limits) -> Asked:
    """The request, or Refused with the parameter's name."""
    if not isinstance(body, Mapping):
        raise Refused(f"the body: got {in_few_words(body)}, allowed: an object")
    # What is null is not there: clients send it for what they were not told.
    given = {str(name): value for name, value in body.items() if value is not None}
    _check_names(given, form)
    check_model(given.get("model", limits.model), limits.model)
    _check_notes(given)
    prompt = _prompt(given, form, tokens, limits)
    max_tokens = _max_tokens(given, form, limits, len(prompt))
    stream = _flag(given, "stream")
    with_logprobs, logprobs = _logprobs(given, form)
    schema = read_schema(given.get("response_format"))
    ignore_eos = _flag(given, "ignore_eos")
    if ignore_eos and schema is not None:
        text = "`ignore_eos`: an answer that matches a schema ends with it, allowed: false beside `response_format`"
        raise Refused(text, param="ignore_eos")
    sampling = Sampling(
        temperature=_number(given, "temperature", 1.0, 0, 2),
        top_p=_number(given, "top_p", 1.0, 0, 1),
        top_k=_whole(given, "top_k", 0, 0, 1_000_000),
        seed=_whole(given, "seed", None, -(2**63), 2**63 - 1),
        logprobs=logprobs if with_logprobs else None,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
    )
    usage, so_far = _stream_options(given, stream)
    return Asked(form, prompt, max_tokens, sampling, _stop(given), stream, usage, with_logprobs, so_far, schema)


def check_model(given: object, served: str) -> None:
    """Refused where another model is asked for than the one that is served."""
    if given != served:
        text = f"the model {named(given)} does not exist, allowed: `{served}`"
        raise Refused(text, param="model", code="model_not_found", status=404)


def _check_names(given: Mapping[str, Any], form: Form) -> None:
    neutral = _NEUTRAL | _ONLY[form]
    for name, value in given.items():
        if name in neutral:
            if not any(type(value) is type(allowed) and value == allowed for allowed in _as_given(neutral[name])):
                only = " or ".join(f"`{as_json(allowed)}`" for allowed in neutral[name])
                got = named(value) if isinstance(neutral[name][0], str) else in_few_words(value)
                text = f"`{name}` is not supported: got {got}, allowed: {only}"
                raise Refused(text, param=name, code="unsupported_parameter")
        elif name not in _TAKEN[form]:
            raise Refused(f"`{name[:80]}` is not supported", param=name[:80], code="unsupported_parameter")


def _check_notes(given: Mapping[str, Any]) -> None:
    """What nobody reads has a type, too."""
    if not isinstance(user := given.get("user", ""), str):
        raise unfit("user", user, "a text")
    if not isinstance(metadata := given.get("metadata", {}), Mapping):
        raise unfit("metadata", metadata, "an object")


def _as_given(values: tuple[object, ...]) -> tuple[object, ...]:
    """A whole number may be written with a point."""
    floats = tuple(float(value) for value in values if type(value) is int)
    return (*values, *floats)


def _prompt(given: Mapping[str, Any], form: Form, tokens: Tokens, limits: Limits) -> tuple[int, ...]:
    read, param = (_conversation, "messages") if form == "chat" else (_text, "prompt")
    prompt = read(given.get(param), tokens, limits.context)
    if not prompt:
        raise Refused("the prompt has no tokens", param=param)
    if limits.vocabulary is not None and (highest := max(prompt)) >= limits.vocabulary:
        # Tokenizers may know more than their models, which nobody has taught what that means.
        text = f"the prompt has the token {highest}, the model knows those from 0 to {limits.vocabulary - 1}"
        raise Refused(text, param=param)
    return tuple(prompt)


def _text(prompt: object, tokens: Tokens, most: int) -> list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokens.encode(_legible(prompt, "prompt"), most=most)
    allowed = f"a text, or a list of tokens from 0 to {tokens.count - 1}"
    if not isinstance(prompt, list):
        raise unfit("prompt", prompt, allowed)
    wrong = next((place for place, token in enumerate(prompt) if not _is_token(token, tokens.count)), None)
    if wrong is None:
        return prompt
    if isinstance(prompt[wrong], str | list):
        raise Refused(f"`prompt`: got a list of {len(prompt)} prompts, allowed: {allowed}", param="prompt")
    raise unfit(f"prompt[{wrong}]", prompt[wrong], f"a token from 0 to {tokens.count - 1}", param="prompt")


def _is_token(token: object, count: int) -> bool:
    return type(token) is int and 0 <= token < count


def read_messages(messages: object) -> list[dict[str, str]]:
    """A conversation's messages, each with its role and its text."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= _MOST_MESSAGES:
        raise unfit("messages", messages, f"a list of 1 to {_MOST_MESSAGES} messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _conversation(messages: object, tokens: Tokens, most: int) -> list[int]:
    if tokens.template is None:
        raise Refused("this model has no chat template, use /v1/completions", code="unsupported_parameter")
    read = read_messages(messages)
    try:
        return tokens.encode(tokens.template.render(read), special=False, most=most)
    except TemplateRefused as err:
        raise Refused(str(err)[:300], param="messages") from err


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise unfit(where, message, "an object with `role` and `content`")
    if (role := message.get("role")) not in _ROLES:
        allowed = ", ".join(f"`{role}`" for role in _ROLES)
        raise Refused(f"`{where}.role`: got {named(role)}, allowed: {allowed}", param=where)
    if extra := [name for name, value in message.items() if not _says_nothing(role, name, value)]:
        raise Refused(f"`{where}.{str(extra[0])[:80]}` is not supported", param=where, code="unsupported_parameter")
    content = message.get("content")
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise unfit(f"{where}.content", content, "a text, or parts of type `text`", param=where)
    return {"role": str(role), "content": _legible(content, where)}


def _says_nothing(role: object, name: object, value: object) -> bool:
    """Whether a field of a message adds nothing to its role and its content."""
    if name in ("role", "content") or value is None:
        return True
    return role == "assistant" and (name == _MADE_OF_TEXT or (name in _EMPTY and value == []))


def _is_text(part: object) -> bool:
    """Whether it is a part of a message that is text, and nothing besides."""
    return (
        isinstance(part, Mapping)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _max_tokens(given: Mapping[str, Any], form: Form, limits: Limits, prompt: int) -> int:
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    if given.get("max_tokens", given.get(name)) != given.get(name):
        text = "`max_tokens`: differs from `max_completion_tokens`: give only one of them"
        raise Refused(text, param="max_tokens")
    room = limits.context - prompt
    if room < 1:
        text = f"the prompt has {prompt} tokens or more, allowed: at most {limits.context - 1}, so that one more fits"
        raise Refused(text, param="messages" if form == "chat" else "prompt", code="context_length_exceeded")
    wanted = _whole(given, name, None, 1, limits.max_tokens)
    if wanted is None:
        return min(limits.max_tokens, room)
    if wanted > room:
        text = f"the prompt has {prompt} tokens and `{name}` is {wanted}, allowed: {limits.context} together"
        raise Refused(text, param=name, code="context_length_exceeded")
    return int(wanted)


def _logprobs(given: Mapping[str, Any], form: Form) -> tuple[bool, int]:
    most = _MOST_LOGPROBS[form]
    if form == "completion":
        count = _whole(given, "logprobs", None, 0, most)
        return count is not None, count or 0
    wanted, count = _flag(given, "logprobs"), _whole(given, "top_logprobs", 0, 0, most) or 0
    if count and not wanted:
        raise Refused("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    return wanted, count


def _stream_options(given: Mapping[str, Any], stream: bool) -> tuple[bool, bool]:
    """Whether the usage is told at the end, and whether with every event before it, too."""
    options = given.get("stream_options")
    if options is None:
        return False, False
    allowed = '`{"include_usage": true}` beside `"stream": true`'
    if not isinstance(options, Mapping):
        raise unfit("stream_options", options, allowed)
    if not stream:
        text = f"`stream_options`: got an object, and no stream is asked for, allowed: {allowed}"
        raise Refused(text, param="stream_options")
    if unknown := sorted(set(options) - _STREAM_OPTIONS):
        text = f"`stream_options.{unknown[0][:80]}` is not supported, allowed: {allowed}"
        raise Refused(text, param="stream_options")
    flags = {name: _flag(options, name, "stream_options") for name in _STREAM_OPTIONS}
    if flags["include_obfuscation"]:
        text = "`stream_options.include_obfuscation` is not supported: got `true`, allowed: `false`"
        raise Refused(text, param="stream_options")
    return flags["include_usage"], flags["include_usage"] and flags["continuous_usage_stats"]


def _stop(given: Mapping[str, Any]) -> tuple[str, ...]:
    stop = given.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    allowed = f"a text, or a list of up to {_MOST_STOPS}, each of 1 to {_LONGEST_STOP} characters"
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise unfit("stop", stop, allowed)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise Refused(f"`stop`: got {in_few_words(text)}, allowed: {allowed}", param="stop")
        if len(text) > _LONGEST_STOP:
            raise Refused(f"`stop`: got a text of {len(text)} characters, allowed: {allowed}", param="stop")
    return tuple(stops)


def _flag(given: Mapping[str, Any], name: str, inside: str | None = None) -> bool:
    value = given.get(name, False)
    if inside and value is None:
        return False
    if not isinstance(value, bool):
        raise unfit(f"{inside}.{name}" if inside else name, value, "`true` or `false`", param=inside)
    return value


def _number(given: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise unfit(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _whole(given: Mapping[str, Any], name: str, default: Any, low: int, high: int) -> Any:
    value = given.get(name, default)
    if value is default:
        return default
    if type(value) is not int or not low <= value <= high:
        raise unfit(name, value, f"a whole number from {low} to {high}")
    return value


def _legible(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise Refused("the text is not valid Unicode", param=where) from err
    return text
