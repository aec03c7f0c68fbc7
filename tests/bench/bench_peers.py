"""The same network for the same photo behind FastAPI, LitServe, BentoML and Ray Serve, and behind Marina.

    python tests/bench/bench_peers.py [--rounds 5] [--only ray]

Each peer twice: as its own quick start has it, and with Marina's int8 artifact and decoding, a worker a core and its
own batching where it has one. They are installed into `build/peers/venv`, with Marina's torch.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]

from bench_serve import KIT  # noqa: E402
from board import Column, against, ratio_text, table, write_report  # noqa: E402
from contestants import PHOTO, Contestant, command, kit, kit_mar, kit_spec, photo_request  # noqa: E402
from rounds import Course, Round, measure, start, summary, worker_environment  # noqa: E402

from marina.config.ports import free_port_base  # noqa: E402
from marina.config.spec import Spec  # noqa: E402
from marina.loadtest.sending import LoadRequest  # noqa: E402

PEERS = HERE / "peers"
HOME = ROOT / "build" / "bench-peers"
BIN = ROOT / "build" / "peers" / "venv" / "bin"
NAMES = ("fastapi", "litserve", "bentoml", "ray")
COLUMNS = (
    Column("rps", "requests/s"),
    Column("spread", "spread", "{:.0%}"),
    Column("cpu_ms", "server CPU ms"),
    Column("p50_ms", "p50 at 70 %"),
    Column("p99_ms", "p99 at 70 %"),
    Column("resident_mb", "MB", "{:,.0f}"),
    Column("start_s", "start s"),
    Column("foreign", "foreign", "{:.0%}"),
)


def form(url: str, field: str) -> LoadRequest:
    """The photo as the file of a form."""
    edge = "marina-bench-form"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="{field}"; filename="harbour.jpg"\r\n'
    body = f"{head}Content-Type: image/jpeg\r\n\r\n".encode() + PHOTO.read_bytes() + f"\r\n--{edge}--\r\n".encode()
    kind = f"multipart/form-data; boundary={edge}"
    return LoadRequest(url=url, body=base64.b64encode(body), content_type=kind)


def as_json(url: str) -> LoadRequest:
    """The photo as base64 in JSON."""
    body = json.dumps({"image": base64.b64encode(PHOTO.read_bytes()).decode()}).encode()
    return LoadRequest(url=url, body=base64.b64encode(body), content_type="application/json")


def peer(name: str, *, compiled: bool, spec: Spec, environment: dict[str, str]) -> Contestant:
    """One peer, as its quick start has it or with the artifact."""
    port, file = free_port_base(), f"{name}_{'artifact' if compiled else 'quick'}"
    url, batch, workers = f"http://127.0.0.1:{port}/predict", str(spec.max_batch), str(spec.workers)
    words: Sequence[str]
    if name == "fastapi":
        words = ["uvicorn", f"{file}:app", "--port", str(port), *(["--workers", workers] if compiled else [])]
        request = photo_request(url) if compiled else form(url, "file")
    elif name == "litserve":
        words = ["python", str(PEERS / f"{file}.py"), str(port), *([batch, workers] if compiled else [])]
        request = as_json(url)
    elif name == "bentoml":
        words = ["bentoml", "serve", f"{file}:{'Compiled' if compiled else 'Quick'}", "--port", str(port)]
        request = form(url, "images" if compiled else "image")
    else:
        words, url = _ray(file, port), f"http://127.0.0.1:{port}/"
        request = photo_request(url)
    folder = HOME / file
    folder.mkdir(parents=True, exist_ok=True)
    given = {"BATCH": batch, "WORKERS": workers, "ARTIFACT": str(HOME / "artifact"), "PYTHONPATH": f"{PEERS}:{ROOT}"}
    given |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **_quiet(folder), **(environment if compiled else {})}
    label = f"{name}, artifact" if compiled else name
    return command(label, [str(BIN / words[0]), *words[1:]], request=request, environment=given, folder=folder)


def _ray(file: str, port: int) -> list[str]:
    return ["python", str(PEERS / "ray_run.py"), file, str(port)]


def _quiet(folder: Path) -> dict[str, str]:
    """Nothing is told to anybody, and nothing is left in the user's home."""
    return {
        "DO_NOT_TRACK": "1",
        "BENTOML_DO_NOT_TRACK": "1",
        "BENTOML_HOME": str(folder / "bentoml"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def install() -> None:
    """The peers in an environment of their own."""
    wanted = PEERS / "requirements.txt"
    done = BIN.parent / ".installed"
    newest = max(wanted.stat().st_mtime, (PEERS / "constraints.txt").stat().st_mtime)
    if done.exists() and done.stat().st_mtime >= newest:
        return
    subprocess.run([sys.executable, "-m", "venv", str(BIN.parent)], check=True)
    words = [str(BIN / "pip"), "install", "--quiet", "--constraint", str(PEERS / "constraints.txt")]
    subprocess.run([*words, "--requirement", str(wanted)], check=True)
    done.touch()


def main() -> None:
    """Prints a line a measurement and a table at the end, and writes `bench.json` and `bench.html`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement at saturation")
    parser.add_argument("--open", type=float, default=5.0, help="seconds of a measurement at 70 %% of it")
    options = parser.parse_args()
    install()
    spec = kit_spec(KIT["int8"])
    mar = kit_mar(spec, ROOT / "build" / "bench-serve" / "resnet50-int8")
    with zipfile.ZipFile(mar) as archive:
        archive.extractall(HOME / "artifact")
    # The peers get what Marina sets for its workers, threads and allocator too.
    settings = {
        name: value
        for name, value in worker_environment(spec, mar).items()
        if name in ("GLIBC_TUNABLES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    servers = [kit("Marina", spec, mar)]
    for name in options.only or NAMES:
        servers += [peer(name, compiled=it, spec=spec, environment=settings) for it in (False, True)]
    course = Course(rounds=options.rounds, seconds=options.seconds, open_s=options.open, cores=spec.workers)
    with ExitStack() as stack:
        measured = measure(start(servers, stack), course)
    lead = f"One 720×720 JPEG of 110 kB, {course.clients} clients, medians of {course.rounds} interleaved rounds."
    report(HOME, measured, course, schema="marina.bench-peers/1", title="ResNet-50 behind five servers", lead=lead)


def report(
    home: Path, measured: Mapping[str, Sequence[Round]], course: Course, *, schema: str, title: str, lead: str
) -> None:
    """The medians of all rounds, and how many times the rate of each other one Marina has, printed and written."""
    rows = {name: summary(each) for name, each in measured.items()}
    rates = {name: [each["rps"] for each in rounds] for name, rounds in measured.items()}
    ratios = {f"Marina / {name}": against(each, rates["Marina"]) for name, each in rates.items() if name != "Marina"}
    print("\n" + table(rows, COLUMNS) + "\n")
    for name, quotient in ratios.items():
        print(f"{name:<32} {ratio_text(quotient)}")
    write_report(
        home,
        title=title,
        lead=lead,
        record={
            "schema": schema,
            "course": asdict(course),
            "rounds": measured,
            "ratios": {name: asdict(quotient) for name, quotient in ratios.items()},
        },
        rows=rows,
        columns=COLUMNS,
        bars=[("rps", "Requests a second"), ("cpu_ms", "Server CPU a request, ms"), ("p99_ms", "p99 at 70 %, ms")],
    )
    print(f"\n{home / 'bench.html'}")


if __name__ == "__main__":
    main()
