"""A handler without a model, for tests of the server: a request says what is to happen to it, as JSON.

`{"sleep_s": 0.5}` answers later, `{"hang": true}` never, `{"exit": 3}` ends the worker, `{"leak_mb": 20}` keeps memory,
`{"count": 5}` counts in a metric, `{"answer_mb": 8}` answers at length, `{"say": {"code": 500}}` answers with that and
its code, anything else is answered at once. While the file that `TINY_FAIL_LOAD` names exists, loading fails.
"""

import json
import os
import time

import renewal
import starting
from prometheus_client import Counter

COUNTED = Counter("tiny_counted_total", "What requests asked to count")


class TinyHandler:
    """Answers `{"pid": …}` for every request of a batch."""

    def __init__(self):
        self.kept = []

    def initialize(self, context):
        """Fails while the file of `TINY_FAIL_LOAD` exists; takes `TINY_LOAD_S` seconds."""
        starting.reached("imports")
        if os.path.exists(os.environ.get("TINY_FAIL_LOAD", "")):
            raise ValueError("told to fail")
        time.sleep(float(os.environ.get("TINY_LOAD_S", "0")))
        starting.reached("load")
        renewal.arm(context)
        starting.reached("warm")

    def handle(self, rows, context):
        """One answer a row; the longest `sleep_s` of the batch delays all of it."""
        orders = [self._order(row) for row in rows]
        time.sleep(max(order.get("sleep_s", 0) for order in orders))
        for order in orders:
            if "exit" in order:
                os._exit(order["exit"])
            while order.get("hang"):
                time.sleep(1)
            COUNTED.inc(order.get("count", 0))
            if "leak_mb" in order:
                self.kept.append(b"x" * (order["leak_mb"] << 20))
        return [self._answer(number, order, context) for number, order in enumerate(orders)]

    def _answer(self, number, order, context):
        if said := order.get("say"):
            context.set_response_status(said["code"], "said", number)
            context.set_response_content_type(number, "application/json")
        return json.dumps(said or {"pid": os.getpid()}).encode() + b" " * (order.get("answer_mb", 0) << 20)

    def _order(self, row):
        body = row.get("body") if row.get("body") is not None else row.get("data")
        try:
            order = json.loads(bytes(body)) if body else {}
        except ValueError:
            order = {}
        return order if isinstance(order, dict) else {}
