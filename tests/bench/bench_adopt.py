"""Old archives under a steady load, stopped in the middle of it as a pod is: adopted by Marina, and under TorchServe
alone.

    python tests/bench/bench_adopt.py [--stops 20] [--kinds stream statuses slow]

A Service goes on sending requests to a pod for some time after its SIGTERM, so the load does, too. Prints, for each
archive, how many requests were sent in all stops, how many were lost because their connection was refused or was cut
before the answer, and in how many stops one was. Every request is on a connection of its own. Exit code 1 if Marina
lost one."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from process_tree import unwind_on_sigterm

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / folder) for folder in ("", "e2e", "server"))]

from load import Load, Sent  # noqa: E402
from old_archives import OLD_ARCHIVES, Asked, Old, archive_of, write_spec  # noqa: E402
from running import running  # noqa: E402
from stock_server import stock_process  # noqa: E402

from marina.archiver import package as packaging  # noqa: E402
from marina.config.load import load_spec  # noqa: E402
from marina.config.progress import Progress  # noqa: E402

RATE, BEFORE_S = 20.0, 2.0
# How long requests come after the SIGTERM; a pod of Marina's expects them for `drain_propagation_s`.
AFTER_S, PROPAGATION_S = 1.0, 2.0
_BYTES = "application/octet-stream"
# The answer of a large model: it takes longer than TorchServe's event loops are kept for a connection that is quiet.
SLOW_HANDLER = """
import time

def handle(data, context):
    if data is None:
        return None
    time.sleep(4)
    return ["late"] * len(data)
"""


def slow() -> Old:
    return Old({"handler.py": SLOW_HANDLER}, [Asked(b"text")], config={"batchSize": 16, "maxBatchDelay": 200})


KINDS = OLD_ARCHIVES | {"slow": slow}
# Of an archive whose worker cannot answer as many.
RATES = {"slow": 3.0}


def under_load(port: int, kind: str, old: Old, process: "subprocess.Popen[bytes]") -> Counter[str]:
    """What became of the requests, with a stop in the middle."""
    sample = old.sample
    kind_of_body = sample.content_type or _BYTES
    rate = RATES.get(kind, RATE)
    with Load(port, f"/predictions/Old_{kind}", sample.body, rate, content_type=kind_of_body) as load:
        time.sleep(BEFORE_S)
        process.terminate()
        time.sleep(AFTER_S)
        load.finish()
    process.wait()
    return Counter(_fate(request) for request in load.sent)


def _fate(request: Sent) -> str:
    if request.outcome.startswith("20"):
        return "answered"
    return "cut" if request.connected else "refused"


def main() -> int:
    """Prints two lines for each archive."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS], metavar="KIND")
    arguments = parser.parse_args()
    unwind_on_sigterm()
    # What the handlers import is installed here, whether or not a pod has it.
    packaging.rehearse = lambda *_: None
    lost_here = 0
    print(
        f"{arguments.stops} stops each, at {RATE:g} requests/s (slow: {RATES['slow']:g}), {AFTER_S:g} s of them after\n"
    )
    print(f"{'':<28} {'sent':>6} {'refused':>8} {'cut':>5} {'stops with a loss':>18}")
    for kind in arguments.kinds:
        old = KINDS[kind]()
        with tempfile.TemporaryDirectory(prefix="bench-adopt-") as scratch:
            folder, store = Path(scratch), Path(scratch) / "store"
            store.mkdir()
            archive = archive_of(store, kind, old)
            spec = load_spec(
                write_spec(folder, kind, old, archive, access_log="off", drain_propagation_s=PROPAGATION_S)
            )
            mar = folder / "out" / packaging.package(spec, folder / "out", progress=Progress(quiet=True)).mar
            fates: dict[str, list[Counter[str]]] = {"adopted": [], "TorchServe alone": []}
            for _ in range(arguments.stops):
                with running(spec, mar=mar) as server:
                    fates["adopted"].append(under_load(server.ports.inference, kind, old, server.process))
                with stock_process(store, [f"Old_{kind}"]) as (port, process):
                    fates["TorchServe alone"].append(under_load(port, kind, old, process))
        for name, each in fates.items():
            whole = sum(each, Counter[str]())
            lost, stops = whole["refused"] + whole["cut"], sum(fate.total() > fate["answered"] for fate in each)
            lost_here += lost if name == "adopted" else 0
            counted = f"{whole.total():>6} {whole['refused']:>8} {whole['cut']:>5} {stops:>18}"
            print(f"{f'{kind}, {name}':<28} {counted}", flush=True)
    return int(lost_here > 0)


if __name__ == "__main__":
    sys.exit(main())
