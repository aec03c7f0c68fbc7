"""One answer for all clients that ask the same while it is written: it is computed once, and each reads it from its
beginning. It ends before its time only when the last of them has left."""

from collections.abc import Callable
from dataclasses import dataclass, field

from handlers.generation.loop import EngineFailed
from handlers.generation.scheduler import Busy
from handlers.generation.sequence import Answering, End, Piece, Wish


@dataclass
class Flight:
    """An answer that is being written: for which request, what there is of it so far, and who reads it."""

    wish: Wish
    answering: Answering
    pieces: list[Piece] = field(default_factory=list)
    readers: set[str] = field(default_factory=set)

    def draw(self) -> list[Piece]:
        """All that there is of it."""
        self.pieces += self.answering.take()
        return self.pieces


class Reading:
    """The answer as one of its readers gets it."""

    def __init__(self, flight: Flight, key: bytes, wish: Wish) -> None:
        self.flight, self.key, self.wish = flight, key, wish
        self._told = 0

    @property
    def end(self) -> End | None:
        return self.flight.answering.end

    @property
    def is_ready(self) -> bool:
        """Whether there is something that its client has not got."""
        return len(self.flight.pieces) > self._told or self.flight.answering.is_ready

    def take(self) -> list[Piece]:
        """What its client has not got yet."""
        new = self.flight.draw()[self._told :]
        self._told += len(new)
        return new


class Flights:
    """The answers being written that several clients may read; `submit` begins one. Used by one thread."""

    def __init__(self, submit: Callable[[Wish], Answering]) -> None:
        self._submit = submit
        self._flights: dict[bytes, Flight] = {}
        self._readings: dict[str, Reading] = {}

    def begin(self, key: bytes, wish: Wish, *, joins: bool) -> tuple[Answering, bool]:
        """The answer to a wish, and whether it was already being written; raises as `submit` does.

        A request with a deadline shares nothing, because the deadline may cut the answer off; an interactive one does
        not wait for the answer of a batch."""
        if wish.deadline is not None:
            return self._submit(wish), False
        flight = self._flights.get(key) if joins else None
        is_joined = flight is not None and flight.answering.end != "error" and flight.wish.priority <= wish.priority
        if flight is None or not is_joined:
            flight = self._flights[key] = Flight(wish, self._submit(wish))
        reading = self._readings[wish.id] = Reading(flight, key, wish)
        flight.readers.add(wish.id)
        return reading, is_joined

    def leave(self, reader: str) -> str | None:
        """A client has left: the wishes that nobody waits for any longer."""
        reading = self._readings.pop(reader, None)
        if reading is None:
            return reader
        flight = reading.flight
        flight.readers.discard(reader)
        if flight.readers:
            return None
        if self._flights.get(reading.key) is flight:
            del self._flights[reading.key]
        return flight.wish.id

    def mend(self) -> None:
        """What failed is written once more for those who only read it: the same request has the same answer, so they go
        on where they were."""
        for reader, reading in list(self._readings.items()):
            failed = reading.flight
            if failed.answering.end != "error" or failed.wish.id == reader:
                continue
            self.leave(reader)
            try:
                begun, _ = self.begin(reading.key, reading.wish, joins=True)
            except (Busy, EngineFailed):
                continue
            assert isinstance(begun, Reading)
            reading.flight = begun.flight
            self._readings[reader] = reading
