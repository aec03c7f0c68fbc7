"""Loads a staged package as a TorchServe worker would; the handler warms every batch size and answers the sample.

Runs as a script that can import only from the package and from what a pod has installed, and has no network and no file
of this machine, so that what is missing fails here and not in the pod."""

import email.policy
import json
import os
import re
import runpy
import site
import socket
import struct
import sys
import threading
import tomllib
import traceback
from collections.abc import Sequence
from email import message_from_bytes
from importlib import import_module, metadata
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qsl

# The file beside the package with the answer to the sample; its first line is the content type.
ANSWER = "answer"
# The same of another time.
ANSWER_AGAIN = "answer-again"
# The request of a language model whose answer does not depend on chance.
SETTLED = "settled"
JSON = "application/json"
# The file beside the package with the paths of the shared libraries that lie neither in it nor in Python.
LOADED = "loaded"


def main() -> None:
    folder, requirements = Path(sys.argv[1]), os.environ.get("MARINA_REQUIREMENTS")
    # This script finds no module beside it; and all others come later, when there may be several threads.
    runpy.run_path(str(Path(__file__).with_name("isolation.py")))["isolate"](folder, sys.argv[2:])
    PodImportFinder.install([str(folder), *([requirements] if requirements else [])])
    sys.path.insert(0, str(folder))
    if requirements:
        site.addsitedir(requirements)
    # TorchServe's own context, so that the handler meets the interface that it will have in a worker.
    from ts.context import Context

    record = json.loads((folder / "marina.json").read_text(encoding="utf-8"))
    if record["archive"]:
        answer_sample(folder, record)
    else:
        start(folder, record, Context)
    (folder.parent / LOADED).write_text("\n".join(loaded_libraries([str(folder.parent), requirements])))


def loaded_libraries(own: list[str | None]) -> list[str]:
    """The shared libraries in this process that lie neither in Python nor in these folders."""
    python = {sys.prefix, sys.base_prefix, *sys.path} - {"/usr"}  # where Debian's Python lies, and all of its libraries
    places = [f"{Path(place).resolve()}/" for place in (*own, *python) if place]
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in mapped if ".so" in line}
    return sorted(path for path in paths if not path.startswith(tuple(places)))


def start(folder: Path, record: dict[str, Any], context_type: Any) -> None:
    """Starts the package's own handler, and keeps what it answers to the sample, and to the same sample again."""
    gpu = 0 if record["device"] == "cuda" else None
    context = context_type(record["name"], str(folder), {}, max(record["batch_sizes"], default=1), gpu, "0.12.0")
    try:
        service = import_module("marina_entry").Service()
        service.initialize(context)
    except ModuleNotFoundError as err:
        explain_hidden(err)
        raise
    settled = folder.parent / SETTLED
    given = (settled.read_bytes(),) if settled.exists() else ()
    for name in (ANSWER, ANSWER_AGAIN):
        answer = service.rehearse(*given)
        kind = JSON if given else answer.content_type
        (folder.parent / name).write_bytes(kind.encode() + b"\n" + answer.body)
    if record["cache"] and record["device"] == "cuda":
        save_compile_cache(folder / record["cache"])


def answer_sample(folder: Path, record: dict[str, Any]) -> None:
    """Loads the handler of an archive as TorchServe's worker does, and has it answer the sample as it came from
    TorchServe's frontend."""
    import ts
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
    from ts.model_loader import ModelLoaderFactory
    from ts.protocol.otf_message_handler import retrieve_msg

    declared = record["archive"]["metrics"]
    cache = MetricsCacheYamlImpl(str(folder / declared if declared else Path(*ts.__path__, "configs", "metrics.yaml")))
    cache.initialize_cache()
    cache.model_name = record["archive"]["name"]
    gpu = 0 if record["device"] == "cuda" else None
    try:
        load = ModelLoaderFactory.get_model_loader().load
        service = load(record["archive"]["name"], str(folder), "marina_entry.py", gpu, 1, metrics_cache=cache)
    except ImportError as err:
        raise told_plainly(err, record["archive"]["handler"]) from err
    answer, raised, pieces = service._entry_point, list[BaseException](), list[bytes]()

    def answer_noting_errors(*given: Any) -> Any:
        try:
            return answer(*given)
        except BaseException as err:
            raised.append(err)
            raise

    service._entry_point = answer_noting_errors
    # Where the pieces of a streamed answer go.
    service.set_cl_socket(SimpleNamespace(sendall=pieces.append))
    ours, theirs = socket.socketpair()
    sample = record["sample"]
    message = as_message((folder / sample["file"]).read_bytes(), sample["content_type"])
    sender = threading.Thread(target=ours.sendall, args=(message,), daemon=True)
    sender.start()
    frame = service.predict(retrieve_msg(theirs)[1])
    if raised:
        raise told_plainly(raised[0], "") if isinstance(raised[0], ImportError) else raised[0]
    status, text = status_of(pieces[0] if pieces else frame)
    if status >= 400:
        raise RuntimeError(f"the sample was answered with {status}{text and f': {text}'}")


def as_message(body: bytes, content_type: str) -> bytes:
    """A request as TorchServe's frontend sends it to a worker: a form field by field, anything else as `body`."""

    def sized(data: bytes) -> bytes:
        return struct.pack("!i", len(data)) + data

    end = struct.pack("!i", -1)
    fields = [("body", content_type, body)]
    if content_type.startswith("multipart/form-data"):
        head = f"Content-Type: {content_type}\r\n\r\n".encode()
        parts = message_from_bytes(head + body, policy=email.policy.HTTP).iter_parts()
        fields = [
            (
                str(part.get_param("name", header="content-disposition")),
                part.get_content_type() if part.get_filename() else "",
                bytes(part.get_payload(decode=True)),
            )
            for part in parts
        ]
    elif content_type.startswith("application/x-www-form-urlencoded"):
        fields = [(name, "", value.encode()) for name, value in parse_qsl(body.decode(), keep_blank_values=True)]
    sent = b"".join(sized(name.encode()) + sized(kind.encode()) + sized(value) for name, kind, value in fields)
    headers = sized(b"Content-Type") + sized(content_type.encode())
    return b"I" + sized(b"sample") + headers + end + sent + end + end


def status_of(frame: bytes) -> tuple[int, str]:
    """The status of the first answer in what a worker sends to the frontend, and why, if all of the batch failed."""
    code, length = struct.unpack_from("!2i", frame)
    text, at = frame[8 : 8 + length].decode(), 8 + length
    for _ in ("request id", "content type"):
        at += 4 + struct.unpack_from("!i", frame, at)[0]
    return (code, text) if code != 200 else (struct.unpack_from("!i", frame, at)[0], "")


def told_plainly(err: ImportError, handler: str) -> ImportError:
    """The first of a chain of import errors that is not about the handler itself: when the import of a handler fails,
    TorchServe looks for one of its own with that name, and fails again."""
    module = handler.partition(":")[0].removesuffix(".py").rpartition("/")[2]
    chain = [err]
    while isinstance(earlier := chain[-1].__context__, ImportError):
        chain.append(earlier)
    others = [each for each in chain if each.name not in (module, f"ts.torch_handler.{module}")]
    first = (others or chain)[-1]
    if isinstance(first, ModuleNotFoundError):
        explain_hidden(first)
    return first


def explain_hidden(err: ModuleNotFoundError) -> None:
    """Adds to the error what a pod lacks, if that is installed here."""
    if owner := PodImportFinder.hidden.get((err.name or "").partition(".")[0]):
        err.msg += f": {owner} is installed here, but a pod has only what a worker needs"


class PodImportFinder(PathFinder):
    """Finds installed modules, but hides those that a pod does not have, so that importing them fails as it would
    there."""

    hidden: ClassVar[dict[str, str]] = {}
    """The hidden top-level modules, each with the distribution that installed it."""
    own: ClassVar[list[str]] = []
    """The folders of the package, in which no name is hidden."""

    @classmethod
    def install(cls, own: list[str]) -> None:
        """Replaces the finder that looks into site-packages."""
        cls.own = own
        cls.hidden = hidden_modules()
        # Without the finders of editable installations: those of a pod are not editable.
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, cls]

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a hidden module only in the package."""
        if path is None and fullname in cls.hidden:
            path = cls.own
        return super().find_spec(fullname, path, target)


def hidden_modules() -> dict[str, str]:
    """The top-level modules that are installed here and that a pod does not have, each with its distribution."""
    installed, in_pod = metadata.packages_distributions(), pod_distributions()
    return {module: names[0] for module, names in installed.items() if not set(map(_normal, names)) & in_pod}


def pod_distributions() -> set[str]:
    """The names of the distributions that a pod has; Marina itself is one, but the one in the package comes first."""
    ours = [_normal(name) for name in metadata.packages_distributions().get("marina", [])]
    found = set(ours) | _with_dependencies(_pod_requirements(ours))
    return {name for name in found if "[" not in name}


def _pod_requirements(ours: Sequence[str]) -> list[str]:
    """The requirements of a pod. In a clone they come from `pyproject.toml`, which may be newer than the installed
    metadata of `ours`, the distribution that Marina was installed as."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        return [f"{name}[serve]" for name in ours]
    data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return [*data["dependencies"], *data["optional-dependencies"]["serve"]]


def _with_dependencies(requirements: list[str]) -> set[str]:
    """The names of the required distributions and of all their dependencies."""
    names: set[str] = set()
    waiting = requirements
    while waiting:
        name, extras = _parsed(waiting.pop())
        key = f"{name}[{extras}]"
        if key in names:
            continue
        try:
            requires = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        names |= {name, key}
        for requirement in requires:
            extra = re.search(r"""extra == ["']([^"']+)""", requirement)
            if extra is None or extra[1] in extras.split(","):
                waiting.append(requirement)
    return names


def _parsed(requirement: str) -> tuple[str, str]:
    """A requirement's name and its extras."""
    match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
    assert match is not None, requirement
    return _normal(match[1]), (match[2] or "").replace(" ", "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def save_compile_cache(cache: Path) -> None:
    """Saves what torch has compiled so far, for a worker to start from. Only used on GPUs: on the CPU this does not
    contain frozen graphs, and the kernels, which take most of the time, stay in the folder anyway."""
    import torch

    from marina.handlers.program import ARTIFACTS

    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        (cache / ARTIFACTS).write_bytes(saved[0])


if __name__ == "__main__":
    exit_code = 0
    try:
        main()
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Python would wait for the threads that the handler started, which may run for ever.
    os._exit(exit_code)
