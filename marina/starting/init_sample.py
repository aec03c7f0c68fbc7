"""Makes a request that the model can answer, for the load test and the readiness inference."""

import io
import json
from typing import Any

from marina.starting.init_spec import ModelFacts

# Arrays with more values than this are not written as JSON: nobody would read or edit them.
_READABLE = 1000
_TEXT = "The ship was very good."
_QUESTION = {"question": "Where is the ship?", "context": "The ship is in the harbour. The sea is blue."}
_PAIR = {"query": "Where is the ship?", "documents": ["The ship is in the harbour.", "The sea is blue."]}


def make_sample(facts: ModelFacts) -> tuple[str, bytes]:
    """The name and the bytes of a file with a body that the model takes."""
    import numpy as np

    if facts.picture is not None:
        return "samples/sample.png", picture_png(facts.picture)
    if facts.handler == "audio":
        from marina.archiver.wav import sample_wav

        return "samples/sample.wav", sample_wav()
    if facts.writes:
        return _json_sample({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0})
    if facts.task is not None or facts.template == "text":
        text = _TEXT.replace("good", facts.mask) if facts.task == "fill" and facts.mask else _TEXT
        named = {"answer": _QUESTION, "rerank": _PAIR}
        return _json_sample(named.get(str(facts.task), {"text": text}))
    values = {key: _example_values(tensor) for key, tensor in (facts.inputs or {}).items() if "mask_of" not in tensor}
    first = next(iter(values.values()))
    if len(values) == 1 and first.size > _READABLE and facts.handler == "tensor":
        return "samples/sample.npy", _npy_bytes(first)
    # Rounded once more: 0.637 as float32 is 0.6370000243.
    return _json_sample(
        {
            key: np.round(value.astype(float), 3).tolist() if value.dtype.kind == "f" else value.tolist()
            for key, value in values.items()
        }
    )


def _json_sample(body: object) -> tuple[str, bytes]:
    return "samples/sample.json", json.dumps(body).encode() + b"\n"


def _example_values(tensor: dict[str, Any]) -> Any:
    """Seeded random values within the limits of an input; if its length varies, half of the longest."""
    import numpy as np

    sides = [side if isinstance(side, int) else max(1, side["max"] // 2) for side in tensor.get("shape", [])]
    generator, dtype = np.random.default_rng(0), tensor["dtype"]
    if dtype.startswith("float"):
        return generator.random(sides, np.float32).round(3).astype(dtype)
    least, most = int(tensor.get("min") or 0), int(tensor.get("max") or 1)
    return np.asarray(generator.integers(least, most + 1, sides)).astype(dtype)


def picture_png(shape: tuple[int, int, int]) -> bytes:
    import numpy as np
    from PIL import Image

    channels, height, width = shape
    down, across = np.mgrid[0:height, 0:width]
    planes = [across * 255 // max(1, width - 1), down * 255 // max(1, height - 1), (across ^ down) % 256]
    pixels = np.stack(planes[:channels], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _npy_bytes(array: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
