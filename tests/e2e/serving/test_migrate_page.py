"""The page for those who come from TorchServe, typed as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from running import running
from specs import ROOT

from marina.config.load import load_spec

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs/how-to/migrate.md").read_text(encoding="utf-8")
# The old server, which other tests start, and what needs a cluster, a registry or minutes of load.
ELSEWHERE = ("torchserve", "marina compare", "marina loadtest", "marina image", "marina deploy", "marina init mine")


def test_an_archive_is_adopted_as_the_page_says(tmp_path: Path) -> None:
    for name, text in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = [line for line in re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE) if not line.startswith(ELSEWHERE)]
    serve = commands.index("marina serve shapes/spec.yaml")
    asked, asked_metrics = commands[serve + 1 : serve + 3]
    for command in (*commands[:serve], *commands[serve + 3 :]):
        if not command.startswith("curl"):
            done = typed(command, tmp_path)
            assert done.returncode == 0, (command, done.stderr)
    spec = load_spec(tmp_path / "shapes/spec.yaml")
    assert (spec.url_name, spec.max_batch, spec.queue) == ("Shapes_Net", 8, 1000)
    with running(spec, mar=tmp_path / "build/shapes/model.mar", log=tmp_path / "server.log") as server:
        answer = typed(asked.replace("http://localhost:8080", server.url), tmp_path)
        assert '"shares"' in answer.stdout
        metrics = typed(asked_metrics.replace("http://localhost:8090", server.pages), tmp_path).stdout
        assert re.search(r'^RowsSeen\{ModelName="Shapes_Net",Level="Model",Hostname="[^"]+",\} ', metrics, re.MULTILINE)


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a shell, with this environment's programs."""
    path = shlex.quote(str(Path(sys.executable).parent))
    return subprocess.run(
        f"PATH={path}:$PATH; {command}", shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
