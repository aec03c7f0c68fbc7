"""A trace from a file is replayed with its own arrivals and samples, by any number of processes, repeated if
necessary."""

import time
from pathlib import Path

import pytest
from loadtest_rig import SPEC, running_server, sizes_seen, write_package
from queues import always, measured

from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.config.measured import Objective
from marina.loadtest.judging.slo import backlog_grows
from marina.loadtest.measuring import Histogram, Slice
from marina.loadtest.running import RunOptions, TargetOptions, next_step, run_load_test
from marina.loadtest.scheduling import read_trace_file

OBJECTIVE = Objective(p99_ms=50, error_rate=0.1, throughput_rps=7)
SUFFIXES = (".png", ".jpg")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("a.png", 10), ("b.jpg", 20)):
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", "0,a.png\n0.5,b.jpg\n\n2,a.png\n"),
        ("trace.csv", "time,sample\n100,a.png\n102,a.png\n100.5,b.jpg\n"),
        (
            "trace.csv",
            "status,sample,time\n200,a.png,2026-03-02T08:00:00Z\n200,b.jpg,2026-03-02T08:00:00.500Z\n"
            "503,a.png,2026-03-02T09:00:02+01:00\n",
        ),
        (
            "trace.jsonl",
            '{"time": 7, "sample": "a.png"}\n{"sample": "b.jpg", "time": 7.5, "user": 1}\n'
            '{"time": "9", "sample": "a.png"}\n',
        ),
    ],
)
def test_a_trace_is_read_in_every_form(folder: Path, name: str, text: str) -> None:
    trace = read_trace_file(written(folder, text, name), suffixes=SUFFIXES)
    assert trace.times == (0, 0.5, 2)
    assert [Path(trace.samples[place]).name for place in trace.which] == ["a.png", "b.jpg", "a.png"]
    assert trace.length_s == 3
    assert read_trace_file(folder / name, speed=2, suffixes=SUFFIXES).times == (0, 0.25, 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trace.csv", "0\nsoon\n", "trace.csv:2: time: got `soon`, allowed: seconds, or"),
        ("trace.csv", "time,sample\n0,a.png\nnan,a.png\n", "trace.csv:3: time: got `nan`"),
        ("trace.csv", "0\n1700000000000\n", "trace.csv:2: time: got `1700000000000`, allowed: seconds, not a part of"),
        ("trace.csv", "sample,time\na.png,0\na.png\n", "trace.csv:3: time: got nothing"),
        ("trace.csv", "0,a.png\n1\n", "trace.csv:2: sample: got nothing, allowed: a file, as on other lines"),
        ("trace.csv", "0,a.png\n\n1,gone.png\n", "trace.csv:3: sample: got `gone.png`, but there is no file "),
        ("trace.csv", "0,trace.csv\n1,a.png\n", "trace.csv:1: sample: got `trace.csv`, allowed: files that end in"),
        ("trace.csv", 'time,agent\n1,"open\n2,x\n3,y\n', "trace.csv:5: cannot be read: unexpected end of data"),
        ("trace.jsonl", '{"time": 1}\n' + "[" * 100_000, "trace.jsonl:2: not JSON: "),
        ("trace.csv", "5\n", "holds 1 requests, allowed: two or more, at different times"),
        ("trace.csv", "5\n5\n", "holds 2 requests, allowed: two or more, at different times"),
        ("trace.jsonl", '{"time": 1}\n{"time": tr\n', "trace.jsonl:2: not JSON: "),
        ("trace.jsonl", '{"time": 1}\n[2]\n', "trace.jsonl:2: got `[2]`, allowed: an object"),
        ("trace.jsonl", '{"time": 1}\n{"time": true}\n', "trace.jsonl:2: time: got `True`"),
        ("trace.jsonl", '{"time": 1, "sample": 3}\n{"time": 2}\n', "trace.jsonl:1: sample: got `3`"),
    ],
)
def test_a_trace_that_cannot_be_played_is_refused_with_its_line(
    folder: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(InputError) as raised:
        read_trace_file(written(folder, text, name), suffixes=SUFFIXES)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", "time,agent\n1,two\x85lines\n2,a\u2028b\n"),
        ("trace.jsonl", '{"time": 1, "prompt": "a\u2028b"}\n{"time": 2, "prompt": "\x85"}\n'),
    ],
)
def test_only_a_line_feed_ends_a_line_of_a_trace(folder: Path, name: str, text: str) -> None:
    assert read_trace_file(written(folder, text, name)).times == (0, 1)


def test_times_without_a_zone_do_not_depend_on_the_clock_of_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this zone there is no 2:30 on that day.
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        trace = read_trace_file(written(folder, "2026-03-29T01:30:00\n2026-03-29T02:30:00\n2026-03-29T03:30:00\n"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert trace.times == (0, 3600, 7200)


def test_a_short_trace_is_played_until_there_are_enough_requests(folder: Path) -> None:
    options = RunOptions(replay=written(folder, "0\n1\n3\n"), warmup_s=2)
    schedule = options.schedule(parse_spec(SPEC, folder / "spec.yaml", files=False), OBJECTIVE)
    # 1,100 requests, three in each 4.5 s.
    assert (schedule.planned, schedule.duration_s) == (1101, 367 * 4.5)
    assert [time - 2 for time in schedule.times() if time >= 2][:7] == [0, 1, 3, 4.5, 5.5, 7.5, 9]
    shared = sorted(time for part in range(3) for time in schedule.times(part, 3))
    assert shared == list(schedule.times())
    assert schedule.spacing == "replay"


def test_the_run_after_an_undecided_replay_plays_the_whole_trace(folder: Path) -> None:
    trace = written(folder, "".join(f"{index * 0.01:.3f}\n" for index in range(2000)))
    spec = parse_spec(SPEC, folder / "spec.yaml", files=False)
    options = RunOptions(replay=trace, max_duration_s=50, warmup_s=0)
    first = options.schedule(spec, OBJECTIVE)
    # One in fifty is over the limit: nearly, but not certainly, too many.
    run = measured(always(0.001), first, 50, 1)
    slow = Histogram((50,))
    slow.add(10, 1985)
    slow.add(60, 15)
    slices = tuple(
        Slice(due=20, in_time=20, response=histogram_of(19 + (at % 20 > 0), at % 7 == 0)) for at in range(100)
    )
    run = run.model_copy(update={"response": slow, "service": slow, "slices": slices})
    following = options.next_schedule(first, OBJECTIVE.model_copy(update={"throughput_rps": None}), [run])
    assert following is not None
    assert following.duration_s == pytest.approx(first.duration_s)


def histogram_of(fast: int, slow: bool) -> Histogram:
    made = Histogram((50,))
    made.add(10, fast)
    if slow:
        made.add(60)
    return made


def test_a_rising_load_is_not_a_growing_backlog(folder: Path) -> None:
    rising = [20 + at for at in range(100)]
    slices = tuple(
        Slice(due=due, in_time=due, response=Histogram.from_data(made_of(due, 5 + 20 * at)))
        for at, due in enumerate(rising)
    )
    spec = parse_spec(SPEC, folder / "spec.yaml", files=False)
    first = RunOptions(rate=20, duration_s=100, warmup_s=0).schedule(spec, OBJECTIVE)
    run = measured(always(0.001), first, 50, 1)
    assert not backlog_grows([run.model_copy(update={"slices": slices})])
    even = tuple(piece.model_copy(update={"due": 50}) for piece in slices)
    assert backlog_grows([run.model_copy(update={"slices": even})])


def made_of(count: int, value_ms: float) -> dict[str, object]:
    made = Histogram((50,))
    made.add(value_ms, count)
    return made.to_data()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(rate=5, replay=Path("trace.csv")), "a trace has its own rate"),
        (RunOptions(rate=5, speed=2), "`--speed`: needs a trace"),
        (
            RunOptions(arrivals="constant"),
            "`--arrivals`: not together with a trace, whose own times are replayed: day.csv",
        ),
        (RunOptions(replay=Path("nowhere.csv")), "the trace cannot be read: No such file"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: RunOptions, message: str) -> None:
    spec = parse_spec(SPEC + "load: {replay: day.csv}\n", Path("spec.yaml"), files=False)
    with pytest.raises(InputError) as raised:
        options.schedule(spec, OBJECTIVE)
    assert message in raised.value.message


@pytest.mark.slow
def test_a_trace_in_the_spec_is_replayed_by_several_processes_with_its_samples(folder: Path) -> None:
    lines = [f"{index / 100},{'b.jpg' if index % 4 == 0 else 'a.png'}\n" for index in range(200)]
    written(folder, "".join(lines))
    spec = parse_spec(SPEC + "load: {replay: trace.csv}\n", folder / "spec.yaml", files=False)
    write_package(folder / "build")
    with running_server(folder / "server") as url:
        options = RunOptions(duration_s=1, max_duration_s=1, warmup_s=0, processes=2, speed=2)
        outcome = run_load_test(spec, options, TargetOptions(out=folder / "build", url=url), quiet=True)
        sizes = sizes_seen(url)
    assert sizes == {"10": 150, "20": 50}
    assert outcome.runs[0].measurement.sent == 200
    assert (outcome.load.arrivals, outcome.load.speed, outcome.load.rate) == ("replay", 2, 200)
    assert outcome.load.replay == str(folder / "trace.csv")
    assert f"--replay {folder}/trace.csv --speed 2 --warmup 0 --processes 2 --duration" in (
        next_step(outcome, folder) or ""
    )
    spaced = outcome.load.model_copy(update={"replay": "my traces/day.csv"})
    assert "--replay 'my traces/day.csv' " in (next_step(outcome.model_copy(update={"load": spaced}), folder) or "")
    throughput = outcome.verdict.checks[2]
    assert throughput.limit == 200
