"""`init`: makes a folder with a spec, a sample, and everything else that `package` needs."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marina.arguments import TRUST_PICKLE, add_verb, print_json
from marina.terminal import marina_command

if TYPE_CHECKING:
    from marina.config.spec import Fetched

_TEMPLATES = Path(__file__).parents[1] / "templates"
_DESCRIPTIONS = {
    "handler.py": "turns requests into inputs, and outputs into answers",
    "model.py": "the network",
    "requirements.txt": "the libraries that it needs, beside what a pod has",
    "samples": "what the load test sends",
    "spec.schema.json": "by which editors complete and explain the spec",
    "spec.yaml": "what is served, and how well",
    "words.txt": "the vocabulary that the handler reads",
}


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        init,
        "make a folder with a spec and a sample, ready to be packaged",
        "marina init shells",
        "marina init --source torchvision:resnet50 shells",
        "marina init --source ./model.py:Net --weights net.pt shells",
        "marina init --source hf:./encoder texts",
        "marina init --source old.mar --properties config.properties --sample body.json old",
        "marina init --source ./model.py:Net --task embed vectors",
        "marina init --source ./model.py:Net --input 'ids:int64:{max: 128}' --template text words",
        spec=False,
    )
    add = added.add_argument
    add("name", metavar="NAME", help="name of the service; files are written into ./NAME, and none is overwritten")
    text = (
        "the model: torchvision:NAME, ./file.py:NAME (a class, a function or a network), "
        "./program.pt2, ./model.pt (saved whole; see --trust-pickle) or hf:./folder; or elsewhere hf:OWNER/NAME, "
        "timm:NAME.TAG, mlflow:models:/NAME@ALIAS, oci://…, s3://…, gs://… or az://… (default: a small network to try)"
    )
    add("--source", metavar="S", help=text)
    text = "its weights: a file of safetensors, of torch.save or of torch.jit.save, or the index of several"
    add("--weights", metavar="FILE", help=text)
    add("--trust-pickle", action="store_true", help=TRUST_PICKLE)
    text = (
        "an input that `init` cannot find out itself, its shape without the batch dimension: ids:int64:128, "
        "x:float32:3,224,224, 'ids:int64:{max: 512}', mask:mask_of:ids; may be repeated"
    )
    add("--input", metavar="NAME:DTYPE:SHAPE", action="append", help=text)
    text = "handler of the requests (default: what fits the model); text: the part for texts of CLIP and its like"
    add("--handler", choices=("image", "tensor", "text", "own"), help=text)
    add("--template", choices=("text",), help="write a handler to start from, which takes texts")
    text = "what is answered for a text, a picture or a sound (default: what the model's files say)"
    tasks = ("answer", "classify", "detect", "embed", "fill", "rerank", "segment", "tokens", "transcribe")
    add("--task", choices=tasks, help=text)
    text = (
        "what an embedding of a text is made of, where the folder does not say it: the mean of its tokens, the first "
    )
    add("--pooling", choices=("cls", "last", "mean"), help=f"{text}or the last one")
    text = "a line under `model` of the spec, such as 'activation: sigmoid'; may be repeated"
    add("--set", metavar="LINE", action="append", help=text)
    text = (
        "how pictures of another shape became its input in its training, where no library says it: crop, letterbox, "
        "squash, or crop:256, whose shorter side is scaled to 256 pixels before the centre is cut out"
    )
    add("--fit", metavar="FIT", help=text)
    text = (
        "what it was trained on, of pixels: imagenet, 0..1, 0..255, or the mean and the std of pixels from "
        "0 to 1: 0.5/0.5 or 0.485,0.456,0.406/0.229,0.224,0.225"
    )
    add("--normalize", metavar="LEVELS", help=text)
    text = "with an archive for TorchServe as source: the config.properties of its server"
    add("--properties", metavar="FILE", type=Path, help=text)
    add("--sample", metavar="FILE", type=Path, help="with an archive for TorchServe: the body of a request to it")


def init(options: argparse.Namespace) -> int:
    from marina.config.errors import InputError, MarinaError
    from marina.config.progress import Progress
    from marina.starting.init_archive import adopts
    from marina.starting.init_model import fetch_named

    _check_name(options.name)
    if adopts(options.source):
        return _adopt(options)
    for option in ("properties", "sample"):
        if getattr(options, option):
            text = f"`--{option}`: only with an archive for TorchServe as `--source`"
            raise InputError(text, hint="--source old.mar")
    folder, progress = Path(options.name), Progress(quiet=options.quiet)
    # Fetching and loading the model take time.
    _refuse_existing(options.name, [folder / "spec.yaml"])
    try:
        fetched = fetch_named(options, progress)
        with progress.step("load the model and try it"):
            written, notes = _write_files(folder, options, fetched)
    except MarinaError as err:
        # The error is about the spec, which was deleted again; the user knows the option instead.
        message = re.sub(r"^\S*spec\.yaml(:\d+)?: `model\.(source|weights|task)`: ", r"`--\2`: ", err.message)
        hint = re.sub(r"(^|`)(handler|source|task): ", r"\1--\2 ", err.hint) if err.hint else None
        hint = re.sub(r"\bimage: {.*}", r"--set '\g<0>'", hint) if hint and "--set" not in hint else hint
        raise InputError(message, hint=hint) from err
    spec = folder / "spec.yaml"
    todo = [f"{marina_command()} {verb} {spec}" for verb in ("check", "package", "serve", "loadtest")]
    if options.json:
        print_json({"folder": str(folder), "files": [str(file) for file in written], "notes": notes, "next": todo})
        return 0
    for file in written:
        print(f"{file!s:<32} {_DESCRIPTIONS[file.relative_to(folder).parts[0]]}")
    for note in notes:
        print(f"note: {note}")
    print("\nnext\n" + "\n".join(f"  {line}" for line in todo))
    return 0


def _adopt(options: argparse.Namespace) -> int:
    """Writes a spec for an archive for TorchServe, or one for each of a model store."""
    from marina.config.load import parse_spec
    from marina.starting.init_archive import archive_files

    files, notes = archive_files(options.name, options)
    specs = [file for file in files if file.name == "spec.yaml"]
    for file in specs:
        parse_spec(files[file].decode(), file, files=False)
    _refuse_existing(options.name, files)
    _write(files)
    todo = [f"{marina_command()} {verb} {specs[0]}" for verb in ("check", "package", "serve", "loadtest")]
    if options.json:
        print_json({"folder": options.name, "files": [*map(str, sorted(files))], "notes": notes, "next": todo})
        return 0
    for file in sorted(files):
        described = "samples" if file.parent.name == "samples" else file.name
        print(f"{file!s:<32} {_DESCRIPTIONS[described]}")
    for note in notes:
        print(f"note: {note}")
    print("\nnext\n" + "\n".join(f"  {line}" for line in todo))
    return 0


def _write(files: Mapping[Path, bytes]) -> None:
    from marina.config.errors import InputError

    for file, data in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        except OSError as err:
            raise InputError(f"`NAME`: cannot write {err.filename or file}: {err.strerror}") from err


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from marina.config.errors import InputError
    from marina.config.sections import PATTERNS, Name

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as err:
        allowed = PATTERNS[err.errors()[0]["ctx"]["pattern"]]
        raise InputError(f"`NAME`: got `{name}`, allowed: {allowed}", hint="marina init my-model") from err


def _write_files(
    folder: Path, options: argparse.Namespace, fetched: Mapping[str, "Fetched"]
) -> tuple[list[Path], list[str]]:
    """Writes the files, and deletes them again if the model cannot be packaged; returns them, and notes."""
    from marina.config.errors import InputError
    from marina.config.schema import render_schema
    from marina.starting.init_model import choose_compile_mode, find_model_facts
    from marina.starting.init_sample import make_sample
    from marina.starting.init_spec import spec_text

    facts = find_model_facts(options.name, options, fetched)
    sample, body = make_sample(facts)
    files = {folder / "spec.yaml": spec_text(options.name, facts, sample).encode(), folder / sample: body}
    # A copy, because the folder may be opened where no Marina is installed.
    files[folder / "spec.schema.json"] = render_schema().encode()
    kind = facts.template or ("image" if facts.picture else "tensor")
    if options.source is None:
        task = {"detect": "detection", "segment": "mask"}.get(str(facts.task), kind)
        files[folder / "model.py"] = _template(f"model_{task}.py.txt")
    if facts.handler == "own":
        raw = facts.picture is not None and facts.top_k == 0
        files[folder / "handler.py"] = _template(f"handler_{'outputs' if raw else kind}.py.txt")
    for name in facts.files:
        files[folder / name] = _template(Path(name).name)
    _refuse_existing(str(folder), files)
    written: list[Path] = []
    folders = [path for path in (folder, folder / "samples") if not path.exists()]
    try:
        try:
            for file, data in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("xb") as stream:
                    written.append(file)
                    stream.write(data)
        except OSError as err:
            raise InputError(f"`NAME`: cannot write {err.filename or file}: {err.strerror}") from err
        finished = choose_compile_mode(folder / "spec.yaml", options.name, facts, sample)
        (folder / "spec.yaml").write_text(spec_text(options.name, finished, sample), encoding="utf-8")
    except BaseException:
        for file in written:
            file.unlink()
        for made in reversed(folders):
            if made.is_dir() and not any(made.iterdir()):
                made.rmdir()
        raise
    return sorted(files), _notes(facts, finished) if options.source else []


def _refuse_existing(name: str, files: Iterable[Path]) -> None:
    from marina.config.errors import InputError

    if existing := sorted(str(file) for file in files if file.exists()):
        text = f"`NAME`: already there: {', '.join(f'`{file}`' for file in existing)}; nothing is overwritten"
        other = f"{Path(name)}-2"
        # What was typed, with another name; who calls this function in a program typed nothing.
        words = [other if word == name else word for word in sys.argv[1:]] if name in sys.argv else ["init", other]
        raise InputError(text, hint=f"another name: marina {shlex.join(words)}")


def _notes(facts: Any, finished: Any) -> list[str]:
    """What was found out about the model, and chosen for it."""
    inputs = [f"`{name}`: {_shown(tensor)}" for name, tensor in (facts.inputs or {}).items()]
    notes = [f"the model takes {', '.join(inputs)}"] if inputs else []
    if facts.picture:
        notes.append(f"the model takes pictures, {' x '.join(map(str, facts.picture))}")
    if facts.source.startswith("torchvision:") and facts.weights == "random":
        notes.append(
            "its weights are random; for real answers, set `model.weights` in the spec, for example `IMAGENET1K_V1`"
        )
    return [*notes, *finished.notes]


def _shown(tensor: dict[str, Any]) -> str:
    from marina.starting.init_spec import flow_yaml

    return (
        f"the mask of `{tensor['mask_of']}`"
        if "mask_of" in tensor
        else f"{tensor['dtype']} {flow_yaml(tensor['shape'])}"
    )


def _template(name: str) -> bytes:
    return (_TEMPLATES / name).read_bytes()
