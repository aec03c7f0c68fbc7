"""Which prompts a small model answers: the short ones, while it is there.

`MARINA_ROUTE` says where it is, set by the supervisor of the spec's `text.route`."""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping

import orjson
from prometheus_client import CollectorRegistry, Counter

from handlers.caching import Backoff
from handlers.generation.arrivals import ROUTED, Arrival
from handlers.generation.forwarded import Forwarded, Letter, Result
from handlers.generation.sequence import BATCH

logger = logging.getLogger(__name__)

SETTINGS = "MARINA_ROUTE"
_RESULTS = ("forwarded", "returned", "broken", "cancelled", "skipped")
# The small model has a name of its own, and the others are read by nobody: they may be deeper than can be written.
_KEPT_HERE = ("model", "metadata", "user")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class Route:
    """The way to the small model."""

    def __init__(
        self,
        settings: Mapping[str, object],
        results: Mapping[str, Counter],
        *,
        priority: str,
        changed: Callable[[], None],
        is_abandoned: Callable[[], bool],
    ) -> None:
        self._short_tokens = int(str(settings["short_tokens"]))
        self._url, self._patience_s = str(settings["url"]), float(str(settings["patience_ms"])) / 1000
        self._results, self._priority = results, priority
        self._changed, self._is_abandoned = changed, is_abandoned
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def forward(self, arrival: Arrival) -> Forwarded | None:
        """The answer that the small model writes; None for a request that stays here.

        Tokens are those of one model's tokenizer, so a prompt of tokens stays; so does a request for this model's own
        answer, one that was sent on to here, and a turn of a conversation that is kept here."""
        stays = arrival.is_routed or not arrival.control.may_read or arrival.turn is not None
        stays |= isinstance(arrival.body.get("prompt"), list)
        if stays or len(arrival.asked.prompt) > self._short_tokens:
            return None
        if self._backoff.is_active:
            self._results["skipped"].inc()
            return None
        try:
            letter = self._letter(arrival)
        except TypeError:
            # It is deeper than can be written.
            return None
        return Forwarded(letter, ended=self._count, changed=self._changed, is_abandoned=self._is_abandoned)

    def _letter(self, arrival: Arrival) -> Letter:
        wish, headers = arrival.wish, {"Content-Type": "application/json", ROUTED: "1"}
        if wish.priority == BATCH:
            headers[self._priority] = "batch"
        patience_s = self._patience_s
        if wish.deadline is not None:
            left_s = max(0.001, wish.deadline - time.monotonic())
            headers["X-Request-Timeout-Ms"] = str(max(1, round(left_s * 1000)))
            patience_s = min(patience_s, left_s)
        body = {name: value for name, value in arrival.body.items() if name not in _KEPT_HERE}
        return Letter(self._url, orjson.dumps(body), headers, arrival.asked.stream, patience_s)

    def _count(self, result: Result, is_reached: bool) -> None:
        self._results[result].inc()
        if is_reached:
            self._backoff.succeed()
            return
        if not self._backoff.is_active:
            logger.warning("the small model does not answer, its prompts are answered here")
        self._backoff.fail()


def open_route(
    registry: CollectorRegistry,
    model: str,
    *,
    priority: str,
    changed: Callable[[], None],
    is_abandoned: Callable[[], bool],
) -> Route | None:
    """The route that the supervisor has asked for; None without."""
    text = os.environ.get(SETTINGS)
    if not text:
        return None
    counter = Counter(
        "inference_routed",
        "Short prompts: answered by the small model, returned by it before their first text, broken off by it after "
        "that, cancelled by their client, or not sent to it because it had failed just before",
        ["model", "result"],
        registry=registry,
    )
    results = {result: counter.labels(model, result) for result in _RESULTS}
    return Route(json.loads(text), results, priority=priority, changed=changed, is_abandoned=is_abandoned)
