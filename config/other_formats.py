"""Files that hold a model, or a part of one, in a form that Marina does not package: a sentence on each, and what to do
instead."""

from pathlib import PurePath
from shlex import quote

_CODE = "--source ./model.py:Net --weights net.pt, with the model's own code and the checkpoint of its training"
OTHER_KINDS: dict[str, tuple[str, str]] = {
    "GGUF": ("is a model quantised for llama.cpp", "--source hf:./folder, with the original that it was made from"),
    "HDF5": ("is a Keras model or its weights, and Marina packages PyTorch", _CODE),
    "JSON": ("is JSON, and neither weights nor an index of them", "name the file that has the weights"),
    "ONNX": ("is ONNX, a graph that was exported, and Marina compiles PyTorch's own code", _CODE),
    "TensorFlow graph": ("is a graph of TensorFlow, and Marina packages PyTorch", _CODE),
    "TensorRT": ("is an engine of TensorRT, which runs on one kind of GPU only", _CODE),
    "notebook": (
        "is a notebook",
        "jupyter nbconvert --to script {file}, keep the model's class in {script}, then --source {source}",
    ),
    "torch.export program": ("is an exported program, which contains its own weights", "--source ./program.pt2"),
}
_SUFFIXES = {
    ".engine": "TensorRT",
    ".gguf": "GGUF",
    ".h5": "HDF5",
    ".ipynb": "notebook",
    ".keras": "HDF5",
    ".onnx": "ONNX",
    ".pb": "TensorFlow graph",
    ".plan": "TensorRT",
    ".tflite": "TensorFlow graph",
    ".trt": "TensorRT",
}


def other_format(name: str) -> tuple[str, str] | None:
    """The sentence on a file with such a name, and a hint; None if it may be one that Marina packages."""
    kind = _SUFFIXES.get(PurePath(name).suffix.lower())
    return sentence_on(kind, name) if kind else None


def sentence_on(kind: str, name: str) -> tuple[str, str]:
    """The sentence on a file of this kind, one of `OTHER_KINDS`, and a hint."""
    sentence, hint = OTHER_KINDS[kind]
    script = PurePath(name).with_suffix(".py")
    shown = str(script) if script.is_absolute() else f"./{script}"
    return sentence, hint.format(file=quote(name), script=quote(shown), source=quote(f"{shown}:Net"))
