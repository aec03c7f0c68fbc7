"""More requests than can be answered: which are served, which wait, which are refused. Time is counted in steps."""

import random
from statistics import quantiles

from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.scheduler import Busy, Scheduler
from marina.handlers.generation.sequence import BATCH, INTERACTIVE, GenerationTask

SLOTS, ROOM, TOKENS, STEP_S = 8, 16, 40, 0.02


def replay(steps: int, *, batch: float, interactive: float) -> tuple[dict[int, list[float]], dict[int, int]]:
    """By priority: the seconds that tasks waited for their slots, and how many were refused. Rates are per step."""
    dice, scheduler = random.Random(1), Scheduler(room=ROOM, slots=SLOTS, prefill_chunk=64)
    left: dict[str, int] = {}
    since: dict[str, tuple[float, int]] = {}
    waits: dict[int, list[float]] = {BATCH: [], INTERACTIVE: []}
    refused = {BATCH: 0, INTERACTIVE: 0}
    for number in range(steps):
        now = number * STEP_S
        scheduler.observe_step(STEP_S)
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


def test_interactive_requests_are_served_at_once_beside_three_times_too_many_batch_requests() -> None:
    # Eight slots and 40 steps an answer make one answer in five steps; interactive requests take two in five of them.
    waits, refused = replay(20_000, batch=0.6, interactive=0.08)
    assert refused[INTERACTIVE] == 0
    assert quantiles(waits[INTERACTIVE], n=100)[98] < TOKENS * STEP_S
    assert refused[BATCH] > len(waits[BATCH]) > 1500


def test_too_many_interactive_requests_are_refused_not_kept_waiting() -> None:
    waits, refused = replay(20_000, batch=0, interactive=0.6)
    assert refused[INTERACTIVE] > 5000
    assert max(waits[INTERACTIVE]) <= 2
