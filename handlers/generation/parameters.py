"""The parameters of OpenAI's requests, read and checked; one that is not supported is refused by its name.

A parameter that would change the answer is never ignored. It may be sent with the value that changes nothing, as
clients do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from marina.handlers.generation.dialects.choosing import CallGrammar, ChatForm
from marina.handlers.generation.dialects.reading import Read
from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.messages import Tools, count_characters, read_messages, read_tools, read_variables
from marina.handlers.generation.prompts import Conversation
from marina.handlers.generation.refusals import RequestRefused, as_json, describe_briefly, quote_choice, wrong_value
from marina.handlers.generation.response_format import OPTIONS, read_schema
from marina.handlers.generation.tokenizer import ModelTokenizer
from marina.handlers.generation.values import check_unicode, read_flag, read_number, read_whole

Endpoint = Literal["chat", "completion"]
# A prompt as it was sent: a text, a conversation, tokens, or several texts or lists of tokens.
Prompt: TypeAlias = str | Conversation | tuple[int, ...] | list[str] | list[tuple[int, ...]]

# Parameters that are not supported, with the values that are accepted all the same, because they change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "priority": (0,),
}
_NEUTRAL_OF_ONE: dict[Endpoint, dict[str, tuple[object, ...]]] = {
    "completion": {"suffix": ("",)},
    "chat": {"modalities": (["text"],), "add_generation_prompt": (True,)},
}
# Names that a client gives to its requests, for its own use.
UNUSED_TEXTS = ("user", "safety_identifier", "prompt_cache_key")
_SUPPORTED_BY_BOTH = {
    *UNUSED_TEXTS,
    *("model", "metadata", "stream", "stream_options", "max_tokens", "stop", "seed"),
    *("response_format", "ignore_eos", "temperature", "top_p", "top_k", "logprobs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("min_p", "min_tokens", "stop_token_ids", "n"),
}
_SUPPORTED: dict[Endpoint, set[str]] = {
    "completion": {*_SUPPORTED_BY_BOTH, "prompt", "echo", "best_of"},
    "chat": {
        *(*_SUPPORTED_BY_BOTH, "messages", "top_logprobs", "max_completion_tokens"),
        *("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort"),
    },
}
# A mark that a template ends with is among the last tokens of its prompt.
_TAIL = 16
_MAX_STOPS, _MAX_STOP_LENGTH, _MAX_LOGPROBS, _MAX_BIASES = 64, 200, 20, 1024
# How many answers a request may ask for.
_MAX_CHOICES = 128
# What a model's `generation_config.json` may say for requests that leave it out, and from where to where.
DEFAULTS: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 1_000_000),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
}
_STREAM_OPTIONS = {"include_usage", "include_obfuscation", "continuous_usage_stats"}


@dataclass(frozen=True)
class Parameters:
    """The parameters of one request, its prompt or messages as tokens. With `usage_so_far` every event of the
    stream has the usage. `schema` is the JSON schema or the grammar that the answer has to match, as text. With `tools`
    it may be calls of them. `marks` are the special tokens that are not left out of its text, and `reading` takes the
    text apart; None if all of it is content. There are `choices` answers to each of the `prompts`, which are empty if
    there is one; with `echo` they begin with their prompt, and nothing else comes if it `is_empty`."""

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
    tools: Tools | None = None
    marks: tuple[str, ...] = ()
    reading: Read | None = None
    choices: int = 1
    prompts: tuple[tuple[int, ...], ...] = ()
    echo: bool = False
    is_empty: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the request names the tool that has to be called."""
        return self.tools is not None and self.tools.named is not None


@dataclass(frozen=True)
class Limits:
    """What the served model allows. `vocabulary` is how many tokens its weights have, None if that is unknown; `chat`
    is None without a chat template."""

    model: str
    context: int
    max_tokens: int
    vocabulary: int | None
    tokenizer: ModelTokenizer
    chat: ChatForm | None
    ends: tuple[int, ...] = ()
    defaults: Mapping[str, float] = field(default_factory=dict)


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
    prompt, tools = _conversation(given, limits) if endpoint == "chat" else (_text(given.get("prompt"), limits), None)
    length, max_tokens = _max_tokens(given, limits)
    stream = read_flag(given, "stream")
    with_logprobs, logprobs = _logprobs(given, endpoint)
    schema = read_schema(given.get("response_format"))
    if schema is not None and tools is not None and tools.choice == "required":
        text = (
            "`response_format` is not supported where a tool has to be called, allowed: `tool_choice`: `auto` or `none`"
        )
        raise RequestRefused(text, param="response_format", code="unsupported_parameter")
    ignore_eos = read_flag(given, "ignore_eos")
    if ignore_eos and schema is not None:
        text = "`ignore_eos`: got `true`, allowed: `false` with `response_format`, since the schema ends the answer"
        raise RequestRefused(text, param="ignore_eos")
    sampling = read_sampling(given, limits, max_tokens)
    sampling = replace(sampling, logprobs=logprobs if with_logprobs else None, ignore_eos=ignore_eos)
    if sampling.min_tokens and (schema is not None or (tools and tools.choice == "required")):
        raise RequestRefused("`min_tokens` is not supported where a schema ends the answer", param="min_tokens")
    choices, echo = read_whole(given, "n", 1, 1, _MAX_CHOICES), read_flag(given, "echo")
    if given.get("best_of", choices) != choices:
        raise RequestRefused("`best_of` is not supported: allowed: the value of `n`", param="best_of")
    if choices * (len(prompt) if isinstance(prompt, list) else 1) > _MAX_CHOICES:
        raise wrong_value("n", choices, f"up to {_MAX_CHOICES} answers for all prompts together")
    sampling = replace(sampling, prompt_logprobs=echo and with_logprobs)
    usage, so_far = _stream_options(given, stream)
    parameters = Parameters(
        endpoint,
        (),
        max_tokens,
        sampling,
        _stop(given),
        stream,
        usage,
        with_logprobs,
        so_far,
        schema,
        tools,
        choices=choices,
        echo=echo,
        is_empty=given.get("max_tokens") == 0,
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
    parameters = replace(parameters, prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling)
    return _with_form(parameters, limits.chat, limits.tokenizer) if parameters.endpoint == "chat" else parameters


def _with_form(parameters: Parameters, form: ChatForm | None, tokenizer: ModelTokenizer) -> Parameters:
    """The parameters with how the answer is read, and with the grammar of calls."""
    if form is None or (form.reasoning is None and parameters.tools is None):
        return parameters
    tail = tokenizer.decoder(form.marks)(parameters.prompt[-_TAIL:])
    reading, tools = form.reading(calls=parameters.tools is not None, prompt=tail), parameters.tools
    parameters = replace(parameters, marks=form.marks, reading=reading)
    grammar = CallGrammar(tokenizer.special_id, OPTIONS, form.open_reasoning(tail), parameters.schema)
    if tools is not None and form.dialect is not None and (tools.choice == "required" or parameters.schema is not None):
        text = grammar.calls(form.dialect, tools.schemas, many=tools.many, is_forced=tools.choice == "required")
        return replace(parameters, schema=text)
    return replace(parameters, schema=grammar.answer()) if parameters.schema else parameters


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


def _text(prompt: object, limits: Limits) -> Prompt:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > _MAX_CHOICES:
            raise wrong_value("prompt", prompt, f"up to {_MAX_CHOICES} prompts")
        are_alike = len({type(each) for each in prompt}) == 1
        if not are_alike or any(isinstance(each, list) and each and isinstance(each[0], str | list) for each in prompt):
            raise wrong_value("prompt", prompt, "only texts, or only lists of tokens")
        several: list[Any] = [_text(each, limits) for each in prompt]
        return several if len(several) > 1 else several[0]
    if isinstance(prompt, str):
        _check_fits(len(prompt), limits, "prompt")
        return check_unicode(prompt, "prompt")
    allowed = f"a text, or a list of tokens from 0 to {limits.tokenizer.count - 1}"
    if not isinstance(prompt, list):
        raise wrong_value("prompt", prompt, allowed)
    known = range(limits.tokenizer.count)
    wrong = next((place for place, token in enumerate(prompt) if type(token) is not int or token not in known), None)
    if wrong is None:
        return tuple(prompt)
    raise wrong_value(
        f"prompt[{wrong}]", prompt[wrong], f"a token from 0 to {limits.tokenizer.count - 1}", param="prompt"
    )


def _conversation(given: Mapping[str, Any], limits: Limits) -> tuple[Conversation, Tools | None]:
    if limits.chat is None:
        raise RequestRefused("this model has no chat template, use /v1/completions", code="unsupported_parameter")
    messages, tools = read_messages(given.get("messages")), read_tools(given, limits.chat)
    conversation = Conversation(messages, tools.shown if tools else None, read_variables(given, limits.chat))
    texts = [message["content"] for message in messages]
    _check_fits(count_characters(texts), limits, "messages")
    if len(messages) >= limits.context:
        raise _too_long(f"{len(messages)} messages, and each has a token at least", limits, "messages")
    return conversation, tools


def _check_fits(characters: int, limits: Limits, param: str) -> None:
    """Refuses a text that is too long whatever its tokens are, before it is read."""
    if characters > limits.context * limits.tokenizer.longest:
        raise _too_long(f"{characters} characters, so more than {limits.context} tokens", limits, param)


def _max_tokens(given: Mapping[str, Any], limits: Limits) -> tuple[str | None, int]:
    """The parameter that says how long the answer is to be, None without, and how long it may be."""
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    if given.get("max_tokens", given.get(name)) != given.get(name):
        text = "`max_tokens`: differs from `max_completion_tokens`: give only one of them"
        raise RequestRefused(text, param="max_tokens")
    # Nothing but the prompt, for its log-probabilities.
    least = 0 if given.get("echo") is True else 1
    wanted = read_whole(given, name, None, least, limits.max_tokens)
    return (None, limits.max_tokens) if wanted is None else (name, max(1, int(wanted)))


def read_sampling(given: Mapping[str, Any], limits: Limits, max_tokens: int) -> Sampling:
    """How tokens are chosen."""
    given = {**limits.defaults, **given}
    # Some servers write -1 for all tokens.
    top_k = 0 if given.get("top_k") == -1 else read_whole(given, "top_k", 0, 0, 1_000_000)
    stops = given.get("stop_token_ids", [])
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS or not all(_is_token(each, limits) for each in stops):
        raise wrong_value("stop_token_ids", stops, f"a list of up to {_MAX_STOPS} tokens")
    biases = given.get("logit_bias", {})
    allowed = f"an object with a number from -100 to 100 for each of up to {_MAX_BIASES} tokens"
    if not isinstance(biases, Mapping) or len(biases) > _MAX_BIASES:
        raise wrong_value("logit_bias", biases, allowed)
    for token, bias in biases.items():
        is_known = str(token).isascii() and str(token).isdecimal() and len(str(token)) < 10
        if (
            not is_known
            or not _is_token(int(token), limits)
            or type(bias) not in (int, float)
            or not -100 <= bias <= 100
        ):
            raise wrong_value(f"logit_bias.{str(token)[:20]}", bias, allowed, param="logit_bias")
    least = read_whole(given, "min_tokens", 0, 0, max_tokens)
    return Sampling(
        temperature=read_number(given, "temperature", 1.0, *DEFAULTS["temperature"]),
        top_p=read_number(given, "top_p", 1.0, *DEFAULTS["top_p"]),
        top_k=top_k,
        seed=read_whole(given, "seed", None, -(2**63), 2**63 - 1),
        presence=read_number(given, "presence_penalty", 0.0, -2, 2),
        frequency=read_number(given, "frequency_penalty", 0.0, -2, 2),
        repetition=read_number(given, "repetition_penalty", 1.0, *DEFAULTS["repetition_penalty"]),
        bias=tuple((int(token), float(bias)) for token, bias in biases.items()),
        min_p=read_number(given, "min_p", 0.0, *DEFAULTS["min_p"]),
        min_tokens=least,
        ends=(*stops, *(limits.ends if least and not given.get("ignore_eos") else ())),
    )


def _is_token(token: object, limits: Limits) -> bool:
    return type(token) is int and 0 <= token < (limits.vocabulary or limits.tokenizer.count)


def _logprobs(given: Mapping[str, Any], endpoint: Endpoint) -> tuple[bool, int]:
    limit = _MAX_LOGPROBS
    if endpoint == "completion":
        count = read_whole(given, "logprobs", None, 0, limit)
        return count is not None, count or 0
    wanted, count = read_flag(given, "logprobs"), read_whole(given, "top_logprobs", 0, 0, limit) or 0
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
    flags = {name: read_flag(options, name, "stream_options") for name in _STREAM_OPTIONS}
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
