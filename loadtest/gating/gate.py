"""One gate, from its first reading to its verdict: what a rollout asks while both revisions serve. No I/O."""

from collections.abc import Mapping

from marina.loadtest.gating.figures import Pods
from marina.loadtest.gating.judgement import LiveLimits, LiveVerdict, announced, judge_live, looks_at, wrong_at
from marina.loadtest.gating.need import Need
from marina.loadtest.gating.readings import LiveRounds, PodReading
from marina.loadtest.measuring import figure

# Long enough that a window of a slow service has some requests, short enough for twelve windows in a minute.
_WINDOW_S, _FEWEST_WINDOWS = 5.0, 60
# After so many windows it is known what a gate needs, even if the old revision was not watched before.
_ANNOUNCED_AFTER = 12


class LiveGate:
    """Takes the pages of the pods at every window's end, and says what follows."""

    def __init__(self, limits: LiveLimits, minutes: float) -> None:
        self.seconds, self.announced_after = 60 * minutes, _ANNOUNCED_AFTER
        self.window_s = min(_WINDOW_S, self.seconds / _FEWEST_WINDOWS)
        self._limits = limits
        self._looks = looks_at(int(self.seconds / self.window_s))
        self._before: list[Pods] = []
        self._alone, self._live = LiveRounds(), LiveRounds()
        self._need: Need | None = None

    def observe(self, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> None:
        """Takes the page `/latencies` of each pod; without new pods, it learns what the old revision's traffic is like.
        Raises ClusterError for a page that it cannot read."""
        before, after = ({pod: PodReading.parse(pod, page) for pod, page in side.items()} for side in (old, new))
        if after:
            self._live.add(before, after)
        else:
            # The old pods against themselves, so that each window with an answer is a round.
            self._alone.add(before, before)
            self._before = [each.old for each in self._alone.rounds]

    def announcement(self) -> str:
        """How many requests it needs, and how long these take at the rate that the new revision gets."""
        rounds = self._live.rounds
        self._need = announced([*self._before, *(each.old for each in rounds)], self._limits)
        answered = sum(pod.answered for each in rounds for pod in each.new.values())
        rate = answered / (len(rounds) * self.window_s) if rounds else 0.0
        gets = f"the new revision gets {figure(rate)} a second"
        if self._need is None:
            return f"it cannot say yet how many requests it needs; {gets}"
        takes = self._need.seconds(rate, self.window_s)
        text = f"it needs {self._need.requests:,} requests of each revision; {gets}"
        if takes == float("inf"):
            return text
        stands = f"{self.seconds / 60:g} min"
        enough = f"it stands for {stands}" if takes <= self.seconds else f"but it stands for {stands} only"
        return f"{text}, which takes {max(1, round(takes / 60)):,} min; {enough}"

    def verdict(self, *, over: bool) -> LiveVerdict | None:
        """The verdict, if it is FAIL or the time is over; else None."""
        count = len(self._live.rounds)
        if not over and count not in self._looks and not self._live.restarted:
            return None
        look = count if count in self._looks else self._looks[-1]
        said = judge_live(self._live, self._limits, wrong_at(look, self._looks), last=False, need=self._need)
        if not over and said.status != "FAIL":
            return None
        wrong = wrong_at(look, self._looks)
        return judge_live(self._live, self._limits, wrong, need=self._need) if said.figures else said
