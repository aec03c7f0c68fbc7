import io
import json
import os
import re
import termios
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from marina.config.measured import (
    Arrivals,
    Evidence,
    Knee,
    LatencyAtRate,
    LoadedServer,
    Machine,
    Objective,
    PeakMemory,
    ServingSettings,
    TrialRecord,
    VerdictHead,
)
from marina.config.pages import Chart, linear_axis, log_axis, milliseconds
from marina.config.record import file_sha256, read_document, write_json
from marina.loadtest.calibrating.calibration import evidence_text
from marina.loadtest.calibrating.evidence_report import evidence_html
from marina.loadtest.judging import judge
from marina.loadtest.judging.record import LoadRecord, LoadTestOutcome, latency_summary, run_record
from marina.loadtest.measuring import GeneratorHealth, Histogram, Measurement, PackageIdentity, Second, Slice
from marina.loadtest.reporting.junit import verdict_xml
from marina.loadtest.reporting.report import verdict_html
from marina.loadtest.reporting.text import LiveLine, live_text
from marina.loadtest.running import verdict_text
from marina.loadtest.scheduling import Schedule

OBJECTIVE = Objective(p99_ms=50, error_rate=0.001, throughput_rps=None)
MACHINE = Machine(
    processor="Some <Processor>",
    cores=2,
    cpu_limit=1.5,
    memory_bytes=2**34,
    memory_limit_bytes=2**31,
    system="Linux 6",
    python="3.11",
)


def histogram(values: list[float]) -> Histogram:
    made = Histogram((50,))
    for value in values:
        made.add(value)
    return made


def measured(latency: float, shed: int = 0, **changes: Any) -> Measurement:
    values = [latency + index % 7 for index in range(2000 - shed)]
    seconds = [
        Second(due=200, answered=(2000 - shed) // 10, errors={"shed": shed // 10}, response=histogram(values[:200]))
        for _ in range(12)
    ]
    fields: dict[str, Any] = {
        "rate": 200, "asked_s": 10, "ran_s": 10, "planned": 2000, "sent": 2000, "dropped": 0, "warmup": 400,
        "in_time": 2000 - shed, "errors": {"shed": shed} if shed else {}, "response": histogram(values),
        "service": histogram(values), "lag": histogram([0.2] * 2000), "loop_lag": histogram([0.3] * 900),
        "seconds": tuple(seconds), "generators": ((GeneratorHealth(cpu=0.31, loop_lag_ms=1),) * 10,),
        "identity": PackageIdentity(wanted="ab" * 32, found="ab" * 32),
    }  # fmt: skip
    return Measurement(**(fields | changes))


def outcome(*measurements: Measurement, arrivals: Arrivals = "poisson") -> LoadTestOutcome:
    runs = [run_record(each, judge(each, OBJECTIVE)) for each in measurements]
    return LoadTestOutcome(
        verdict=judge(measurements, OBJECTIVE),
        objective=OBJECTIVE,
        tested=LoadedServer(
            name="digits", version="1.0", spec="spec.yaml", url="http://x:8080", started=True, package="ab" * 32,
            served="ab" * 32, cold_start_s=4.2,
        ),
        load=LoadRecord(
            arrivals=arrivals, rate=200, warmup_s=2, duration_s=10, repeat=len(runs), processes=1, seed=0,
            timeout_s=10, sample_bytes=300, sample_content_type="image/png",
        ),
        machine=MACHINE,
        at="2026-01-02T03:04:05Z",
        runs=tuple(runs),
    )  # fmt: skip


PASSED = outcome(measured(20))
FAILED = outcome(measured(60, shed=200))
INVALID = outcome(measured(20, lag=histogram([30] * 2000)))
REPEATED = outcome(measured(20), measured(60, shed=200), measured(30))
ALL = [
    pytest.param(PASSED, id="pass"),
    pytest.param(FAILED, id="fail"),
    pytest.param(INVALID, id="invalid"),
    pytest.param(REPEATED, id="repeated"),
]


@pytest.mark.parametrize("made", ALL)
def test_the_record_survives_json(made: LoadTestOutcome) -> None:
    data = json.loads(json.dumps(made.to_data()))
    assert data["schema"] == "marina.verdict/1"
    assert LoadTestOutcome.model_validate(data) == made


@pytest.mark.parametrize(
    ("made", "tags"),
    [
        pytest.param(PASSED, [None, None, None], id="pass"),
        pytest.param(FAILED, ["failure", "failure", "failure"], id="fail"),
        pytest.param(INVALID, ["error", "error", "error"], id="invalid"),
    ],
)
def test_junit_has_one_case_per_objective(made: LoadTestOutcome, tags: list[str | None]) -> None:
    root = ElementTree.fromstring(verdict_xml(made))
    cases = list(root.iter("testcase"))
    assert [case.get("name") for case in cases] == [
        "p99 at most 50 ms",
        "errors at most 0.1 %",
        "holds 200 requests/s",
    ]
    assert [case[0].tag if len(case) else None for case in cases] == tags
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == (
        "3",
        str(tags.count("failure")),
        str(tags.count("error")),
    )


@pytest.mark.parametrize(
    ("runs", "tag", "reason"),
    [
        ([measured(20, server_end="its process ended with code 1")], "failure", "server-died"),
        ([measured(20), measured(20, lag=histogram([30] * 2000))], "error", "arrivals-late"),
    ],
)
def test_junit_is_not_green_where_only_the_whole_is_to_blame(runs: list[Measurement], tag: str, reason: str) -> None:
    made = outcome(*runs)
    assert {check.status for check in made.verdict.checks} == {"PASS"}
    first, *others = ElementTree.fromstring(verdict_xml(made)).iter("testcase")
    assert [(child.tag, child.get("type")) for child in first] == [(tag, reason)]
    assert [list(case) for case in others] == [[], [], []]


def test_junit_says_why() -> None:
    errors = ElementTree.fromstring(verdict_xml(INVALID)).iter("error")
    assert {error.get("type") for error in errors} == {"arrivals-late"}
    failures = list(ElementTree.fromstring(verdict_xml(FAILED)).iter("failure"))
    assert "200 requests were shed: the server's queue was full" in (failures[1].get("message") or "")


class Reader(HTMLParser):
    """Finds what is open at the end, what would be fetched, and the words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href") and value != "data:,"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words += data


@pytest.mark.parametrize("made", ALL)
def test_html_is_one_file_that_fetches_nothing(made: LoadTestOutcome) -> None:
    text = verdict_html(made)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.fetched == []
    assert "url(" not in text
    assert "<script" not in text


def test_every_report_counts_what_a_rate_limit_refused_apart_from_failures() -> None:
    run = measured(20, limited=1000, sent=3000, planned=3000)
    seconds = tuple(second.model_copy(update={"due": 300, "limited": 100}) for second in run.seconds)
    made = outcome(run.model_copy(update={"seconds": seconds}))
    # Without an objective of its own, the whole offered rate must be held.
    assert [check.status for check in made.verdict.checks] == ["PASS", "PASS", "FAIL"]
    assert ", 1,000 more refused with 429" in verdict_text(made)
    page, junit = verdict_html(made), ElementTree.fromstring(verdict_xml(made))
    assert "Refused by a rate limit" in page
    assert "refused with 429" in page
    assert "No request failed" in page
    assert {each.get("name"): each.get("value") for each in junit.iter("property")}["limited"] == "1000"
    assert made.to_data()["runs"][0]["measurement"]["limited"] == 1000
    assert "Refused by a rate limit" not in verdict_html(PASSED)


def test_html_shows_what_the_issue_lists() -> None:
    reader = Reader()
    reader.feed(verdict_html(FAILED))
    for words in (
        *("FAIL", "p99 at most 50 ms", "200 requests were shed", "Percentiles", "Latency over time", "Rate", "Errors"),
        *("shed: 240", "ab" * 32, "Some <Processor>, 2 cores, cgroup limit 1.5, 2.0 GiB", "http://x:8080"),
    ):
        assert words in reader.words


def test_a_pass_says_what_a_measurement_of_its_length_cannot_show() -> None:
    assert [" in 3.3 s, or changes more slowly." in verdict_html(made) for made in (PASSED, FAILED)] == [True, False]


def test_html_escapes_names() -> None:
    assert "<Processor>" not in verdict_html(PASSED)


@pytest.mark.parametrize("made", ALL)
def test_everything_drawn_is_inside_the_drawing(made: LoadTestOutcome) -> None:
    text = verdict_html(made)
    points = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", text)
    points += re.findall(r'<rect class="bar[^"]*" x="(-?[\d.]+)" y="(-?[\d.]+)"', text)
    assert len(points) > 20
    assert all(0 <= float(x) <= 420 and 0 <= float(y) <= 220 for x, y in points)


def sliced(latency: float, slow: int) -> Measurement:
    """In slices of 20, of which the first has `slow` answers over the limit of 50 ms."""
    values = [60.0] * slow + [latency + index % 7 for index in range(2000 - slow)]
    slices = [Slice(due=20, in_time=20, response=histogram(values[at : at + 20])) for at in range(0, 2000, 20)]
    return measured(latency, response=histogram(values), service=histogram(values), slices=tuple(slices))


def test_the_interval_is_shown_wherever_a_verdict_is_read() -> None:
    made = outcome(sliced(20, slow=19))
    low, high = made.verdict.checks[0].interval or (0, 0)
    assert low < 50 < high
    words = f"{low:.4g} to {high:.4g} ms"
    reader = Reader()
    reader.feed(verdict_html(made))
    assert words in reader.words
    assert "does not show whether the service met its whole objective" in reader.words
    assert f"the limit of 50 ms lies inside the interval of p99, {words}" in verdict_xml(made)
    assert f"({words})" in verdict_text(made)
    assert json.loads(json.dumps(made.to_data()))["verdict"]["checks"][0]["interval"] == [low, high]


def test_repeats_show_a_row_each() -> None:
    reader = Reader()
    reader.feed(verdict_html(REPEATED))
    assert reader.words.count("PASS") == 2


def test_an_outcome_without_a_single_answer_can_be_drawn() -> None:
    nothing = measured(
        20, response=histogram([]), service=histogram([]), lag=histogram([]), loop_lag=histogram([]), seconds=(),
        generators=(), in_time=0, sent=0,
    )  # fmt: skip
    made = outcome(nothing)
    assert made.verdict.status == "INVALID"
    assert "no request was sent" not in verdict_html(made)
    assert "all 400 requests belonged to the warm-up" in verdict_html(made)


def test_the_summary_names_figures_and_reasons() -> None:
    assert verdict_text(PASSED) == (
        "slo: PASS p99 26 ms <= 50 ms, errors 0 % <= 0.1 %, 200 of 200 requests/s, 2,000 requests in 10 s"
    )
    assert "  shed: 200 requests were shed: the server's queue was full" in verdict_text(FAILED).splitlines()


def test_evenly_spaced_arrivals_are_named_wherever_a_verdict_is_read() -> None:
    even = outcome(measured(20), arrivals="constant")
    assert verdict_text(even).endswith("2,000 requests in 10 s, evenly spaced arrivals")
    calibrated = evidence().model_copy(update={"arrivals": "constant"})
    assert evidence_text(calibrated).endswith("77 requests/s, evenly spaced arrivals")
    for made, words in ((even, "evenly spaced arrivals"), (PASSED, "Poisson arrivals")):
        assert words in verdict_html(made)
        assert words in verdict_xml(made)


@pytest.mark.parametrize("low", [0.011, 0.8, 7, 480])
@pytest.mark.parametrize("times", [1.001, 3, 70, 90_000])
def test_a_log_axis_holds_its_values_and_writes_few_labels(low: float, times: float) -> None:
    axis = log_axis(low, low * times, milliseconds)
    assert 0 <= axis.place(low) < axis.place(low * times) <= 1 + 1e-9
    assert 2 <= len(axis.ticks) <= 9


def test_a_label_without_room_before_the_last_one_is_left_out() -> None:
    drawn = [Chart(title="", x=log_axis(3, most, milliseconds), y=linear_axis(0, 1)).labels() for most in (150, 60)]
    assert [[text for _, text in each][-2:] for each in drawn] == [["50 ms", "200 ms"], ["50 ms", "100 ms"]]


@pytest.mark.parametrize("high", [0.3, 1, 4, 99, 101, 12_345])
def test_a_linear_axis_holds_its_values_and_writes_few_labels(high: float) -> None:
    axis = linear_axis(0, high)
    assert axis.place(high) <= 1
    assert 2 <= len(axis.ticks) <= 6


BEATS = [GeneratorHealth(cpu=0.12, loop_lag_ms=0.8), GeneratorHealth(cpu=0.31, loop_lag_ms=2.2)]
SCHEDULE = Schedule(arrivals="constant", rate=100, warmup_s=5, duration_s=30)


def test_the_live_line_says_rate_latency_errors_and_the_generators_health() -> None:
    second = Second(answered=98, errors={"shed": 2}, response=histogram([4.0] * 98))
    shown = "  digits   23 s left  98/s  p50 4 ms  p99 4 ms  errors 2 shed  generator 31% cpu, 2 ms late"
    assert live_text("digits", SCHEDULE, 12, second, BEATS) == shown
    assert "warm-up  0/s  p50 -" in live_text("digits", SCHEDULE, 5, Second(), BEATS)


def test_the_live_line_moves_on_a_terminal_only_and_fits_into_it() -> None:
    shown, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 40))
    for stream in (piped := io.StringIO(), os.fdopen(terminal, "w")):
        with LiveLine("digits", SCHEDULE, stream=stream) as line:
            line.show(1, Second(), BEATS)
    assert piped.getvalue() == ""
    moved = b"\r\x1b[K  digits  warm-up  0/s  p50 -  p99 -  e\r\x1b[K"
    assert os.fdopen(shown, "rb").read(len(moved)) == moved


def evidence(limit: str = "objective") -> Evidence:
    trials = [
        TrialRecord(rate=rate, status=status, p50_ms=5, p99_ms=p99, error_rate=0, reasons=())  # type: ignore[arg-type]
        for rate, status, p99 in ((50, "PASS", 12), (100, "FAIL", 90), (70, "INVALID", 900), (75, "PASS", 40))
    ]
    at = LatencyAtRate(rate=75, status="PASS", response=latency_summary(histogram([40])))
    return Evidence(
        status="PASS", reasons=(), name="digits", version="1.0", package="ab" * 32, objective=OBJECTIVE,
        settings=ServingSettings(workers=2, threads=1, max_batch=4, max_batch_delay_ms=2),
        knee=Knee(rps=75, limit=limit, interval=(73, 77)),  # type: ignore[arg-type]
        at_70_percent=at, cold_start_s=4.2,
        memory=PeakMemory(java_bytes=200_000_000, workers_bytes=(300_000_000, 310_000_000), supervisor_bytes=4 * 10**7),
        machine=MACHINE, arrivals="poisson", at="2026-01-02T03:04:05Z", trials=tuple(trials),
    )  # fmt: skip


def test_evidence_names_package_machine_and_memory() -> None:
    data = json.loads(json.dumps(evidence().to_data()))
    assert (data["schema"], data["package"]) == ("marina.evidence/1", "ab" * 32)
    assert data["memory"]["total_bytes"] == 850_000_000
    assert data["knee"] == {"rps": 75, "limit": "objective", "interval": [73, 77]}


def test_other_stages_read_what_was_written(tmp_path: Path) -> None:
    for name, written in (("evidence.json", evidence()), ("verdict.json", FAILED)):
        write_json(tmp_path / name, written.to_data() | {"of_a_later_version": 1})
    measured = read_document(tmp_path / "evidence.json", Evidence, hint="")
    assert measured
    assert measured.to_data() == evidence().to_data()
    assert measured.sha256 == file_sha256(tmp_path / "evidence.json")
    tested = read_document(tmp_path / "verdict.json", VerdictHead, hint="")
    assert tested
    assert (tested.verdict, tested.tested) == (FAILED.verdict, FAILED.tested)


def test_evidence_is_drawn_without_the_runs_that_say_nothing() -> None:
    reader = Reader()
    text = evidence_html(evidence())
    reader.feed(text)
    assert reader.open == []
    assert text.count("<circle") == 6
    assert all(words in reader.words for words in ("75 requests/s", "850 MB"))


def test_a_knee_that_the_generator_ended_is_only_a_lower_bound() -> None:
    exact, bound = (evidence_html(evidence(limit)) for limit in ("objective", "generator"))
    assert ("at least" in exact, "at least 75 requests/s" in bound) == (False, True)
    assert "send the load from another machine" in bound
