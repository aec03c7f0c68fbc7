"""The base class of the sections of a spec, and the types that several of them use."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

PATTERNS: dict[str, str] = {}
"""The patterns of texts, each with the words that errors use for it."""


def matching(pattern: str, words: str) -> StringConstraints:
    """Limits a text to a pattern; errors describe it in these words."""
    PATTERNS[pattern] = words
    return StringConstraints(pattern=pattern)


def check_port(url: str) -> str:
    """The address; ValueError if its host or its port cannot be one."""
    try:
        in_range = urlsplit(url).port != 0
    except ValueError:
        in_range = False
    if not in_range:
        raise ValueError("allowed: an address with a host and a port from 1 to 65535")
    return url


_OBJECT = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_CHARACTERS = "letters, digits, `-`, `_` and `.`, at most 63, the first and the last a letter or digit"

Name = Annotated[
    str,
    matching(r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", "at most 40 lower-case letters, digits and `-`, the first a letter"),
]
Version = Annotated[
    str,
    matching(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?$", "letters, digits, `.`, `_` and `-`, at most 32"),
]
Identifier = Annotated[str, matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "a name of letters, digits and `_`")]
Variable = Annotated[
    str, matching(r"^[A-Za-z_][A-Za-z0-9_.-]*$", "letters, digits, `_`, `.` and `-`, the first not a digit")
]
ObjectName = Annotated[str, matching(f"^{_OBJECT}$", "a name of lower-case letters, digits, `-` and `.`")]
VolumeName = Annotated[str, matching(f"^{_DNS_LABEL}$", "lower-case letters, digits and `-`")]
NamespacedName = Annotated[str, matching(f"^{_DNS_LABEL}/{_OBJECT}$", "`NAMESPACE/NAME`")]
EnvSource = Annotated[str, matching(f"^(configmap|secret)/{_OBJECT}$", "`secret/NAME` or `configmap/NAME`")]
Mount = Annotated[
    str,
    matching(rf"^{_DNS_LABEL}(/\w[\w.-]*(/\w[\w.-]*)*)?(:ro)?$", "`VOLUME` or `VOLUME/FOLDER`, with or without `:ro`"),
]
Taint = Annotated[
    str,
    matching(
        r"^[^\s=:]+(=[^\s=:]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?$", "a taint such as `gpu=yes:NoSchedule`"
    ),
]
Url = Annotated[
    str,
    matching(
        r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        "an address that begins with `http://` or `https://`, without a password",
    ),
    AfterValidator(check_port),
]
ImageName = Annotated[str, matching(r"^[^\s@:]([^\s]*[^\s:])?$", "a reference such as `registry.local/team/name:tag`")]
ClaimedFile = Annotated[
    str, matching(rf"^{_OBJECT}(/\w[\w.-]*)*$", "the name of a claim, or `NAME/PATH` such as `models/digits.mar`")
]
PathPart = Annotated[
    str, matching(r"^[A-Za-z0-9_][\w.~-]{0,127}$", "a part of a URL's path: letters, digits, `_`, `.`, `~` and `-`")
]
ContentType = Annotated[str, matching(r"^[\w.+-]+/[\w.+-]+(; *[\w-]+=[^\s;]+)*$", "a type such as `audio/wav`")]
HostName = Annotated[
    str, matching(rf"^(\*\.)?{_OBJECT}$", "a host name such as `digits.example.org` or `*.example.org`")
]
REGISTRY_PATTERN = r"^[a-z0-9]([-a-z0-9._]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]([-a-z0-9._]*[a-z0-9])?)*$"
Registry = Annotated[str, matching(REGISTRY_PATTERN, "a registry and a path such as `registry.local/team`")]
DeviceName = Annotated[
    str, matching(rf"^{_OBJECT}/[A-Za-z0-9][A-Za-z0-9_.-]{{0,62}}$", "a resource such as `nvidia.com/gpu`")
]
PageUrl = Annotated[
    str,
    matching(
        r"""^(https?://[^\s/?#"'<>\\]+[^\s#"'<>\\]*|\w[\w.-]*(/\w[\w.-]*)*)$""", "an address (`https://…`) or a path"
    ),
]
RedisUrl = Annotated[
    str,
    matching(
        r"^rediss?://([^\s/?#:@]+@)?(\[[0-9a-fA-F:]+\]|[^\s/?#:@\[\]]+)(:[0-9]{1,5})?(/[0-9]{1,3})?$",
        "an address such as `redis://HOST:6379/0`, without a password",
    ),
    AfterValidator(check_port),
]
AbsolutePath = Annotated[str, matching(r"^(/\.?[\w-][\w.-]*)+$", "a path that begins with `/`, without `..`")]
CachePlace = Annotated[
    str, matching(rf"^({_OBJECT}|(/\.?[\w-][\w.-]*)+)$", "the name of a claim, or a path that begins with `/`")
]
UrlPath = Annotated[str, matching(r"^/[^\s?#]*$", "a path that begins with `/`, without a query")]
Filled = Annotated[str, Field(min_length=1)]
_LabelKey = Annotated[
    str, matching(f"^({_OBJECT}/)?{_LABEL}$", f"{_CHARACTERS}, with or without `example.org/` before them")
]
Labels = dict[_LabelKey, Annotated[str, matching(f"^({_LABEL})?$", _CHARACTERS)]]
# The largest number that Java and Kubernetes take.
LARGEST = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=LARGEST)]
# YAML reads the bare word `off` as false.
OrOff = BeforeValidator(lambda value: "off" if value is False else value)
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(gt=0, le=LARGEST)]
# A time in ms, a rate, a price or a weight: with larger ones, sums would no longer be numbers.
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
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
