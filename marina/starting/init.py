"""`init`: a folder with a spec, a sample and what else it takes to package at once."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from marina.arguments import print_json, verb
from marina.terminal import typed

_TEMPLATES = Path(__file__).parents[1] / "templates"
_WHAT = {
    "handler.py": "from requests to inputs, from outputs to answers",
    "model.py": "the network",
    "samples": "what the load test sends",
    "spec.yaml": "what is served, and how well",
}


def add_verbs(verbs: Any) -> None:
    """Its options."""
    added = verb(verbs, init, "a folder to start from, which packages at once", "marina init shells",
                 "marina init --source torchvision:resnet50 shells",
                 "marina init --source ./model.py:build --handler own shells", spec=False)  # fmt: skip
    add = added.add_argument
    add("name", metavar="NAME", help="of the service; the folder ./NAME is made, and nothing in it overwritten")
    add("--source", metavar="S", help="torchvision:NAME | ./file.py:factory | ./program.pt2 (default: a small network)")
    add("--handler", choices=("image", "tensor", "own"), help="what takes the requests (default: what fits the model)")
    add("--shape", metavar="N,N,N", help="of one input of ./file.py:factory (default: found from its first layer)")


def init(options: argparse.Namespace) -> int:
    from config.errors import InputError, MarinaError
    from config.progress import Progress

    _check_name(options.name)
    folder = Path(options.name)
    try:
        with Progress(quiet=options.quiet).step("load the model and try it"):
            written = _make(folder, options)
    except MarinaError as err:
        # What is wrong is in no file any more: it was an option.
        message = re.sub(r"^\S*spec\.yaml(:\d+)?: `model\.source`: ", "`--source`: ", err.message)
        hint = re.sub(r"^source: ", "--source ", err.hint) if err.hint else None
        raise InputError(message, hint=hint) from err
    spec = folder / "spec.yaml"
    todo = [f"{typed()} {each} {spec}" for each in ("check", "package", "serve", "loadtest")]
    if options.json:
        print_json({"folder": str(folder), "files": [str(file) for file in written], "next": todo})
        return 0
    for file in written:
        print(f"{file!s:<32} {_WHAT[file.relative_to(folder).parts[0]]}")
    print("\nnext\n" + "\n".join(f"  {line}" for line in todo))
    return 0


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from config.errors import InputError
    from config.sections import PATTERNS, Name

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as err:
        allowed = PATTERNS[err.errors()[0]["ctx"]["pattern"]]
        raise InputError(f"`NAME`: got `{name}`, allowed: {allowed}", hint="marina init my-model") from err


def _make(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Writes the files, and takes them back when the model in them does not work."""
    from config.errors import InputError
    from marina.starting.init_model import check_works, find_start, sample_of
    from marina.starting.init_spec import spec_text

    start = find_start(options.name, options)
    sample, body = sample_of(start)
    files = {folder / "spec.yaml": spec_text(options.name, start, sample).encode(), folder / sample: body}
    kind = "image" if start.picture else "tensor"
    if options.source is None:
        files[folder / "model.py"] = _template(f"model_{kind}.py")
    if start.handler == "own":
        files[folder / "handler.py"] = _template(f"handler_{kind}.py")
    if there := sorted(str(file) for file in files if file.exists()):
        text = f"`NAME`: already there: {', '.join(f'`{file}`' for file in there)}; nothing is overwritten"
        raise InputError(text, hint="marina init ANOTHER-NAME")
    written: list[Path] = []
    folders = [each for each in (folder, folder / "samples") if not each.exists()]
    try:
        for file, data in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as stream:
                written.append(file)
                stream.write(data)
        check_works(folder / "spec.yaml")
    except BaseException:
        for file in written:
            file.unlink()
        for each in reversed(folders):
            if each.is_dir() and not any(each.iterdir()):
                each.rmdir()
        raise
    return sorted(files)


def _template(name: str) -> bytes:
    return (_TEMPLATES / f"{name}.txt").read_bytes()
