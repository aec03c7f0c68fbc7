"""The command that is shown after a FAIL or INVALID."""

from pathlib import Path

import pytest
from test_loadtest_report import histogram, outcome
from test_loadtest_report import measured as made

from marina.config.measured import Reason, Verdict
from marina.loadtest.judging import LoadTestOutcome
from marina.loadtest.measuring import Measurement, OtherProcesses, PackageIdentity, ServerReadings, Streams
from marina.loadtest.running import next_step

BUSY = OtherProcesses(cores=1.5, of=2, processes=(("make", 1.1), ("java", 0.4)))
RECORDS, URL = Path("build/digits"), ["--url", "http://x:8080"]
CLUSTER, SERVICE = ["--in-cluster", "--one-pod"], ["--in-cluster", "--service", "front", "--context", "my cluster"]
SLOW, LATE = made(200), made(20, lag=histogram([30] * 2000))
DEAD = made(20, server_end="its process ended with code 137")
REFUSED = made(20, errors={"http-400": 2000}, in_time=0, response=histogram([]), others=BUSY)
UNKNOWN = made(20, identity=PackageIdentity(wanted="ab", found=None), response=histogram([20] * 500))
TIMES = histogram([20] * 10)
STREAMS = Streams(first=TIMES, gaps=TIMES, pace=TIMES, met=1, tokens=1, prompt_tokens=1, cached_tokens=0)
SOAKED, FEW = made(20, vitals=ServerReadings()), made(20, errors={"http 500": 1500}, response=histogram([20] * 500))
LOAD = "marina loadtest spec.yaml --rate 200 --warmup 2 --url http://x:8080"


@pytest.mark.parametrize(
    ("run", "where", "step"),
    [
        (SLOW, [], "marina calibrate spec.yaml says which rate it holds; `--tune` searches"),
        (SLOW, URL, "marina calibrate spec.yaml --url http://x:8080 says which rate it holds"),
        (SLOW, SERVICE, "marina calibrate spec.yaml --in-cluster --context 'my cluster' says which rate one pod"),
        (made(200, streams=STREAMS), [], "marina calibrate spec.yaml says which rate it holds"),
        (made(200, others=BUSY), [], "marina loadtest spec.yaml --rate 200 --warmup 2 when nothing else runs here"),
        (made(200, others=BUSY), CLUSTER, "--in-cluster --one-pod when nothing else runs on the nodes of its pods"),
        (UNKNOWN, URL, "--url http://x:8080 --any-package skips this check; `--pages-url URL` says"),
        (UNKNOWN, CLUSTER, "--in-cluster --one-pod --any-package skips this check"),
        (DEAD, [], "less build/digits/server.log"),
        (DEAD, CLUSTER, "marina status spec.yaml"),
        (REFUSED, [], "less build/digits/server.log"),
        (LATE, [], "--rate 200 --warmup 2 --url URL from another machine than the server's"),
        (LATE, URL, f"{LOAD} from another machine than the server's"),
        (LATE, SERVICE, "--in-cluster --service front --context 'my cluster' --processes 2"),
    ],
)
def test_without_a_pass_the_next_command_for_the_same_server_is_shown(
    run: Measurement, where: list[str], step: str
) -> None:
    assert step in (next_step(outcome(run), RECORDS, where) or "")


def because(reasons: str, run: Measurement, *, started: bool = True, rps: float | None = None) -> LoadTestOutcome:
    """A run that was not passed for these reasons."""
    named = tuple(Reason(id=reason, text="") for reason in reasons.split())
    ended = outcome(run)
    return ended.model_copy(
        update={
            "verdict": Verdict(status="FAIL", reasons=named, checks=()),
            "tested": ended.tested.model_copy(update={"started": started}),
            "objective": ended.objective.model_copy(update={"throughput_rps": rps}),
        }
    )


@pytest.mark.parametrize(
    ("reasons", "run", "step"),
    [
        *((each, made(20), f"{LOAD} --soak 20s") for each in ("settles", "memory-grows", "drift-grows")),
        ("undecided", SOAKED, f"{LOAD} --soak 40"),
        ("too-few-samples", SOAKED, f"{LOAD} --soak 6"),
        ("cut-short too-few-samples settles", SOAKED, f"{LOAD} --soak 10s"),
        ("rate-below-objective", SOAKED, f"{LOAD.replace('200', '500')} --soak 10s"),
        ("arrivals-late", SOAKED, f"{LOAD} --soak 10s from another machine than the server's"),
        ("memory-grows", SOAKED, f"{LOAD} --soak 20s"),
        ("rate-below-objective", made(20), LOAD.replace("200", "500")),
        # If most requests fail, the run that has enough answers is longer.
        ("too-few-samples", FEW, f"{LOAD} --duration 22"),
        *(
            (
                f"too-few-samples errors-over {each}",
                made(20),
                "marina calibrate spec.yaml --url http://x:8080 says which rate it holds",
            )
            for each in ("shed", "ttft-over", "itl-over", "goodput-low")
        ),
        # Another load would not help a server that answers nothing, and nothing is left of one that died elsewhere.
        ("errors-only errors-over p99-over", made(20), None),
        ("server-died p99-over", made(20), None),
    ],
)
def test_each_reason_has_its_next_step(reasons: str, run: Measurement, step: str | None) -> None:
    assert next_step(because(reasons, run, started=False, rps=500), RECORDS, URL) == step


def test_a_rate_that_is_the_promised_one_cannot_be_raised_to_it_and_a_pass_needs_nothing() -> None:
    assert next_step(because("rate-below-objective", made(20), rps=200), RECORDS, URL) is None
    assert next_step(outcome(made(20)), RECORDS) is None


def test_in_a_cluster_too_the_next_rate_is_the_promised_one() -> None:
    step = next_step(because("rate-below-objective too-few-samples", made(20), rps=500), RECORDS, CLUSTER)
    assert "--rate 500 " in str(step)


def test_the_next_command_sends_the_same_load_as_typed() -> None:
    late, slow = outcome(LATE, arrivals="constant"), outcome(SLOW, arrivals="constant")
    load = late.load.model_copy(update={"seed": 1_234_567, "warmup_s": 0.5, "timeout_s": 3.0})
    step = next_step(late.model_copy(update={"load": load}), RECORDS, URL) or ""
    assert "--rate 200 --warmup 0.5 --arrivals constant --seed 1234567 --timeout 3 --url http://x:8080 from" in step
    load = load.model_copy(update={"processes": 4})
    step = next_step(slow.model_copy(update={"load": load}), RECORDS, URL) or ""
    sending = "--arrivals constant --seed 1234567 --timeout 3 --url http://x:8080 --processes 4"
    assert step.startswith(f"marina calibrate spec.yaml {sending} says which rate it holds")
