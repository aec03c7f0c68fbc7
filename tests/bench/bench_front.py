"""What it costs to have something in front of TorchServe: nothing, our door inside of its Java, nginx, haproxy.

    python tests/bench/bench_front.py [--rounds 5] [--seconds 3]

One handler that does nothing, the same settings, a TorchServe for each; wrk asks over 1 connection and over 32. The
rounds are interleaved, and each figure is the median with the least and the most of its rounds. CPU is that of all
processes of a contestant, a request; its ratio to our door's has an interval. `others` is the share of the machine that
somebody else took: above a tenth, ask again later.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "server"), str(HERE)]

import process_tree  # noqa: E402
from bench_drain import alone  # noqa: E402
from board import against, ratio_text  # noqa: E402
from running import running  # noqa: E402
from tiny import make_tiny  # noqa: E402

from marina.config.ports import free_port_base, listen_once  # noqa: E402
from marina.config.spec import Spec  # noqa: E402

CONNECTIONS = (1, 32)
DOOR = "our door"
# Java compiles what is used much, so each has to be used as much as the others before anything is measured.
WARMUP_S = 6
NGINX = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_max_body_size 30m; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream torchserve {{ server 127.0.0.1:{behind}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 100000000;
    location / {{ proxy_pass http://torchserve; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""
HAPROXY = """global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:{port}
  default_backend torchserve
backend torchserve
  http-reuse always
  server one 127.0.0.1:{behind} pool-max-conn 64
"""
PROXIES = {"nginx": (NGINX, ("nginx", "-c")), "haproxy": (HAPROXY, ("haproxy", "-f"))}


@dataclass(frozen=True)
class Contestant:
    """Where it listens, and the roots of its processes."""

    port: int
    roots: tuple[int, ...]

    def cpu_s(self) -> float:
        return sum(map(process_tree.cpu_s, self.roots))


@dataclass(frozen=True)
class Seen:
    """One measurement."""

    rps: float
    p50_ms: float
    cpu_ms: float
    others: float


@contextmanager
def bare(spec: Spec, mar: Path) -> Iterator[Contestant]:
    """TorchServe with nothing in front."""
    base = free_port_base()
    with alone(spec, mar, base, quiet=True) as process:
        yield Contestant(base, (process.pid,))


@contextmanager
def proxied(name: str, spec: Spec, mar: Path) -> Iterator[Contestant]:
    """A proxy of one thread before a TorchServe, with connections to it that are kept."""
    text, command = PROXIES[name]
    with bare(spec, mar) as behind, tempfile.TemporaryDirectory(prefix="bench-front-") as folder:
        # nginx gives up root for a user who may not be let into a private folder.
        os.chmod(folder, 0o755)
        port = free_port_base()
        file = Path(folder, "front.conf")
        file.write_text(text.format(folder=folder, port=port, behind=behind.port), encoding="utf-8")
        process = subprocess.Popen([*command, str(file)], stderr=subprocess.DEVNULL)
        try:
            while _is_free(port):
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended with {process.returncode}")
                time.sleep(0.05)
            yield Contestant(port, (*behind.roots, process.pid))
        finally:
            process.terminate()
            process.wait()


def _is_free(port: int) -> bool:
    try:
        listen_once("127.0.0.1", port)
    except OSError:
        return False
    return True


def measure(contestant: Contestant, url_path: str, connections: int, seconds: float, script: Path) -> Seen:
    """wrk's figures, and the CPU that they took."""
    url = f"http://127.0.0.1:{contestant.port}{url_path}"
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    children = _children_s()
    began, cpu, whole = time.monotonic(), contestant.cpu_s(), process_tree.machine_cpu_s()
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    took = time.monotonic() - began
    spent, whole = contestant.cpu_s() - cpu, process_tree.machine_cpu_s() - whole
    if failed := re.search(r"Non-2xx or 3xx responses: \d+|Socket errors: .*", said):
        raise SystemExit(f"{url}: {failed[0]}")
    answered = int(_figure(r"(\d+) requests in", said))
    number, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", said).groups()
    return Seen(
        rps=_figure(r"Requests/sec:\s+([\d.]+)", said),
        p50_ms=float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit],
        cpu_ms=1e3 * spent / answered,
        others=max(0.0, whole - spent - (_children_s() - children)) / (took * (os.cpu_count() or 1)),
    )


def _children_s() -> float:
    """CPU of what was run and waited for, which is wrk."""
    times = os.times()
    return times.children_user + times.children_system


def _figure(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    assert match, text
    return float(match[1])


def interval(values: list[float], form: str) -> str:
    """The median, and the least and the most."""
    return f"{form} [{form}, {form}]".format(median(values), min(values), max(values))


def main() -> int:
    """Prints a line a measurement and a table at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    process_tree.unwind_on_sigterm()
    if missing := [tool for tool in ("wrk", *PROXIES) if shutil.which(tool) is None]:
        print(f"not installed: {', '.join(missing)}\n\nhint: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        script = Path(folder, "post.lua")
        script.write_text('wrk.method, wrk.body = "POST", "{}"\nwrk.headers["Content-Type"] = "application/json"\n')
        spec, mar = make_tiny(Path(folder), workers=1, max_batch=8, max_batch_delay_ms=1, access_log="off")
        ours = stack.enter_context(running(spec, mar=mar))
        contestants = {
            "TorchServe alone": stack.enter_context(bare(spec, mar)),
            DOOR: Contestant(ours.ports.inference, (ours.process.pid,)),
            **{name: stack.enter_context(proxied(name, spec, mar)) for name in PROXIES},
        }
        measured: dict[tuple[int, str], list[Seen]] = {(c, name): [] for c in CONNECTIONS for name in contestants}
        for number in range(options.rounds + 1):
            for connections, name in measured:
                seconds = options.seconds if number else WARMUP_S
                seen = measure(contestants[name], f"/predictions/{spec.name}", connections, seconds, script)
                if number:
                    measured[connections, name].append(seen)
                    said = f"{seen.rps:9,.0f}/s  p50 {seen.p50_ms:.2f} ms  CPU {seen.cpu_ms:.3f} ms"
                    text = f"round {number}  {connections:>2}  {name:<17} {said}  others {seen.others:.0%}"
                    print(text, file=sys.stderr, flush=True)
    print_table(measured)
    return 0


def print_table(measured: dict[tuple[int, str], list[Seen]]) -> None:
    """A line for each contestant and number of connections."""
    columns: dict[str, Callable[[Seen], float]] = {
        "requests/s": lambda seen: seen.rps,
        "p50 ms": lambda seen: seen.p50_ms,
        "CPU ms": lambda seen: seen.cpu_ms,
    }
    forms = {"requests/s": "{:,.0f}", "p50 ms": "{:.2f}", "CPU ms": "{:.3f}"}
    print(f"{'':>3} {'':<17}" + "".join(f" {name:>26}" for name in columns) + f" {'others':>7}")
    for (connections, name), rounds in measured.items():
        cells = (interval([value(seen) for seen in rounds], forms[key]) for key, value in columns.items())
        others = median(seen.others for seen in rounds)
        print(f"{connections:>3} {name:<17}" + "".join(f" {cell:>26}" for cell in cells) + f" {others:>7.0%}")
    for (connections, name), rounds in measured.items():
        if name != DOOR:
            door = [seen.cpu_ms for seen in measured[connections, DOOR]]
            print(
                f"{connections:>3} CPU of {name} / {DOOR} {ratio_text(against(door, [seen.cpu_ms for seen in rounds]))}"
            )


if __name__ == "__main__":
    sys.exit(main())
