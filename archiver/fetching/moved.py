"""Which sources have another version now than when they were packaged."""

from collections.abc import Iterator, Mapping

from marina.archiver.fetching.fetch import look
from marina.config.errors import MarinaError
from marina.config.progress import Progress
from marina.config.record import Pin
from marina.config.remote import parse_remote


def moved_sources(pins: Mapping[str, Pin]) -> Iterator[str]:
    """A sentence about each source that has moved, or whose place did not answer at once."""
    for text, pin in pins.items():
        remote = parse_remote(text)
        if remote is None or remote.is_pinned:
            continue
        try:
            now = look(remote, Progress(quiet=True), attempts=1).version
        except MarinaError as err:
            yield f"whether `{text}` has moved since it was packaged is not known: {err.message}"
            continue
        if now != pin.version:
            yield f"`{text}` has moved since it was packaged: it was {pin.version}, and now it is {now}"
