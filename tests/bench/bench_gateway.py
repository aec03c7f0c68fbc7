"""What the policies of a gateway do, with a real Envoy in front of a queue of 200 requests/s.

    python tests/bench/bench_gateway.py [--requests 10000] [--seconds 60]

The queue is calibrated, so the limit is that of the manifests for its evidence: one pod, one proxy. Requests without a
key, with a wrong one and with the right one come first. Then twice the knee comes, with the limit and without it. It
ends with 1 if a request got another answer than it should, if the accepted rate is more than 5 % off the limit, or if
the p99 is within the objective without the limit, or not within it with the limit.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/loadtest")]

from envoy_gateway import envoy  # noqa: E402
from loadtest_rig import behave, running_server, write_package  # noqa: E402

from marina.config.load import load_spec  # noqa: E402
from marina.k8s.manifests import make_plan, render_objects  # noqa: E402

KEY = "a-key-of-alice"
CAPACITY = 200
OBJECTIVE_MS = 60
SPEC = """
name: digits
model: {source: torchvision:resnet18, weights: random, handler: image}
slo: {p99_ms: %d, error_rate: 0.001}
scaling: {autoscaler: none, min_replicas: 1}
kubernetes:
  route: {gateway: edge/public, auth: {api_keys: digits-keys}%s}
"""


def main() -> int:
    """Runs everything, prints it, and says whether it holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000, help="of each kind of key (default: 10000)")
    parser.add_argument("--seconds", type=int, default=60, help="of load at twice the knee (default: 60)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "server") as server:
        holds = [keys(Path(folder), server, options.requests), limits(Path(folder), server, options.seconds)]
    return 0 if all(holds) else 1


def keys(folder: Path, server: str, count: int) -> bool:
    """Requests with and without a key."""
    file = spec_file(folder, "")
    with gateway(folder, file, server) as url:
        holds = True
        for name, headers, wanted in (
            ("no key", {}, 401),
            ("a wrong key", {"x-api-key": "another"}, 401),
            ("the right key", {"x-api-key": KEY}, 200),
        ):
            counted = Counter(status(url, headers) for _ in range(count))
            print(f"{count:,} requests with {name:<14} {shown(counted)}", flush=True)
            holds = holds and counted == {wanted: count}
    return holds


def limits(folder: Path, server: str, seconds: int) -> bool:
    """Twice the knee, with the limit that follows from the evidence, and without it."""
    behave(server, capacity=CAPACITY)
    file = spec_file(folder, ", limit_rps: auto")
    run("calibrate", file, "--url", server)
    evidence = json.loads((folder / "build/digits/evidence.json").read_text(encoding="utf-8"))
    knee, (limit, _) = evidence["knee"]["rps"], limit_of(folder, file)
    print(f"a queue of {CAPACITY} requests/s: knee {knee:.4g} requests/s within {OBJECTIVE_MS} ms, limit {limit}")
    met = {}
    for name, more in (("with the limit", ", limit_rps: auto"), ("without it", "")):
        behave(server, capacity=CAPACITY)
        file = spec_file(folder, more)
        with gateway(folder, file, server) as url:
            load = ("--rate", f"{2 * knee:g}", "--duration", str(seconds), "--max-duration", str(seconds))
            run("loadtest", file, "--url", url, "--any-package", "--header", "x-api-key: $KEY", *load)
        measured = json.loads((folder / "build/digits/verdict.json").read_text(encoding="utf-8"))["runs"][0]
        p99, run_of = measured["response"]["p99"], measured["measurement"]
        accepted = run_of["in_time"] / run_of["ran_s"]
        met[name] = p99 <= OBJECTIVE_MS, abs(accepted / limit - 1)
        print(
            f"at {2 * knee:.4g} requests/s {name:<15} answered {accepted:.1f}/s, p99 {p99:.1f} ms, "
            f"429 {run_of['limited']:,}, failed {sum(run_of['errors'].values()):,} of {run_of['sent']:,}",
            flush=True,
        )
    within, off = met["with the limit"]
    print(f"the accepted rate is {off:.1%} off the limit")
    return within and off <= 0.05 and not met["without it"][0]


def spec_file(folder: Path, more: str) -> Path:
    """The spec with more fields of its route, and its package."""
    file, text = folder / "spec.yaml", SPEC % (OBJECTIVE_MS, more)
    file.write_text(text, encoding="utf-8")
    write_package(folder / "build/digits", spec_text=text)
    return file


def limit_of(folder: Path, file: Path) -> tuple[int, str]:
    """The rendered limit, in which unit of time."""
    (policy,) = render_objects(make_plan(load_spec(file, files=False), folder / "build/digits"))[
        "gateway/backend-traffic.yaml"
    ]
    limit = policy["spec"]["rateLimit"]["local"]["rules"][0]["limit"]
    return limit["requests"], limit["unit"]


@contextmanager
def gateway(folder: Path, file: Path, server: str) -> Iterator[str]:
    """The address of an Envoy with the policies of a spec."""
    plan = make_plan(load_spec(file, files=False), folder / "build/digits")
    objects = [each for documents in render_objects(plan).values() for each in documents]
    with envoy(folder / "envoy", objects, [urlsplit(server).port or 0], keys={"alice": KEY}) as made:
        yield made.url


def status(url: str, headers: dict[str, str]) -> int:
    """The status of the answer to one request, over a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", "/predictions/digits", b"body", headers)
        return connection.getresponse().status
    finally:
        connection.close()


def shown(counted: Counter[int]) -> str:
    """Each status with its number."""
    return ", ".join(f"{count:,} × {status}" for status, count in sorted(counted.items()))


def run(verb: str, file: Path, *words: str) -> None:
    """Runs a verb of Marina, whose verdict may be no."""
    command = [sys.executable, "-m", "marina", verb, str(file), "--out", str(file.parent / "build"), "--quiet", *words]
    done = subprocess.run(command, check=False, env=os.environ | {"KEY": KEY}, stdout=subprocess.DEVNULL, cwd=ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(f"marina {verb} ended with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
