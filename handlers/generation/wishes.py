"""OpenAI's requests, checked: what of them is understood becomes a wish, everything else is refused by its name.

A parameter that would change the answer and is not supported is never ignored; it may be sent with the value that
changes nothing, as clients do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from handlers.generation.engine import Sampling
from handlers.generation.grammars import read_schema
from handlers.generation.refusals import Refused
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
        raise Refused("the body is not a JSON object")
    # What is null is not there: clients send it for what they were not told.
    given = {str(name): value for name, value in body.items() if value is not None}
    _check_names(given, form)
    check_model(given.get("model", limits.model), limits.model)
    prompt = _prompt(given, form, tokens, limits)
    max_tokens = _max_tokens(given, limits, len(prompt))
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
        text = f"the model `{str(given)[:80]}` does not exist, allowed: `{served}`"
        raise Refused(text, param="model", code="model_not_found", status=404)


def _check_names(given: Mapping[str, Any], form: Form) -> None:
    neutral = _NEUTRAL | _ONLY[form]
    for name, value in given.items():
        if name in neutral:
            if not any(type(value) is type(allowed) and value == allowed for allowed in _as_given(neutral[name])):
                only = " or ".join(f"`{allowed}`" for allowed in neutral[name])
                raise Refused(f"`{name}` is not supported, allowed: {only}", param=name, code="unsupported_parameter")
        elif name not in _TAKEN[form]:
            raise Refused(f"`{name[:80]}` is not supported", param=name[:80], code="unsupported_parameter")


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
    if isinstance(prompt, list) and all(type(token) is int and 0 <= token < tokens.count for token in prompt):
        return prompt
    raise Refused(f"`prompt`: allowed: a text, or a list of tokens from 0 to {tokens.count - 1}", param="prompt")


def read_messages(messages: object) -> list[dict[str, str]]:
    """A conversation's messages, each with its role and its text."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= _MOST_MESSAGES:
        raise Refused(f"`messages`: allowed: a list of 1 to {_MOST_MESSAGES} messages", param="messages")
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
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise Refused(f"`{where}.role`: allowed: {', '.join(f'`{role}`' for role in _ROLES)}", param=where)
    extra = [name for name, value in message.items() if name not in ("role", "content") and value is not None]
    if extra:
        raise Refused(f"`{where}.{str(extra[0])[:80]}` is not supported", param=where, code="unsupported_parameter")
    content = message.get("content")
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Refused(f"`{where}.content`: allowed: a text, or parts of type `text`", param=where)
    return {"role": str(message["role"]), "content": _legible(content, where)}


def _is_text(part: object) -> bool:
    """Whether it is a part of a message that is text, and nothing besides."""
    return (
        isinstance(part, Mapping)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _max_tokens(given: Mapping[str, Any], limits: Limits, prompt: int) -> int:
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    if given.get("max_tokens", given.get(name)) != given.get(name):
        text = "`max_tokens`: differs from `max_completion_tokens`: give only one of them"
        raise Refused(text, param="max_tokens")
    room = limits.context - prompt
    if room < 1:
        text = f"the prompt has {prompt} tokens or more, allowed: at most {limits.context - 1}, so that one more fits"
        raise Refused(text, param="prompt", code="context_length_exceeded")
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
    is_known = isinstance(options, Mapping) and not set(options) - _STREAM_OPTIONS
    if not stream or not is_known or _flag(options, "include_obfuscation"):
        text = '`stream_options`: allowed: {"include_usage": true} beside `stream`: true'
        raise Refused(text, param="stream_options")
    included = _flag(options, "include_usage")
    return included, included and _flag(options, "continuous_usage_stats")


def _stop(given: Mapping[str, Any]) -> tuple[str, ...]:
    stop = given.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    fits = isinstance(stops, list) and len(stops) <= _MOST_STOPS
    if not fits or not all(isinstance(text, str) and 1 <= len(text) <= _LONGEST_STOP for text in stops):
        text = f"`stop`: allowed: a text, or up to {_MOST_STOPS}, each of 1 to {_LONGEST_STOP} characters"
        raise Refused(text, param="stop")
    return tuple(stops)


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"`{name}`: allowed: true or false", param=name)
    return value


def _number(given: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refused(f"`{name}`: allowed: a number from {low:g} to {high:g}", param=name)
    return float(value)


def _whole(given: Mapping[str, Any], name: str, default: Any, low: int, high: int) -> Any:
    value = given.get(name, default)
    if value is default:
        return default
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"`{name}`: allowed: a whole number from {low} to {high}", param=name)
    return value


def _legible(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise Refused("the text is not valid Unicode", param=where) from err
    return text
