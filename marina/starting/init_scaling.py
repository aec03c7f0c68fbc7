"""How a picture becomes the model's input, for the spec: what its library says, or the options; what neither says is an
error with the options to type."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, listed
from marina.starting.init_spec import ModelFacts

_FLIP = "--handler tensor; or source: a module around it, whose `forward` returns `self.model(picture.flip(1))`"
_Levels = dict[str, tuple[float, ...]]
_IMAGENET: _Levels = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_FITS = ("crop", "letterbox", "squash")
_NAMED: dict[str, _Levels] = {
    "0..1": {"mean": (0.0,), "std": (1.0,)},
    "0..255": {"mean": (0.0,), "std": (round(1 / 255, 8),)},
}


def picture_options(options: argparse.Namespace, channels: int) -> dict[str, Any]:
    """The fields of `model.image` that `--fit` and `--normalize` give."""
    return _fit(options.fit) | (_levels(options.normalize, channels) if options.normalize else {})


def _fit(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    fit, colon, resize = text.partition(":")
    if fit not in _FITS or (colon and (fit != "crop" or not resize.isdecimal())):
        allowed = f"{listed(_FITS)}, or such as `crop:256`, which scales the shorter side to 256 before it cuts"
        raise InputError(f"`--fit`: got `{text}`, allowed: {allowed}", hint="--fit squash")
    return {"fit": fit, "resize": int(resize)} if colon else {"fit": fit}


def refuse_picture_options(options: argparse.Namespace, what: str) -> None:
    """Raises InputError for an option about pictures, for a model that gets none from its handler."""
    for name in ("fit", "normalize"):
        if value := getattr(options, name):
            raise InputError(
                f"`--{name}`: got `{value}`, allowed only for pictures: {what}", hint=f"without `--{name}`"
            )


def _levels(text: str, channels: int) -> _Levels:
    if text == "imagenet" and channels == 3:
        return _IMAGENET
    if text in _NAMED:
        return _NAMED[text]
    mean, _, std = text.partition("/")
    try:
        levels = {"mean": _numbers(mean), "std": _numbers(std)}
    except ValueError:
        levels = {}
    if any(len(values) not in (1, channels) for values in levels.values()) or min(levels.get("std", (0,))) <= 0:
        named = listed([*(["imagenet"] if channels == 3 else []), *_NAMED])
        example = "0.485,0.456,0.406/0.229,0.224,0.225" if channels == 3 else "0.1307/0.3081"
        allowed = f"{named}, or the mean and the std of pixels from 0 to 1, such as `0.5/0.5` or `{example}`"
        raise InputError(f"`--normalize`: got `{text}`, allowed: {allowed}", hint="--normalize 0.5/0.5")
    return levels


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def with_image(
    facts: ModelFacts,
    network: Any,
    picture: tuple[int, int, int],
    given: dict[str, Any],
    options: argparse.Namespace,
    *,
    squash: bool,
) -> tuple[ModelFacts, str]:
    """The facts with the fields of `model.image`, and what says them. Raises InputError if nothing says one."""
    own = picture_options(options, picture[0]) | (given.get("image") or {})
    if {"fit", "mean", "std"} <= own.keys():
        fields, said = dict[str, Any](), None
    else:
        fields, said = _library_fields(network, picture, own, squash=squash)
    if said is None:
        _check_said(facts, picture, own, squash=squash)
    said = said or "as the options say"
    return replace(facts, picture=picture, image=fields | own, image_said=said), said


def _check_said(facts: ModelFacts, picture: tuple[int, int, int], own: dict[str, Any], *, squash: bool) -> None:
    """Raises InputError for what only the model's training knows, with options for all that is missing."""
    channels, height, width = picture
    unsaid, options = [], []
    if facts.free_input is not None:
        unsaid.append(f"their size ({height} x {width} works, and so do others)")
        options.append(f"--input {facts.free_input}:float32:{channels},{height},{width}")
    if "fit" not in own:
        unsaid.append("what happens to those of another shape")
        options.append(f"--fit {'squash' if squash else 'crop'}")
    if not {"mean", "std"} <= own.keys():
        unsaid.append("what is made of their pixels")
        options.append(f"--normalize {'imagenet' if channels == 3 else '0..1'}")
    if unsaid:
        named = "imagenet, 0..1, 0..255" if channels == 3 else "0..1, 0..255"
        others = {
            "--fit": "crop, crop:256, letterbox or squash",
            "--normalize": f"{named}, or mean and std, such as 0.5/0.5",
        }
        allowed = [f"{name}: {values}" for name, values in others.items() if any(name in each for each in options)]
        text = f"nothing says how pictures were given to it in its training: {', '.join(unsaid)}"
        hint = " ".join(options) + "".join(f"; {each}" for each in allowed)
        raise InputError(f"`--source`: {text}", hint=hint)


def _library_fields(
    network: Any, picture: tuple[int, int, int], own: dict[str, Any], *, squash: bool
) -> tuple[dict[str, Any], str | None]:
    """Fields of `model.image` beside its size, and what says them; None if no library does."""
    from marina.archiver.preprocessing import PROCESSOR, NotServed, ScalingUnsaid, library_image

    try:
        found = library_image(network, picture)
    except NotServed as err:
        raise InputError(f"`--source`: its pictures are made in a way that is not served: {err}", hint=_FLIP) from err
    except ScalingUnsaid as err:
        if {"mean", "std"} <= own.keys():
            return {}, None
        # An id of the hub: its own files say it.
        if re.fullmatch(r"[\w.-]+/[\w.-]+", err.loaded) and not Path(err.loaded).exists():
            first = f"--source hf:{err.loaded}, whose files say it"
        elif err.loaded:
            first = f"put its `{PROCESSOR}` into {err.loaded}"
        else:
            first = f"load it by `from_pretrained` from a folder with its `{PROCESSOR}`"
        hint = f"{first}; or, as it was trained: --fit squash --normalize 0.5/0.5"
        raise InputError(f"`--source`: {err}", hint=hint) from err
    fields, said = found or ({}, None)
    if picture[0] == 1 and len(fields.get("mean", ())) == 3:
        fields, said = {}, None
    if squash and fields.get("fit", "crop") == "crop" and said is not None:
        # What lies outside of a crop would have no boxes and no mask.
        fields = {"fit": "squash"} | {key: value for key, value in fields.items() if key != "resize"}
    if "fit" in own or fields.get("resize") == max(picture[1:]):
        fields = {key: value for key, value in fields.items() if key != "resize"}
    if fields.get("interpolation") == "bilinear":
        del fields["interpolation"]
    rounded = {key: [round(each, 6) for each in value] for key, value in fields.items() if isinstance(value, tuple)}
    return fields | rounded, said
