"""The page of a packaged model of pictures: its sample, with what was answered drawn on it, so that a person sees
whether the outputs were read as they are meant."""

import base64
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from marina.archiver.rehearse import ANSWER
from marina.config.pages import render_template
from marina.config.record import Draft, write_text

PAGE = "package.html"
_TEMPLATE = Path(__file__).with_name("picture_page.html")
_MOST_NUMBERS = 64


def write_picture_page(draft: Draft, folder: Path, out: Path) -> Path | None:
    """Writes the page from the sample in the staged folder and the answer that the rehearsal left beside it; None if
    the sample is no picture, or was not answered."""
    (out / PAGE).unlink(missing_ok=True)
    answer = folder.parent / ANSWER
    if draft.handler != "image" or draft.image is None or not answer.is_file():
        return None
    if not draft.sample.content_type.startswith("image/"):
        return None
    body = (folder / draft.sample.file).read_bytes()
    content_type, _, answered = answer.read_bytes().partition(b"\n")
    with Image.open(io.BytesIO(body)) as picture:
        width, height = ImageOps.exif_transpose(picture).size
    is_mask = content_type == b"image/png"
    values: dict[str, Any] = {} if is_mask else json.loads(answered)
    labels = (folder / draft.labels).read_text(encoding="utf-8").splitlines() if draft.labels else []
    text = render_template(
        _TEMPLATE,
        title=f"{draft.name} {draft.version}: the sample",
        task=draft.image.task,
        picture=_data_url(draft.sample.content_type, body),
        width=width,
        height=height,
        mask=_data_url("image/png", answered) if is_mask else "",
        objects=values.get("objects", []),
        min_score=draft.image.detection.min_score if draft.image.detection else 0,
        classes=_classes(values, labels),
        numbers=values.get("embedding", [])[:_MOST_NUMBERS] if draft.image.task == "embed" else [],
        count=len(values.get("embedding", [])),
    )
    write_text(out / PAGE, text)
    return out / PAGE


def _classes(values: dict[str, Any], labels: list[str]) -> list[tuple[str, float]]:
    pairs = zip(values.get("top_indices", []), values.get("top_probs", []), strict=True)
    return [(labels[number] if labels else f"class {number}", round(share, 4)) for number, share in pairs]


def _data_url(content_type: str, body: bytes) -> str:
    return f"data:{content_type};base64,{base64.b64encode(body).decode()}"
