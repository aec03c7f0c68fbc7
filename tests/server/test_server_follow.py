import io
import json
import os
import threading
import time
import tracemalloc
from dataclasses import replace

import pytest
from specs import make_spec
from waiting import eventually

from marina.server.java.follow import RequestLog, follow_access_log
from marina.server.java.traffic import AccessLogEntry, Traffic
from marina.server.system.output import Output

LINE = b'A 10.0.0.1:5 "POST /predictions/m HTTP/1.1" 200 4\n'
OK = AccessLogEntry("10.0.0.1:5", "POST", "/predictions/m", 200, 4)
FAILED = AccessLogEntry("10.0.0.1:5", "POST", "/predictions/m", 503, 4)


class Stuck(io.RawIOBase):
    """A stream that nobody reads: the first write waits for `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.text = b""

    def write(self, text: bytes) -> int:  # type: ignore[override]
        self.release.wait()
        self.text += text
        return len(text)


def follow(written: bytes, spec_changes: dict[str, object], stream: io.RawIOBase) -> tuple[Traffic, Output]:
    """Writes everything to the pipe and waits until the follower has read it, which it must do without waiting for the
    stream."""
    spec = make_spec({"name": "m", **spec_changes})
    traffic, output = Traffic(spec), Output(stream, max_lines=100)  # type: ignore[arg-type]
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as pipe:
        follower = follow_access_log(pipe, traffic, RequestLog(spec), output)
        with os.fdopen(write, "wb") as writer:
            writer.write(written)
        follower.join(30)
        assert not follower.is_alive()
    return traffic, output


@pytest.mark.slow
def test_counts_miss_nothing_when_nobody_reads_the_printed_lines() -> None:
    stuck = Stuck()
    traffic, output = follow(LINE * 50_000, {"serving.access_log": "all"}, stuck)
    assert traffic.histograms()[200].count == 50_000
    assert output.dropped >= 50_000 - 200
    stuck.release.set()
    output.close()
    assert stuck.text.count(b"\n") == 50_000 - output.dropped


def test_what_java_says_of_itself_on_stdout_is_printed_and_no_line_of_the_access_log_that_cannot_be_read() -> None:
    stream = io.BytesIO()
    said = b"Error occurred during initialization of VM\nCould not reserve enough space\n"
    _, output = follow(
        said + b'A 10.0.0.1:5 "POST /predictions/m?secret\n' + LINE, {"serving.access_log": "off"}, stream
    )  # type: ignore[arg-type]
    output.close()
    assert stream.getvalue() == said


def test_what_java_says_of_itself_is_an_object_in_a_log_of_objects() -> None:
    stream = io.BytesIO()
    said, logged = b"# A fatal error has been detected\n", b'{"level": "WARN", "message": "of its logger"}\n'
    _, output = follow(said + logged, {"serving.log": "json"}, stream)  # type: ignore[arg-type]
    output.close()
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["# A fatal error has been detected", "of its logger"]


def test_line_without_an_end_takes_no_memory_without_end() -> None:
    traffic, _ = follow(b"x" * 5_000_000 + b"\n" + LINE, {}, Stuck())
    assert traffic.histograms()[200].count == 1


@pytest.mark.slow
def test_a_line_takes_no_memory_of_the_size_of_the_pipe() -> None:
    spec = make_spec({"name": "m"})
    traffic, output = Traffic(spec), Output(io.BytesIO())
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as pipe, os.fdopen(write, "wb", buffering=0) as writer:
        follow_access_log(pipe, traffic, RequestLog(spec), output)

        def answered(count: int) -> bool:
            return traffic.histograms()[200].count == count

        writer.write(LINE)
        eventually(lambda: answered(1))
        tracemalloc.start()
        try:
            for count in range(2, 30):
                writer.write(LINE)
                eventually(lambda count=count: answered(count))  # type: ignore[misc]
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 200_000


def test_closing_does_not_wait_for_a_stuck_reader() -> None:
    output = Output(Stuck())  # type: ignore[arg-type]
    output.say("a", "b")
    begin = time.monotonic()
    output.close(0.05)
    assert time.monotonic() - begin < 5


def test_a_path_that_is_not_utf_8_is_printed_with_replacements() -> None:
    output = Output(stream := io.BytesIO())
    output.say("curl @" + os.fsdecode(b"b\xfcro/sample.png"))
    output.close(30)
    assert stream.getvalue() == b"curl @b?ro/sample.png\n"


@pytest.mark.parametrize(("mode", "printed"), [("off", 0), ("errors", 1), ("all", 2)], ids=["off", "errors", "all"])
def test_access_log_prints_what_its_mode_says(mode: str, printed: int) -> None:
    log = RequestLog(make_spec({"name": "m", "serving.access_log": mode}))
    assert len(log.lines([OK, FAILED])) == printed


def test_auto_prints_all_below_its_rate_and_errors_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("marina.server.java.follow.MOST_RPS", 3)
    log = RequestLog(make_spec({"name": "m"}), clock=lambda: now[0])
    assert len(log.lines([OK] * 3)) == 3
    assert len(log.lines([OK] * 7)) == 0
    assert len(log.lines([FAILED])) == 1
    now[0] += 1
    assert len(log.lines([OK])) == 0
    now[0] += 1
    assert len(log.lines([OK] * 3)) == 3


def test_auto_counts_the_errors_that_it_does_not_print(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("marina.server.java.follow.MOST_RPS", 3)
    log = RequestLog(make_spec({"name": "m"}), clock=lambda: now[0])
    broken = AccessLogEntry("10.0.0.1:5", "POST", "/predictions/m", 500, 4)
    assert len(log.lines([FAILED] * 4000)) == 3
    assert len(log.lines([broken] * 2)) == 0
    now[0] += 1
    said = log.lines([FAILED])
    assert [line.split(" request ")[1] for line in said] == [
        "3999 more errors in a second, of 4000 with 503, 2 with 500",
        "POST /predictions/m 503 4 ms",
    ]
    now[0] += 1
    assert len(log.lines([OK])) == 1


def test_a_line_names_the_trace_if_there_is_one() -> None:
    spec = make_spec({"name": "m", "serving.access_log": "all"})
    (line,) = RequestLog(spec).lines([replace(OK, trace="abc")])
    assert line.endswith(" request POST /predictions/m 200 4 ms trace abc")
    (line,) = RequestLog(make_spec({"name": "m", "serving.log": "json"})).lines([replace(OK, trace="abc")])
    assert json.loads(line)["trace_id"] == "abc"


def test_json_line_holds_the_request_as_fields() -> None:
    (line,) = RequestLog(make_spec({"name": "m", "serving.log": "json", "serving.access_log": "all"})).lines([OK])
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "INFO",
        "logger": "request",
        "message": "POST /predictions/m 200 4 ms",
        "model": "m",
        "method": "POST",
        "path": "/predictions/m",
        "code": 200,
        "duration_ms": 4,
    }
