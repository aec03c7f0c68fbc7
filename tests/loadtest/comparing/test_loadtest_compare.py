"""The verdicts of comparisons: of simulated servers whose difference is known, and of rounds made by hand."""

import json
import math
import random
from collections import Counter
from xml.etree import ElementTree

import pytest
from loadtest_rig import MACHINE, SPEC
from pairs import BURSTY, OBJECTIVE, QUIET, compared, rounds_of
from specs import DIGITS

import marina
from marina.config.answers import answers_match
from marina.config.load import parse_spec
from marina.config.measured import Reason
from marina.loadtest.comparing.comparison import AnswerCounts, Comparison, ComparisonLoad, Figure, Round, Side, Turn
from marina.loadtest.comparing.judgement import (
    FalseRates,
    Judgement,
    first_side,
    judge_rounds,
    look_schedule,
    look_share,
    ratio_text,
)
from marina.loadtest.comparing.ratios import by_chance, ratio
from marina.loadtest.comparing.report import comparison_html, comparison_xml
from marina.loadtest.measuring import Histogram

# The latency of most rounds and of one, ms, of a server that takes 10 ms: as far below the limit as above it.
MOST_AND_ONCE = ((11, 13), (13, 11.2))


def statuses(injected: float, seeds: int, machine=QUIET) -> Counter[str]:  # type: ignore[no-untyped-def]
    return Counter(compared(injected, machine, seed).status for seed in range(seeds))


@pytest.mark.slow
def test_the_same_server_fails_at_most_once_in_twenty_on_a_bursty_machine() -> None:
    assert statuses(0.0, 20, BURSTY)["FAIL"] <= 1


@pytest.mark.slow
def test_a_clearly_slower_server_fails_and_the_same_passes() -> None:
    assert statuses(0.5, 10)["FAIL"] == 10
    assert statuses(0.0, 10)["PASS"] >= 8


@pytest.mark.slow
def test_an_allowed_difference_never_fails() -> None:
    assert statuses(0.1, 10)["FAIL"] == 0


def test_a_ratio_is_the_middle_of_the_rounds_with_the_interval_of_signed_ranks() -> None:
    measured = ratio([10] * 6, [11, 12, 11, 12, 11, 12], 0.02, 0.02)
    assert measured.value == pytest.approx((1.1 * 1.2) ** 0.5)
    # Without a difference, all six ratios are above 1 once in 64 times, which is rarer than the allowed error of an
    # end.
    assert (measured.low, measured.high) == pytest.approx((1.1, 1.2))
    unsure = ratio([10] * 6, [11, 12, 11, 12, 11, 12], 0.02, 0.01)
    assert (unsure.low, unsure.high) == pytest.approx((1.1, float("inf")))
    assert ratio([10, 0], [10, 10], 0.5, 0.5).high == float("inf")


def test_the_approximation_for_many_rounds_continues_the_exact_interval_of_fewer() -> None:
    dice = random.Random(3)
    logs = [dice.gauss(0, 0.1) for _ in range(102)]
    exact, normal = (
        ratio([1] * count, [math.exp(each) for each in logs[:count]], 0.001, 0.001) for count in (100, 102)
    )
    assert normal.reach(9) == pytest.approx(exact.reach(9), rel=0.1)
    assert normal.reach(0.1) == pytest.approx(exact.reach(0.1), rel=0.1)


def test_a_round_that_was_disturbed_hardly_moves_the_interval() -> None:
    calm = ratio([10] * 12, [9.8, 10.2] * 6, 0.02, 0.02)
    disturbed = ratio([10] * 12, [9.8, 10.2] * 5 + [9.8, 100], 0.02, 0.02)
    assert disturbed.high < calm.high * 1.05


def test_swaps_of_rounds_are_counted_and_no_single_round_decides() -> None:
    assert by_chance([0, 1, 1, 0, 1]) == 1 / 8
    assert by_chance([1, -1]) == 3 / 4
    assert by_chance([1000]) == by_chance([1]) == 1 / 2
    assert by_chance([]) == 1


def stalled(times: int, *, count: int = 80, both: bool = False) -> list[Round]:
    """Rounds of two servers; the new one, or both, sometimes answer a tenth of a turn late."""
    calm, late = turn(), turn(stalled=30)
    hit = {round(count * (at + 0.5) / times) for at in range(times)}
    return [
        Round(
            first=first_side(number),
            old=late if both and (number + 1) % count in hit else calm,
            new=late if number in hit else calm,
        )
        for number in range(count)
    ]


def test_frequent_stalls_of_only_the_new_server_fail_and_a_few_leave_it_undecided() -> None:
    often, few, rare, both = (
        judge_rounds(each, OBJECTIVE, 0.2, share=0.2)
        for each in (stalled(16), stalled(9), stalled(3), stalled(16, both=True))
    )
    assert [each.status for each in (often, few, rare, both)] == ["FAIL", "INVALID", "PASS", "PASS"]
    assert [reason.id for reason in figure_of("p99", often).reasons] == ["stalls"]
    assert figure_of("p99", few).reasons[0].text == (
        "in most rounds p99 is within the limit, but over all rounds it is 400 ms, and was 19 ms: "
        "more rounds would show whether that is chance"
    )


def test_errors_are_judged_by_the_interval_of_how_many_more_requests_fail() -> None:
    def errors(*parts: list[Round], share: float = 1.0) -> Figure:
        return figure_of(
            "errors", judge_rounds([turns for part in parts for turns in part], OBJECTIVE, 0.2, share=share)
        )

    # 3,600 requests without an error show that fewer than 0.1 % fail, 1,800 do not.
    assert [errors(rounds(turn(), turn(), count)).status for count in (12, 6)] == ["PASS", "INVALID"]
    # Errors that all come in one round count as one; then even many may be chance.
    once = errors(rounds(turn(), turn(), 11), rounds(turn(), turn(failed=30), 1))
    # The new server's are first, as in "new / old".
    assert (once.status, ratio_text(once)) == ("INVALID", "errors 0.833 % / 0 %")
    assert once.reasons[0].text == (
        "the new server fails 0.833 % of the requests, the old one 0 %: perhaps up to 3.91 % on top, allowed: 0.1 %; "
        "more rounds would show whether that is chance"
    )
    both = errors(rounds(turn(failed=30), turn(), 11), rounds(turn(), turn(failed=30), 11))
    assert both.status == "INVALID"
    # 0.09 % more are allowed, however often they are looked at.
    allowed = [*rounds(turn(), turn(), 73), *rounds(turn(), turn(failed=1), 27)]
    assert errors(allowed).status == "INVALID"
    assert errors(rounds(turn(failed=1), turn(failed=1), 100)).interval == pytest.approx((-0.0013, 0.0008), abs=1e-4)


def test_more_looks_make_each_look_stricter() -> None:
    slower = rounds(turn(), turn(13), 12)
    assert [judge_rounds(slower, OBJECTIVE, 0.2, share=share).status for share in (1, 0.02)] == ["FAIL", "INVALID"]


def test_a_figure_passes_more_easily_than_it_fails_because_all_others_must_pass_too() -> None:
    below, above = ([*rounds(turn(), turn(most), 11), *rounds(turn(), turn(once), 1)] for most, once in MOST_AND_ONCE)
    assert figure_of("p50", judge_rounds(below, OBJECTIVE, 0.2, share=0.1)).status == "PASS"
    assert figure_of("p50", judge_rounds(above, OBJECTIVE, 0.2, share=0.1)).status == "INVALID"
    assert figure_of("p50", judge_rounds(above, OBJECTIVE, 0.2)).status == "FAIL"
    wrong = FalseRates.of(0.1)
    assert (wrong.fails, wrong.passes) == pytest.approx((0.02 * 0.1 / 6, 0.02 * 0.1))


def test_each_server_is_first_equally_often_and_looks_become_rarer_and_share_the_whole_error() -> None:
    assert "".join(first_side(number)[0] for number in range(6)) == "ononon"
    assert look_schedule(41) == (12, 18, 28, 40)
    assert [look_schedule(few) for few in (0, 5, 13)] == [(2,), (4,), (12,)]
    shares = [look_share(look, look_schedule(41)) for look in look_schedule(41)]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares)


def turn(
    latency_ms: float = 10, *, stalled: int = 0, failed: int = 0, in_time: int = 300, cpu_s: float | None = 1.0
) -> Turn:
    latencies = Histogram((OBJECTIVE.p99_ms,))
    for number in range(300 - failed):
        latencies.add(400 if number < stalled else latency_ms * (1 + number % 10 / 10))
    return Turn(
        asked_s=6, planned=300, sent=300, answered=300, in_time=in_time, failed=failed, cpu_s=cpu_s, response=latencies
    )


def figure_of(name: str, verdict: Judgement) -> Figure:
    return next(each for each in verdict.figures if each.figure == name)


def rounds(old: Turn, new: Turn, count: int = 12, disturbed: int = 0) -> list[Round]:
    late = (Reason(id="arrivals-late", text="late"),)
    return [
        Round(first=first_side(number), old=old, new=new, left_out=late if number < disturbed else ())
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (turn(13), "p50-worse"),
        (turn(cpu_s=1.3), "cpu-worse"),
        (turn(in_time=200), "rate-worse"),
        (turn(failed=30), "errors-worse"),
    ],
)
def test_a_figure_that_is_certainly_worse_fails_by_name(new: Turn, reason: str) -> None:
    verdict = judge_rounds(rounds(turn(), new), OBJECTIVE, 0.2)
    assert verdict.status == "FAIL"
    assert reason in {each.id for figure in verdict.figures for each in figure.reasons}
    assert judge_rounds(rounds(turn(), turn()), OBJECTIVE, 0.2).status == "PASS"


def test_the_allowed_regression_decides() -> None:
    slower = rounds(turn(), turn(13))
    assert [judge_rounds(slower, OBJECTIVE, allowed).status for allowed in (0.2, 0.4)] == ["FAIL", "PASS"]


def test_unknown_cpu_time_is_not_a_figure() -> None:
    verdict = judge_rounds(rounds(turn(cpu_s=None), turn()), OBJECTIVE, 0.2)
    assert [figure.figure for figure in verdict.figures] == ["p50", "p99", "rate", "errors"]


def test_a_round_or_two_with_a_busy_generator_are_left_out_and_more_make_it_invalid() -> None:
    few = judge_rounds(rounds(turn(), turn(), 15, disturbed=3), OBJECTIVE, 0.2)
    assert few.status == "PASS"
    many = judge_rounds(rounds(turn(), turn(13), 15, disturbed=9), OBJECTIVE, 0.2)
    assert (many.status, many.needs_more_rounds) == ("INVALID", False)
    assert [reason.id for reason in many.reasons] == ["disturbed", "arrivals-late"]


def test_a_round_without_any_answer_in_time_is_only_one_disturbed_round() -> None:
    stood_still = [*rounds(turn(), turn(), 39), *rounds(turn(), turn(in_time=0), 1)]
    assert figure_of("rate", judge_rounds(stood_still, OBJECTIVE, 0.2)).status == "PASS"


def test_a_new_server_that_begins_to_fail_every_request_fails() -> None:
    silent = turn(failed=300, in_time=0)
    broke = judge_rounds([*rounds(turn(), turn(), 4), *rounds(turn(), silent, 14)], OBJECTIVE, 0.2)
    assert (broke.status, [reason.id for reason in broke.reasons]) == ("FAIL", ["no-answers"])
    assert figure_of("errors", broke).status == "FAIL"


def test_no_further_round_gives_a_ratio_to_one_in_which_the_old_server_answered_nothing() -> None:
    for new in (turn(), turn(failed=300, in_time=0)):
        verdict = judge_rounds(rounds(turn(failed=300, in_time=0), new), OBJECTIVE, 0.2)
        assert (verdict.status, verdict.needs_more_rounds) == ("INVALID", False)


def test_too_few_rounds_decide_nothing() -> None:
    verdict = judge_rounds(rounds(turn(), turn(13), 4), OBJECTIVE, 0.2)
    assert (verdict.status, verdict.reasons[0].id) == ("INVALID", "too-few-rounds")
    # Four rounds do not limit a ratio, and JSON has no number for that.
    assert figure_of("p50", verdict).interval == (0.0, None)
    json.dumps([value.model_dump(mode="json") for value in verdict.figures], allow_nan=False)
    assert ratio_text(figure_of("rate", verdict)) == "rate 1 (0 to ∞)"


def test_answers_that_differ_fail_however_fast_they_are() -> None:
    answers = AnswerCounts(inputs=10, same=8, differing=("a.png", "b.png"))
    verdict = judge_rounds(rounds(turn(), turn(5)), OBJECTIVE, 0.2, answers=answers, agreement=0.99)
    assert verdict.status == "FAIL"
    assert verdict.figures[-1].reasons[0].text == (
        "2 of 10 inputs are answered differently: a.png, b.png; at least 99 % must be the same"
    )


def test_only_the_death_of_the_new_server_is_a_fail() -> None:
    for side, status in (("new", "FAIL"), ("old", "INVALID")):
        died = (Reason(id="server-died", text=f"the {side} server ended"), status)
        assert judge_rounds(rounds(turn(), turn()), OBJECTIVE, 0.2, ended=died).status == status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (
            b'{"top_indices": [7, 1], "top_probs": [0.9, 0.1]}',
            b'{"top_indices": [7, 2], "top_probs": [0.8, 0.1]}',
            True,
        ),
        (b'{"top_indices": [7, 1]}', b'{"top_indices": [1, 7]}', False),
        (b'{"y": [[1.0, -2.0]]}', b'{"y": [[1.05, -2.0]]}', True),
        (b'{"y": [[1.0, -2.0]]}', b'{"y": [[1.2, -2.0]]}', False),
        (b'{"y": [1.0]}', b'{"z": [1.0]}', False),
        (b'{"y": [[1.0, -2.0]]}', b'{"y": [1.0, -2.0]}', False),
        (b'[{"box": [1.0, 2.0], "name": "cat"}]', b'[{"box": [1.05, 2.0], "name": "cat"}]', True),
        (b'[{"box": [1.0, 2.0], "name": "cat"}]', b'[{"box": [1.0, 2.0], "name": "dog"}]', False),
        (b'["cat", 0.9]', b'["cat", 0.91]', True),
        (b'{"y": [NaN]}', b'{"y": [NaN]}', True),
        (b'{"top_indices": [7]}', b'{"top_indices": null}', False),
        (b'{"top_indices": 7}', b'{"top_indices": 8}', False),
        (b"[" * 100_000, b"[" * 99_999, False),
        (b'{"id": "a", "choices": [{"text": "b"}]}', b'{"id": "c", "choices": [{"text": "b"}]}', True),
        (b'{"id": "a", "choices": [{"text": "b"}]}', b'{"id": "a", "choices": [{"text": "c"}]}', False),
        (b"words", b"words", True),
        (b"words", b"other", False),
    ],
)
def test_answers_match_if_they_mean_the_same(old: bytes, new: bytes, same: bool) -> None:
    assert answers_match((200, old), (200, new), 0.05) is same
    assert not answers_match((200, old), (500, new), 0.05)
    assert answers_match((422, old), (422, new), 0.05)


def comparison(injected: float = 0.5) -> Comparison:
    made = rounds_of(injected, QUIET, 1, 40)
    verdict = judge_rounds(made, OBJECTIVE, 0.2, answers=AnswerCounts(inputs=3, same=3, differing=()))
    side = Side(name="digits", version="1.0", spec="s", url="http://127.0.0.1:1", package="ab" * 32, started=True)
    return Comparison(
        status=verdict.status, reasons=verdict.reasons, figures=verdict.figures, regression=0.2, objective=OBJECTIVE,
        old=side, new=side.model_copy(update={"version": "1.<1>"}),
        answers=AnswerCounts(inputs=3, same=3, differing=()),
        load=ComparisonLoad(arrivals="poisson", rate=50, warmup_s=1, turn_s=6, seed=0, timeout_s=10), machine=MACHINE,
        at="2026-01-01T00:00:00Z", rounds=tuple(made),
    )  # fmt: skip


def test_the_record_survives_json() -> None:
    made = comparison()
    assert Comparison.model_validate(made.to_data()) == made
    assert made.exit_code == 1


def test_the_page_has_both_curves_and_escapes_markup() -> None:
    text = comparison_html(comparison())
    assert text.count('class="line two"') == text.count('class="line one"') == 2
    assert "1.&lt;1&gt;" in text
    assert "<script" not in text
    assert "p50-worse" in text


def test_the_suite_has_a_case_for_each_figure() -> None:
    suite = ElementTree.fromstring(comparison_xml(comparison()))
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert list(cases) == [
        "p50 of new / old at most 1.2",
        "p99 of new / old at most 1.2",
        "rate of new / old at least 0.833",
        "CPU time a request of new / old at most 1.2",
        "errors at most 0.1 % more",
        "answers at least 100 % the same",
    ]
    assert cases["p50 of new / old at most 1.2"] == ["failure"]


def test_the_allowed_regression_is_a_field_of_the_spec(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = SPEC.replace("error_rate: 0.01", "error_rate: 0.01, regression: 0.05")
    slo = parse_spec(text, tmp_path / "spec.yaml", files=False).slo
    assert slo is not None
    assert slo.regression == 0.05


def test_a_comparison_needs_another_one(capsys) -> None:  # type: ignore[no-untyped-def]
    assert marina.main(["compare", str(DIGITS)]) == 2
    assert "`--against`: missing: a MAR, a spec, or the address of a server" in capsys.readouterr().err
    assert marina.main(["compare", str(DIGITS), "--against", "old.zip", "--url", "http://127.0.0.1:1"]) == 2
    assert "`--against`: got `old.zip`: no such file, allowed: a MAR, a spec" in capsys.readouterr().err
