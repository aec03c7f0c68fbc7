"""When Python looks for garbage, and when it does not."""

import gc
from collections.abc import Iterator

import pytest

from marina.handlers.memory import made_to_stay, without_collecting


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    frozen = gc.get_freeze_count()
    yield
    gc.enable()
    if gc.get_freeze_count() != frozen:
        gc.unfreeze()
        gc.freeze()


def test_nothing_is_collected_inside_and_again_after_it() -> None:
    with without_collecting():
        assert not gc.isenabled()
        with without_collecting():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_does_not_end_collecting_for_good() -> None:
    with pytest.raises(ImportError), made_to_stay():
        raise ImportError
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with made_to_stay():
        pass
    assert not gc.isenabled()


def test_what_is_made_to_stay_is_looked_at_by_no_collection() -> None:
    with made_to_stay():
        stays = [[number] for number in range(1000)]
    assert gc.get_freeze_count() >= len(stays)
    assert not any(each is stays for each in gc.get_objects())
