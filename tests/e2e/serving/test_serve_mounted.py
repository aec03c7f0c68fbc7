import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import Running
from specs import ROOT
from tiny import make_tiny
from waiting import ask, eventually

from marina.config.ports import free_port_base
from marina.config.render import Ports
from marina.k8s.manifests.config_map import mounted_spec

pytestmark = pytest.mark.e2e


def test_the_mounted_spec_and_a_log_file_serve_as_in_a_pod(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path, access_log="all")
    mounted, log, printed = tmp_path / "mounted.yaml", tmp_path / "server.log", tmp_path / "printed"
    mounted.write_text(mounted_spec(spec), encoding="utf-8")
    ports = Ports(free_port_base())
    command = [sys.executable, "-m", "marina.server", str(mounted), "--mar", str(mar)]
    with printed.open("wb") as stderr:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MARINA_LOG_FILE": str(log)}
        process = subprocess.Popen([*command, "--port-base", str(ports.base)], env=environment, stderr=stderr)
        server = Running(process, spec, ports, printed)
        try:
            eventually(lambda: server.readiness()[0], within_s=60)
            assert ask(server, b"{}") == 200
            eventually(lambda: "request POST /predictions/tiny 200" in log.read_text())
        finally:
            assert server.stop() == 0
    assert log.read_bytes() == printed.read_bytes()


def test_a_log_file_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    log = tmp_path / "nowhere/server.log"
    command = [sys.executable, "-m", "marina.server", str(spec.file), "--mar", str(mar), "--log-file", str(log)]
    command += ["--port-base", str(free_port_base())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == f"error: `--log-file`: got `{log}`: No such file or directory\n"
