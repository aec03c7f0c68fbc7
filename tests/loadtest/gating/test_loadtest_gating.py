"""A gate on live traffic: what its readings mean, and what it says of pairs whose difference is known."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from marina.config.errors import ClusterError
from marina.config.histogram import Histogram
from marina.config.latency import EDGES_MS
from marina.loadtest.gating import (
    LiveLimits,
    LiveRound,
    LiveRounds,
    LiveVerdict,
    PodReading,
    PodWindow,
    announced,
    judge_live,
    looks_at,
    wrong_at,
)

LIMITS = LiveLimits(error_rate=0.01, regression=0.2)


def histogram(values: list[float]) -> Histogram:
    made = Histogram(EDGES_MS)
    for value in values:
        made.add(value)
    return made


def reading(good: list[float], failed: int = 0, **changed: Any) -> PodReading:
    plain = {"package": "ab", "started": 1.0, "worker_restarts": 0, "memory_bytes": 10**8}
    return PodReading(**plain | changed, answers={200: histogram(good), 500: histogram([1.0] * failed)})


def window(dice: random.Random, level: float, failed: float = 0.0, count: int = 60) -> PodWindow:
    fails = sum(dice.random() < failed for _ in range(count))
    return PodWindow(histogram([20 * level * dice.lognormvariate(0, 0.25) for _ in range(count - fails)]), fails)


def rounds(count: int, slower: float = 1.0, failed: float = 0.0, seed: int = 0) -> LiveRounds:
    """Three old pods and a new one, whose levels wander together from window to window."""
    dice, level = random.Random(seed), 0.0
    live = LiveRounds()
    for _ in range(count):
        level = 0.8 * level + dice.gauss(0, 0.06)
        times = 2.718**level
        old = {f"old-{pod}": window(dice, times) for pod in range(3)}
        live.rounds.append(LiveRound(old, {"new": window(dice, times * slower, failed)}))
    return live


def judged(live: LiveRounds, **limits: Any) -> LiveVerdict:
    return judge_live(live, LIMITS.model_copy(update=limits), wrong_at(1, (1,)))


def test_a_window_is_what_came_between_two_readings() -> None:
    live = LiveRounds()
    live.add({"old": reading([5, 6])}, {"new": reading([7])})
    assert not live.rounds
    live.add({"old": reading([5, 6, 9, 9])}, {"new": reading([7, 8], failed=3)})
    (made,) = live.rounds
    assert made.old["old"].response.count == 2
    assert made.old["old"].response.percentile(0.5) == pytest.approx(9, rel=0.01)
    assert (made.new["new"].answered, made.new["new"].failed) == (4, 3)


def test_a_pod_that_was_started_again_has_no_window_and_fails_if_it_is_new() -> None:
    live = LiveRounds()
    live.add({"old": reading([5] * 9), "other": reading([5])}, {"new": reading([7] * 9)})
    live.add({"old": reading([5], started=2.0), "other": reading([5, 5])}, {"new": reading([7] * 10)})
    assert set(live.rounds[0].old) == {"other"}
    assert not live.restarted
    live.add({"other": reading([5, 5, 5])}, {"new": reading([7], started=3.0)})
    assert judged(live).status == "FAIL"
    assert judged(live).reasons[0].id == "restarted"


def test_a_worker_that_died_is_a_restart() -> None:
    live = LiveRounds()
    for restarts in (0, 1):
        live.add({"old": reading([5])}, {"new": reading([7], worker_restarts=restarts)})
    assert "a worker of new ended" in judged(live).reasons[0].text


@pytest.mark.parametrize("page", [b"", b"[]", b'{"schema": "other/1"}', b'{"schema": "marina.latencies/1"}'])
def test_another_page_is_an_error_that_names_the_pod(page: bytes) -> None:
    with pytest.raises(ClusterError, match="old-1 has no page /latencies"):
        PodReading.parse("old-1", page)


def test_a_page_is_read_as_it_was_counted() -> None:
    counts = {"200": histogram([5, 6]).to_data()}
    page = {"schema": "marina.latencies/1", "sha256": "ab", "started": 1.0, "worker_restarts": 0, "memory_bytes": 10**8}
    assert PodReading.parse("old", json.dumps(page | {"answers": counts}).encode()).answers == {200: histogram([5, 6])}


@pytest.mark.parametrize(
    ("live", "status", "reason"),
    [
        (lambda: rounds(120), "PASS", None),
        (lambda: rounds(24, slower=1.2), "INVALID", "undecided"),
        (lambda: rounds(120, slower=1.4), "FAIL", "p50-worse"),
        (lambda: rounds(120, failed=0.05), "FAIL", "errors-worse"),
        (lambda: rounds(120, failed=1.0), "FAIL", "errors-worse"),
        (lambda: rounds(8), "INVALID", "too-few-rounds"),
    ],
)
def test_the_verdict_on_pairs_whose_difference_is_known(
    live: Callable[[], LiveRounds], status: str, reason: str | None
) -> None:
    said = judged(live())
    assert said.status == status
    assert reason is None or reason in [each.id for each in said.every_reason()]


def test_the_interval_of_a_ratio_holds_the_truth() -> None:
    figures = {each.figure: each for each in judged(rounds(120, slower=1.1)).figures}
    low, high = figures["p50"].interval or (0.0, None)
    assert high is not None
    assert low < 1.1 < high


def test_too_few_requests_are_no_pass() -> None:
    said = judged(rounds(60), min_requests=10_000)
    assert (said.status, said.reasons[0].id) == ("INVALID", "too-few-requests")
    assert "answered 3,600 requests, needed: 10,000" in said.reasons[0].text


def test_memory_that_grows_and_does_not_stop_fails() -> None:
    live = rounds(120)
    live.memory = {"new": [3e8 + 1e6 * at for at in range(120)], "other": [3e8] * 120}
    said = judged(live)
    assert [(each.id, "new" in each.text) for each in said.reasons] == [("memory-grows", True)]
    assert said.status == "FAIL"


def test_it_announces_more_requests_the_more_often_the_old_revision_fails() -> None:
    def needed(failed: float) -> int:
        dice = random.Random(1)
        before = [{f"old-{pod}": window(dice, 1.0, failed, 200) for pod in range(3)} for _ in range(60)]
        need = announced(before, LIMITS)
        assert need
        return need.errors

    assert 250 < needed(0.0) < 400
    # To tell 1 % from 2 % takes 3,200 requests at the errors that a test usually has.
    assert 3200 < needed(0.01) < 8000


def test_it_announces_nothing_from_too_few_windows() -> None:
    assert announced([{"old": window(random.Random(1), 1.0)}] * 4, LIMITS) is None


def test_looks_become_rarer_and_share_the_error() -> None:
    looks = looks_at(100)
    assert looks == (12, 18, 28, 42, 64, 96, 100)
    assert sum(wrong_at(look, looks).fails for look in looks) == pytest.approx(0.02 / 4)


def test_what_so_few_answers_do_not_limit_has_no_upper_end() -> None:
    live = LiveRounds()
    dice = random.Random(1)
    live.rounds = [
        LiveRound({"old": window(dice, 1.0, count=60)}, {"new": window(dice, 1.0, count=2)}) for _ in range(14)
    ]
    p99 = next(each for each in judged(live).figures if each.figure == "p99")
    assert p99.interval is not None
    assert p99.interval[1] is None
    assert "∞" in judged(live).text


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        pytest.param(0.1, 0.1, "PASS", id="as many"),
        pytest.param(0.0, 0.008, "PASS", id="few"),
        pytest.param(0.1, 0.25, "FAIL", id="more"),
        pytest.param(0.0, 1.0, "FAIL", id="all"),
    ],
)
def test_a_revision_that_refuses_what_the_old_one_took_is_seen(old: float, new: float, status: str) -> None:
    dice = random.Random(2)

    def refusing(share: float) -> PodWindow:
        refused = sum(dice.random() < share for _ in range(60))
        good = [20 * dice.lognormvariate(0, 0.25) for _ in range(60 - refused)]
        return PodWindow(histogram(good), 0, refused)

    live = LiveRounds()
    live.rounds = [LiveRound({"old": refusing(old)}, {"new": refusing(new)}) for _ in range(150)]
    said = judged(live)
    assert said.status == status
    refused = next(each for each in said.figures if each.figure == "refused")
    assert refused.status == status
    assert "refused" in said.text
    if status == "FAIL":
        assert "of the requests were refused (4xx)" in said.why


@pytest.mark.parametrize(("which", "name"), [("ttft", "ttft p99"), ("itl", "itl p50"), ("", "")])
def test_language_models_are_judged_by_their_tokens_and_not_by_the_length_of_answers(which: str, name: str) -> None:
    dice = random.Random(3)

    def writing(new: bool) -> PodWindow:
        def tokens(kind: str, count: int) -> Histogram:
            made = Histogram()
            for _ in range(count):
                made.add(10 * dice.lognormvariate(0, 0.2) * (1.5 if new and kind == which else 1.0))
            return made

        # Answers of the new revision are twice as long.
        long = histogram([500 * dice.lognormvariate(0, 0.2) * (1 + new) for _ in range(60)])
        return PodWindow(long, 0, 0, {"ttft": tokens("ttft", 60), "itl": tokens("itl", 240)})

    live = LiveRounds()
    live.rounds = [LiveRound({"old": writing(False)}, {"new": writing(True)}) for _ in range(80)]
    said = judged(live)
    figures = {each.figure: each.status for each in said.figures}
    assert list(figures) == ["ttft p50", "ttft p99", "itl p50", "itl p99", "errors", "refused"]
    assert said.status == ("FAIL" if which else "PASS")
    assert not name or figures[name] == "FAIL"
    assert all(status == "PASS" for figure, status in figures.items() if not (which and figure.startswith(which)))


def test_the_times_of_tokens_are_read_window_by_window() -> None:
    def tokens(*values: float) -> Histogram:
        made = Histogram()
        for value in values:
            made.add(value)
        return made

    before = PodReading("ab", 1.0, 0, 10**8, {}, {"ttft": tokens(5)})
    after = PodReading("ab", 1.0, 0, 10**8, {}, {"ttft": tokens(5, 7), "itl": tokens(1, 2)})
    made = PodWindow.between(before, after)
    assert {name: each.count for name, each in made.tokens.items()} == {"ttft": 1, "itl": 2}
