"""The metrics that an archive's handler makes with TorchServe's `context.metrics`, from TorchServe's page: with the
names, labels and types that they have there, as those who watch the handler know them."""

import re
from collections.abc import Callable, Iterator

# More series than any handler makes on purpose. One that puts a request's id into a label makes them without an end.
MOST_SERIES = 2_000
_TYPE = re.compile(r"^# TYPE (\S+) ", re.MULTILINE)


class HandlerMetrics:
    """Selects them; `hidden` are the names of TorchServe's own metrics."""

    def __init__(self, hidden: frozenset[str], *, say: Callable[[str], None]) -> None:
        self._hidden, self._say = hidden, say
        self._said: set[str] = set()

    def page(self, torchserves: str, ours: str) -> str:
        """The handler's metrics on TorchServe's page, as Prometheus text to follow `ours`; without those whose name is
        there already, and without those that have too many series."""
        taken, kept = set(_TYPE.findall(ours)), list[str]()
        for name, text in _families(torchserves):
            series = sum(not line.startswith("#") for line in text.splitlines())
            if name in self._hidden or not series:
                continue
            if name in taken:
                self._warn(name, "the name is taken by a metric of Marina's")
            elif series > MOST_SERIES:
                self._warn(name, f"it has more than {MOST_SERIES:,} series; a label must not name a request")
            else:
                kept.append(text)
        return "".join(kept)

    def _warn(self, name: str, why: str) -> None:
        if name not in self._said:
            self._said.add(name)
            self._say(f"warning: the handler's metric {name} is not on /metrics: {why}")


def _families(page: str) -> Iterator[tuple[str, str]]:
    """Each metric of a page: its name and its lines."""
    for text in re.split(r"(?m)^(?=# HELP )", page):
        if text.startswith("# HELP "):
            yield text.split(" ", 3)[2], text
