"""A handler as people write them for TorchServe: it answers with what TorchServe gave to it.

What a client says in the field `do` of a form happens instead: `fail`, `refuse`, `stream` …"""

import json
import os
import time

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.utils.util import PredictionException

SHOWN = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MODEL_API_KEY", "TS_DECODE_INPUT_REQUEST")


class Echo:
    def initialize(self, context):
        self.places = sorted(context.system_properties)

    def handle(self, data, context):
        orders = [_text(row.get("do", b"")) for row in data]
        for index, order in enumerate(orders):
            if answers := self._obey(order, index, len(data), context):
                return answers
        return [self._seen(row, index, len(data), context) for index, row in enumerate(data)]

    def _seen(self, row, index, count, context):
        return {
            "data": {name: _shown(value) for name, value in sorted(row.items())},
            "headers": dict(sorted(context.get_all_request_header(index).items())),
            "count": count,
            "model": context.model_name,
            "properties": self.places,
            "environment": {name: os.environ.get(name) for name in SHOWN},
        }

    def _obey(self, order, index, count, context):
        """All answers of the batch, or None if the order is another one."""
        if order == "fail":
            raise ValueError("told to fail")
        if order == "refuse":
            raise PredictionException("this is refused", 422)
        if order == "memory":
            raise MemoryError
        if order == "exit":
            os._exit(3)
        if order == "hang":
            time.sleep(60)
        if order == "stream":
            for part in range(3):
                chunk = [f"part {part}\n"] * count
                send_intermediate_predict_response(chunk, context.request_ids, "Intermediate", 200, context)
                time.sleep(0.05)
            return ["last\n"] * count
        if order == "status":
            context.set_response_status(code=418, phrase="teapot", idx=index)
            context.set_response_header(index, "X-Own", "yes")
            context.set_response_content_type(index, "text/csv")
            return ["a,b\n"] * count
        if order == "count":
            _count(context.metrics)
        return {"few": ["few"] * (count + 1), "text": "text", "object": [object()] * count}.get(order)


def _count(metrics):
    metrics.add_counter("SeenRequests", 1, None, [])
    metrics.add_time("Took", 12.5, None, "ms")
    metrics.add_percent("Share", 50)
    metrics.add_metric("Lag", 0.2, "seconds", None, [Dimension("kind", "slow")], MetricTypes.HISTOGRAM)
    words = metrics.add_metric_to_cache("words_total", "count", ["language"], MetricTypes.COUNTER)
    words.add_or_update(3, ["en"])
    metrics.add_counter("not a name", 1, None, [])
    metrics.add_counter("marina_ready", 1, None, [])


def _text(value):
    return bytes(value).decode() if isinstance(value, (bytes, bytearray)) else value


def _shown(value):
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, len(value), bytes(value[:100]).decode("latin-1")]
    return [type(value).__name__, json.dumps(value, sort_keys=True)]
