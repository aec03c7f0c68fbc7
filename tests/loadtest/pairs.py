"""Two simulated servers, on a machine that they share with neighbours who come and go."""

from dataclasses import dataclass

import numpy as np
from queues import EDGES, Dice, Seconds, histogram, single

from marina.config.measured import Objective
from marina.loadtest.comparing.comparison import Round, Turn
from marina.loadtest.comparing.judgement import Judgement, first_side, judge_rounds, look_schedule, look_share
from marina.loadtest.scheduling import Schedule

RATE, SERVICE_S = 50, 0.008
OBJECTIVE = Objective(p99_ms=500, error_rate=0.001, throughput_rps=None)

_LIMITED = np.array(sorted({*EDGES, OBJECTIVE.p99_ms}))


@dataclass(frozen=True)
class Machine:
    """How a neighbour slows everything down: how often it comes, how long it stays, how much of the cores it takes."""

    bursts_a_minute: float
    burst_s: float
    slower: float
    drift: float = 0.05
    """How much the machine's speed varies from one turn to the next."""


QUIET = Machine(0, 1, 1)
BURSTY = Machine(bursts_a_minute=6, burst_s=1, slower=2)


def took_ms(times: Seconds, service_s: float, injected: float, machine: Machine, dice: Dice) -> Seconds:
    """How long requests at these times take, ms: one worker, half of whose service time is constant. It is slower while
    a neighbour is there, and each answer takes longer by the share `injected`."""
    length_s = float(times[-1]) + 1
    speed = np.full(len(times), np.exp(machine.drift * dice.standard_normal()))
    for _ in range(dice.poisson(machine.bursts_a_minute * length_s / 60)):
        begun = dice.uniform(-machine.burst_s, length_s)
        speed[(times >= begun) & (times < begun + dice.exponential(machine.burst_s))] *= machine.slower
    return 1000 * (1 + injected) * single(times, speed * service_s / 2 * (1 + dice.exponential(1.0, len(times))))


def turn(schedule: Schedule, injected: float, machine: Machine, dice: Dice) -> Turn:
    """One turn of such a server."""
    times = np.array(schedule.times())
    took = took_ms(times, SERVICE_S, injected, machine, dice)[times >= schedule.warmup_s]
    count, end = len(took), schedule.total_s + OBJECTIVE.p99_ms / 1000
    in_time = int((times[times >= schedule.warmup_s] + took / 1000 <= end).sum())
    # Other work on the machine evicts the caches.
    cpu_s = len(times) * SERVICE_S * float(np.exp(machine.drift * dice.standard_normal()))
    return Turn(
        asked_s=schedule.duration_s,
        planned=count,
        sent=count,
        answered=len(times),
        in_time=in_time,
        failed=0,
        cpu_s=cpu_s,
        response=histogram(took, _LIMITED, OBJECTIVE.p99_ms),
    )


def rounds_of(injected: float, machine: Machine, seed: int, count: int, first: int = 0) -> list[Round]:
    """Rounds of a server, and of one that is slower by the share `injected`."""
    made = []
    for number in range(first, first + count):
        dice = np.random.default_rng([seed, number])
        schedule = Schedule(arrivals="poisson", rate=RATE, warmup_s=0.5, duration_s=1, seed=1000 * seed + number)
        old, new = (turn(schedule, each, machine, dice) for each in (0.0, injected))
        made.append(Round(first=first_side(number), old=old, new=new))
    return made


def compared(injected: float, machine: Machine, seed: int, *, regression: float = 0.2, most: int = 360) -> Judgement:
    """The verdict of `marina compare` on the two."""
    rounds: list[Round] = []
    looks = look_schedule(most)
    for look in looks:
        rounds += rounds_of(injected, machine, seed, look - len(rounds), len(rounds))
        judgement = judge_rounds(rounds, OBJECTIVE, regression, share=look_share(look, looks))
        if not judgement.needs_more_rounds:
            break
    return judgement
