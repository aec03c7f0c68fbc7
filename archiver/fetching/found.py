"""What is found at a place, and the errors that are worth another try."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TypeVar

from marina.config.errors import InputError
from marina.config.progress import Progress

T = TypeVar("T")
# A hub counts requests in windows of five minutes: whoever waits for the next one is served.
ATTEMPTS, _LONGEST_S = 8, 300.0
# A machine without a network should hear that soon.
ATTEMPTS_TO_REACH = 3


@dataclass(frozen=True)
class Found:
    """One version of a source at its place."""

    version: str
    """What identifies it for good: a commit, a number, a digest."""
    files: Mapping[str, int | None]
    """The size of each file that a model may need, in bytes, by its path; None if it is not known."""
    get: Callable[[str, Path], None]
    """Puts a file there; a part of it that is there already is not fetched again."""
    on_the_way: Callable[[], int] = int
    """How many bytes came of a file that is kept elsewhere until all of it is there."""
    unpack: Callable[[Path], list[str]] | None = None
    """If the files are not those of the model, but hold them: unpacks the ones in a folder there, and names what they
    held."""


class Unreachable(InputError):
    """Raised when nobody answered, or only that it should be tried later."""


class Busy(Exception):
    """Raised inside `retried` when it is worth another try: if known, after so many seconds; at most so many in all."""

    def __init__(self, reason: str, after_s: float | None = None, attempts: int = ATTEMPTS) -> None:
        super().__init__(reason)
        self.after_s, self.attempts = after_s, attempts


def retried(where: str, ask: Callable[[], T], progress: Progress, *, attempts: int = ATTEMPTS) -> T:
    """The answer of `ask`, which is tried again as long as it raises Busy: after the time that the server asked for, or
    after twice as long each time. Raises Unreachable if it never succeeds."""
    for attempt in range(1, attempts + 1):
        try:
            return ask()
        except Busy as err:
            if attempt >= min(attempts, err.attempts):
                raise Unreachable(f"`{where}`: {err}", hint="try again later") from err
            pause_s = min(err.after_s if err.after_s is not None else 2.0 ** (attempt - 1), _LONGEST_S)
            if pause_s >= 1:
                progress.say(f"  {where}: {err}; again in {pause_s:.0f} s")
            # So that many who were refused at once do not come again at once.
            sleep(pause_s * (1 + random.random() / 10))
    raise AssertionError
