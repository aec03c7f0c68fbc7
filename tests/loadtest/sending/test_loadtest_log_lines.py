import pytest
from test_loadtest_slo import measured

from marina.config.errors import InputError
from marina.loadtest.measuring import GeneratorHealth, Histogram, Second, this_machine
from marina.loadtest.sending.log_lines import (
    END_LINE,
    is_end,
    read_record_lines,
    read_second_line,
    record_lines,
    second_line,
)


def test_a_second_survives_the_log() -> None:
    second = Second(due=3, answered=2, errors={"timeout": 1}, response=Histogram())
    beats = [GeneratorHealth(cpu=0.5, loop_lag_ms=1.5)]
    assert read_second_line(second_line(7, second, beats)) == (7, second, beats)


def test_a_plan_ends_with_a_line_of_its_own() -> None:
    assert is_end(f"{END_LINE}\n")
    assert not is_end("marina-endless")


def test_other_lines_are_not_seconds() -> None:
    assert read_second_line("locust: ready") is None
    assert read_second_line("marina-second {cut") is None


def test_a_record_is_read_from_between_other_lines() -> None:
    run = measured(*[20.0] * 100)
    lines = ["starting", *record_lines(run, this_machine()), "bye"]
    assert read_record_lines(lines) == (run, this_machine())


def test_a_log_that_lost_a_line_is_not_a_record() -> None:
    second = Second(errors={f"a reason {number}": 1 for number in range(20_000)})
    run = measured(*[20.0] * 10, seconds=[second])
    pieces = list(record_lines(run, this_machine()))
    assert len(pieces) > 1
    with pytest.raises(InputError, match="pieces of its record"):
        read_record_lines(pieces[1:])
    with pytest.raises(InputError, match=r"0 of \? pieces"):
        read_record_lines(["error: out of memory"])
