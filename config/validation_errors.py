"""Turns pydantic's errors into sentences for the user: the place in the file, what was given, and what is allowed."""

import json
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, StringConstraints
from pydantic_core import ErrorDetails

from marina.config.errors import listed, nearest
from marina.config.sections import HANDLERS, KINDS, PATTERNS, kind_of
from marina.config.spec import Spec
from marina.config.yaml_lines import Location

_FIELDS_FOR_SEVERAL_MODELS = ("models", "ensemble", "pipeline", "workflow")
# Fields that a spec once had, each with what to write instead.
_GONE = {
    "kubernetes.cpu_labels": "`node_selector`: with one, no other labels are needed",
    "kubernetes.log_shipper": "a sidecar by `patches`, which reads the file that `MARINA_LOG_FILE` in `pod.env` names",
    "kubernetes.model.path": "`claim: NAME/PATH`; an image has it as `/model.mar`",
    "kubernetes.patches.file": "the same mapping under `merge`",
    "kubernetes.patches.operations": "a strategic merge patch under `merge`",
    "kubernetes.pod.affinity": "a patch of the Deployment",
    "kubernetes.pod.annotations": "a patch of the Deployment",
    "kubernetes.pod.dns": "a patch of the Deployment",
    "kubernetes.pod.host_aliases": "a patch of the Deployment",
    "kubernetes.pod.labels": "a patch of the Deployment",
    "kubernetes.pod.service_account_annotations": "a patch of the ServiceAccount",
    "kubernetes.priority_class": "a patch of the Deployment",
    "kubernetes.rollout.max_unavailable": "`max_surge: 0` for a cluster without room for one more pod",
    "kubernetes.runtime_class": "a patch of the Deployment",
    "load.max_tokens": "`max_tokens` in the bodies of `load.samples`",
    "model.encoding.dynamic": "`buckets: dynamic`",
    "model.encoding.normalise": "what the folder's `modules.json` says",
    "model.image.max_decode_mb": "160 MB, or 4 bytes for each of `max_pixels` if that is more",
    "model.on_mismatch": "`cpu_target`, for nodes of several kinds",
    "model.seed": "0",
    "model.tolerance": "0.05",
    "scaling.headroom": "`target: 50%`, a share of the knee",
    "scaling.target_gpu_percent": "`target`",
    "scaling.target_queue_ms": "`target`",
    "scaling.target_rps_per_pod": "`target`",
    "scaling.target_waiting": "`target`",
    "serving.access_log_max_rps": "20",
    "serving.cache.secret": "a Secret with the key `MARINA_REDIS_AUTH` in `kubernetes.pod.env_from`",
    "serving.idle_timeout_s": "620",
    "serving.java_compiler": "by the size of the MAR",
    "serving.max_connections": "2048",
    "serving.max_response_mb": "a sixth of `java_heap_mb`",
    "serving.retry_window_s": "twice `startup_timeout_s`",
    "text.flush_ms": "20",
    "text.max_perplexity": "that of guessing",
    "text.prefill_chunk": "256; for vLLM `max_num_batched_tokens` in `vllm.args`",
    "text.priority_header": "`X-Priority`",
    "text.route.patience_ms": "2000",
    "text.route.url": "`to: http://HOST:8080/predictions/NAME`",
    "text.sessions.max_kb": "256",
    "text.sessions.secret": "a Secret with the key `MARINA_SESSIONS_AUTH` in `kubernetes.pod.env_from`",
    "text.speculation": "`auto`",
    "text.step_ms": "20",
    "text.vllm.check": "`head`",
    "text.vllm.step_timeout_s": "120",
    "text.waiting": "`serving.queue`",
}
_WANTED = {
    "bool_type": "`true` or `false`",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "model_type": "a mapping",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": "more than {gt:.12g}",
    "greater_than_equal": "{ge:.12g} or more",
    "less_than": "less than {lt:.12g}",
    "less_than_equal": "{le:.12g} or less",
    "string_too_short": "text that is not empty",
    "too_short": "{min_length} or more items",
}
# Numbers that YAML takes for text: in quotes, or with an exponent but without a point or a sign.
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?([eE][+-]?\d{1,2})?")


def field_location(error: ErrorDetails) -> Location:
    """The location in the file that an error is about.

    Drops the name of the attempted type that pydantic adds for a union, and adds the field that a section's own check
    names before a `|`."""
    location: list[str | int] = []
    annotation: Any = Spec
    # Pydantic adds `[key]` if an entry's key is wrong and not its value.
    about_key = error["loc"][-1:] == ("[key]",) and error["type"] != "extra_forbidden"
    parts = error["loc"][:-1] if about_key else error["loc"]
    for place, part in enumerate(parts, 1):
        inner = _step(annotation, part)
        if inner is not None or (error["type"] == "extra_forbidden" and place == len(parts)):
            location.append(part)
            annotation = inner
    named = _named_field(error)
    if not named:
        return tuple(location)
    in_a_list = any(get_origin(part) is tuple for part in types_in(annotation))
    return (*location, int(named) if in_a_list else named)


def error_text(error: ErrorDetails, location: Location, data: dict[str, Any]) -> tuple[str, str | None]:
    """The sentence about an error, and a hint where the fix is not obvious."""
    kind, context = error["type"], error.get("ctx", {})
    got = _value_at(data, location)
    if kind == "extra_forbidden":
        return _unknown(str(location[-1]), location[:-1], data)
    if kind == "missing":
        return "missing", f"add `{location[-1]}` to the spec; `marina check --fields` says what it means"
    alternatives = _alternatives(_annotation_at(location, data))
    if alternatives and kind != "value_error":
        return f"got {_shown(got)}, allowed: {alternatives}", None
    if kind == "value_error":
        close = nearest(str(got), HANDLERS) if location == ("model", "handler") else None
        hint = f"did you mean `{close}`?" if close else None
        return f"got {_shown(got)}, {str(context['error']).rpartition('|')[2]}", hint
    if kind == "string_pattern_mismatch":
        allowed = PATTERNS[context["pattern"]]
    else:
        allowed = allowed_values(error)
    if error["loc"][-1] == "[key]":
        return f"got {_shown(location[-1])} as a name, allowed: {allowed}", None
    hint = None
    key = "" if isinstance(location[-1], int) else f"{location[-1]}: "
    if kind == "string_type" and isinstance(got, (int, float)):
        # Not the value: of `1.10`, YAML has left 1.1.
        hint = f'put it in quotes: {key}"…"'
    elif key and kind in ("int_type", "float_type") and isinstance(got, str) and _NUMBER.fullmatch(got):
        hint = f"{key}{float(got):.12g}"
    return f"got {_shown(got)}, allowed: {allowed}", hint


def allowed_values(error: ErrorDetails) -> str:
    """What is allowed where a plain value is of another type, or out of bounds."""
    kind = error["type"]
    return _WANTED[kind] if kind in _WANTED else _BOUNDS[kind].format(**error.get("ctx", {}))


def meant_field(location: Location, data: dict[str, Any]) -> Location | None:
    """The field that an unknown one is probably a misspelling of; None if no name is close."""
    if _instead(location):
        return None
    close = nearest(str(location[-1]), _known_fields(location[:-1], data))
    return (*location[:-1], close) if close else None


def _known_fields(section: Location, data: dict[str, Any]) -> list[str]:
    annotation = _annotation_at(section, data)
    return list(annotation.model_fields) if _is_section(annotation) else []


def _instead(location: Location) -> str | None:
    """What to write instead of a field that is gone."""
    return _GONE.get(".".join(part for part in location if isinstance(part, str)))


def _unknown(name: str, section: Location, data: dict[str, Any]) -> tuple[str, str | None]:
    known = _known_fields(section, data)
    close = nearest(name, known)
    if instead := _instead((*section, name)):
        return f"no longer a field, instead: {instead}", None
    if section == ("model",) and (owners := [words for words, kind in KINDS.items() if name in kind.model_fields]):
        return f"not for {kind_of(data['model'])}, only for: {', '.join(owners)}", f"delete `{name}`"
    if not section and name in _FIELDS_FOR_SEVERAL_MODELS:
        hint = "a spec for each model, and one route for all (`kubernetes.route`); see docs/how-to/several-models.md"
        return "unknown field: a spec describes one model", hint
    return f"unknown field, did you mean `{close}`?" if close else f"unknown field, allowed: {listed(known)}", None


def _named_field(error: ErrorDetails) -> str:
    return str(error["ctx"]["error"]).rpartition("|")[0] if error["type"] == "value_error" else ""


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def types_in(annotation: Any) -> Iterator[Any]:
    """The plain types behind unions and annotations."""
    if get_origin(annotation) is Annotated:
        yield from types_in(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from types_in(part)
    else:
        yield annotation


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The type of the section that a field holds, alone, in a list or by name; None for a plain value."""
    for part in types_in(annotation):
        origin, arguments = get_origin(part), get_args(part)
        inner = arguments[1] if origin is dict else arguments[0] if origin is tuple else part
        for kind in types_in(inner):
            if _is_section(kind):
                section: type[BaseModel] = kind
                return section
    return None


def _step(annotation: Any, part: str | int) -> Any:
    """The annotation of a section's field, or of the items of a mapping or list; None if there is no such part."""
    for candidate in types_in(annotation):
        if _is_section(candidate) and part in candidate.model_fields:
            return candidate.model_fields[part].annotation
        if get_origin(candidate) is dict:
            return get_args(candidate)[1]
        if get_origin(candidate) is tuple and isinstance(part, int):
            return get_args(candidate)[0]
    return None


def _annotation_at(location: Location, data: dict[str, Any]) -> Any:
    annotation: Any = Spec
    for place, part in enumerate(location):
        annotation = _step(annotation, part)
        if place == 0 and part == "model":
            annotation = KINDS[kind_of(data["model"])]
    return next((part for part in types_in(annotation) if _is_section(part)), annotation)


def _alternatives(annotation: Any) -> str:
    """The allowed values of a field that takes certain words, or certain words and a number; empty for other fields."""
    parts = list(types_in(annotation))
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    patterns = [PATTERNS[str(constraint.pattern)] for constraint in _constraints(annotation)]
    if patterns and int in parts:
        return ", ".join([*([listed(words)] if words else []), *patterns])
    if bool in parts and str in parts:
        return "a number, text, `true` or `false`"
    if not words:
        return ""
    if any(get_origin(part) is tuple for part in parts):
        return f"{listed(words)} or a list"
    return listed(words) + (" or a number above 0" if int in parts or float in parts else "")


def _constraints(annotation: Any) -> Iterator[StringConstraints]:
    """The string constraints among the types of a union."""
    for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        if get_origin(part) is Annotated:
            yield from (hint for hint in get_args(part)[1:] if isinstance(hint, StringConstraints))
        else:
            yield from _constraints(part)


def _value_at(data: Any, location: Location) -> object:
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shown(value: object) -> str:
    """A value as it is written in the file, shortened; text that looks like a number keeps its quotes."""
    if value is None:
        return "nothing"
    text = json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, str) and value.isprintable() and not value.replace(".", "", 1).isdigit():
        text = value
    if "://" in text:
        # A password or a signature in an address is never shown.
        text = re.sub(r'(?<=://)[^/?#"]*@|(?<=[?#])[^"]+', "…", text)
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
