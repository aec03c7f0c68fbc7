"""Short prompts go to a small model, as long as it answers.

The supervisor sets `MARINA_ROUTE` from the spec's `text.route`."""

import json
import logging
import os
import time
from collections.abc import Mapping

import orjson
from prometheus_client import CollectorRegistry, Counter

from marina.handlers.caching import Backoff
from marina.handlers.generation.forwarding import ForwardedAnswer, ForwardedRequest, Result
from marina.handlers.generation.loop import EngineLoop
from marina.handlers.generation.parameters import UNUSED_TEXTS
from marina.handlers.generation.sequence import BATCH
from marina.handlers.generation.text_request import PRIORITY_HEADER, ROUTED_HEADER, TextRequest

logger = logging.getLogger(__name__)

SETTINGS = "MARINA_ROUTE"
_RESULTS = ("forwarded", "returned", "broken", "cancelled", "skipped")
# Not sent on: the small model has another name, and the others are not used, and may be nested too deeply for orjson.
_NOT_SENT = ("model", "metadata", *UNUSED_TEXTS)
# How long its first text may take; after that this model answers.
PATIENCE_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class SmallModelRoute:
    """Decides which requests go to the small model, and counts what became of them."""

    def __init__(
        self,
        settings: Mapping[str, object],
        results: Mapping[str, Counter],
        loop: EngineLoop,
    ) -> None:
        self._short_tokens = int(str(settings["short_tokens"]))
        self._url, self._results, self._loop = str(settings["url"]), results, loop
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def forward(self, request: TextRequest) -> ForwardedAnswer | None:
        """The answer of the small model; None if this model has to answer the request itself.

        That is so for long prompts, for prompts of tokens, which another tokenizer may number differently, for requests
        that bypass the cache or were sent on to this model, and for turns of stored conversations."""
        stays = request.is_routed or not request.control.may_read or request.turn is not None
        stays |= isinstance(request.body.get("prompt"), list)
        if stays or len(request.parameters.prompt) > self._short_tokens:
            return None
        if self._backoff.is_active:
            self._results["skipped"].inc()
            return None
        try:
            forwarded = self._make_forwarded(request)
        except TypeError:
            # The body is nested more deeply than orjson can write.
            return None
        return ForwardedAnswer(forwarded, self._loop, ended=self._count)

    def _make_forwarded(self, request: TextRequest) -> ForwardedRequest:
        task, headers = request.task, {"Content-Type": "application/json", ROUTED_HEADER: "1"}
        if task.priority == BATCH:
            headers[PRIORITY_HEADER] = "batch"
        patience_s = PATIENCE_S
        if task.deadline is not None:
            left_s = max(0.001, task.deadline - time.monotonic())
            headers["X-Request-Timeout-Ms"] = str(max(1, round(left_s * 1000)))
            patience_s = min(patience_s, left_s)
        body = {name: value for name, value in request.body.items() if name not in _NOT_SENT}
        return ForwardedRequest(self._url, orjson.dumps(body), headers, request.parameters.stream, patience_s)

    def _count(self, result: Result, is_reached: bool) -> None:
        self._results[result].inc()
        if is_reached:
            self._backoff.succeed()
            return
        if not self._backoff.is_active:
            logger.warning("the small model does not answer, so this model answers its prompts")
        self._backoff.fail()


def open_route(registry: CollectorRegistry, model: str, loop: EngineLoop) -> SmallModelRoute | None:
    """The route that `MARINA_ROUTE` describes; None without that variable."""
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
    return SmallModelRoute(json.loads(text), results, loop)
