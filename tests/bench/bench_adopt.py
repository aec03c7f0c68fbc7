"""Old archives under a steady load, stopped in the middle of it: adopted by Marina, and under TorchServe alone.

    python tests/bench/bench_adopt.py [--stops 20] [--kinds stream statuses]

Prints, for each archive, how many requests were sent and lost in all stops, and in how many stops one was. Every
request is on a connection of its own, so one whose connection was made was sent before the listener closed. Exit code 1
if Marina lost one."""

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

from load import Load  # noqa: E402
from old_archives import OLD_ARCHIVES, Old, archive_of, write_spec  # noqa: E402
from running import running  # noqa: E402
from stock_server import stock_process  # noqa: E402

from marina.archiver import package as packaging  # noqa: E402
from marina.config.load import load_spec  # noqa: E402
from marina.config.progress import Progress  # noqa: E402

RATE, BEFORE_S = 20.0, 2.0
_BYTES = "application/octet-stream"


def under_load(port: int, kind: str, old: Old, process: "subprocess.Popen[bytes]") -> Counter[str]:
    """What became of the requests whose connection was made, with a stop in the middle."""
    sample = old.sample
    kind_of_body = sample.content_type or _BYTES
    with Load(port, f"/predictions/Old_{kind}", sample.body, RATE, content_type=kind_of_body) as load:
        time.sleep(BEFORE_S)
        process.terminate()
        process.wait()
        load.finish()
    return Counter(request.outcome for request in load.sent if request.connected)


def main() -> int:
    """Prints two lines for each archive."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=[*OLD_ARCHIVES], choices=[*OLD_ARCHIVES], metavar="KIND")
    arguments = parser.parse_args()
    unwind_on_sigterm()
    # What the handlers import is installed here, whether or not a pod has it.
    packaging.rehearse = lambda *_: None
    lost_here = 0
    print(f"{arguments.stops} stops each, at {RATE:g} requests/s\n")
    print(f"{'':<28} {'sent':>6} {'lost':>6} {'stops with a loss':>18}")
    for kind in arguments.kinds:
        old = OLD_ARCHIVES[kind]()
        with tempfile.TemporaryDirectory(prefix="bench-adopt-") as scratch:
            folder, store = Path(scratch), Path(scratch) / "store"
            store.mkdir()
            archive = archive_of(store, kind, old)
            spec = load_spec(write_spec(folder, kind, old, archive, access_log="off", drain_propagation_s=0.5))
            mar = folder / "out" / packaging.package(spec, folder / "out", progress=Progress(quiet=True)).mar
            fates: dict[str, list[Counter[str]]] = {"adopted": [], "TorchServe alone": []}
            for _ in range(arguments.stops):
                with running(spec, mar=mar) as server:
                    fates["adopted"].append(under_load(server.ports.inference, kind, old, server.process))
                with stock_process(store, [f"Old_{kind}"]) as (port, process):
                    fates["TorchServe alone"].append(under_load(port, kind, old, process))
        for name, each in fates.items():
            lost = [fate.total() - sum(fate[f"20{digit}"] for digit in range(5)) for fate in each]
            lost_here += sum(lost) if name == "adopted" else 0
            sent, stops = sum(fate.total() for fate in each), sum(map(bool, lost))
            print(f"{f'{kind}, {name}':<28} {sent:>6} {sum(lost):>6} {stops:>18}", flush=True)
    return int(lost_here > 0)


if __name__ == "__main__":
    sys.exit(main())
