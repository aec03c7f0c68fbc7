import argparse
import re

import pytest

from marina.command import parser
from marina.config.duration import HELP, duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("1.5m", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1d", 86400),
    ],
)
def test_a_time_is_in_seconds_or_has_units(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "2x", "5 m", "1h 30m", "nan", "inf", "h2", "1m5", "five"])
def test_what_is_no_time_is_an_error_that_says_what_is_allowed(text: str) -> None:
    allowed = "allowed: seconds, or a time such as `90s`, `5m`, `2h` or `1h30m`"
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"got `{text}`, {allowed}")):
        duration_s(text)


def test_every_option_that_takes_a_time_says_so_and_takes_the_same_times() -> None:
    verbs = next(action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    timed = {
        f"{verb} {action.option_strings[0]}": action.type
        for verb, of_verb in verbs.items()
        for action in of_verb._actions
        if action.metavar == "TIME"
    }
    assert {"deploy --timeout", "rollback --timeout", "loadtest --duration", "calibrate --trial"} <= set(timed)
    assert {name: kind("5m") for name, kind in timed.items() if callable(kind)} == dict.fromkeys(timed, 300)
    for verb, of_verb in verbs.items():
        assert (HELP in of_verb.format_help()) == any(name.startswith(f"{verb} ") for name in timed)
        seconds = [action for action in of_verb._actions if action.metavar == "S" and action.type]
        assert [action.option_strings for action in seconds] == []
