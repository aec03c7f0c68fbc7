"""More is asked for than can be answered: who is served, who waits, who is refused. Steps are counted."""

import random
from statistics import quantiles

from handlers.generation.engine import Sampling
from handlers.generation.scheduler import Busy, Scheduler
from handlers.generation.sequence import BATCH, INTERACTIVE, GenerationTask

SLOTS, ROOM, TOKENS, STEP_S = 8, 16, 40, 0.02


def replay(steps: int, *, batch: float, interactive: float) -> tuple[dict[int, list[float]], dict[int, int]]:
    """Seconds until each that got a slot had it, and how many were refused, by priority; arrivals are per step."""
    dice, scheduler = random.Random(1), Scheduler(room=ROOM, slots=SLOTS, prefill_chunk=64)
    left: dict[str, int] = {}
    since: dict[str, tuple[float, int]] = {}
    waits: dict[int, list[float]] = {BATCH: [], INTERACTIVE: []}
    refused = {BATCH: 0, INTERACTIVE: 0}
    for number in range(steps):
        now = number * STEP_S
        scheduler.step.observe(STEP_S)
        for priority, rate in ((BATCH, batch), (INTERACTIVE, interactive)):
            if dice.random() < rate:
                deadline = now + 2 if priority == INTERACTIVE else None
                task = GenerationTask(f"{priority}-{number}", (1,) * 8, TOKENS, Sampling(), (), priority, deadline)
                try:
                    scheduler.submit(task, now, running=list(left.values()))
                    since[task.id] = now, priority
                except Busy:
                    refused[priority] += 1
        while len(left) < SLOTS and (task := scheduler.take(now)) is not None:
            begun, priority = since.pop(task.id)
            waits[priority].append(now - begun)
            left[task.id] = TOKENS
        left = {name: tokens - 1 for name, tokens in left.items() if tokens > 1}
    return waits, refused


def test_interactive_requests_are_served_at_once_while_a_batch_asks_for_three_times_what_there_is() -> None:
    # Eight slots of 40 steps: one answer every five steps; the interactive ones are two in five of those.
    waits, refused = replay(20_000, batch=0.6, interactive=0.08)
    assert refused[INTERACTIVE] == 0
    assert quantiles(waits[INTERACTIVE], n=100)[98] < TOKENS * STEP_S
    assert refused[BATCH] > len(waits[BATCH]) > 1500


def test_too_many_interactive_requests_are_refused_not_kept_waiting() -> None:
    waits, refused = replay(20_000, batch=0, interactive=0.6)
    assert refused[INTERACTIVE] > 5000
    assert max(waits[INTERACTIVE]) <= 2
