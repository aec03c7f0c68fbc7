"""What traces cost: a server without `tracing`, and others with 1 % of the requests, with all, and with 1 % for a
collector that is dead.

    python tests/bench/bench_tracing.py [--rounds 9] [--seconds 3]

The same package for each, asked by wrk in turns, over 16 connections. Each ratio is to the server without, with its
interval. `others` is the share of the machine that somebody else took: above a tenth, ask again later.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "server"), str(HERE)]

import process_tree  # noqa: E402
from bench_front import WARMUP_S, Contestant, Seen, measure  # noqa: E402
from board import against, ratio_text  # noqa: E402
from collector import collector  # noqa: E402
from packages import packaged_digits  # noqa: E402
from running import running  # noqa: E402
from specs import DIGITS, digits_spec  # noqa: E402
from tools import needs  # noqa: E402

from marina.config.ports import free_port_base  # noqa: E402

CONNECTIONS = 16
WITHOUT = "without"


def main() -> int:
    """Prints a line a measurement, and the ratios at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    process_tree.unwind_on_sigterm()
    needs("wrk", package="wrk")
    folder, package = packaged_digits("fp32")
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack, collector() as receiver:
        script = Path(temporary, "post.lua")
        body = DIGITS.parent / "samples" / "3.png"
        text = f'wrk.method = "POST"\nwrk.body = io.open("{body}", "rb"):read("*a")\n'
        script.write_text(text + 'wrk.headers["Content-Type"] = "image/png"\n', encoding="utf-8")
        dead = f"http://127.0.0.1:{free_port_base()}"
        sections = {
            WITHOUT: None,
            "1 %": {"endpoint": receiver.url, "sample": 0.01},
            "1 %, dead": {"endpoint": dead, "sample": 0.01},
            "all": {"endpoint": receiver.url, "sample": 1.0},
        }
        contestants = {}
        for name, section in sections.items():
            fields = {"serving.access_log": "off"}
            spec = digits_spec(fields | ({"tracing": section} if section else {}))
            server = stack.enter_context(running(spec, mar=folder / package.mar))
            contestants[name] = Contestant(server.ports.inference, (server.process.pid,))
        measured: dict[str, list[Seen]] = {name: [] for name in contestants}
        for number in range(options.rounds + 1):
            for name, contestant in contestants.items():
                seconds = options.seconds if number else WARMUP_S
                seen = measure(contestant, "/predictions/digits", CONNECTIONS, seconds, script)
                if number:
                    measured[name].append(seen)
                    said = f"{seen.rps:7,.0f}/s  CPU {seen.cpu_ms:.3f} ms  others {seen.others:.0%}"
                    print(f"round {number}  {name:<10} {said}", file=sys.stderr, flush=True)
        print(f"{len(receiver.spans):,} spans received")
    for name, rounds in measured.items():
        rate, cpu = median(seen.rps for seen in rounds), median(seen.cpu_ms for seen in rounds)
        line = f"{name:<10} {rate:7,.0f}/s  CPU {cpu:.3f} ms"
        if name != WITHOUT:
            bases = measured[WITHOUT]
            rates = against([seen.rps for seen in bases], [seen.rps for seen in rounds])
            cpus = against([seen.cpu_ms for seen in bases], [seen.cpu_ms for seen in rounds])
            line += f"  rate / without {ratio_text(rates)}  CPU / without {ratio_text(cpus)}"
        print(f"{line}  others {median(seen.others for seen in rounds):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
