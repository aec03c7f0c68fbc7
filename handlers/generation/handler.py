"""`handler: text`: OpenAI's completions and chat, streamed, many at once.

TorchServe asks again and again (`continuousBatching`): each round names the requests that are open, and the answer has
what of each can be sent. A request that a round no longer names is one whose client has left. The engine runs in a
thread of its own, so a round never waits for a step that it does not need, and never longer than a moment."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
import torch

from handlers import receive
from handlers.artifact import mismatch_error
from handlers.base import Context
from handlers.caching import open_cache
from handlers.generation.answers import Verbatim, Writer
from handlers.generation.arrivals import Arrival, Arrivals
from handlers.generation.engines import make_engine
from handlers.generation.engines.network import embedded
from handlers.generation.exchange import (
    FAILED,
    RECALLED,
    STOPPED,
    Criterion,
    Open,
    Pace,
    Pending,
    Recalling,
    Routed,
    Stream,
    Whole,
    recalling,
    refusing,
    send,
)
from handlers.generation.flights import Flights
from handlers.generation.forwarded import Forwarded
from handlers.generation.grammars import GrammarRefused, Grammars, bounded
from handlers.generation.loop import Awaited, EngineFailed, Loop, end_worker
from handlers.generation.metrics import TextMetrics
from handlers.generation.recall import Keeping, Recall, Written
from handlers.generation.refusals import Refused
from handlers.generation.routing import Route, open_route
from handlers.generation.scheduler import Scheduler
from handlers.generation.sequence import Answering, Wish
from handlers.generation.sequence import Sequence as Answer
from handlers.generation.sessions import Remembered, open_sessions
from handlers.generation.tokens import TOKENIZER, Tokens
from handlers.generation.wishes import Limits, check_model
from handlers.machine import machine_mismatches
from handlers.metrics import Metrics
from handlers.record import PackedRecord, RecordError, TextSpec, load_record

logger = logging.getLogger(__name__)

Begun = TypeVar("Begun")

# Who has left is noticed at the next round, so none lasts longer.
_WAKE_S = 0.05


class TextHandler:
    """What TorchServe calls."""

    def initialize(self, context: Context) -> None:
        """Returns when the engine is warm and has answered the sample; raises if the package does not fit."""
        self.directory = Path(context.system_properties["model_dir"])
        self.record: PackedRecord = load_record(self.directory)
        if self.record.text is None:
            raise RecordError("`text`: missing: the package is not one of the `text` handler")
        self.text: TextSpec = self.record.text
        if self.record.artifacts and (differing := machine_mismatches(self.record.key, torch.device("cpu"))):
            raise mismatch_error(differing)
        torch.set_num_threads(self.record.threads)
        # The thread of the engine and that of the rounds wait for each other's Python no longer than a token can.
        sys.setswitchinterval(0.001)
        folder = self.directory / self.text.folder
        self.tokens = Tokens(folder)
        limits = Limits(self.record.name, self.text.context, self.text.max_tokens, embedded(folder))
        self._arrivals = Arrivals(self.tokens, limits, self.record.max_request_bytes, self.text.priority_header)
        self.metrics = TextMetrics(Metrics(self.record, self.text.engine, torch.device("cpu")), self.record.name)
        scheduler = Scheduler(room=self.text.waiting, slots=self.text.slots, prefill_chunk=self.text.prefill_chunk)
        engine = make_engine(self.text, folder, self.record.precision)
        self.loop = Loop(engine, scheduler, self._answering, self.metrics, failed=end_worker)
        self.grammars = Grammars(folder / TOKENIZER, self.text.ends)
        self._recall = Recall(None)
        self._flights = Flights(self.loop.submit)
        self._route: Route | None = None
        self._open: dict[str, Open] = {}
        self._sessions = open_sessions(self.metrics.registry, self.record.name, changed=self.loop.wake)
        self._pace = Pace(self.text.flush_ms / 1000)
        # There from when the server that stops waits for answers no longer.
        self._closing = Path(os.environ.get("MARINA_RUN", self.directory), "closing")
        self.rehearse()
        self._route = open_route(
            self.metrics.registry,
            self.record.name,
            priority=self.text.priority_header,
            changed=self.loop.wake,
            is_abandoned=lambda: self.loop.is_abandoned,
        )
        # Only now: the sample is to be computed here at every start.
        self._recall = Recall(open_cache(self.metrics.registry, self.record.name))
        receive.install_receiver()

    def handle(self, data: Sequence[Mapping[str, Any]] | None, context: Any) -> list[bytes]:
        """One piece of an answer per row, whatever is in the rows."""
        with self.loop.asked():
            return self._round(data or [], context)

    def _round(self, rows: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        ids = [context.get_request_id(index) or "-" for index in range(len(rows))]
        for gone in self._open.keys() - set(ids):
            self._cancel(gone)
            del self._open[gone]
        new = [index for index, request_id in enumerate(ids) if request_id not in self._open]
        whole = self._begin([(ids[index], rows[index], context.get_all_request_header(index)) for index in new])
        if self._closing.exists():
            self._end_all(whole)
        self._wait(bool(whole))
        self._go_on(whole)
        self._flights.mend()
        answers: list[tuple[bytes, bool | None]] = []
        for index, request_id in enumerate(ids):
            stream = self._open.get(request_id)
            if request_id in whole:
                answers.append((send(whole[request_id], index, context), None))
            elif isinstance(stream, Stream):
                answers.append(self._send_piece(request_id, stream, index, context))
            else:
                # Who is not named is not answered in this round.
                del context.request_ids[index]
                answers.append((b"", None))
        context.stopping_criteria = {index: Criterion(is_last) for index, (_, is_last) in enumerate(answers)}
        return [body for body, _ in answers]

    def _enter(self, request_id: str, begun: Open | Whole, whole: dict[str, Whole]) -> None:
        if isinstance(begun, Whole):
            self._open.pop(request_id, None)
            whole[request_id] = begun
        else:
            self._open[request_id] = begun

    def _begin(self, requests: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Whole]:
        """Those that are answered at once; the others are open."""
        whole: dict[str, Whole] = {}
        arrivals: list[Arrival] = []
        for request_id, row, headers in requests:
            arrival = self._guarded(request_id, partial(self._read, row, headers, request_id))
            if isinstance(arrival, Arrival):
                arrivals.append(arrival)
            else:
                self._enter(request_id, arrival, whole)
        memories = self._recall.find([(arrival.asked, arrival.control) for arrival in arrivals])
        for arrival, memory in zip(arrivals, memories, strict=True):
            self._enter(arrival.wish.id, self._guarded(arrival.wish.id, partial(self._ask, arrival, memory)), whole)
        return whole

    def _read(self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str) -> Arrival | Recalling | Whole:
        path = str(headers.get("url_path") or "").strip("/")
        if path == "v1/models" or path.startswith("v1/models/"):
            return self._models(path.removeprefix("v1/models").strip("/"))
        arrival = self._arrivals.read(row, headers, request_id, path)
        return arrival if isinstance(arrival, Arrival) else recalling(arrival, self._sessions)

    def _continue(self, recalling: Recalling) -> Stream | Pending | Routed:
        arrival = recalling.continued.read(recalling.awaited.turn())
        (memory,) = self._recall.find([(arrival.asked, arrival.control)])
        return self._ask(arrival, memory)

    def _go_on(self, whole: dict[str, Whole]) -> None:
        """Those begin whose schema is compiled by now, whose conversation is read, or whose answer came from elsewhere,
        or will not."""
        for request_id, waiting in list(self._open.items()):
            if isinstance(waiting, Stream) or not waiting.awaited.is_ready:
                continue
            self._enter(request_id, self._guarded(request_id, partial(self._begin_late, waiting)), whole)

    def _begin_late(self, waiting: Pending | Routed | Recalling) -> Stream | Pending | Routed:
        if isinstance(waiting, Recalling):
            return self._continue(waiting)
        return self._submit_to_grammar(waiting) if isinstance(waiting, Pending) else self._take_over(waiting)

    def _guarded(self, request_id: str, begin: Callable[[], Begun]) -> Begun | Whole:
        try:
            return begin()
        except Refused as err:
            self.metrics.refused(err.kind)
            return Whole(err.body(), err.status, err.retry_after_s)
        except Exception:
            # A round is of all who are open: what one request raises must not end it.
            logger.exception("request %s failed", request_id)
            self.metrics.refused("internal")
            return FAILED

    def _ask(self, arrival: Arrival, memory: Written | Keeping | None) -> Stream | Pending | Routed:
        if isinstance(memory, Written):
            return self._stream(arrival, memory)
        if self._route and (forwarded := self._route.forward(arrival)):
            return Routed(arrival, forwarded, memory)
        return self._write(arrival, memory)

    def _write(self, arrival: Arrival, memory: Keeping | None) -> Stream | Pending:
        if arrival.asked.schema is None:
            return self._submit(arrival, memory)
        with refusing():
            compiling = self.grammars.compile(arrival.asked.schema, self.loop.wake)
        self.metrics.asked_for_schema(compiling.is_known)
        return Pending(arrival, compiling, memory)

    def _submit(self, arrival: Arrival, keeping: Keeping | None) -> Stream:
        is_joined, takes = False, arrival.control.may_read
        with refusing():
            if keeping is None:
                answering: Answering = self.loop.submit(arrival.wish)
            else:
                answering, is_joined = self._flights.begin(keeping.key, arrival.wish, joins=takes)
        if keeping and takes:
            self._recall.count("batch" if is_joined else "computed")
        if not is_joined:
            self.metrics.accepted(len(arrival.asked.prompt))
        return self._stream(arrival, answering, keeping)

    def _stream(self, arrival: Arrival, answering: Answering, keeping: Keeping | None = None) -> Stream:
        writer = Writer(arrival.asked, self.record.name, arrival.wish.id, self.tokens)
        if arrival.turn is None:
            return Stream(answering, writer, keeping)
        return Stream(Remembered(answering, arrival.turn), writer, keeping, arrival.turn.recalled)

    def _submit_to_grammar(self, pending: Pending) -> Stream:
        arrival = pending.arrival
        try:
            grammar = self.grammars.begin(pending.awaited)
        except GrammarRefused as err:
            text = f"`response_format`: no answer can be held to this schema: {err}"
            raise Refused(text, param="response_format") from err
        sampling = replace(arrival.wish.sampling, grammar=grammar, schema=bounded(arrival.asked.schema or "{}"))
        return self._submit(replace(arrival, wish=replace(arrival.wish, sampling=sampling)), pending.keeping)

    def _take_over(self, routed: Routed) -> Stream | Pending:
        """The answer as it comes from elsewhere, or this model's own where it has ended before its client got any."""
        if routed.awaited.has_failed or routed.awaited.end == "error":
            return self._write(routed.arrival, routed.keeping)
        return Stream(routed.awaited, Verbatim(stream=routed.arrival.asked.stream))

    def _answering(self, wish: Wish, now: float) -> Answer:
        ends = () if wish.sampling.ignore_eos else self.text.ends
        return Answer(wish, self.tokens.unfold(wish.prompt), frozenset(ends), now)

    def _wait(self, has_whole: bool) -> None:
        """Until there is something to send; text that goes on is sent `flush_ms` after what was sent before it."""
        streams = [request for request in self._open.values() if isinstance(request, Stream)]
        others = [request.awaited for request in self._open.values() if not isinstance(request, Stream)]
        try:
            patience_s = 0 if has_whole else _WAKE_S
            watched: list[Awaited] = [*(stream.answering for stream in streams), *others]
            is_ready = bool(watched) and self.loop.wait(watched, patience_s)
        except EngineFailed:
            for stream in streams:
                stream.is_lost = stream.answering.end is None
            return
        ready = [stream for stream in streams if stream.answering.is_ready]
        has_whole |= any(awaited.is_ready for awaited in others)
        if is_ready and not has_whole and all(stream.has_text and not stream.answering.end for stream in ready):
            time.sleep(self._pace.wait_s(time.monotonic()))
        if is_ready:
            self._pace.flush(time.monotonic())

    def _end_all(self, whole: dict[str, Whole]) -> None:
        for request_id, stream in list(self._open.items()):
            self._cancel(request_id)
            if isinstance(stream, Stream):
                stream.is_cut = stream.answering.end is None
            else:
                self._enter(request_id, STOPPED, whole)

    def _cancel(self, request_id: str) -> None:
        """Stops what writes its answer."""
        if nobodys := self._flights.leave(request_id):
            self.loop.cancel(nobodys)
        request = self._open[request_id]
        writing = request.answering if isinstance(request, Stream) else request.awaited
        if isinstance(writing, Forwarded):
            writing.cancel()

    def _send_piece(self, request_id: str, stream: Stream, index: int, context: Context) -> tuple[bytes, bool | None]:
        """What can be sent, and whether it is the last: None where it is the first, too, and no stream is needed.
        TorchServe takes a first piece that is also the last of a stream for no answer at all."""
        error = stream.error
        if error is FAILED:
            self.metrics.refused("internal")
        if error and not stream.begun:
            self._flights.leave(request_id)
            del self._open[request_id]
            return send(error, index, context), None
        pieces = self.loop.take(stream.answering)
        body = stream.writer.write(pieces)
        stream.has_text |= bool(pieces)
        is_last: bool | None = bool(error) or (bool(pieces) and pieces[-1].end is not None)
        if stream.keeping:
            stream.keeping.pieces += pieces
            if is_last and not error:
                self._recall.keep(stream.keeping)
        if error:
            body += stream.writer.fail(error.body)
        if not stream.begun:
            context.set_response_content_type(index, stream.writer.content_type)
            if stream.recalled is not None:
                context.set_response_header(index, RECALLED, str(stream.recalled))
            is_last = None if is_last else False
        stream.begun = True
        if is_last is not False:
            self._flights.leave(request_id)
            del self._open[request_id]
        return body, is_last

    def _models(self, name: str) -> Whole:
        check_model(name or self.record.name, self.record.name)
        model = {"id": self.record.name, "object": "model", "created": 0, "owned_by": "marina"}
        return Whole(orjson.dumps(model if name else {"object": "list", "data": [model]}))

    def rehearse(self) -> None:
        """The sample takes every step of a request, so that a package that cannot answer never becomes ready."""
        if self.record.sample is None:
            return
        body = (self.directory / self.record.sample.file).read_bytes()
        headers = {"content-type": self.record.sample.content_type}
        whole = self._begin([("-", {"body": body}, headers)])
        begun: Open | Whole = whole["-"] if whole else self._open.pop("-")
        if isinstance(begun, Pending):
            wait([begun.awaited.matcher])
            begun = self._guarded("-", partial(self._submit_to_grammar, begun))
        if isinstance(begun, Whole):
            raise RecordError(f"`sample`: was answered with {begun.status}: {begun.body.decode()}")
        assert isinstance(begun, Stream)
        with self.loop.asked():
            while not begun.answering.end:
                self.loop.wait([begun.answering], _WAKE_S)
                self.loop.take(begun.answering)
        if begun.answering.end == "error":
            raise RecordError("`sample`: the engine failed at it")
