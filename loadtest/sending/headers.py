"""Headers that a user adds to every request, such as `Authorization: Bearer $TOKEN`, with values from the environment.

Their values may be secret: they go to the sending process and to the server, but into no record and no error."""

import re
from collections.abc import Mapping
from string import Template

from marina.config.errors import InputError

Header = tuple[str, str]
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_OURS = ("accept-encoding", "cache-control", "connection", "content-length", "content-type", "transfer-encoding")


def parse_header(text: str, environment: Mapping[str, str]) -> Header:
    """Parses `Name: value`; InputError if it is not a header, or a variable in it is not set."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not _NAME.fullmatch(name):
        raise InputError("`--header`: not a header, allowed: `NAME: VALUE`, such as `Authorization: Bearer $TOKEN`")
    if name.lower() in _OURS:
        raise InputError(f"`--header`: `{name}` is set by the load test itself")
    try:
        value = Template(value).substitute(environment)
    except KeyError as err:
        variable = err.args[0]
        raise InputError(f"`--header`: `{name}`: ${variable} is not set", hint=f"export {variable}=…") from err
    except ValueError as err:
        raise InputError(f"`--header`: `{name}`: a dollar sign is written `$$`") from err
    if not value.isprintable() or not value.isascii():
        raise InputError(f"`--header`: `{name}`: the value holds a line break or a character that headers cannot hold")
    return name, value
