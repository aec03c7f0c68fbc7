"""SIGTERM in the middle of a steady load, many times over: Marina's drain, and the same run with TorchServe alone.

    python tests/bench/bench_drain.py [--rounds 20]
    python tests/bench/bench_drain.py --stops 20 [--kinds form preflight]

With `--stops`, so many stops after nothing and after each kind of request that TorchServe does not count as an arrival,
sent twice and thirty times in turns, while slow ones are open; exit code 1 when one of those got no answer, or a stop
did not end as a clean one.

Every request is on a connection of its own, so one whose connection was made was sent before the listener closed. The
control gets the same configuration and the signal directly, without the `torchserve` script that swallows it.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from process_tree import unwind_on_sigterm

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "server")]

from hostile import exchange, uncounted  # noqa: E402
from load import Load  # noqa: E402
from running import running  # noqa: E402
from tiny import make_tiny  # noqa: E402
from waiting import ask, eventually, metric, worker_pids  # noqa: E402

from marina.config.ports import free_port_base  # noqa: E402
from marina.config.render import Ports  # noqa: E402
from marina.config.spec import Spec  # noqa: E402
from marina.server.java.checks import find_java  # noqa: E402
from marina.server.java.door import Door  # noqa: E402
from marina.server.java.frontend import Frontend, NoAnswerError  # noqa: E402
from marina.server.java.launch import plan_launch  # noqa: E402
from marina.server.system.exits import Exit  # noqa: E402

RATE, SERVICE_S = 60.0, 0.02
# Of a kind before a stop, in turns, and what is open at the stop.
BEFORE, SLOW, SLOW_S = (30, 2), 6, 0.2
# How long a slow machine may take for an answer.
RESPONSE_S = 300
# Servers at a time: most of a stop is waiting.
SIDE_BY_SIDE = 3


@contextmanager
def alone(spec: Spec, mar: Path, port_base: int, *, quiet: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """TorchServe without Marina's supervisor and, unless `quiet`, without its logging, which holds a stop back."""
    with tempfile.TemporaryDirectory(prefix="bench-drain-") as folder:
        java = find_java()
        directory = Path(folder)
        launch = plan_launch(spec, mar=mar, ports=Ports(port_base), host="127.0.0.1", directory=directory, java=java)
        kept = (word for word in launch.command if quiet or not word.startswith("-Dlog4j."))
        command = tuple("org.pytorch.serve.ModelServer" if word == "marina.Server" else word for word in kept)
        # Marina starts no gRPC, so it names no ports for it; with TorchServe's own, only one of several would start.
        grpc = f"grpc_inference_port={port_base + 3}\ngrpc_management_port={port_base + 4}\n"
        files = {file: text + grpc * (file.name == "config.properties") for file, text in launch.files.items()}
        launch = replace(
            launch, command=command, files=files, environment=launch.environment | {"LOG_LOCATION": folder}
        )
        door = Door("127.0.0.1", 0)
        process = launch.start(door)
        output = [stream for stream in (process.stdout, process.stderr) if stream]
        readers = [subprocess.Popen(["cat"], stdin=stream, stdout=subprocess.DEVNULL) for stream in output]
        try:
            frontend = Frontend(spec.name, Ports(port_base), "127.0.0.1", directory)
            while not _all_ready(frontend):
                time.sleep(0.05)
            yield process
        finally:
            process.kill()
            for ending in (process, *readers):
                ending.wait()
            door.close()


def _all_ready(frontend: Frontend) -> bool:
    try:
        return all(worker.ready for worker in frontend.describe().workers)
    except NoAnswerError:
        return False


def one_round(spec: Spec, mar: Path, *, marina: bool) -> Counter[str]:
    """What became of the requests whose connection was made."""
    base = free_port_base()
    context = running(spec, mar=mar, port_base=base) if marina else alone(spec, mar, base)
    body = json.dumps({"sleep_s": SERVICE_S}).encode()
    with context as server, Load(base, f"/predictions/{spec.name}", body, RATE) as load:
        time.sleep(1.5)
        process = server if isinstance(server, subprocess.Popen) else server.process
        process.terminate()
        process.wait()
        time.sleep(0.2)
        load.finish()
    return Counter(request.outcome for request in load.sent if request.connected)


def one_stop(spec: Spec, mar: Path, port_base: int, request: bytes, times: int) -> tuple[int, bool]:
    """How many of the open requests got no answer at a stop after so many of `request`, and whether it was clean."""
    with running(spec, mar=mar, port_base=port_base) as server, ThreadPoolExecutor(SLOW) as clients:
        for _ in range(times):
            exchange(server.ports.inference, request)
        (worker,) = worker_pids(server)
        # They stay open for as long as it takes to see them all.
        os.kill(worker, signal.SIGSTOP)
        body = json.dumps({"sleep_s": SLOW_S}).encode()
        answers = [clients.submit(ask, server, body, timeout_s=RESPONSE_S) for _ in range(SLOW)]
        eventually(lambda: metric(server, "marina_in_flight") == SLOW)
        # Once: a second signal cuts what is open.
        server.process.terminate()
        os.kill(worker, signal.SIGCONT)
        lost = sum(answer.result() != 200 for answer in answers)
        return lost, server.process.wait(RESPONSE_S) == Exit.DRAINED


def distinct_bases() -> Iterator[int]:
    """Free ranges of ports, none of them twice."""
    given: set[int] = set()
    while True:
        if (base := free_port_base()) not in given:
            given.add(base)
            yield base


def stops(count: int, kinds: list[str]) -> int:
    """Prints a line for each kind; the exit code."""
    failed = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(SIDE_BY_SIDE) as servers:
        patient = {"response_timeout_s": RESPONSE_S, "drain_timeout_s": RESPONSE_S}
        spec, mar = make_tiny(Path(folder), access_log="off", **patient)
        # One each: of ranges that are free now, two servers may choose the same.
        bases: SimpleQueue[int] = SimpleQueue()
        for base in itertools.islice(distinct_bases(), SIDE_BY_SIDE):
            bases.put(base)

        def stop(what: bytes, before: int) -> tuple[int, bool]:
            base = bases.get()
            try:
                return one_stop(spec, mar, base, what, before)
            finally:
                bases.put(base)

        rows: dict[str, tuple[bytes, tuple[int, ...]]] = {"nothing": (b"", (0,))}
        rows |= {kind: (request, BEFORE) for kind, (request, _) in uncounted(spec.name).items()}
        print(f"{count} stops each, after 30 and 2 of a kind in turns, with {SLOW} requests open\n")
        print(f"{'':<36} {'lost':>6} {'stops that were not clean':>26}", flush=True)
        for kind in kinds or rows:
            request, before = rows[kind]
            times = itertools.islice(itertools.cycle(before), count)
            ends = list(servers.map(partial(stop, request), times))
            lost, unclean = sum(lost for lost, _ in ends), sum(not clean for _, clean in ends)
            failed |= bool(lost or unclean)
            print(f"{kind:<36} {lost:>6} {unclean:>26}", flush=True)
    return int(failed)


def main() -> int:
    """Prints a line a round and a table at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--stops", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=[], choices=["nothing", *uncounted("")], metavar="KIND")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    unwind_on_sigterm()
    if arguments.stops:
        return stops(arguments.stops, arguments.kinds)
    with tempfile.TemporaryDirectory() as folder:
        spec, mar = make_tiny(Path(folder), workers=2, drain_propagation_s=0.5, access_log="off")
        print(f"{rounds} rounds at {RATE:g} requests/s, {SERVICE_S * 1000:g} ms each, one connection a request\n")
        print(f"{'':<20} {'sent':>6} {'lost':>6} {'rounds with a loss':>20}")
        for name, marina in (("Marina", True), ("TorchServe alone", False)):
            fates = [one_round(spec, mar, marina=marina) for _ in range(rounds)]
            lost = [fate.total() - fate["200"] for fate in fates]
            print(f"{name:<20} {sum(fate.total() for fate in fates):>6} {sum(lost):>6} {sum(map(bool, lost)):>20}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
