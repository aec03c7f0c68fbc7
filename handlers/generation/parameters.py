"""The parameters of OpenAI's requests, read and checked; one that is not supported is refused by its name.

A parameter that would change the answer is never ignored. It may be sent with the value that changes nothing, as
clients do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.prompts import Messages
from marina.handlers.generation.refusals import RequestRefused, as_json, describe_briefly, quote_choice, wrong_value
from marina.handlers.generation.response_format import read_schema

Endpoint = Literal["chat", "completion"]
# A prompt as it was sent: a text, a conversation, or tokens.
Prompt: TypeAlias = str | Messages | tuple[int, ...]

# Parameters that are not supported, with the values that are accepted all the same, because they change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_NEUTRAL_OF_ONE: dict[Endpoint, dict[str, tuple[object, ...]]] = {
    "completion": {"best_of": (1,), "echo": (False,), "suffix": ("",)},
    "chat": {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "modalities": (["text"],),
    },
}
# Names that a client gives to its requests, for its own use.
UNUSED_TEXTS = ("user", "safety_identifier", "prompt_cache_key")
_SUPPORTED_BY_BOTH = {
    *UNUSED_TEXTS,
    *("model", "metadata", "stream", "stream_options", "max_tokens", "stop", "seed"),
    *("response_format", "ignore_eos", "temperature", "top_p", "top_k", "logprobs"),
}
_SUPPORTED: dict[Endpoint, set[str]] = {
    "completion": {*_SUPPORTED_BY_BOTH, "prompt"},
    "chat": {*_SUPPORTED_BY_BOTH, "messages", "top_logprobs", "max_completion_tokens"},
}
MAX_MESSAGES = 1000
_MAX_STOPS, _MAX_STOP_LENGTH = 4, 200
_MAX_LOGPROBS: dict[Endpoint, int] = {"completion": 5, "chat": 20}
_STREAM_OPTIONS = {"include_usage", "include_obfuscation", "continuous_usage_stats"}
_ROLES = ("assistant", "developer", "system", "user")
# OpenAI's server and clients add these to an assistant's message, and clients send it back like that: lists, accepted
# if they are empty, and the text as the JavaScript client has parsed it, which may have any value.
_EMPTY_LISTS, _PARSED = ("annotations", "tool_calls"), "parsed"


@dataclass(frozen=True)
class Parameters:
    """The parameters of one request, its prompt or messages as tokens. With `usage_so_far` every event of the
    stream has the usage. `schema` is the JSON schema that the answer has to match, as text."""

    endpoint: Endpoint
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
    """What the served model allows. `vocabulary` is how many tokens its weights have, None if that is unknown; its
    tokenizer has `tokens`, the longest of them with `longest` characters."""

    model: str
    context: int
    max_tokens: int
    vocabulary: int | None
    tokens: int
    longest: int
    has_template: bool


def read_parameters(
    body: object, endpoint: Endpoint, limits: Limits
) -> tuple[Prompt, Callable[[Sequence[int]], Parameters]]:
    """The prompt, and what makes the parameters of its tokens. Both raise RequestRefused, with the parameter's name, if
    one is wrong or not supported."""
    if not isinstance(body, Mapping):
        raise RequestRefused(f"the body: got {describe_briefly(body)}, allowed: an object")
    # Clients send null for a parameter that is not set.
    given = {str(name): value for name, value in body.items() if value is not None}
    _check_names(given, endpoint)
    check_model(given.get("model", limits.model), limits.model)
    _check_unused(given)
    prompt = _conversation(given, limits) if endpoint == "chat" else _text(given, limits)
    length, max_tokens = _max_tokens(given, limits)
    stream = _flag(given, "stream")
    with_logprobs, logprobs = _logprobs(given, endpoint)
    schema = read_schema(given.get("response_format"))
    ignore_eos = _flag(given, "ignore_eos")
    if ignore_eos and schema is not None:
        text = "`ignore_eos`: got `true`, allowed: `false` with `response_format`, since the schema ends the answer"
        raise RequestRefused(text, param="ignore_eos")
    sampling = Sampling(
        temperature=_number(given, "temperature", 1.0, 0, 2),
        top_p=_number(given, "top_p", 1.0, 0, 1),
        top_k=_whole(given, "top_k", 0, 0, 1_000_000),
        seed=_whole(given, "seed", None, -(2**63), 2**63 - 1),
        logprobs=logprobs if with_logprobs else None,
        ignore_eos=ignore_eos,
    )
    usage, so_far = _stream_options(given, stream)
    parameters = Parameters(
        endpoint, (), max_tokens, sampling, _stop(given), stream, usage, with_logprobs, so_far, schema
    )
    return prompt, partial(_with_prompt, parameters, limits, length)


def _with_prompt(parameters: Parameters, limits: Limits, length: str | None, prompt: Sequence[int]) -> Parameters:
    """The parameters with the prompt's tokens. `length` is the parameter that says how long the answer is to be."""
    param = "messages" if parameters.endpoint == "chat" else "prompt"
    if not prompt:
        raise RequestRefused("the prompt has no tokens", param=param)
    if limits.vocabulary is not None and (highest := max(prompt)) >= limits.vocabulary:
        # Some tokenizers have more tokens than the weights of their models.
        text = f"the prompt has the token {highest}, the model knows those from 0 to {limits.vocabulary - 1}"
        raise RequestRefused(text, param=param)
    room, max_tokens = limits.context - len(prompt), parameters.max_tokens
    if room < 1:
        raise _too_long(f"{len(prompt)} tokens or more", limits, param)
    if length and max_tokens > room:
        text = f"the prompt has {len(prompt)} tokens and `{length}` is {max_tokens}, allowed: {limits.context} together"
        raise RequestRefused(text, param=length, code="context_length_exceeded")
    max_tokens = min(max_tokens, room)
    sampling = replace(parameters.sampling, max_tokens=max_tokens)
    return replace(parameters, prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling)


def _too_long(got: str, limits: Limits, param: str) -> RequestRefused:
    text = f"the prompt has {got}, allowed: at most {limits.context - 1}, so that one more fits"
    return RequestRefused(text, param=param, code="context_length_exceeded")


def check_model(given: object, served: str) -> None:
    """Raises RequestRefused if another model is asked for than the one that is served."""
    if given != served:
        text = f"the model {quote_choice(given)} does not exist, allowed: `{served}`"
        raise RequestRefused(text, param="model", code="model_not_found", status=404)


def _check_names(given: Mapping[str, Any], endpoint: Endpoint) -> None:
    neutral = _NEUTRAL | _NEUTRAL_OF_ONE[endpoint]
    for name, value in given.items():
        if name in neutral:
            # Clients may write 1 as 1.0. But to Python True is equal to 1, too.
            if not any(
                value == allowed and isinstance(value, bool) is isinstance(allowed, bool) for allowed in neutral[name]
            ):
                only = " or ".join(f"`{as_json(allowed)}`" for allowed in neutral[name])
                got = quote_choice(value) if isinstance(neutral[name][0], str) else describe_briefly(value)
                text = f"`{name}` is not supported: got {got}, allowed: {only}"
                raise RequestRefused(text, param=name, code="unsupported_parameter")
        elif name not in _SUPPORTED[endpoint]:
            raise RequestRefused(f"`{name[:80]}` is not supported", param=name[:80], code="unsupported_parameter")


def _check_unused(given: Mapping[str, Any]) -> None:
    """Checks the types of the parameters that are not used."""
    for name in UNUSED_TEXTS:
        if not isinstance(value := given.get(name, ""), str):
            raise wrong_value(name, value, "a text")
    if not isinstance(metadata := given.get("metadata", {}), Mapping):
        raise wrong_value("metadata", metadata, "an object")


def _text(given: Mapping[str, Any], limits: Limits) -> Prompt:
    prompt = given.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        _check_fits(len(prompt), limits, "prompt")
        return _check_unicode(prompt, "prompt")
    allowed = f"a text, or a list of tokens from 0 to {limits.tokens - 1}"
    if not isinstance(prompt, list):
        raise wrong_value("prompt", prompt, allowed)
    known = range(limits.tokens)
    wrong = next((place for place, token in enumerate(prompt) if type(token) is not int or token not in known), None)
    if wrong is None:
        return tuple(prompt)
    if isinstance(prompt[wrong], str | list):
        raise RequestRefused(f"`prompt`: got a list of {len(prompt)} prompts, allowed: {allowed}", param="prompt")
    raise wrong_value(f"prompt[{wrong}]", prompt[wrong], f"a token from 0 to {limits.tokens - 1}", param="prompt")


def _conversation(given: Mapping[str, Any], limits: Limits) -> Messages:
    if not limits.has_template:
        raise RequestRefused("this model has no chat template, use /v1/completions", code="unsupported_parameter")
    messages = read_messages(given.get("messages"))
    _check_fits(sum(len(message["content"]) for message in messages), limits, "messages")
    return messages


def _check_fits(characters: int, limits: Limits, param: str) -> None:
    """Refuses a text that is too long whatever its tokens are, before it is read."""
    if characters > limits.context * limits.longest:
        raise _too_long(f"{characters} characters, so more than {limits.context} tokens", limits, param)


def read_messages(messages: object) -> list[dict[str, str]]:
    """A conversation's messages, each as its role and its text."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise wrong_value("messages", messages, f"a list of 1 to {MAX_MESSAGES} messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise wrong_value(where, message, "an object with `role` and `content`")
    if (role := message.get("role")) not in _ROLES:
        allowed = ", ".join(f"`{role}`" for role in _ROLES)
        raise RequestRefused(f"`{where}.role`: got {quote_choice(role)}, allowed: {allowed}", param=where)
    if extra := [name for name, value in message.items() if not _is_redundant(role, name, value)]:
        raise RequestRefused(
            f"`{where}.{str(extra[0])[:80]}` is not supported", param=where, code="unsupported_parameter"
        )
    content = message.get("content")
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise wrong_value(f"{where}.content", content, "a text, or parts of type `text`", param=where)
    return {"role": str(role), "content": _check_unicode(content, where)}


def _is_redundant(role: object, name: object, value: object) -> bool:
    """Whether a field adds nothing to the role and the content of its message."""
    if name in ("role", "content") or value is None:
        return True
    return role == "assistant" and (name == _PARSED or (name in _EMPTY_LISTS and value == []))


def _is_text(part: object) -> bool:
    """Whether a part of a message is plain text, without further fields."""
    return (
        isinstance(part, Mapping)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _max_tokens(given: Mapping[str, Any], limits: Limits) -> tuple[str | None, int]:
    """The parameter that says how long the answer is to be, None without, and how long it may be."""
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    if given.get("max_tokens", given.get(name)) != given.get(name):
        text = "`max_tokens`: differs from `max_completion_tokens`: give only one of them"
        raise RequestRefused(text, param="max_tokens")
    wanted = _whole(given, name, None, 1, limits.max_tokens)
    return (None, limits.max_tokens) if wanted is None else (name, int(wanted))


def _logprobs(given: Mapping[str, Any], endpoint: Endpoint) -> tuple[bool, int]:
    limit = _MAX_LOGPROBS[endpoint]
    if endpoint == "completion":
        count = _whole(given, "logprobs", None, 0, limit)
        return count is not None, count or 0
    wanted, count = _flag(given, "logprobs"), _whole(given, "top_logprobs", 0, 0, limit) or 0
    if count and not wanted:
        raise RequestRefused("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    return wanted, count


def _stream_options(given: Mapping[str, Any], stream: bool) -> tuple[bool, bool]:
    """Whether the usage is sent at the end, and whether also in every event before it."""
    options = given.get("stream_options")
    if options is None:
        return False, False
    allowed = '`{"include_usage": true}` beside `"stream": true`'
    if not isinstance(options, Mapping):
        raise wrong_value("stream_options", options, allowed)
    if not stream:
        text = f"`stream_options`: got an object, but `stream` is not true, allowed: {allowed}"
        raise RequestRefused(text, param="stream_options")
    if unknown := sorted(set(options) - _STREAM_OPTIONS):
        text = f"`stream_options.{unknown[0][:80]}` is not supported, allowed: {allowed}"
        raise RequestRefused(text, param="stream_options")
    flags = {name: _flag(options, name, "stream_options") for name in _STREAM_OPTIONS}
    if flags["include_obfuscation"]:
        text = "`stream_options.include_obfuscation` is not supported: got `true`, allowed: `false`"
        raise RequestRefused(text, param="stream_options")
    return flags["include_usage"], flags["include_usage"] and flags["continuous_usage_stats"]


def _stop(given: Mapping[str, Any]) -> tuple[str, ...]:
    stop = given.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    allowed = f"a text, or a list of up to {_MAX_STOPS}, each of 1 to {_MAX_STOP_LENGTH} characters"
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS:
        raise wrong_value("stop", stop, allowed)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise RequestRefused(f"`stop`: got {describe_briefly(text)}, allowed: {allowed}", param="stop")
        if len(text) > _MAX_STOP_LENGTH:
            raise RequestRefused(f"`stop`: got a text of {len(text)} characters, allowed: {allowed}", param="stop")
    return tuple(stops)


def _flag(given: Mapping[str, Any], name: str, inside: str | None = None) -> bool:
    value = given.get(name, False)
    if inside and value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_value(f"{inside}.{name}" if inside else name, value, "`true` or `false`", param=inside)
    return value


def _number(given: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong_value(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _whole(given: Mapping[str, Any], name: str, default: Any, low: int, high: int) -> Any:
    value = given.get(name, default)
    if value is default:
        return default
    if type(value) is not int or not low <= value <= high:
        raise wrong_value(name, value, f"a whole number from {low} to {high}")
    return value


def _check_unicode(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise RequestRefused("the text is not valid Unicode", param=where) from err
    return text
