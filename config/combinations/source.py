"""Rules about the source of a model, its weights, its handler, and the files that they name."""

import re
from functools import partial
from os.path import exists, isdir, isfile  # not Path.is_file, which raises OSError for a name that is too long
from pathlib import Path

from marina.config.combinations.rule import FILES, Conflicts, rule
from marina.config.errors import listed, nearest
from marina.config.other_formats import other_format
from marina.config.remote import parse_remote
from marina.config.request_headers import CONTENT_TYPES
from marina.config.sections import HANDLERS
from marina.config.signatures import MAKE_KEY, PEM
from marina.config.spec import Spec
from marina.config.torchvision_models import model_error

# One of several files, such as `model-00001-of-00003.safetensors`.
_PART = re.compile(r"-\d+-of-(?!0*1\.)\d+\.\w+$")


@rule("model.source", "model.weights")
def _weights_form(spec: Spec) -> Conflicts:
    source, weights = spec.model.source, spec.model.weights
    if spec.model.folder or spec.model.adopted:
        return
    if source.endswith(".pt2") or spec.model.saved_whole:
        if weights is not None:
            yield "model.weights", f"got `{weights}`, but `{source}` contains its weights", "delete `weights`"
        return
    if weights is None:
        named = (
            "`random`, a weights name such as `IMAGENET1K_V2`, or a file"
            if spec.model.from_torchvision
            else "a file or `random`"
        )
        yield "model.weights", f"missing: `{source}` needs weights, allowed: {named}", "add `weights` under `model`"
    elif (remote := parse_remote(weights)) and remote.is_folder:
        text = f"got `{weights}`, which is a folder, allowed: one file of it"
        yield "model.weights", text, f"weights: {weights}#model.safetensors"
    elif _PART.search(weights):
        text = f"got `{weights}`, which is a part of the weights, allowed: their index, or one file with all of them"
        yield "model.weights", text, f"weights: {_PART.sub('', weights)}{Path(weights).suffix}.index.json"
    elif wrong := other_format(weights):
        yield "model.weights", f"`{weights}` {wrong[0]}", wrong[1]


@rule("model.requirements", "model.handler", "model.compile")
def _requirements_are_imported(spec: Spec) -> Conflicts:
    runs_code = spec.model.adopted or spec.model.compile == "eager" or spec.model.handler not in HANDLERS
    if spec.model.requirements and not runs_code:
        code = f"`handler` is `{spec.model.handler}`, and `compile` is `{spec.model.compile}`"
        text = f"given, but a pod imports no code of yours: {code}"
        yield "model.requirements", text, "delete `requirements`; what the source needs is imported here only"


@rule("model.files")
def _files_have_different_names(spec: Spec) -> Conflicts:
    names = [Path(file).name for file in spec.model.files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        text = f"two files are called `{twice}`, and all are packed into one folder of the MAR"
        yield "model.files", text, "rename one of them"


def _named_files(spec: Spec) -> dict[str, str | None]:
    """The fields that may name one file, each with the file; None if it names none."""
    model = spec.model
    return {
        "model.source": None if model.from_torchvision or model.folder or model.adopted else _file_in(model.source),
        "model.handler": None if model.handler in HANDLERS else model.handler.partition(":")[0],
        "model.requirements": model.requirements,
        "model.labels": None if model.labels == "imagenet" else model.labels,
        "load.replay": spec.load.replay,
        "load.sample": spec.load.sample,
        "model.weights": model.weights_file,
    }


def _file_in(source: str) -> str | None:
    """The file that a source names, of this machine or elsewhere; None for a folder."""
    if remote := parse_remote(source):
        return None if remote.is_folder else source
    return source.partition(":")[0]


def _file_exists(field: str, spec: Spec) -> Conflicts:
    file = _named_files(spec)[field]
    if file and not spec.is_elsewhere(file) and not isfile(spec.path(file)):
        yield field, f"no such file: `{spec.path(file)}`", _hint_for_missing(spec, field, file)


# A rule for each, so that an error in one field does not hide that the file of another is missing.
_NAMING_FIELDS = (
    *("model.source", "model.handler", "model.requirements", "model.labels"),
    *("load.replay", "load.sample", "model.weights"),
)
for _field in _NAMING_FIELDS:
    rule(_field, into=FILES)(partial(_file_exists, _field))


@rule("serving.verify", into=FILES)
def _keys_exist(spec: Spec) -> Conflicts:
    for key in spec.serving.verify.keys if spec.serving.verify else ():
        if not key.startswith(PEM) and not isfile(spec.path(key)):
            yield "serving.verify.keys", f"no such file: `{spec.path(key)}`", MAKE_KEY


@rule("load.samples", into=FILES)
def _samples_exist(spec: Spec) -> Conflicts:
    for file in spec.load.samples or {}:
        if not exists(spec.path(file)):
            yield f"load.samples.{file}", f"no such file or folder: `{spec.path(file)}`", None


@rule("model.files", into=FILES)
def _files_exist(spec: Spec) -> Conflicts:
    for number, file in enumerate(spec.model.files):
        if not isfile(spec.path(file)):
            yield f"model.files.{number}", f"no such file: `{spec.path(file)}`", None


@rule("model.source", into=FILES)
def _folder_exists(spec: Spec) -> Conflicts:
    folder = spec.model.folder
    if folder and not spec.is_elsewhere(folder) and not isdir(spec.path(folder)):
        yield "model.source", f"no such folder: `{spec.path(folder)}`", None


@rule("model.source", into=FILES)
def _id_is_no_folder(spec: Spec) -> Conflicts:
    remote = parse_remote(spec.model.source)
    if remote and remote.scheme == "hf" and isdir(spec.file.parent / remote.place):
        text = f"`{remote.text}` is a model of Hugging Face's hub, but `{spec.file.parent / remote.place}` is a folder"
        yield "model.source", text, f"source: hf:./{remote.place}, or give the folder another name"


@rule("model.adapter", into=FILES)
def _adapter_exists(spec: Spec) -> Conflicts:
    folder = spec.model.adapter
    if folder and not spec.is_elsewhere(folder) and not isdir(spec.path(folder)):
        yield "model.adapter", f"no such folder: `{spec.path(folder)}`", None


@rule("model.calibration", into=FILES)
def _calibration_exists(spec: Spec) -> Conflicts:
    if (folder := spec.model.calibration) and not isdir(spec.path(folder)):
        yield "model.calibration", f"no such folder: `{spec.path(folder)}`", None


@rule("model.source", into=FILES)
def _torchvision_has_the_model(spec: Spec) -> Conflicts:
    if spec.model.from_torchvision and (wrong := model_error(spec.model.source.removeprefix("torchvision:"))):
        yield "model.source", *wrong


def _hint_for_missing(spec: Spec, field: str, file: str) -> str:
    """The hint for a file that does not exist: a file with a similar name, or how to do without it."""
    folder, (section, key) = spec.path(file).parent, field.split(".")
    names = [entry.name for entry in folder.iterdir() if isfile(entry)] if isdir(folder) else []
    if close := nearest(Path(file).name, names):
        rest = getattr(getattr(spec, section), key).removeprefix(file)
        return f"{key}: {file.removesuffix(Path(file).name)}{close}{rest}"
    otherwise = {"weights": ", or try the rest with `weights: random`", "handler": "", "source": ""}
    return "put it there" + otherwise.get(key, f", or delete `{key}`")


@rule("load.sample", "load.content_type", "model.handler")
def _sample_form(spec: Spec) -> Conflicts:
    if (sample := spec.load.sample) and spec.sample_type is None:
        yield "load.sample", f"got `{sample}`, allowed: a file that ends in {listed(CONTENT_TYPES)}", None
