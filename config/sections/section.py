"""The base class of the sections of a spec, and the types that several of them use."""

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

# Each pattern with the words that errors use for it.
PATTERNS = {
    r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$": "at most 40 lower-case letters, digits and `-`, the first a letter",
    r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?$": "letters, digits, `.`, `_` and `-`, at most 32",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and `_`",
    r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$": "a name of lower-case letters, digits, `-` and `.`",
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$": "`NAMESPACE/NAME`",
    r"^[^\s=:]+(=[^\s=:]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?$": "a taint such as `gpu=yes:NoSchedule`",
    r"^https?://[^\s/?#@]+(/[^\s?#]*)?$": "an address that begins with `http://` or `https://`, without a password",
    r"^[^\s@:]([^\s]*[^\s:])?$": "a reference such as `registry.local/team/name:tag`",
    r"^\w[\w.-]*(/\w[\w.-]*)*$": "a path such as `models/digits.mar`",
    r"^(\*\.)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$": "a host name such as `digits.example.org` or `*.example.org`",
    r"^[a-z0-9]([-a-z0-9._]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]([-a-z0-9._]*[a-z0-9])?)*$": (
        "a registry and a path such as `registry.local/team`"
    ),
    r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$": "a resource such as `nvidia.com/gpu`",
    r"""^(https?://[^\s/?#"'<>\\]+[^\s#"'<>\\]*|\w[\w.-]*(/\w[\w.-]*)*)$""": "an address (`https://…`) or a path",
    r"^rediss?://([^\s/?#:@]+@)?(\[[0-9a-fA-F:]+\]|[^\s/?#:@\[\]]+)(:[0-9]{1,5})?(/[0-9]{1,3})?$": (
        "an address such as `redis://HOST:6379/0`, without a password"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$": "a header's name of letters, digits and `-`",
    r"^[A-Z]{3}$": "three capital letters such as `USD`",
    r"^(100|[1-9]?[0-9])%$": "a whole number, or a share such as `25%`",
    r"^(/\.?[\w-][\w.-]*)+$": "a path that begins with `/`, without `..`",
    r"^/[^\s?#]*$": "a path that begins with `/`, without a query",
}
(
    _NAME,
    _VERSION,
    _IDENTIFIER,
    _OBJECT,
    _NAMESPACED,
    _TAINT,
    _URL,
    _IMAGE,
    _INSIDE,
    _HOST,
    _REGISTRY,
    _DEVICE,
    _PAGE,
    _REDIS,
    _HEADER,
    CURRENCY,
    PERCENT,
    _ABSOLUTE,
    _URL_PATH,
) = PATTERNS
LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_CHARACTERS = "letters, digits, `-`, `_` and `.`, at most 63, the first and the last a letter or digit"
# How the ValueError of a check begins, after the key and `|`, if the key of an entry is wrong and not its value.
BAD_KEY = "as a name, allowed: "


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not LABEL.fullmatch(key):
            raise ValueError(f"{key}|{BAD_KEY}{_CHARACTERS}, with or without `example.org/` before them")
        if value and ("/" in value or not LABEL.fullmatch(value)):
            raise ValueError(f"{key}|allowed: {_CHARACTERS}")
    return labels


def is_valid(text: str, parse: Callable[[str], object]) -> bool:
    """Whether a function parses the text without a ValueError."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


def check_port(url: str) -> str:
    """The address; ValueError if its host or its port cannot be one."""
    try:
        in_range = urlsplit(url).port != 0
    except ValueError:
        in_range = False
    if not in_range:
        raise ValueError("allowed: an address with a host and a port from 1 to 65535")
    return url


Name = Annotated[str, StringConstraints(pattern=_NAME)]
Version = Annotated[str, StringConstraints(pattern=_VERSION)]
Identifier = Annotated[str, StringConstraints(pattern=_IDENTIFIER)]
ObjectName = Annotated[str, StringConstraints(pattern=_OBJECT)]
NamespacedName = Annotated[str, StringConstraints(pattern=_NAMESPACED)]
Taint = Annotated[str, StringConstraints(pattern=_TAINT)]
Url = Annotated[str, StringConstraints(pattern=_URL), AfterValidator(check_port)]
ImageName = Annotated[str, StringConstraints(pattern=_IMAGE)]
InsidePath = Annotated[str, StringConstraints(pattern=_INSIDE)]
HostName = Annotated[str, StringConstraints(pattern=_HOST)]
Registry = Annotated[str, StringConstraints(pattern=_REGISTRY)]
PageUrl = Annotated[str, StringConstraints(pattern=_PAGE)]
DeviceName = Annotated[str, StringConstraints(pattern=_DEVICE)]
RedisUrl = Annotated[str, StringConstraints(pattern=_REDIS), AfterValidator(check_port)]
HeaderName = Annotated[str, StringConstraints(pattern=_HEADER)]
AbsolutePath = Annotated[str, StringConstraints(pattern=_ABSOLUTE)]
UrlPath = Annotated[str, StringConstraints(pattern=_URL_PATH)]
Filled = Annotated[str, Field(min_length=1)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
# The largest number that Java and Kubernetes take.
_LARGEST = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=_LARGEST)]
Natural = Annotated[int, Field(ge=0, le=_LARGEST)]
Seconds = Annotated[float, Field(gt=0, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """The base of all sections: frozen, unknown keys are errors, and text is never silently converted to a number."""

    # Deferred, or every import would compile the validators of each section, and then again as parts of the spec's.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )
