"""Streams over servers that stop: clients that leave among them, and what became of each.

Servers follow each other as pods do: clients ask one until it stops, and a moment longer, then the next."""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Sequence

from running import Running
from streams import Stream, stream
from waiting import eventually, samples, total

# At the same time; the slots and the waiting room of a server take them.
CLIENTS = 48
# Clients go on asking a server that was told to stop, as the endpoints of a Service know of it late.
_LATE_S = 0.3
# A stream that hangs is lost.
_PATIENCE_S = 120.0


class Crowd:
    """So many streams, one after another from each of `CLIENTS`; a share of them leaves in the middle."""

    def __init__(self, servers: Sequence[Running], path: str, *, count: int, leaving: float, most_tokens: int) -> None:
        self._servers, self._path, self._left = list(servers), path, iter(range(count))
        self._count, self._leaving, self._most, self._dice = count, leaving, most_tokens, random.Random(1)
        self.outcomes: Counter[str] = Counter()
        self.exits: list[int] = []
        self.began: Counter[int] = Counter()

    async def run(self) -> None:
        """Until each stream has its outcome; a server stops after each equal share of them but the last."""
        stops = asyncio.create_task(self._stop_in_turns())
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))
        await stops

    async def _stop_in_turns(self) -> None:
        share = self._count // len(self._servers)
        for number, server in enumerate(self._servers[:-1], 1):
            while self.outcomes.total() < number * share:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(_LATE_S)
            self._current = number
            self.exits.append(await asyncio.to_thread(server.process.wait, _PATIENCE_S))

    _current = 0

    async def _client(self) -> None:
        for _ in self._left:
            tokens = self._dice.randint(2, self._most)
            most = self._dice.randint(1, tokens - 1) if self._dice.random() < self._leaving else None
            number = self._current
            body: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": tokens}
            asked = stream(self._servers[number].ports.inference, self._path, body, most=most)
            try:
                seen = await asyncio.wait_for(asked, _PATIENCE_S)
            except TimeoutError:
                self.outcomes["lost: hangs"] += 1
                continue
            except OSError as err:
                self.outcomes[f"lost: {type(err).__name__}"] += 1
                continue
            self.began[number] += seen.status == 200
            self.outcomes[outcome(seen, tokens, most)] += 1


def outcome(seen: Stream, tokens: int, most: int | None) -> str:
    """What became of a stream: `ended`, `left`, `told: …`, or `lost: …`."""
    if seen.broke or not seen.body:
        return "lost: broke"
    if seen.status != 200:
        code = json.loads(seen.body.partition(b"\r\n\r\n")[2] or b"{}").get("error", {}).get("code")
        return f"told: {seen.status} {code}" if code else f"lost: {seen.status} without a reason"
    if b'data: {"error"' in seen.body:
        code = json.loads(seen.body.partition(b'data: {"error"')[2].partition(b"\n")[0].join([b'{"error"', b""]))
        return f"told: {code['error']['code']}" if seen.ended else "lost: an error without an end"
    if seen.ended:
        return "ended" if len(seen.times) == tokens else "lost: ended early"
    return "left" if most is not None and len(seen.times) >= most else "lost: cut short"


def leaked(server: Running) -> int:
    """Slots that are held when nobody is there any more."""

    def held() -> float:
        return total(samples(server), "inference_sequences")

    try:
        eventually(lambda: held() == 0, within_s=30)
    except AssertionError:
        return int(held())
    return 0
