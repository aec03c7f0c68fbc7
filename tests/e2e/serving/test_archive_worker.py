"""The worker of an adopted archive is watched, restarted and renewed as any other."""

import os
import signal
from pathlib import Path

from archives import make_archive, spec_text
from running import running
from waiting import ask, eventually, metric, worker_pids

from marina.archiver.package import package
from marina.config.load import load_spec
from marina.config.progress import Progress

# It counts its loads in its own folder, and fails where it is told to.
_HANDLER = """
def handle(data, context):
    if data is None:
        with open("loads.txt", "a") as file:
            file.write("loaded ")
        return None
    if data[0]["body"] == b"fail":
        raise ValueError("as asked")
    return [open("loads.txt").read() for _ in data]
"""


def test_it_is_renewed_without_a_failed_request_and_its_death_is_seen(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, {"handler.py": _HANDLER})
    (tmp_path / "body").write_bytes(b"a body")
    (tmp_path / "spec.yaml").write_text(spec_text(archive, "./body", name="adopted", version="1.0"))
    spec = load_spec(tmp_path / "spec.yaml")
    made = package(spec, tmp_path / "out", progress=Progress(quiet=True))
    # What it wrote when it was tried is not packed.
    assert "archive/loads.txt" not in made.record.files
    with running(spec, mar=tmp_path / "out" / made.mar) as server:
        (pid,) = worker_pids(server)
        environment = dict(
            entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if entry
        )
        folder = Path(environment["MARINA_RENEW_DIR"])
        asked = folder / str(pid)
        asked.touch()
        # It notices after the batch that it was waiting for.
        eventually(lambda: ask(server, b"body") == 200 and not any(folder.iterdir()))
        assert worker_pids(server) == [pid]
        assert Path(f"/proc/{pid}/cwd", "loads.txt").read_text() == "loaded loaded "
        assert ask(server, b"fail", "application/octet-stream") == 503
        eventually(lambda: metric(server, "inference_errors_total", kind="internal") == 1)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not server.readiness()[0])
        eventually(lambda: server.readiness()[0])
