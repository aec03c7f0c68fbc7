"""Files of users that are called like Marina's folders, and the archive's own `marina` in a worker."""

import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from email.message import Message
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import Running, running
from specs import Packaged, digits_spec
from strangers import write_namesakes
from waiting import DIGIT

from marina.archiver.rehearsal import rehearse
from marina.config.errors import SourceError
from marina.config.load import load_spec
from marina.config.progress import Progress
from marina.config.record import RECORD

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with a spec that `init` wrote and that names the user's handler."""
    folder = tmp_path_factory.mktemp("user")
    write_namesakes(folder)
    marina(folder, "init", "net", "--source", "./model.py:Net")
    write_spec(folder, handler="../handlers.py:Own", batch_sizes=[1, 2])
    return folder


def write_spec(folder: Path, **model: Any) -> None:
    file = folder / "net/spec.yaml"
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump(data | {"model": data["model"] | model}), encoding="utf-8")


def marina(folder: Path, *words: str, code: int = 0) -> str:
    """What a verb prints, typed in the user's folder."""
    # Without what the tests put on the path: the folder itself comes first, as for a user.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "marina", *words, "--quiet"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def headers_of(server: Running, body: bytes) -> Message:
    """The headers of the answer to one request, which succeeds."""
    url = f"{server.url}/predictions/{server.spec.name}"
    content_type = "image/png" if body == DIGIT else "application/json"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": content_type})) as answer:
        return answer.headers


@pytest.mark.parametrize("mode", ["aot", "jit", "eager"])
def test_a_folder_whose_files_have_marinas_names_is_packaged(folder: Path, mode: str) -> None:
    write_spec(folder, compile=mode)
    assert "agreement 1.0000" in marina(folder, "package", "net/spec.yaml", "--out", f"build-{mode}")
    with zipfile.ZipFile(folder / f"build-{mode}/net/model.mar") as archive:
        names = {name for name in archive.namelist() if not name.startswith("marina/handlers/")}
    assert {"docker.py", "handlers.py", "k8s.py", "loadtest.py", "tests.py", "marina/__init__.py"} <= names
    sources = {"source/archiver/scale.py", "source/config.py", "source/server.py"}
    assert names & sources == (sources if mode == "eager" else set())


def test_it_is_served_and_loaded(folder: Path) -> None:
    write_spec(folder, compile="eager")
    marina(folder, "package", "net/spec.yaml")
    spec = load_spec(folder / "net/spec.yaml")
    with running(spec, mar=folder / "build/net/model.mar", log=folder / "server.log") as server:
        assert headers_of(server, b'{"x": [0, 0, 0, 0]}')["X-Names"] == "tests docker k8s loadtest"
        words = ("loadtest", "net/spec.yaml", "--url", server.url, "--rate", "20", "--duration", "2")
        # Too short for a verdict.
        marina(folder, *words, code=3)
    measured = json.loads((folder / "build/net/verdict.json").read_text(encoding="utf-8"))["runs"][0]["measurement"]
    assert (measured["sent"], measured["errors"]) == (40, {})


def test_a_file_called_marina_and_an_import_of_handlers_are_refused_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "marina.py").write_text("WIDTH = 3\n", encoding="utf-8")
    (tmp_path / "model.py").write_text("from marina import WIDTH\n", encoding="utf-8")
    # Not `python -m marina`, which would run that file.
    command = [str(Path(sys.executable).with_name("marina")), "init", "net", "--source", "./model.py", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`marina.py` has the name of Marina's own package" in done.stderr
    (tmp_path / "marina.py").unlink()
    (tmp_path / "model.py").write_text("from handlers import TensorHandler\n", encoding="utf-8")
    printed = marina(tmp_path, "init", "net", "--source", "./model.py", code=2)
    assert "imports from `handlers`, which is called `marina.handlers`" in printed
    assert "hint: in model.py: from marina.handlers import …" in printed


def rewritten(mar: Path, target: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    """A MAR with changed files, whose record fits them."""
    with zipfile.ZipFile(mar) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    changed = dict(filter(None, (change(name, data) for name, data in files.items() if name != RECORD)))
    record = json.loads(files[RECORD])
    record["files"] = {name: sha256(data).hexdigest() for name, data in changed.items()}
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in {**changed, RECORD: json.dumps(record).encode()}.items():
            archive.writestr(name, data)
    return target


MARK = b"\n_encode = ImageHandler.encode\nImageHandler.encode = lambda *given: marked(_encode(*given))\n"
MARKED = b"\ndef marked(answer):\n    return Answer(answer.body, answer.content_type, {'X-Changed': 'yes'})\n"


def with_changed_handler(name: str, data: bytes) -> tuple[str, bytes]:
    return name, data + MARKED + MARK if name == "marina/handlers/image.py" else data


def as_packaged_before(name: str, data: bytes) -> tuple[str, bytes] | None:
    """The layout of archives that were packaged when the handlers were a package of their own."""
    if name == "marina/__init__.py":
        return None
    moved = name.removeprefix("marina/") if name.startswith("marina/handlers/") else name
    return moved, re.sub(rb"\bmarina\.handlers\b", b"handlers", data) if name.endswith(".py") else data


def test_a_worker_runs_the_archives_own_handlers(packaged: Packaged, tmp_path: Path) -> None:
    built, package = packaged("fp32")
    mar = rewritten(built / package.mar, tmp_path / "changed.mar", with_changed_handler)
    with running(digits_spec(), mar=mar, log=tmp_path / "server.log") as server:
        assert headers_of(server, DIGIT)["X-Changed"] == "yes"


def test_a_rehearsal_runs_the_archives_own_handlers_and_finds_nothing_else_of_marina(
    packaged: Packaged, tmp_path: Path
) -> None:
    built, package = packaged("fp32")
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(built / package.mar) as archive:
        archive.extractall(folder)
    entry = folder / "marina_entry.py"
    entry.write_text("import marina.config.errors\n" + entry.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(SourceError, match=r"No module named 'marina\.config'"):
        rehearse(digits_spec(), folder, Progress(quiet=True))


def test_an_archive_that_was_packaged_before_is_served(packaged: Packaged, tmp_path: Path) -> None:
    built, package = packaged("fp32")
    mar = rewritten(built / package.mar, tmp_path / "old.mar", as_packaged_before)
    with zipfile.ZipFile(mar) as archive:
        assert "handlers/image.py" in archive.namelist()
        assert not [name for name in archive.namelist() if name.startswith("marina/")]
    with running(digits_spec(), mar=mar, log=tmp_path / "server.log") as server:
        assert headers_of(server, DIGIT)["Content-Type"] == "application/json"
