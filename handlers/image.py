"""`handler: image`: pictures in, the `top_k` classes out.

Takes JPEG, PNG, WebP, GIF, TIFF and BMP bodies (also as a form field), `{"image": "<base64>"}`, `{"image": [...]}` with
grey levels or normalised floats in channel-first order, nested or flat, and `.npy` bodies: uint8 [height, width,
channels] of the model's size, or floats as in JSON. Answers `{"top_indices": [...], "top_probs": [...], "top_labels":
[...]}`; labels only if the package has them."""

from collections.abc import Mapping

import numpy as np

from marina.handlers.arrays import Array, fit_array, from_json, from_npy, to_json
from marina.handlers.base import Handler
from marina.handlers.pictures import decode_image, decode_placed, image_format, setup_pillow
from marina.handlers.protocols import NamedTensor, Row, check_row_count, check_time
from marina.handlers.record import ImageSpec, RecordError, TensorSpec
from marina.handlers.request import Answer, Request
from marina.handlers.validation import Unprocessable, Unsupported, decode_base64, describe_json

_TAKES = "JPEG, PNG, WebP, GIF, TIFF or BMP bytes, JSON with `image`, or .npy"
# How far a pixel level may be from a whole number: normalised values with three decimals, or in float16, are that far
# off.
_ROUNDING = 0.1


class ImageHandler(Handler):
    """Image classification. The compiled function takes uint8 [batch, height, width, channels] and returns (top_probs,
    top_indices)."""

    spec: ImageSpec
    labels: list[str] | None = None

    def setup(self) -> None:
        if self.record.image is None:
            raise RecordError("`image`: missing, but the handler is `image`")
        self.spec = spec = self.record.image
        self.floats = FloatPictures(spec)
        self.pixels = TensorSpec("image", (spec.height, spec.width, spec.channels), "uint8")
        self.labels = self._read_labels()
        setup_pillow()

    def decode(self, request: Request) -> list[Array]:
        family = "json" if request.is_decoded else _family(request.body, request.content_type)
        _check_declared(request.content_type, family)
        if family == "image":
            return [self._placed(request.body, request)]
        if family == "npy":
            array = from_npy(request.body, max_bytes=self.record.max_request_bytes, field="image")
            return [self._from_array(array)]
        return [self._from_object(request.json(), request)]

    def encode(self, outputs: list[Array], request: Request) -> Answer:
        return Answer(to_json(self.name_outputs(outputs)))

    def name_outputs(self, outputs: list[Array]) -> Mapping[str, Array | list[str]]:
        if self.spec.task == "embed":
            return {"embedding": super().name_outputs(outputs)["embedding"]}
        if self.spec.top_k == 0:  # the network's raw outputs, for a custom handler that derives from this one
            return super().name_outputs(outputs)
        top_probs, top_indices = outputs
        values: dict[str, Array | list[str]] = {"top_indices": top_indices, "top_probs": top_probs}
        if self.labels is not None:
            values["top_labels"] = [self.labels[index] for index in top_indices.tolist()]
        return values

    def decode_tensors(self, tensors: Mapping[str, NamedTensor], until: float) -> tuple[list[Row], bool]:
        """Pictures as encoded bytes, or as arrays like in `.npy` bodies, where several have a leading dimension."""
        tensor = tensors["image"]
        if tensor.array is None:
            return [self._picture(tensor, body, until) for body in tensor.elements], True
        if tensor.array.ndim != len(self.pixels.shape) + 1:
            return [[self._from_array(tensor.array)]], False
        check_row_count(len(tensor.array), self.max_rows, "image")
        return [[self._from_array(array)] for array in tensor.array], True

    def _picture(self, tensor: NamedTensor, body: bytes, until: float) -> Row:
        check_time(until)
        return [decode_image(_picture_bytes(body.decode()) if tensor.encoded else body, self.spec)]

    def _placed(self, body: bytes | bytearray, request: Request) -> Array:
        """The pixels of a picture; where it lies in them is kept, for answers that name places in it."""
        pixels, request.kept = decode_placed(body, self.spec)
        return pixels

    def _from_object(self, value: object, request: Request) -> Array:
        image = value.get("image") if isinstance(value, dict) else None
        if isinstance(image, str):
            return self._placed(_picture_bytes(image), request)
        if isinstance(image, list):
            return self.floats.pixels(from_json(image, self.floats.spec_of(image)))
        got = (
            "no `image`"
            if isinstance(value, dict) and image is None
            else describe_json(image if isinstance(value, dict) else value)
        )
        raise Unprocessable(
            "an image is needed",
            field="image",
            got=got,
            allowed='{"image": base64 text, grey levels or normalised floats}',
        )

    def _from_array(self, array: Array) -> Array:
        if array.dtype.kind == "f":
            return self.floats.pixels(fit_array(array, self.floats.nested))
        if array.shape == self.pixels.shape[:2] and self.spec.channels == 1:
            array = array[:, :, np.newaxis]
        return fit_array(array, self.pixels)


class FloatPictures:
    """Pictures that clients send as floats, channel-first: either pixel levels, or normalised levels, whose
    normalisation is undone exactly. A value between two levels means that the picture was normalised in some other way,
    and the model would give it a wrong class, so it is refused."""

    def __init__(self, spec: ImageSpec) -> None:
        self._mean = np.array(spec.mean, np.float32).reshape(-1, 1, 1)
        self._std = np.array(spec.std, np.float32).reshape(-1, 1, 1)
        shape = (spec.channels, spec.height, spec.width)
        self.nested = TensorSpec("image", shape, "float32")
        self.flat = TensorSpec("image", (spec.channels * spec.height * spec.width,), "float32")

    def spec_of(self, value: list[object]) -> TensorSpec:
        return self.nested if value and isinstance(value[0], list) else self.flat

    def pixels(self, array: Array) -> Array:
        values = array.reshape(self.nested.shape)
        levels = (values * self._std + self._mean) * np.float32(255)
        if not _are_levels(levels, _ROUNDING):
            # Zeros and ones alone are ambiguous: black and white to one client, two shades of black to another.
            if not _are_levels(values, 0) or values.max() == 1:
                raise self._refusal(values, levels)
            levels = values
        pixels: Array = np.rint(levels).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        return pixels

    def _refusal(self, values: Array, levels: Array) -> Unprocessable:
        """The error; it names the first channel with a value that is neither a level nor a normalised one."""
        wrong = [not _are_levels(plane, _ROUNDING) for plane in levels]
        channel = wrong.index(True)
        mean, std, plane = float(self._mean[channel, 0, 0]), float(self._std[channel, 0, 0]), values[channel]
        low, high = (-mean / std, (1 - mean) / std)
        return Unprocessable(
            f"the values of channel {channel} are neither grey levels nor normalised ones",
            field="image",
            got=f"{float(plane.min()):.4f} to {float(plane.max()):.4f}",
            allowed=f"whole numbers from 0 to 255, or (level / 255 - {mean:g}) / {std:g} of them, "
            f"that is {low:.4f} to {high:.4f} in steps of {1 / 255 / std:.4f}",
        )


def _are_levels(values: Array, rounding: float) -> bool:
    """True if all values are whole numbers from 0 to 255, up to a rounding error; false if one is NaN."""
    whole = np.rint(values)
    return bool(np.abs(values - whole).max() <= rounding and whole.min() >= 0 and whole.max() <= 255)


def _family(body: bytes | bytearray, content_type: str) -> str:
    if image_format(body):
        return "image"
    if body.startswith(b"\x93NUMPY"):
        return "npy"
    # The parser says why a body is not JSON.
    if content_type.endswith(("/json", "+json")) or body[:64].lstrip()[:1] in (b"{", b"["):
        return "json"
    raise Unsupported("the body is of an unknown kind", field="body", allowed=_TAKES)


def _check_declared(content_type: str, family: str) -> None:
    """Refuses a content type that contradicts the bytes, because the client is confused. A JPEG declared as PNG is
    allowed: that is common and harmless."""
    if content_type.startswith("image/"):
        declared = "image"
    elif content_type.endswith(("/json", "+json")) or content_type.startswith("text/"):
        declared = "json"
    elif content_type in ("application/x-npy", "application/npy"):
        declared = "npy"
    else:
        return
    if declared != family:
        raise Unsupported(
            "the content type contradicts the body", field="content-type", got=content_type, allowed=_TAKES
        )


def _picture_bytes(text: str) -> bytes:
    """Decodes a picture in base64, or in a `data:` URL."""
    return decode_base64(text.partition(",")[2] if text.startswith("data:") else text, "image")
