"""What a package may do while it is tried: no more than in a pod, and an error says what it tried."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from specs import ROOT, make_spec

from marina.archiver.package import package
from marina.config.errors import SourceError
from marina.config.progress import Progress

HANDLER = """
from marina.handlers import TensorHandler

class Own(TensorHandler):
    def setup(self):
        import os, tempfile, urllib.request
        tempfile.TemporaryFile().write(b"may")
        {does}
"""
SPEC: dict[str, Any] = {
    "model.source": "./model.py:build",
    "model.handler": "./handler.py:Own",
    "model.inputs": {"x": {"shape": [2]}},
    "model.compile": "export",
    "model.batch_sizes": [1],
}
PACK = '`files: [./NAME]` under `model`, and read it from `self.directory / "files"`'


def tried(folder: Path, does: str) -> str:
    """What is said when a package is tried whose handler does this at its start."""
    (folder / "model.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n")
    (folder / "handler.py").write_text(HANDLER.format(does=does))
    with (folder / "said").open("w+", encoding="utf-8") as said:
        try:
            package(make_spec(SPEC, folder / "spec.yaml"), folder / "build", progress=Progress(stream=said))
        except SourceError as err:
            return str(err).replace(str(folder), "DIR")
        said.seek(0)
        return said.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "last", "named", "hint"),
    [
        pytest.param(
            "urllib.request.urlopen('https://hub.example.org/m')",
            "<urlopen error [Errno -3] Temporary failure in name resolution>",
            "it asked for `hub.example.org:443`, but a pod has no network when it starts",
            f"save what it downloads beside the spec, write {PACK}",
            id="host",
        ),
        pytest.param(
            "open('DIR/words.txt')",
            "No such file or directory: 'DIR/words.txt'",
            "it read `DIR/words.txt`, which is not in the package",
            f"write {PACK}",
            id="file",
        ),
        pytest.param(
            "open('/opt/marks', 'w')",
            "Read-only file system: '/opt/marks'",
            "it wrote `/opt/marks`, but a pod can write only to temporary folders",
            "write below `tempfile.gettempdir()`, the only place where a pod may",
            id="writing",
        ),
    ],
)
def test_what_a_pod_has_not_is_named_with_what_to_do(
    tmp_path: Path, does: str, last: str, named: str, hint: str
) -> None:
    (tmp_path / "words.txt").write_text("conch", encoding="utf-8")
    said = tried(tmp_path, does.replace("DIR", str(tmp_path)))
    where, _, rest = said.partition("; before that, ")
    assert re.search(re.escape(last) + r" at `handler\.py:\d+`$", where), said
    assert rest == f"{named}\n\nhint: {hint}"


@pytest.mark.slow
def test_a_handler_that_goes_on_without_it_is_packaged_and_that_is_said(tmp_path: Path) -> None:
    does = "try: urllib.request.urlopen('https://hub.example.org/m')\n        except OSError: pass"
    assert "it went on without what a pod does not have: it asked for `hub.example.org:443`" in tried(tmp_path, does)


ISOLATED = """
import json, runpy, socket, subprocess, sys
from pathlib import Path

loaded = runpy.run_path(sys.argv[1])
if sys.argv[3] == "forbidden":
    loaded["isolate"].__globals__["_enter_namespaces"] = lambda _: (_ for _ in ()).throw(OSError(1, "forbidden"))
loaded["isolate"](Path(sys.argv[2]), [])
caught = []
for attempt in (
    lambda: socket.socket().connect(("192.0.2.1", 80)),
    lambda: open("/opt/marks", "w"),
    lambda: subprocess.run(["touch", "/opt/marks"], check=True, stderr=subprocess.DEVNULL),
):
    try:
        attempt()
    except (OSError, subprocess.CalledProcessError) as err:
        caught.append(type(err).__name__)
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print(json.dumps(caught))
"""


@pytest.mark.parametrize("kernel", ["as it is", "forbidden"])
def test_the_kernel_also_stops_other_programs_and_else_python_stops_itself(tmp_path: Path, kernel: str) -> None:
    (tmp_path / "staged").mkdir()
    script = ROOT / "archiver/isolation.py"
    command = [sys.executable, "-P", "-c", ISOLATED, str(script), str(tmp_path / "staged"), kernel]
    caught = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    without_kernel = (tmp_path / "without-kernel").is_file()
    assert without_kernel or kernel == "as it is"
    assert caught == ["OSError", "OSError", *([] if without_kernel else ["CalledProcessError"])]
    Path("/opt/marks").unlink(missing_ok=True)
