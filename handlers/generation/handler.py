"""`handler: text`: OpenAI's completions and chat, streamed, many at once.

TorchServe asks again and again (`continuousBatching`): each round names the requests that are open, and the answer has
what of each can be sent. A request that a round no longer names is one whose client has left. The engine runs in a
thread of its own, so a round never waits for a step that it does not need, and never longer than a moment."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import responses
from pathlib import Path
from typing import Any

import orjson
import torch

from handlers import receive
from handlers.artifact import misfit
from handlers.base import Context
from handlers.generation.answers import JSON, Writer
from handlers.generation.engines import make_engine
from handlers.generation.loop import EngineFailed, Loop
from handlers.generation.metrics import TextMetrics
from handlers.generation.refusals import Refused, error_body
from handlers.generation.scheduler import Busy, Scheduler
from handlers.generation.sequence import BATCH, INTERACTIVE, Wish
from handlers.generation.sequence import Sequence as Answering
from handlers.generation.tokens import Tokens
from handlers.generation.wishes import Asked, Form, Limits, read_asked
from handlers.generation.words import Unfolding
from handlers.machine import differences
from handlers.metrics import Metrics
from handlers.record import Record, RecordError, TextSpec, load_record
from handlers.request import Headers, Request
from handlers.validation import RequestError

logger = logging.getLogger(__name__)

# Who has left is noticed at the next round, so none lasts longer.
_WAKE_S = 0.05
_ROUTES: dict[str, Form] = {"v1/completions": "completion", "v1/chat/completions": "chat"}
_PRIORITIES = {"interactive": INTERACTIVE, "batch": BATCH}
_MAX_VALUES = 2_000_000
_STOPS = "the server stops, and the answer was not complete in the time that it had"
_FAILED = "the server failed at this answer"


@dataclass
class Stream:
    """An open request: its answer in the making, and whether something of it was sent."""

    answering: Answering
    writer: Writer
    begun: bool = False
    has_text: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class Whole:
    """An answer that is there at once."""

    body: bytes
    status: int = 200
    retry_after_s: int | None = None


@dataclass(frozen=True)
class _Criterion:
    """What TorchServe asks whether an answer has ended; None where it is not in pieces."""

    is_last: bool | None

    def __call__(self, answer: object) -> bool | None:
        return self.is_last


class TextHandler:
    """What TorchServe calls."""

    def initialize(self, context: Context) -> None:
        """Returns when the engine is warm and has answered the sample; raises if the package does not fit."""
        self.directory = Path(context.system_properties["model_dir"])
        self.record: Record = load_record(self.directory)
        if self.record.text is None:
            raise RecordError("`text`: missing: the package is not one of the `text` handler")
        self.text: TextSpec = self.record.text
        if self.record.artifacts and (differing := differences(self.record.key, torch.device("cpu"))):
            raise misfit(differing)
        torch.set_num_threads(self.record.threads)
        folder = self.directory / self.text.folder
        self.tokens = Tokens(folder)
        self._limits = Limits(self.record.name, self.text.context, self.text.max_tokens)
        self.metrics = TextMetrics(Metrics(self.record, self.text.engine, torch.device("cpu")), self.record.name)
        scheduler = Scheduler(room=self.text.waiting, slots=self.text.slots, prefill_chunk=self.text.prefill_chunk)
        engine = make_engine(self.text, folder, self.record.precision)
        self.loop = Loop(engine, scheduler, self._answering, self.metrics)
        self._open: dict[str, Stream] = {}
        self._flushed = 0.0
        # There from when the server that stops waits for answers no longer.
        self._closing = Path(os.environ.get("MARINA_RUN", self.directory), "closing")
        self._rehearse()
        receive.install()

    def handle(self, data: Sequence[Mapping[str, Any]] | None, context: Any) -> list[bytes]:
        """One piece of an answer per row, whatever is in the rows."""
        rows = data or []
        ids = [context.get_request_id(index) or "-" for index in range(len(rows))]
        for gone in self._open.keys() - set(ids):
            self.loop.cancel(gone)
            del self._open[gone]
        whole: dict[str, Whole] = {}
        for index, request_id in enumerate(ids):
            if request_id not in self._open:
                begun = self._begin(rows[index], context.get_all_request_header(index), request_id)
                if isinstance(begun, Whole):
                    whole[request_id] = begun
                else:
                    self._open[request_id] = begun
        if self._closing.exists():
            self._end_all()
        self._wait(bool(whole))
        answers: list[tuple[bytes, bool | None]] = []
        for index, request_id in enumerate(ids):
            if request_id in whole:
                answers.append((_send(whole[request_id], index, context), None))
            else:
                answers.append(self._send_piece(request_id, index, context))
        context.stopping_criteria = {index: _Criterion(is_last) for index, (_, is_last) in enumerate(answers)}
        return [body for body, _ in answers]

    def _begin(self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str) -> Stream | Whole:
        try:
            path = str(headers.get("url_path") or "").strip("/")
            if path == "v1/models" or path == f"v1/models/{self.record.name}":
                return self._models(path)
            return self._submit(*self._read(row, headers, request_id, path), request_id)
        except Refused as err:
            self.metrics.refused(err.kind)
            return Whole(err.body(), err.status, err.retry_after_s)
        except Exception:
            # A round is of all who are open: what one request raises must not end it.
            logger.exception("request %s failed", request_id)
            self.metrics.refused("internal")
            return Whole(error_body(_FAILED, 500, code="internal"), 500)

    def _read(
        self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str, path: str
    ) -> tuple[Asked, Headers]:
        try:
            limit = self.record.max_request_bytes
            request = Request(row, headers, request_id=request_id, max_bytes=limit, max_values=_MAX_VALUES)
            body = request.json()
        except RequestError as err:
            text = ": ".join(str(part) for part in (err.details["error"], err.details["got"]) if part is not None)
            raise Refused(text, status=err.status) from err
        form: Form | None = _ROUTES.get(path)
        if not path:
            form = "chat" if isinstance(body, Mapping) and "messages" in body else "completion"
        if form is None:
            raise Refused(f"no such page, allowed: {', '.join((*_ROUTES, 'v1/models'))}", status=404)
        return read_asked(body, form, self.tokens, self._limits), request.headers

    def _submit(self, asked: Asked, headers: Headers, request_id: str) -> Stream:
        wish = Wish(
            request_id,
            asked.prompt,
            asked.max_tokens,
            asked.sampling,
            asked.stop,
            _priority(headers.get("x-priority")),
            _deadline(headers.get("x-request-timeout-ms")),
        )
        try:
            answering = self.loop.submit(wish)
        except Busy as err:
            raise Refused(err.reason, code="busy", status=503, retry_after_s=err.retry_after_s) from err
        self.metrics.accepted(len(asked.prompt))
        return Stream(answering, Writer(asked, self.record.name, request_id, self.tokens))

    def _answering(self, wish: Wish, now: float) -> Answering:
        return Answering(wish, Unfolding(self.tokens.decode), frozenset(self.text.ends), now)

    def _wait(self, has_whole: bool) -> None:
        """Until there is something to send; text that goes on is sent `flush_ms` after what was sent before it."""
        streams = list(self._open.values())
        try:
            patience_s = 0 if has_whole else _WAKE_S
            is_ready = bool(streams) and self.loop.wait([each.answering for each in streams], patience_s)
        except EngineFailed as err:
            raise SystemExit("the engine failed, this worker ends") from err
        ready = [each for each in streams if each.answering.is_ready]
        if is_ready and not has_whole and all(each.has_text and not each.answering.end for each in ready):
            time.sleep(max(0.0, self._flushed + self.text.flush_ms / 1000 - time.monotonic()))
        if is_ready:
            self._flushed = time.monotonic()

    def _end_all(self) -> None:
        for request_id, stream in self._open.items():
            self.loop.cancel(request_id)
            stream.is_cut = stream.answering.end is None

    def _send_piece(self, request_id: str, index: int, context: Context) -> tuple[bytes, bool | None]:
        """What can be sent, and whether it is the last: None where it is the first, too, and no stream is needed. For
        TorchServe a first piece that is the last of a stream is no answer at all."""
        stream = self._open[request_id]
        error = self._error(stream)
        if error and not stream.begun:
            del self._open[request_id]
            return _send(error, index, context), None
        pieces = self.loop.take(stream.answering)
        body = stream.writer.write(pieces)
        stream.has_text |= bool(pieces)
        is_last: bool | None = bool(error) or (bool(pieces) and pieces[-1].end is not None)
        if error:
            body += stream.writer.fail(error.body)
        if not stream.begun:
            context.set_response_content_type(index, stream.writer.content_type)
            is_last = None if is_last else False
        stream.begun = True
        if is_last is not False:
            del self._open[request_id]
        return body, is_last

    def _error(self, stream: Stream) -> Whole | None:
        """Why there is no more of an answer that is not complete."""
        if stream.is_cut:
            return Whole(error_body(_STOPS, 503, code="server_stopped"), 503, retry_after_s=1)
        if stream.answering.end == "error":
            self.metrics.refused("internal")
            return Whole(error_body(_FAILED, 500, code="internal"), 500)
        return None

    def _models(self, path: str) -> Whole:
        model = {"id": self.record.name, "object": "model", "created": 0, "owned_by": "marina"}
        return Whole(orjson.dumps({"object": "list", "data": [model]} if path == "v1/models" else model))

    def _rehearse(self) -> None:
        """The sample goes the whole way, so that a package that cannot answer never becomes ready."""
        if self.record.sample is None:
            return
        body = (self.directory / self.record.sample.file).read_bytes()
        begun = self._begin({"body": body}, {"content-type": self.record.sample.content_type}, "-")
        if isinstance(begun, Whole):
            raise RecordError(f"`sample`: was answered with {begun.status}: {begun.body.decode()}")
        while not begun.answering.end:
            self.loop.wait([begun.answering], _WAKE_S)
            self.loop.take(begun.answering)
        if begun.answering.end == "error":
            raise RecordError("`sample`: the engine failed at it")


def _send(whole: Whole, index: int, context: Any) -> bytes:
    context.set_response_content_type(index, JSON)
    if whole.status != 200:
        context.set_response_status(whole.status, responses.get(whole.status, ""), index)
    if whole.retry_after_s is not None:
        context.set_response_header(index, "retry-after", str(whole.retry_after_s))
    return whole.body


def _priority(text: str | None) -> int:
    if text is None:
        return INTERACTIVE
    if text not in _PRIORITIES:
        raise Refused("`X-Priority`: allowed: `batch`, `interactive`", param="X-Priority")
    return _PRIORITIES[text]


def _deadline(text: str | None) -> float | None:
    """When the answer is of no more use, on the loop's clock."""
    if text is None:
        return None
    if not (text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= 86_400_000):
        raise Refused("`X-Request-Timeout-Ms`: allowed: 1 to 86400000", param="X-Request-Timeout-Ms")
    return time.monotonic() + int(text) / 1000
