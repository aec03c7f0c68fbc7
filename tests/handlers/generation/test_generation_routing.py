"""Short prompts go to a small model, here a stand-in that can be slow, broken or down."""

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fakes import FakeContext
from generating import Rounds, events, write_text_package
from waiting import eventually

from marina.handlers.generation import routing
from marina.handlers.generation.handler import TextHandler
from marina.handlers.generation.open_requests import PromptWait

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"


def event(text: str, end: str | None = None) -> bytes:
    data = {"model": "small", "choices": [{"text": text, "finish_reason": end}]}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "the server stops"}}\n\n'
WHOLE = json.dumps({"model": "small", "choices": [{"text": "small"}]}).encode()
HANG, BREAK = "hang", "break"


class Small(ThreadingHTTPServer):
    """Answers with `script`, piece by piece."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Script)
        self.status = 200
        self.script: list[Any] = [event("sma"), event("ll", "stop"), DONE]
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.go_on = threading.Event()
        self.left = threading.Event()


class _Script(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Small

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        for piece in self.server.script:
            if piece == HANG:
                self.server.go_on.wait(60)
            elif piece == BREAK:
                return
            else:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def finish(self) -> None:
        self.server.left.set()
        super().finish()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def small() -> Iterator[Small]:
    with Small() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


def start(folder, monkeypatch: pytest.MonkeyPatch, port: int, patience_s: float = 60) -> Rounds:
    monkeypatch.setattr(routing, "PATIENCE_S", patience_s)
    route = {"url": f"http://127.0.0.1:{port}/predictions/small", "short_tokens": 5}
    monkeypatch.setenv("MARINA_ROUTE", json.dumps(route))
    handler = TextHandler()
    handler.initialize(FakeContext(write_text_package(folder)))
    return Rounds(handler, folder)


@pytest.fixture
def rounds(tmp_path, monkeypatch: pytest.MonkeyPatch, small: Small) -> Iterator[Rounds]:
    rounds = start(tmp_path, monkeypatch, small.server_port)
    yield rounds
    rounds.close()


def completion(**body):
    return {"prompt": "abc", "max_tokens": 7, "temperature": 0, "model": "tales"} | body


def results(rounds: Rounds) -> dict[str, float]:
    return {name: value for name, counter in rounds.handler._route._results.items() if (value := counter._value.get())}


def text(answer: bytes) -> str:
    if not answer.startswith(b"data: "):
        return json.loads(answer)["choices"][0]["text"]
    return "".join(each["choices"][0]["text"] for each in events(answer) if each != "[DONE]")


def test_metadata_too_deep_to_be_sent_on_is_left_out(rounds: Rounds, small: Small) -> None:
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    body = rounds.ask(COMPLETIONS, completion(stream=True, metadata={"a": deep}))
    assert body == b"".join(small.script)


def test_a_request_too_deep_to_be_sent_on_is_handled_here(rounds: Rounds, small: Small) -> None:
    schema: object = {"type": "integer"}
    for _ in range(126):
        schema = {"properties": {"a": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    error = json.loads(rounds.ask(COMPLETIONS, completion(response_format=form)))["error"]
    assert (rounds.status[rounds.last], error["param"], small.requests) == (400, "response_format", [])


def test_an_answer_goes_on_after_a_text_that_looks_like_the_end_of_a_stream(rounds: Rounds, small: Small) -> None:
    small.script = [event("data: [DONE]"), HANG, event(" and on", "stop"), DONE]
    begin_to_write(rounds, "open")
    go_on_to_the_end(rounds, small)
    assert rounds.bodies["open"] == b"".join(piece for piece in small.script if piece != HANG)


def test_a_short_prompt_is_answered_by_the_small_model_word_for_word(rounds: Rounds, small: Small) -> None:
    body = rounds.ask(COMPLETIONS, completion(stream=True), **{"X-Priority": "batch", "X-Request-Timeout-Ms": "60000"})
    assert body == b"".join(small.script)
    assert rounds.headers[rounds.last]["content-type"].startswith("text/event-stream")
    ((headers, sent),) = small.requests
    # Everything is sent as the client sent it, except the model's name.
    assert sent == {"prompt": "abc", "max_tokens": 7, "temperature": 0, "stream": True}
    assert (headers["x-priority"], headers["x-marina-routed"]) == ("batch", "1")
    assert 0 < int(headers["x-request-timeout-ms"]) <= 60_000
    eventually(lambda: results(rounds) == {"forwarded": 1})


def test_an_answer_that_is_not_streamed_comes_at_once(rounds: Rounds, small: Small) -> None:
    small.script = [WHOLE[:10], WHOLE[10:]]
    assert rounds.ask(COMPLETIONS, completion()) == WHOLE
    assert rounds.headers[rounds.last]["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        pytest.param({"prompt": "abcdef"}, {}, id="a longer prompt"),
        pytest.param({"prompt": [1, 2]}, {}, id="a prompt of tokens"),
        pytest.param({}, {"Cache-Control": "no-store"}, id="no cache"),
        pytest.param({}, {"x-marina-routed": "1"}, id="sent on from another model"),
    ],
)
def test_other_prompts_stay_here(rounds: Rounds, small: Small, body, headers) -> None:
    assert json.loads(rounds.ask(COMPLETIONS, completion(**body), **headers))["model"] == "tales"
    assert small.requests == []


def test_a_wrong_request_is_refused_here(rounds: Rounds, small: Small) -> None:
    assert json.loads(rounds.ask(COMPLETIONS, completion(n=0)))["error"]["param"] == "n"
    assert small.requests == []


FAILURES = [
    pytest.param(200, [BREAK], id="nothing"),
    pytest.param(200, [ROLE, BREAK], id="a role and no text"),
    pytest.param(200, [event(""), BREAK], id="an event without text"),
    pytest.param(200, [event("sma")[:-3], BREAK], id="half an event"),
    pytest.param(200, [ERROR, DONE], id="an error"),
    pytest.param(200, [b"data: nonsense\n\n"], id="not an event"),
    pytest.param(503, [b'{"error": {"message": "busy"}}'], id="busy"),
    pytest.param(400, [b'{"error": {"message": "no"}}'], id="a refusal"),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("status", "script"), FAILURES)
def test_a_failure_before_the_first_text_is_answered_here(
    rounds: Rounds, small: Small, status, script, stream: bool
) -> None:
    small.status, small.script = status, script
    assert text(rounds.ask(COMPLETIONS, completion(stream=stream))) == "abcabca"
    assert rounds.status[rounds.last] == 200
    assert results(rounds) == {"returned": 1}


def test_a_small_model_that_is_too_slow_is_not_waited_for(tmp_path, monkeypatch, small: Small) -> None:
    rounds = start(tmp_path, monkeypatch, small.server_port, patience_s=0.05)
    small.script = [ROLE, HANG, event("late")]
    assert text(rounds.ask(COMPLETIONS, completion(stream=True))) == "abcabca"
    assert results(rounds)["returned"] == 1
    rounds.close()


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_too_long_to_be_passed_on_is_not_read_to_its_end(tmp_path, monkeypatch, small: Small, stream) -> None:
    rounds = start(tmp_path, monkeypatch, small.server_port, patience_s=3600)
    small.script = [*[b"x" * 1_000_000] * 7, HANG]
    assert text(rounds.ask(COMPLETIONS, completion(stream=stream))) == "abcabca"
    assert results(rounds) == {"returned": 1}
    rounds.close()


def test_a_small_model_that_is_down_does_not_get_every_request(tmp_path, monkeypatch) -> None:
    rounds = start(tmp_path, monkeypatch, 1)
    for _ in range(3):
        assert text(rounds.ask(COMPLETIONS, completion(stream=True))) == "abcabca"
    assert results(rounds)["returned"] >= 1
    assert sum(results(rounds).values()) == 3
    rounds.close()


def test_an_answer_that_breaks_off_ends_with_an_error_and_in_whole_events(rounds: Rounds, small: Small) -> None:
    small.script = [event("sma"), HANG, event("ll")[:-3], BREAK]
    begin_to_write(rounds, "open")
    go_on_to_the_end(rounds, small)
    first, error, done = events(rounds.bodies["open"])
    assert first["choices"][0]["text"] == "sma"
    assert (error["error"]["code"], done) == ("internal", "[DONE]")
    assert results(rounds) == {"broken": 1}


def begin(rounds: Rounds, name: str) -> None:
    body = bytearray(json.dumps(completion(stream=True)).encode())
    rounds.round({name: (body, {"url_path": COMPLETIONS, "content-type": "application/json"})})
    while isinstance(rounds.handler._open[name], PromptWait):
        rounds.round()


def begin_to_write(rounds: Rounds, name: str) -> None:
    """Until its first text has come."""
    begin(rounds, name)
    while not rounds.bodies.get(name):
        rounds.round()


def go_on_to_the_end(rounds: Rounds, small: Small) -> None:
    small.go_on.set()
    while rounds.open:
        rounds.round()


def test_a_client_that_leaves_ends_the_answer_at_the_small_model(rounds: Rounds, small: Small) -> None:
    small.script = [event("sma"), HANG, *[event("x") * 1000] * 1000]
    begin_to_write(rounds, "gone")
    rounds.round(left=["gone"])
    eventually(lambda: results(rounds) == {"cancelled": 1})
    small.go_on.set()
    assert small.left.wait(60)


def test_if_the_client_leaves_before_there_is_a_connection_nothing_is_sent(
    rounds: Rounds, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, may_connect = threading.Event(), threading.Event()
    connect = http.client.HTTPConnection.connect

    def slowly(connection) -> None:
        connecting.set()
        may_connect.wait(60)
        connect(connection)

    monkeypatch.setattr("http.client.HTTPConnection.connect", slowly)
    begin(rounds, "gone")
    assert connecting.wait(60)
    rounds.round(left=["gone"])
    may_connect.set()
    eventually(lambda: results(rounds) == {"cancelled": 1})
    assert small.requests == []


def test_a_forwarded_answer_ends_when_all_clients_have_left(
    rounds: Rounds, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.script = [event("sma"), *[event("x")] * 3, HANG, event("y"), HANG]
    monkeypatch.setattr("marina.handlers.generation.loop.ABANDONED_S", 0.0)
    begin(rounds, "gone")
    small.go_on.set()
    eventually(lambda: results(rounds) == {"cancelled": 1})


def test_a_stop_ends_forwarded_answers(rounds: Rounds, small: Small) -> None:
    small.script = [event("sma"), HANG]
    begin_to_write(rounds, "open")
    small.script = [HANG]
    begin(rounds, "waiting")
    rounds.handler._closing.touch()
    rounds.round()
    assert events(rounds.bodies["open"])[-2]["error"]["code"] == "server_stopped"
    assert json.loads(rounds.bodies["waiting"])["error"]["code"] == "server_stopped"
    rounds.handler._closing.unlink()
    eventually(lambda: results(rounds) == {"cancelled": 2})


def test_a_chat_is_forwarded_unchanged(rounds: Rounds, small: Small) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    rounds.handler._route._short_tokens = 50
    small.script = [json.dumps({"choices": [{"message": {"content": "hello"}}]}).encode()]
    assert json.loads(rounds.ask(CHAT, body))["choices"][0]["message"]["content"] == "hello"
    assert small.requests[0][1] == body
