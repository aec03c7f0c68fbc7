"""Unit tests of text generation: the queue, slots, text from tokens."""

import pytest

from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.engines.slots import Slots
from marina.handlers.generation.open_requests import FlushPace
from marina.handlers.generation.scheduler import PATIENCE_S, Busy, Scheduler
from marina.handlers.generation.sequence import BATCH, INTERACTIVE, GenerationTask
from marina.handlers.generation.tokenizer import Detokenizer, StopFinder


def task(name: str, *, length: int = 4, tokens: int = 10, priority: int = INTERACTIVE, deadline=None) -> GenerationTask:
    return GenerationTask(name, (0,) * length, tokens, Sampling(), priority=priority, deadline=deadline)


def full(*waiting: tuple[GenerationTask, float], room: int = 10, step_s: float = 0.0) -> Scheduler:
    scheduler = Scheduler(room=room, slots=1, prefill_chunk=4)
    if step_s:
        scheduler.observe_step(step_s)
    for each, since in waiting:
        scheduler.submit(each, since, running=[10])
    return scheduler


def order(scheduler: Scheduler, now: float) -> list[str]:
    taken = []
    while (each := scheduler.take(now)) is not None:
        taken.append(each.id)
    return taken


def test_a_late_flush_does_not_delay_the_later_ones() -> None:
    pace, sent = FlushPace(2), []
    # A token comes every two seconds; the third is late, and the last ones come too fast.
    for ready in (10, 12, 15, 16, 18, 19, 20, 21):
        now = ready + pace.wait_s(ready)
        pace.flush(now)
        sent.append(now)
    assert sent == [10, 12, 15, 16, 18, 19, 21, 23]


def test_many_early_flushes_do_not_hold_up_running_answers() -> None:
    pace = FlushPace(2)
    for early in range(100):
        pace.flush(10 + early / 100)
    assert pace.wait_s(11) == pytest.approx(1.99)


def test_interactive_goes_before_batch_and_short_before_long() -> None:
    scheduler = full(
        (task("batch", length=1, priority=BATCH), 0), (task("long", length=9), 0), (task("short", length=2), 0.1)
    )
    assert order(scheduler, 1) == ["short", "long", "batch"]


def test_a_request_that_has_waited_long_goes_first() -> None:
    scheduler = full((task("batch", priority=BATCH), 0), (task("new", length=1), PATIENCE_S))
    assert order(scheduler, PATIENCE_S + 1) == ["batch", "new"]


def test_a_full_room_says_when_a_slot_is_free() -> None:
    scheduler = full((task("a", tokens=10), 0), room=1, step_s=0.5)
    with pytest.raises(Busy) as busy:
        scheduler.submit(task("b"), 0, running=[10])
    assert (
        busy.value.retry_after_s == 10
    )  # 10 steps of the running task, then 1 + 9 of the waiting one, of half a second each


def test_the_estimate_for_a_deadline_includes_the_requests_before_it() -> None:
    scheduler = full((task("a", tokens=10), 0), step_s=1.0)
    with pytest.raises(Busy, match=r"it would take 25,000.0 ms, and 24,000.0 ms are left"):
        scheduler.submit(task("late", tokens=5, deadline=24), 0, running=[10])
    scheduler.submit(task("fits", tokens=5, deadline=26), 0, running=[10])


def test_no_request_is_refused_for_its_deadline_before_a_step_was_measured() -> None:
    full((task("a", deadline=0.001), 0))


def test_a_prompt_is_read_in_pieces_between_the_others() -> None:
    slots = Slots(2, context=100, prefill_chunk=4)
    slots.add("short", [1], Sampling())
    slots.add("long", range(10), Sampling())
    pieces = []
    while len(work := slots.work()) == 2 and (slot := work[1].slot).sequence == "long" and slot.is_reading:
        assert work[0].slot.sequence == "short"
        piece = work[1].piece
        pieces.append((piece.start, piece.stop))
        if piece.stop == len(slot.tokens):
            slot.append(7)
        else:
            slot.cached = piece.stop
    assert pieces == [(0, 4), (4, 8), (8, 10)]
    assert (slots.usage().sequences, slots.usage().cached_tokens) == (2, 10)
    slots.cancel("long")
    assert slots.usage().sequences == 1


def test_short_prompts_are_read_together_as_many_as_fit_into_a_piece() -> None:
    slots = Slots(4, context=100, prefill_chunk=8)
    for name, length in (("a", 3), ("b", 3), ("c", 5), ("d", 2)):
        slots.add(name, range(length), Sampling())
    work = slots.work()
    assert [(each.slot.sequence, each.piece.start, each.piece.stop) for each in work] == [
        ("a", 0, 3),
        ("b", 0, 3),
        ("c", 0, 2),
    ]
    assert [each.gives_token for each in work] == [True, True, False]


def test_a_stop_string_across_pieces_is_found_and_nothing_of_it_is_sent() -> None:
    finder = StopFinder(["END"])
    assert [finder.feed(text) for text in ("a E", "N", "X b", " EN", "D c")] == [
        ("a ", False),
        ("", False),
        ("ENX b", False),
        (" ", False),
        ("", True),
    ]


def test_what_was_held_back_for_a_stop_string_comes_at_the_end() -> None:
    finder = StopFinder(["END"])
    assert (finder.feed("x EN"), finder.flush()) == (("x ", False), "EN")


@pytest.mark.parametrize("text", ["plain", "žluťoučký kůň", "日本語 text", "🙂🙃 mixed €uro", "\ud7ff￿"])
def test_bytes_become_text_in_whole_characters(text: str) -> None:
    detokenizer = Detokenizer(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("�" in piece for piece in pieces)


def test_invalid_bytes_do_not_stop_the_text_after_them() -> None:
    detokenizer = Detokenizer(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    text = "".join(detokenizer.feed(byte) for byte in b"a\xff\xff\xff\xff\xff\xffb") + detokenizer.flush()
    assert (text[0], text[-1]) == ("a", "b")
