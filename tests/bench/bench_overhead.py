"""What Marina's `tensor` handler costs: a model that does nothing through it, against a handler that does nothing.

    python tests/bench/bench_overhead.py [--rounds 5]

Both are served by the same server with the same settings, batches of 1 and of 8, with a body of 40 bytes (JSON) and of
100 kB (.npy). The clients are wrk's where it is installed, because a client in Python would use as much CPU as the
server and hide the difference.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]

import numpy as np  # noqa: E402
import process_tree  # noqa: E402
import yaml  # noqa: E402
from board import Column, against, median, ratio_text, spread, table, write_report  # noqa: E402
from closed_loop import ClosedLoop  # noqa: E402
from running import running  # noqa: E402

from marina.archiver.archive import ENTRY  # noqa: E402
from marina.archiver.package import package  # noqa: E402
from marina.config.load import parse_spec  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.config.record import RECORD, Record  # noqa: E402
from marina.config.spec import Spec  # noqa: E402
from marina.loadtest.sending import LoadRequest  # noqa: E402

HOME = ROOT / "build" / "bench-overhead"
BODIES = {"40 B": (4, "application/json"), "100 kB": (25_000, "application/x-npy")}
CLIENTS = 64
NOTHING = "def handle(data, context):\n    return [b'{}'] * len(data or [])\n"
COLUMNS = (
    Column("noop_rps", "no-op/s", "{:,.0f}"),
    Column("tensor_rps", "tensor/s", "{:,.0f}"),
    Column("cost", "cost", "{:.0%}"),
    Column("of_noop", "tensor / no-op"),
    Column("noop_cpu_ms", "no-op CPU ms", "{:.3f}"),
    Column("tensor_cpu_ms", "tensor CPU ms", "{:.3f}"),
    Column("spread", "spread", "{:.0%}"),
)


def spec_of(length: int, batch: int) -> Spec:
    """The spec of one case."""
    data = {
        "name": f"double-{length}-{batch}",
        "model": {
            "source": f"{HERE / 'overhead_model.py'}:build",
            "weights": "random",
            "handler": "tensor",
            "inputs": {"x": {"shape": [length]}},
            "batch_sizes": [1, 8],
        },
        "serving": {"max_batch": batch, "drain_propagation_s": 0, "access_log": "off"},
        "slo": {"p99_ms": 50},
    }
    return parse_spec(yaml.safe_dump(data, sort_keys=False), HERE / "spec.yaml", files=False)


def mars(spec: Spec) -> dict[str, Path]:
    """The package, and the same one with a handler that does nothing."""
    folder = HOME / spec.name
    if not (folder / "model.mar").exists():
        package(spec, folder, progress=Progress())
    nothing = folder / "nothing.mar"
    with zipfile.ZipFile(folder / "model.mar") as source, zipfile.ZipFile(nothing, "w") as target:
        record = Record.model_validate_json(source.read(RECORD))
        files = {**record.files, ENTRY: hashlib.sha256(NOTHING.encode()).hexdigest()}
        for entry in source.infolist():
            if entry.filename not in (RECORD, ENTRY):
                target.writestr(entry, source.read(entry))
        target.writestr(ENTRY, NOTHING)
        target.writestr(RECORD, record.model_copy(update={"files": files}).json_text())
    return {"noop": nothing, "tensor": folder / "model.mar"}


def request_of(url: str, length: int, kind: str) -> LoadRequest:
    """The body of one case."""
    values = np.linspace(0, 1, length, dtype=np.float32)
    if kind == "application/json":
        body = json.dumps({"x": [round(float(value), 3) for value in values]}).encode()
    else:
        buffer = io.BytesIO()
        np.save(buffer, values)
        body = buffer.getvalue()
    return LoadRequest(url=url, body=base64.b64encode(body), content_type=kind)


@contextmanager
def served(spec: Spec, mar: Path, kind: str, length: int) -> Iterator[tuple[int, LoadRequest]]:
    """A server and what to send it."""
    with running(spec, mar=mar) as server:
        yield server.process.pid, request_of(f"{server.url}/predictions/{spec.name}", length, kind)


def window(pid: int, request: LoadRequest, seconds: float, cores: int) -> dict[str, Any]:
    """The rate at saturation, and the CPU of the server for each answer."""
    if shutil.which("wrk") is None:
        with ClosedLoop(request, CLIENTS) as loop:
            return asdict(loop.window(pid, 1, seconds, cores=cores))
    script, body = HOME / "post.lua", HOME / "body"
    body.write_bytes(request.body)
    script.write_text(
        f'local file = io.open("{body}", "rb")\nwrk.method, wrk.body = "POST", file:read("*a")\n'
        f'wrk.headers["Content-Type"] = "{request.content_type}"\n'
    )
    _wrk(script, request.url, 1)
    before = process_tree.cpu_s(pid)
    printed = _wrk(script, request.url, seconds)
    rps = float(re.search(r"Requests/sec:\s+([\d.]+)", printed)[1])
    answered = int(re.search(r"(\d+) requests in", printed)[1])
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
    return {
        "rps": rps,
        "cpu_ms": 1e3 * (process_tree.cpu_s(pid) - before) / answered,
        "errors": {"status": int(failed[1])} if failed else {},
    }


def _wrk(script: Path, url: str, seconds: float) -> str:
    words = ["wrk", "-t1", f"-c{CLIENTS}", f"-d{seconds:g}s", "-s", str(script), url]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Prints a line a measurement and a table at the end, and writes `bench.json` and `bench.html`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    process_tree.unwind_on_sigterm()
    cases = {
        f"batch {batch}, {body}": (spec_of(length, batch), length, kind)
        for batch in (1, 8)
        for body, (length, kind) in BODIES.items()
    }
    HOME.mkdir(parents=True, exist_ok=True)
    made = {case: mars(spec) for case, (spec, *_) in cases.items()}
    rows: dict[str, dict[str, Any]] = {}
    rounds: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for case, (spec, length, kind) in cases.items():
        measured: dict[str, list[dict[str, Any]]] = {"noop": [], "tensor": []}
        with ExitStack() as stack:
            up = {name: stack.enter_context(served(spec, made[case][name], kind, length)) for name in measured}
            for number in range(options.rounds):
                for name, (pid, request) in up.items():
                    seen = window(pid, request, options.seconds, spec.workers)
                    measured[name].append(seen)
                    said = f"{case}  round {number + 1}  {name:<7} {seen['rps']:9,.0f}/s  {seen['cpu_ms']:.3f} ms"
                    print(said, seen["errors"] or "", file=sys.stderr, flush=True)
        rounds[case], rows[case] = measured, row(measured)
    print("\n" + table(rows, COLUMNS))
    write_report(
        HOME,
        title="What the tensor handler costs",
        lead=f"{CLIENTS} clients, medians of {options.rounds} interleaved rounds.",
        record={"schema": "marina.bench-overhead/1", "wrk": shutil.which("wrk") is not None, "rounds": rounds},
        rows=rows,
        columns=COLUMNS,
        bars=[("noop_rps", "No-op, requests a second"), ("tensor_rps", "tensor, requests a second")],
    )
    print(f"\n{HOME / 'bench.html'}")


def row(measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of one case; the cost is by the ratio of each round, for its two halves met the same machine."""
    noop, tensor = ([each["rps"] for each in measured[name]] for name in ("noop", "tensor"))
    quotient = against(noop, tensor)
    return {
        "noop_rps": median(noop),
        "tensor_rps": median(tensor),
        "cost": 1 - quotient.value,
        "of_noop": ratio_text(quotient),
        "noop_cpu_ms": median([turn["cpu_ms"] for turn in measured["noop"]]),
        "tensor_cpu_ms": median([turn["cpu_ms"] for turn in measured["tensor"]]),
        "spread": spread(tensor),
    }


if __name__ == "__main__":
    main()
