"""`make bench-rollout`: releases of each kind through `marina deploy` and its gate, with real servers.

A fake cluster plays the API server and its controllers; behind the pods are servers of real packages, and clients ask
every pod that is ready all the time. Equal releases must be promoted; those that are slower, that fail 5 % of the
requests, or whose weights are not those that their package recorded must be refused, and no request may be lost beyond
those that such a release fails itself.

A release that is done is not done again: `build/bench-rollout/results.jsonl` has one line for each.

    python tests/bench/gating/bench_rollout.py [--each 10] [--rate 25] [--minutes 3]
"""

import argparse
import hashlib
import http.client
import json
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "fake_cluster")]

from fake_apiserver import FakeCluster  # noqa: E402
from running import running  # noqa: E402

import marina  # noqa: E402
from marina.config.load import load_spec  # noqa: E402

NAME, SPACE = "shells", "marina"
FOLDER = ROOT / "build" / "bench-rollout"
BODY = b'{"values": [1, 2, 3]}'
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed({seed})
    return nn.Linear(3, 2)
"""
HANDLER = """
import json
import random
import time
import numpy as np
from marina.handlers import Answer, Form, Handler

class Sums(Handler):
    takes = Form({{"type": "object", "required": ["values"]}}, {{"values": [1, 2, 3]}})

    asked = 0

    def decode(self, request):
        time.sleep({delay} * random.lognormvariate(0, 0.1))
        # The sample at packaging and at a worker's start is always answered.
        self.asked += 1
        if self.asked > 20 and random.random() < {fails}:
            raise RuntimeError("on order of the bench")
        return [np.array(request.json()["values"], np.float32)]

    def encode(self, outputs, request):
        return Answer(json.dumps({{"sums": outputs[0].tolist()}}).encode())
"""
SPEC = """
name: {name}
model:
  source: ./model.py:build
  weights: random
  handler: ./sums.py:Sums
  inputs: {{x: {{shape: [3]}}}}
  compile: eager
  batch_sizes: [1]
serving: {{workers: 1, threads: 1, max_batch: 1, drain_propagation_s: 0}}
slo: {{p99_ms: 500, error_rate: 0.01}}
scaling: {{min_replicas: 1, max_replicas: 1}}
kubernetes: {{rollout: {{gate: {{minutes: {minutes}, regression: 0.2}}}}}}
"""


@dataclass(frozen=True)
class Kind:
    """One kind of release, and how its gate should end."""

    name: str
    wanted: str
    delay: float = 0.03
    fails: float = 0.0
    seed: int = 1


OLD = Kind("old", "")
KINDS = (
    Kind("equal", "deployed"),
    Kind("30 % slower", "failed", delay=0.039),
    Kind("5 % of 500s", "failed", fails=0.05),
    Kind("other weights", "failed", seed=2),
)


def packaged(kind: Kind, minutes: float) -> Path:
    """The spec of a package of this kind, packaged once. `other weights` has the recorded answer of other weights."""
    folder = FOLDER / "packages" / kind.name.replace(" ", "-").replace("%", "percent")
    spec, out = folder / "spec.yaml", folder / "build"
    if (out / NAME / "package.json").is_file():
        return spec
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODEL.format(seed=kind.seed), encoding="utf-8")
    handler = HANDLER.format(delay=kind.delay, fails=kind.fails)
    (folder / "sums.py").write_text(handler, encoding="utf-8")
    spec.write_text(SPEC.format(name=NAME, minutes=minutes), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "marina", "package", str(spec), "--out", str(out), "--quiet"], check=True)
    if kind.seed != OLD.seed:
        _spoil(out / NAME)
    return spec


def _spoil(out: Path) -> None:
    """Gives a package the answer that the old one recorded, and a hash that is right all the same."""
    mar, old = out / "model.mar", FOLDER / "packages" / "old" / "build" / NAME / "model.mar"
    record = json.loads((out / "package.json").read_text(encoding="utf-8"))
    answer = record["record"]["sample"]["answer"]
    with zipfile.ZipFile(mar) as given, zipfile.ZipFile(old) as other:
        entries = {info: given.read(info) for info in given.infolist()}
        entries = {info: other.read(answer) if info.filename == answer else data for info, data in entries.items()}
    with zipfile.ZipFile(mar, "w") as made:
        for info, data in entries.items():
            made.writestr(info, data)
    record |= {"sha256": hashlib.sha256(mar.read_bytes()).hexdigest(), "bytes": mar.stat().st_size}
    (out / "package.json").write_text(json.dumps(record), encoding="utf-8")


def with_image(spec: Path, digest: str) -> None:
    """As if `marina image --push` had built an image of the package."""
    folder = spec.parent / "build" / NAME
    package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    image = {
        "schema": "marina.image/1",
        "ref": f"registry.local/marina/{NAME}",
        "tag": "1.0",
        "digest": f"sha256:{digest * 64}",
        "package_sha256": package["sha256"],
        "target": "cpu",
        "base": "docker.io/library/python:3.11-slim-bookworm",
        "builder": "buildah 1.33",
        "layers": [],
        "bytes": 0,
    }
    (folder / "image.json").write_text(json.dumps(image), encoding="utf-8")


@dataclass
class Clients:
    """Ask every pod that is ready, at a steady rate, and count the answers of each revision."""

    fake: FakeCluster
    ports: dict[str, int]
    rate: float
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {"old": Counter(), "new": Counter()})
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=(side, at)) for side in self.ports for at in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _ask(self, side: str, at: int) -> None:
        dice, connection = random.Random(f"{side}{at}"), None
        due = time.monotonic()
        while not self._over.is_set():
            due = max(due, time.monotonic() - 1) + dice.expovariate(self.rate / 2)
            self._over.wait(max(0.0, due - time.monotonic()))
            if not self._serves(side):
                continue
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.ports[side], timeout=30)
                connection.request("POST", f"/predictions/{NAME}", BODY, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                self.counts[side][str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as err:
                self.counts[side][type(err).__name__] += 1
                connection = None

    def _serves(self, side: str) -> bool:
        return any(
            revision_of(pod) == side and not pod["metadata"].get("deletionTimestamp") and is_ready(pod)
            for name in self.fake.names("Pod", SPACE)
            if (pod := self.fake.get("Pod", name, SPACE))
        )


def revision_of(pod: dict[str, Any]) -> str:
    return "old" if "aaaa" in pod["spec"]["containers"][0]["image"] else "new"


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def command(verb: str, spec: Path, fake: FakeCluster, *options: str) -> list[str]:
    where = ["--kubeconfig", str(fake.kubeconfig), "--out", str(spec.parent / "build")]
    return [sys.executable, __file__, "--as-marina", verb, str(spec), *where, *options]


def run(verb: str, spec: Path, fake: FakeCluster, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(verb, spec, fake, *options), capture_output=True, text=True)


@dataclass
class Scene:
    """A cluster in which the old revision serves, and one of `kind` is to replace it."""

    fake: FakeCluster
    clients: Clients
    old: Path
    new: Path

    def images(self) -> list[str]:
        pods = [self.fake.get("Pod", name, SPACE) for name in self.fake.names("Pod", SPACE)]
        return sorted(revision_of(pod) for pod in pods if pod and not pod["metadata"].get("deletionTimestamp"))


@contextmanager
def scene(kind: Kind, folder: Path, options: argparse.Namespace) -> Iterator[Scene]:
    old, new = packaged(OLD, options.minutes), packaged(kind, options.minutes)
    with_image(old, "a")
    with_image(new, "b")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        servers = {
            side: stack.enter_context(
                running(load_spec(spec), mar=spec.parent / "build" / NAME / "model.mar", log=folder / f"{side}.log")
            )
            for side, spec in (("old", old), ("new", new))
        }
        fake = stack.enter_context(FakeCluster(folder))
        fake.backend_of = lambda pod: {
            8080: servers[revision_of(pod)].ports.inference,
            8090: servers[revision_of(pod)].ports.supervisor,
        }
        first = run("deploy", old, fake)
        if first.returncode:
            raise SystemExit(f"the old revision cannot be deployed:\n{first.stdout}{first.stderr}")
        clients = Clients(fake, {side: server.ports.inference for side, server in servers.items()}, options.rate)
        with clients.asking():
            yield Scene(fake, clients, old, new)


def release(kind: Kind, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One release of this kind, as a line of the results."""
    with scene(kind, folder, options) as made:
        begun = time.monotonic()
        done = run("deploy", made.new, made.fake)
        record = json.loads((made.new.parent / "build" / NAME / "rollout.json").read_text(encoding="utf-8"))
        seconds, left = time.monotonic() - begun, made.images()
    gate = record["gate"] or {}
    right = record["result"] == kind.wanted and left == (["new"] if kind.wanted == "deployed" else ["old"])
    text = gate.get("text") or record["error"] or done.stderr[-500:]
    return {"ok": right, "said": gate.get("status", "none"), "seconds": round(seconds), "text": text} | lost(made, kind)


def lost(made: Scene, kind: Kind) -> dict[str, Any]:
    """How many requests were answered, and how many were lost that the release did not fail on purpose."""
    counts = made.clients.counts
    injected = counts["new"].pop("500", 0) + counts["new"].pop("503", 0) if kind.fails else 0
    wrong = {f"{side} {what}": n for side, each in counts.items() for what, n in each.items() if what != "200"}
    answered = sum(each["200"] for each in counts.values())
    return {"answered": answered, "injected": injected, "lost": sum(wrong.values()), "errors": wrong}


def main() -> None:
    if sys.argv[1:2] == ["--as-marina"]:
        sys.exit(marina.main(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10, help="releases of each kind")
    parser.add_argument("--rate", type=float, default=25, help="requests a second to each revision")
    parser.add_argument("--minutes", type=float, default=3, help="how long a gate stands")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = FOLDER / "results.jsonl"
    done = (
        {each["name"]: each for each in map(json.loads, results.read_text().splitlines())} if results.exists() else {}
    )
    planned: dict[str, Callable[[Path], dict[str, Any]]] = {}
    for number in range(1, options.each + 1):
        for kind in KINDS:
            planned[f"{kind.name} {number}"] = lambda folder, kind=kind: release(kind, folder, options)
    for name, play in planned.items():
        if name not in done:
            done[name] = {"name": name} | play(FOLDER / "cluster")
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[name]) + "\n")
        each = done[name]
        counted = f"{each['answered']:,} answered, {each['injected']} failed on purpose, {each['lost']} lost"
        print(
            f"{'ok' if each['ok'] else 'WRONG':<6} {name:<24} {each['said']:<8} {counted}: {each['text']}", flush=True
        )
    shown = [done[name] for name in planned]
    print(f"{sum(each['ok'] for each in shown)} of {len(shown)} as wanted, {sum(each['lost'] for each in shown)} lost")


if __name__ == "__main__":
    main()
