"""Judges a new revision against the old one on live traffic, while both serve: the gate of a rollout."""

from marina.loadtest.gating.following import GONE_AFTER, Follower, addresses
from marina.loadtest.gating.gate import LiveGate
from marina.loadtest.gating.judgement import LiveLimits, LiveVerdict, announced, judge_live, looks_at, wrong_at
from marina.loadtest.gating.need import Need
from marina.loadtest.gating.readings import LiveRound, LiveRounds, PodReading, PodWindow
from marina.loadtest.gating.service import VerdictPage, stand_between

__all__ = [
    "GONE_AFTER",
    "Follower",
    "LiveGate",
    "LiveLimits",
    "LiveRound",
    "LiveRounds",
    "LiveVerdict",
    "Need",
    "PodReading",
    "PodWindow",
    "VerdictPage",
    "addresses",
    "announced",
    "judge_live",
    "looks_at",
    "stand_between",
    "wrong_at",
]
