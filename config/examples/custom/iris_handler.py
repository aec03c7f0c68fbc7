"""A handler of your own: it takes four named lengths, and answers with a species and its probability.

If it raises a RequestError, only that request is answered with a 4xx; the rest of the batch is not affected.
"""

import json

import numpy as np

from marina.handlers.base import Handler
from marina.handlers.request import Answer, Form, Request
from marina.handlers.validation import Unprocessable

FIELDS = ("sepal_length_cm", "sepal_width_cm", "petal_length_cm", "petal_width_cm")
SPECIES = ("setosa", "versicolor", "virginica")
LONGEST_CM = 10


class IrisHandler(Handler):
    # Shown in `/docs` and `/openapi.json`.
    takes = Form(
        {
            "type": "object",
            "properties": {field: {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_CM} for field in FIELDS},
            "required": list(FIELDS),
        },
        {"sepal_length_cm": 6.1, "sepal_width_cm": 2.8, "petal_length_cm": 4.7, "petal_width_cm": 1.2},
    )
    gives = Form(
        {
            "type": "object",
            "properties": {"species": {"enum": list(SPECIES)}, "probability": {"type": "number"}},
            "required": ["species", "probability"],
        },
        {"species": "versicolor", "probability": 0.9957},
    )

    def decode(self, request: Request) -> list[np.ndarray]:
        body = request.json()
        if not isinstance(body, dict):
            raise Unprocessable("the body is not an object", got=type(body).__name__, allowed=", ".join(FIELDS))
        return [np.array([_length(body, field) for field in FIELDS], dtype=np.float32)]

    def encode(self, outputs: list[np.ndarray], request: Request) -> Answer:
        probabilities = outputs[0]
        best = int(probabilities.argmax())
        answer = {"species": SPECIES[best], "probability": round(float(probabilities[best]), 4)}
        return Answer(json.dumps(answer).encode())


def _length(body: dict[str, object], field: str) -> float:
    value = body.get(field)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= LONGEST_CM:
        shown = "nothing" if value is None else str(value)[:20]
        raise Unprocessable("not a length", field=field, got=shown, allowed=f"a number of cm up to {LONGEST_CM}")
    return float(value)
