"""Whether clients see the same server alike: ours, guidellm and a bare one, in turns, with the same requests at the
same times.

    python tests/bench/text/bench_clients.py [--only fake int8] [--arrivals constant poisson] [--rounds 5]

The server writes tales, with an engine of steps of a set time and with the compiled one. All clients send the same
prompts for answers of the same lengths, at the arrivals that we draw, which guidellm replays. From its record of each
request the same figures are made as ours; what it prints itself is beside them. Where it and we differ, the bare client
says who is right (`bare_client.py`). Exit code 1 when a figure of ours differs from both by more than `--tolerance`,
interval and all, or when a request of ours fails.
"""

import argparse
import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / each) for each in ("", "e2e", "bench"))]

import process_tree  # noqa: E402
import torch  # noqa: E402
from bare_client import body_of  # noqa: E402
from board import Column, against, median, ratio_text, table  # noqa: E402
from packages import packaged_tales, tales_changes  # noqa: E402
from running import Running, running  # noqa: E402
from specs import TALES, tales_spec  # noqa: E402

from marina.config.measured import Arrivals  # noqa: E402
from marina.config.record import write_json  # noqa: E402
from marina.loadtest.judging import latency_summary, stream_figures  # noqa: E402
from marina.loadtest.measuring import Histogram, this_machine  # noqa: E402
from marina.loadtest.scheduling import Schedule  # noqa: E402
from marina.loadtest.sending import LoadPlan, LoadRequest, generate  # noqa: E402
from marina.loadtest.sending.plan import Body, Expected  # noqa: E402

GUIDELLM = "guidellm==0.8.1"
RATES = {"fake": 20.0, "int8": 20.0}
WORDS, LENGTHS = (5, 60), (16, 24, 24, 48)
TIMEOUT_S = 60.0
# guidellm takes all requests at its start, and sends those late that are due meanwhile.
LEAD_S = 3.0
# What a request has to meet for goodput, ms: the longest answers take longer than they may.
FIRST_MS, PACE_MS = 500.0, 100.0
RESPONSE_MS = {"fake": 700.0, "int8": 700.0}
Figures = dict[str, float | None]
# Those that must agree, and those of one client alone.
JUDGED = {
    "ttft_mean": "TTFT mean, ms",
    "ttft_p50": "TTFT p50, ms",
    "ttft_p99": "TTFT p99, ms",
    "tpot_mean": "TPOT mean, ms",
    "tpot_p50": "TPOT p50, ms",
    "tpot_p99": "TPOT p99, ms",
    "response_p50": "response p50, ms",
    "response_p99": "response p99, ms",
    "tokens_per_s": "tokens/s",
    "goodput": "goodput",
    "good": "good answers",
}
SHOWN = {
    "itl_p99": "ITL p99, ms",
    "lag_p50": "sent late p50, ms",
    "lag_p99": "sent late p99, ms",
    "due_first_p99": "TTFT p99 from when it was due, ms",
    "printed_ttft_p99": "TTFT p99 as printed, ms",
    "printed_itl_p50": "ITL p50 as printed, ms",
    "printed_tokens_per_s": "tokens/s as printed",
}
PRINTED = ("time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second")


@dataclass(frozen=True)
class Load:
    """The requests of a run, and when each is due."""

    schedule: Schedule
    prompts: tuple[tuple[str, int], ...]
    """Each with the length of its answer."""
    response_ms: float

    @property
    def rows(self) -> list[tuple[float, str, int]]:
        """Each request: when it is due, its prompt and the length of its answer."""
        which = self.schedule.choose_bodies([1.0] * len(self.prompts))
        return [(due, *self.prompts[at]) for due, at in zip(self.schedule.times(), which, strict=True)]


def draw(variant: str, arrivals: Arrivals, count: int, seed: int) -> Load:
    """Prompts of many lengths, for answers of a few, so that no percentile lies between two of them."""
    dice, rate = random.Random(seed), RATES[variant]
    schedule = Schedule(arrivals=arrivals, rate=rate, warmup_s=0, duration_s=count / rate, seed=seed)
    words = (TALES.parent / "held-out" / "tales.txt").read_text(encoding="utf-8").split()
    lengths = dice.choices(LENGTHS, k=count)
    begins = [dice.randrange(len(words) - WORDS[1]) for _ in range(count)]
    prompts = [" ".join(words[at : at + dice.randint(*WORDS)]) for at in begins]
    return Load(schedule, tuple(zip(prompts, lengths, strict=True)), RESPONSE_MS[variant])


def ours(server: Running, load: Load) -> Figures:
    """The load as `marina loadtest` sends it."""
    bodies = []
    for prompt, length in load.prompts:
        body = base64.b64encode(body_of(prompt, length))
        bodies.append(Body(body=body, content_type="application/json", expected=Expected(form="events")))
    url, first = f"{server.url}/v1/completions", bodies[0]
    request = LoadRequest(
        url=url, body=base64.b64encode(first.body), content_type=first.content_type, bodies=tuple(bodies)
    )
    limits = {"limit_ms": load.response_ms, "first_ms": FIRST_MS, "gap_ms": PACE_MS}
    measured = generate(LoadPlan(request=request, schedule=load.schedule, timeout_s=TIMEOUT_S, **limits))
    pieces = stream_figures(measured)
    assert pieces is not None
    whole = latency_summary(measured.response)
    return {
        **_spread("ttft", measured.streams.first if measured.streams else Histogram()),
        **_spread("tpot", measured.streams.pace if measured.streams else Histogram()),
        "response_p50": whole.p50,
        "response_p99": whole.p99,
        "tokens_per_s": pieces.tokens_per_s,
        "goodput": pieces.goodput,
        "good": measured.good,
        "itl_p99": pieces.itl.p99,
        "lag_p50": measured.lag.percentile(0.5),
        "lag_p99": measured.lag.percentile(0.99),
        "due_first_p99": pieces.ttft.p99,
    }


def theirs(server: Running, load: Load, python: Path, out: Path) -> Figures:
    """The load as guidellm sends it, in one process of its own."""
    write_requests(out / "prompts.jsonl", load, LEAD_S)
    backend: dict[str, object] = {"kind": "openai_http", "target": server.url, "model": "tales"}
    backend |= {"request_format": "/v1/completions"}
    backend |= {"validate_backend": False, "timeout": TIMEOUT_S, "extras": {"body": {"temperature": 0}}}
    spec = {
        "backend": backend,
        # Its own arrivals at a rate may begin before the moment that it counts from.
        "profile": {"kind": "replay", "schedule_turn": "timestamp"},
        "constraints": [{"kind": "max_requests", "count": len(load.prompts)}],
        "data": [{"kind": "json_file", "path": str(out / "prompts.jsonl")}],
        "outputs": [{"kind": "json", "path": str(out / "guidellm.json")}],
    }
    write_json(out / "scenario.json", {"spec": spec})
    environment = {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "GUIDELLM__LOGGING__CONSOLE_LOG_LEVEL": "WARNING"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hub"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    command = [python.with_name("guidellm"), "run", "--config", out / "scenario.json", "--disable-console"]
    subprocess.run(
        command, cwd=out, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL, preexec_fn=go_first
    )
    (benchmark,) = json.loads((out / "guidellm.json").read_text(encoding="utf-8"))["benchmarks"]
    return their_figures(benchmark, load)


def their_figures(benchmark: Mapping[str, Any], load: Load) -> Figures:
    """From its record of each request. Its process sends late; ours is not, so our times from the moment that a request
    was due are compared with its times from the moment that it was sent."""
    first, pace, response, lag, due_first = (Histogram() for _ in range(5))
    requests = benchmark["requests"]["successful"]
    met, ends, begins = 0, [], []
    for request in requests:
        times, tokens = request["info"]["timings"], request["output_metrics"]["text_tokens"]
        due, sent = times["targeted_start"], times["request_start"]
        first_ms, whole_ms = ((times[name] - sent) * 1000 for name in ("first_token_iteration", "request_end"))
        pace_ms = (times["last_token_iteration"] - times["first_token_iteration"]) * 1000 / (tokens - 1)
        met += first_ms <= FIRST_MS and pace_ms <= PACE_MS and whole_ms <= load.response_ms
        for histogram, value in ((first, first_ms), (pace, pace_ms), (response, whole_ms)):
            histogram.add(value)
        lag.add(max(0.0, sent - due) * 1000)
        due_first.add((times["first_token_iteration"] - due) * 1000)
        begins.append(due)
        ends.append(times["request_end"])
    tokens = sum(request["output_metrics"]["text_tokens"] for request in requests)
    printed = {name: benchmark["metrics"][name]["successful"] for name in PRINTED}
    return {
        **_spread("ttft", first),
        **_spread("tpot", pace),
        "response_p50": response.percentile(0.5),
        "response_p99": response.percentile(0.99),
        "tokens_per_s": tokens / max(max(ends) - min(begins) + load.rows[0][0], load.schedule.duration_s),
        "goodput": met / len(load.prompts),
        "good": len(requests),
        "lag_p50": lag.percentile(0.5),
        "lag_p99": lag.percentile(0.99),
        "due_first_p99": due_first.percentile(0.99),
        "printed_ttft_p99": printed["time_to_first_token_ms"]["percentiles"]["p99"],
        "printed_itl_p50": printed["inter_token_latency_ms"]["median"],
        "printed_tokens_per_s": printed["output_tokens_per_second"]["mean"],
    }


def bare(server: Running, load: Load, out: Path) -> Figures:
    """The load as a client with nothing in it sends it, in a process of its own."""
    write_requests(out / "bare.jsonl", load, 0)
    command = [sys.executable, str(Path(__file__).with_name("bare_client.py")), str(server.ports.inference)]
    subprocess.run([*command, out / "bare.jsonl", out / "bare.json"], check=True, preexec_fn=go_first)
    answers = json.loads((out / "bare.json").read_text(encoding="utf-8"))
    first, pace, response, lag = (Histogram() for _ in range(4))
    for (_, _, tokens), answer in zip(load.rows, answers, strict=True):
        first.add(answer["first"] * 1000)
        pace.add((answer["last"] - answer["first"]) * 1000 / (tokens - 1))
        response.add(answer["ended"] * 1000)
        lag.add(answer["sent"] * 1000)
    return {
        **_spread("ttft", first),
        **_spread("tpot", pace),
        "response_p50": response.percentile(0.5),
        "response_p99": response.percentile(0.99),
        "good": len(answers),
        "lag_p50": lag.percentile(0.5),
        "lag_p99": lag.percentile(0.99),
    }


def write_requests(file: Path, load: Load, lead_s: float) -> None:
    """For a client that reads them from a file; all due by so much later."""
    names = ("relative_timestamp", "prompt", "output_tokens_count")
    rows = [dict(zip(names, (due + lead_s, *what), strict=True)) for due, *what in load.rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def go_first() -> None:
    """Before the server, where both need the same core: ours does so by itself."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _spread(name: str, histogram: Histogram) -> Figures:
    latency = latency_summary(histogram)
    return {f"{name}_mean": latency.mean, f"{name}_p50": latency.p50, f"{name}_p99": latency.p99}


def environment_of_theirs(out: Path) -> Path:
    """The Python that has guidellm; torch, which that wants, is ours."""
    python = out / "venv" / "bin" / "python"
    if not python.with_name("guidellm").exists():
        subprocess.run([sys.executable, "-m", "venv", out / "venv"], check=True)
        packages = next((out / "venv" / "lib").glob("python*")) / "site-packages"
        (packages / "ours.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        # Its collector stops it for 0.2 seconds again and again, in which it hears nothing and sends nothing.
        (packages / "uncollected.pth").write_text("import gc; gc.disable()\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", GUIDELLM], check=True)
    return python


def compare(server: Running, variant: str, arrivals: Arrivals, args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The rounds of all clients, and whether they agree."""
    python = environment_of_theirs(args.out)
    clients: dict[str, Callable[[Load], Figures]] = {
        "marina": lambda load: ours(server, load),
        "guidellm": lambda load: theirs(server, load, python, args.out),
        "bare": lambda load: bare(server, load, args.out),
    }
    rounds: dict[str, list[Figures]] = {name: [] for name in clients}
    ours(server, draw(variant, arrivals, 40, seed=0))
    for number in range(1, args.rounds + 1):
        load = draw(variant, arrivals, args.requests, seed=number)
        # Who goes first has the server as another left it.
        names = list(clients)
        for name in names[number % 3 :] + names[: number % 3]:
            rounds[name].append(clients[name](load))
            told = ", ".join(f"{key} {value:,.4g}" for key, value in rounds[name][-1].items() if value is not None)
            print(f"{variant}, {arrivals}, round {number}, {name}: {told}", file=sys.stderr, flush=True)
    return rounds, judged(variant, arrivals, rounds, args)


def judged(variant: str, arrivals: Arrivals, rounds: Mapping[str, Sequence[Figures]], args: argparse.Namespace) -> bool:
    """Prints what all saw, and whether it is the same."""
    rows, agree = {}, True
    for key, name in {**JUDGED, **SHOWN}.items():
        seen = {client: [each.get(key) for each in figures] for client, figures in rounds.items()}
        row: dict[str, Any] = {client: median(values) for client, values in seen.items()}
        if key in JUDGED:
            row["ratio"], is_near = compared(seen, "guidellm", args.tolerance)
            if None not in seen["bare"]:
                row["to bare"], is_near_bare = compared(seen, "bare", args.tolerance)
                is_near |= is_near_bare
            agree &= is_near
        rows[name] = row
    whole = all(each["good"] == args.requests for each in rounds["marina"])
    columns = [Column(name, name, "{:,.4g}") for name in ("marina", "guidellm", "ratio", "bare", "to bare")]
    print(
        f"\n{variant}, {arrivals}\n{table(rows, columns)}",
        "" if whole else "some requests failed",
        sep="\n",
        flush=True,
    )
    return agree and whole


def compared(seen: Mapping[str, Sequence[float | None]], other: str, tolerance: float) -> tuple[str, bool]:
    """Ours by another's, in words, and whether it may be the same."""
    quotient = against(*([value or 0.0 for value in seen[client]] for client in (other, "marina")))
    if abs(quotient.value - 1) <= tolerance:
        return ratio_text(quotient), True
    may_be_near = quotient.low <= 1 + tolerance and quotient.high >= 1 - tolerance
    return f"{ratio_text(quotient)}  {'unsure' if may_be_near else 'differs'}", may_be_near


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--arrivals", nargs="+", choices=["constant", "poisson"], default=["constant", "poisson"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-clients")
    args = parser.parse_args()
    process_tree.unwind_on_sigterm()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"machine": this_machine().model_dump(), "loads": {}}
    agree = True
    for variant in args.only:
        folder, package = packaged_tales(variant)
        spec = tales_spec(tales_changes(variant) | {"serving.drain_propagation_s": 0})
        with running(spec, mar=folder / package.mar) as server:
            for arrivals in args.arrivals:
                rounds, same = compare(server, variant, arrivals, args)
                record["loads"][f"{variant}, {arrivals}"] = rounds
                agree &= same
    write_json(args.out / "bench.json", record)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; " + ("they agree" if agree else "they differ"))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
