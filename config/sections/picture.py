"""The parts of `model` about pictures: how one becomes the model's input, and what a detector's outputs mean."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from marina.config.sections.section import Count, Natural, Section, Share

PictureTask = Literal["classify", "detect", "embed", "segment"]
Activation = Literal["none", "sigmoid", "softmax"]
MaskSize = Literal["input", "picture"]


class Image(Section):
    """How a picture becomes the model's input; models of torchvision have it built in, others need it."""

    height: Count
    """Rows of the model's input, pixels. Lands in the record of the MAR."""
    width: Count
    """Columns of the model's input, pixels. Lands in the record of the MAR."""
    fit: Literal["crop", "letterbox", "squash"] = "crop"
    """How a picture of another shape fits. crop: its shorter side is scaled to `resize`, and the centre is cut out;
    letterbox: it is scaled until all of it fits, and bars fill the rest; squash: each side is scaled on its own. Lands
    in the record of the MAR."""
    resize: Count | None = None
    """crop: the shorter side is scaled to this many pixels before the centre is cut out; squash: the longer side of the
    model's input, of which the centre is then cut out. Default: the longer of `height` and `width`. Lands in the record
    of the MAR."""
    fill: Annotated[int, Field(ge=0, le=255)] = 114
    """The level of the bars of `fit: letterbox`, 0 to 255. Lands in the record of the MAR."""
    channels: Literal[1, 3] = 3
    """3 is RGB, 1 is greyscale. Lands in the record and the compiled graph."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from each channel after scaling to 0..1; one number, or one for each channel. Compiled into the
    graph."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = (1.0,)
    """Each channel is divided by it after `mean`; one number, or one for each channel. Compiled into the graph."""
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bilinear"
    """How pixels are scaled. Lands in the record of the MAR."""
    top_k: Natural = 5
    """The most classes that an answer names; 0, for handlers of your own, leaves the network's outputs as they are.
    Compiled into the graph."""
    max_pixels: Annotated[int, Field(ge=1, le=1_000_000_000)] = 40_000_000
    """Larger pictures are refused before they are decoded, pixels; also those that need more than 4 bytes for each of
    these pixels to be decoded: a baseline JPEG takes little at any size, a progressive one 3 to 6 bytes a pixel, PNG 4
    to 7, GIF and BMP 4 to 7, TIFF 5 to 11, WebP 18. Lands in the record of the MAR."""

    @model_validator(mode="after")
    def _one_value_for_each_channel(self) -> "Image":
        for field in ("mean", "std"):
            if len(getattr(self, field)) not in (1, self.channels):
                raise ValueError(f"{field}|allowed: 1 number or {self.channels}, one for each channel")
        return self

    def per_channel(self, values: tuple[float, ...]) -> list[float]:
        """`mean` or `std` with one number for each channel."""
        return list(values) if len(values) == self.channels else list(values) * self.channels


class Detection(Section):
    """What the outputs of a detector mean, and which of its boxes an answer has."""

    boxes: Literal["cxcywh", "xywh", "xyxy"] = "xyxy"
    """The four numbers of a box: two corners, or the centre or first corner with width and height. Lands in the record
    of the MAR."""
    unit: Literal["fraction", "pixels"] = "pixels"
    """fraction: numbers of boxes are shares of the width and height of the model's input. Lands in the record of the
    MAR."""
    background: Literal["first", "last"] | None = None
    """Which of the classes in `scores` means that there is no object. Lands in the record of the MAR."""
    min_score: Share = 0.5
    """Boxes with a lower score are left out. Lands in the record of the MAR."""
    max_boxes: Count = 100
    """The most boxes in an answer, those with the highest scores. Lands in the record of the MAR."""
    overlap: Share | None = None
    """Of two boxes of one class that overlap by more than this share of the area that they cover together, the one with
    the lower score is left out; default: all stay, as for models that leave them out themselves. Lands in the record of
    the MAR."""
