"""Streamed answers with known times: read as they arrive, counted, judged and shown."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from loadtest_rig import behave, running_server

from marina.config.errors import SpecError
from marina.config.load import parse_spec
from marina.config.measured import Objective, VerdictStatus
from marina.config.spec import Spec
from marina.loadtest.judging import decided_early, judge, stream_figures
from marina.loadtest.judging.slo import objective_of
from marina.loadtest.measuring import Measurement, merge_measurements, pool
from marina.loadtest.reporting import verdict_lines
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest, StreamCounts
from marina.loadtest.sending.plan import Body, Expected
from marina.loadtest.sending.recorder import Recorder
from marina.loadtest.sending.wire import AnswerReader, EventReader

SPEC = """
name: digits
model: {source: hf:./model, handler: text, compile: eager}
slo: {ttft_p99_ms: 300, itl_p99_ms: 50, goodput: 0.9}
load: {samples: {wishes.jsonl: 1}}
"""
OBJECTIVE = Objective(p99_ms=5000, error_rate=0.01, throughput_rps=None, ttft_p99_ms=300, itl_p99_ms=50, goodput=0.9)


def event(text: str = "a", end: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": end}]}).encode() + b"\n\n"


def events_at(*times: float, done: bool = True) -> EventReader:
    """A reader whose pieces of text arrived at these times."""
    moments = iter([*times, 0.0])
    reader = EventReader(lambda: next(moments))
    for _ in times:
        reader.feed(event())
    if done:
        reader.feed(b"data: [DONE]\n\n")
    return reader


def test_events_are_parsed_however_the_bytes_are_split() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    role = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
    word = b'data: {"choices": [{"delta": {"content": "b"}, "finish_reason": null}]}\n\n'
    last = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    told = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    chunks = [role + word, word, last + told + b"data: [DONE]\n\n"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    for size in (1, 7, 100, len(data)):
        reader = EventReader(lambda: 1.0)
        answers = AnswerReader(reader.feed)
        got = [answers.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert got[-1] is not None
        assert got[-1].keep_alive
        assert got[-1].body == b"".join(chunks)
        assert (reader.is_complete, reader.times, reader.usage) == (True, [1.0, 1.0], usage)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(b": still here\n\n" + event(), b"data: [DONE]\n\n", id="comments"),
        pytest.param(event().replace(b"data: ", b"data:"), b"data:[DONE]\n\n", id="no space"),
        pytest.param(event().replace(b"\n", b"\r\n"), b"data: [DONE]\r\n\r\n", id="ends of lines as in HTTP"),
        pytest.param(b"event: message\nid: 1\n" + event(), b"event: message\ndata: [DONE]\n\n", id="further fields"),
        pytest.param(b'data: {"choices": [{"text": ""}]}\n\n' + event(), b"data: [DONE]\n\n", id="no reason"),
    ],
)
def test_events_are_parsed_however_a_server_writes_them(first: bytes, last: bytes) -> None:
    for size in (1, 1000):
        reader = EventReader(lambda: 1.0)
        for at in range(0, len(first + last), size):
            reader.feed((first + last)[at : at + size])
        assert (reader.is_complete, reader.times) == (True, [1.0])


def test_events_that_arrive_all_at_once_are_parsed() -> None:
    body = event() + event("", "stop") + b"data: [DONE]\n\n"
    reader = EventReader(lambda: 1.0)
    AnswerReader(reader.feed).feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (reader.is_complete, reader.times) == (True, [1.0])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(event(), id="no end"),
        pytest.param(b"data: [DONE]\n\n", id="nothing before the end"),
        pytest.param(event() + b'data: {"error": {"message": "the server stops"}}\n\ndata: [DONE]\n\n', id="an error"),
        pytest.param(event() + b"data: nonsense\n\ndata: [DONE]\n\n", id="no event of OpenAI's"),
    ],
)
def test_a_stream_without_its_end_is_not_complete(data: bytes) -> None:
    reader = EventReader(lambda: 0.0)
    reader.feed(data)
    assert not reader.is_complete


def test_an_answer_without_text_has_a_first_time() -> None:
    reader = EventReader(lambda: 2.0)
    reader.feed(event("", "stop") + b"data: [DONE]\n\n")
    assert (reader.is_complete, reader.times) == (True, [2.0])


def test_the_token_that_ends_a_text_counts_as_a_step() -> None:
    moments = iter([0.0, 0.1, 0.2, 0.2, 0.2])
    reader = EventReader(lambda: next(moments))
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
    for data in (event(), event(), event("", "stop"), usage, b"data: [DONE]\n\n"):
        reader.feed(data)
    counted = StreamCounts(5000, None, None)
    counted.add(0.0, 0.2, reader, None)
    assert counted.frozen().pace.mean_ms == pytest.approx(100)


@pytest.mark.parametrize(
    "usage",
    ['"none"', "[1]", '{"completion_tokens": "three"}', '{"completion_tokens": -3, "prompt_tokens_details": [1]}',
     '{"completion_tokens": 1e400, "prompt_tokens": [2]}'],
)  # fmt: skip
def test_a_usage_that_is_no_count_is_not_taken_for_one(usage: str) -> None:
    reader = EventReader(lambda: 1.0)
    reader.feed(event() + event() + f'data: {{"choices": [], "usage": {usage}}}\n\ndata: [DONE]\n\n'.encode())
    counted = StreamCounts(5000, None, None)
    counted.add(0.0, 1.0, reader, None)
    told = counted.frozen()
    assert (told.tokens, told.prompt_tokens, told.cached_tokens, told.met) == (2, 0, 0, 1)


def test_an_event_too_deep_to_be_parsed_is_an_error_in_the_stream() -> None:
    reader = EventReader(lambda: 1.0)
    reader.feed(event() + b"data: " + b"[" * 100_000 + b"\n\ndata: [DONE]\n\n")
    assert not reader.is_complete


def test_tokens_after_the_window_count_with_their_time() -> None:
    slow = recorded([(10_000, 20)] * 1000)
    for measured in (slow, pool([slow, slow])):
        pieces = stream_figures(measured)
        assert pieces is not None
        assert pieces.tokens_per_s == pytest.approx(11_000 / 20.19)


def recorded(
    answers: Sequence[tuple[float, float]],
    part: int = 0,
    parts: int = 1,
    schedule: Schedule | None = None,
    **objective: float,
) -> Measurement:
    """A run with an answer every 10 ms; each has a time to the first of 11 pieces, and a gap between pieces, in ms."""
    limits = OBJECTIVE.model_copy(update=objective).limits
    body = Body(body=b"e30=", content_type="application/json", expected=Expected(form="events"))
    request = LoadRequest(url="http://x/", body=b"e30=", content_type="application/json", bodies=(body,))
    schedule = schedule or Schedule(arrivals="constant", rate=100, warmup_s=0, duration_s=len(answers) / 100)
    moments = schedule.times()
    plan = LoadPlan(request=request, schedule=schedule, part=part, parts=parts, timeout_s=9, **limits)
    recorder = Recorder(plan)
    for number, (first, gap) in list(enumerate(answers))[part::parts]:
        due = moments[number]
        times = [due + first / 1000 + gap / 1000 * piece for piece in range(11)]
        recorder.count_due(due, dropped=False)
        recorder.count_ended(due, due, times[-1], None)
        recorder.count_stream(due, times[-1], events_at(*times), None)
    return recorder.measurement(len(answers) / 100)


def status(measurement: Measurement, name: str, objective: Objective = OBJECTIVE) -> tuple[VerdictStatus, list[str]]:
    check = next(check for check in judge(measurement, objective).checks if check.objective == name)
    return check.status, [reason.id for reason in check.reasons]


def test_the_figures_are_those_of_the_answers() -> None:
    measured = recorded([(100, 20)] * 1000)
    pieces = stream_figures(measured)
    assert pieces is not None
    assert [each.p99 for each in (pieces.ttft, pieces.itl, pieces.tpot)] == pytest.approx([100, 20, 20], rel=0.01)
    assert (pieces.goodput, pieces.goodput_rps) == (1, 100)
    assert pieces.tokens_per_s == pytest.approx(11_000 / 10.29)
    assert measured.streams is not None
    assert measured.streams.gaps.count == 10_000
    verdict = judge(measured, OBJECTIVE)
    assert verdict.status == "PASS"
    assert "ttft p99 100 ms" in verdict_lines(verdict, measured)
    assert "goodput 100 % of 90 %" in verdict_lines(verdict, measured)


def test_the_figures_of_a_run_that_was_cut_short_are_those_of_the_time_it_ran() -> None:
    measured = recorded([(100, 20)] * 1000)
    cut = measured.model_copy(update={"planned": 5000, "asked_s": 50.0, "interrupted": True})
    assert stream_figures(cut) == stream_figures(measured)
    assert "goodput 100 % of 90 %" in verdict_lines(judge(cut, OBJECTIVE), cut)


@pytest.mark.slow
def test_several_processes_give_the_same_figures_as_one() -> None:
    answers = [(50.0 + number % 90, 10.0 + number % 7) for number in range(1000)]
    alone, together = recorded(answers), merge_measurements([recorded(answers, part, 2) for part in range(2)])
    for whole, merged in zip([alone, *alone.slices], [together, *together.slices], strict=True):
        assert whole.streams is not None
        assert merged.streams is not None
        assert whole.streams.met == merged.streams.met
        for name in ("first", "gaps", "pace"):
            assert list(getattr(whole.streams, name).curve()) == list(getattr(merged.streams, name).curve())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "failing"),
    [
        pytest.param((400.0, 20.0), {"ttft": "ttft-over", "goodput": "goodput-low"}, id="late beginnings"),
        pytest.param((100.0, 60.0), {"itl": "itl-over", "goodput": "goodput-low"}, id="long gaps"),
    ],
)
@pytest.mark.parametrize("sliced", [True, False], ids=["open loop", "closed loop"])
def test_a_missed_objective_fails_and_so_does_the_goodput(
    slow: tuple[float, float], failing: dict[str, str], sliced: bool
) -> None:
    measured = recorded([slow if number % 4 == 0 else (100.0, 20.0) for number in range(2000)])
    if not sliced:  # plain Locust keeps no slices
        measured = measured.model_copy(update={"slices": ()})
    for name in ("ttft", "itl", "goodput"):
        expected = ("FAIL", [failing[name]]) if name in failing else ("PASS", [])
        assert status(measured, name) == expected
    assert measured.streams is not None
    assert measured.streams.met == 1500


def test_a_limit_inside_the_interval_is_undecided() -> None:
    measured = recorded([(301.0 if number % 95 == 0 else 100.0, 20.0) for number in range(1200)])
    assert status(measured, "ttft") == ("INVALID", ["undecided"])


def test_answers_that_are_not_streamed_have_no_first_text() -> None:
    measured = recorded([(100, 20)] * 1000).model_copy(update={"streams": None})
    assert status(measured, "ttft") == ("INVALID", ["no-events"])


@pytest.mark.parametrize(("loop_lag_ms", "expected"), [(4.9, []), (5.2, ["generator-stalled"])])
def test_a_generator_that_reads_a_tenth_of_the_objective_late_is_invalid(
    loop_lag_ms: float, expected: list[str]
) -> None:
    measured = recorded([(100, 20)] * 1000)
    measured.loop_lag.add(loop_lag_ms, 100)
    assert [reason.id for reason in judge(measured, OBJECTIVE).reasons] == expected


def test_a_short_run_that_is_clear_decides_a_search() -> None:
    for first, expected in ((100, "PASS"), (400, "FAIL"), (200, None)):
        measured = recorded([(first + number % 7, 20) for number in range(300)])
        assert decided_early(judge(measured, OBJECTIVE), [measured], OBJECTIVE) == expected


def spec_at(folder: Path, **changes: str) -> Spec:
    text = SPEC
    for old, new in changes.items():
        text = text.replace(old, new)
    return parse_spec(text, folder / "spec.yaml", files=False)


def test_the_objective_of_whole_answers_is_that_of_their_pieces(tmp_path: Path) -> None:
    assert objective_of(spec_at(tmp_path)).p99_ms == 300 + 511 * 50
    assert objective_of(spec_at(tmp_path, goodput="p99_ms: 7000, goodput")).p99_ms == 7000


def test_streams_are_only_for_models_that_write(tmp_path: Path) -> None:
    text = "name: a\nmodel: {source: torchvision:resnet18, weights: random}\nslo: {p99_ms: 9, goodput: 0.9}\n"
    with pytest.raises(SpecError, match=r"`slo.goodput`: not for the `image` handler, which does not write text"):
        parse_spec(text, tmp_path / "spec.yaml", files=False)


@pytest.mark.slow
def test_a_run_reads_streams_and_counts_those_that_break_off(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": "one", "max_tokens": length}) for length in (4, 4, 4, 16)]
    (tmp_path / "wishes.jsonl").write_text("\n".join(lines))
    options = RunOptions(rate=100, duration_s=2, warmup_s=0.2, max_duration_s=2)
    with running_server(tmp_path / "build") as url:
        behave(url, first_ms=50, gap_ms=20)
        outcome = run_load_test(spec_at(tmp_path), options, TargetOptions(out=tmp_path / "build", url=url))
        pieces = json.loads((tmp_path / "build/verdict.json").read_text())["runs"][0]["pieces"]
        behave(url, first_ms=0, gap_ms=1, cut=True)
        cut = (
            run_load_test(spec_at(tmp_path), options, TargetOptions(out=tmp_path / "build", url=url))
            .runs[0]
            .measurement
        )
    (measured,) = (each.measurement for each in outcome.runs)
    assert measured.streams is not None
    lengths = measured.streams.tokens - 4 * 200
    assert (measured.good, lengths % 12, 20 < lengths / 12 < 80) == (200, 0, True)
    assert measured.streams.first.min_ms >= 50
    assert measured.streams.pace.mean_ms == pytest.approx(20, rel=0.2)
    assert (pieces["cached_share"], pieces["ttft"]["p50"] >= 50) == (0.4, True)
    assert cut.errors == {"unfinished": 200}
