"""Streams through a real TorchServe, from an engine that says the prompt again: many at once, clients that leave,
OpenAI's own client, a worker that dies, and a stop. The tests share one server, and the last one stops it."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from hostile import posted
from packages import TALES_VARIANTS, packaged_tales
from running import Running, running
from specs import ROOT, tales_spec
from streams import Stream, stream, streams
from tools import needs
from waiting import eventually, metric, worker_pids

from marina.config.answers import as_recorded, settled_body
from marina.server.pages.snippets import programs

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PATH = "/v1/completions"
_JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, package = packaged_tales("fake")
    # The package's answers may be longer than those that the drain waits for.
    changes = {"text": TALES_VARIANTS["fake"]["text"] | {"max_tokens": 250}}
    changes |= {"serving.drain_propagation_s": 0, "serving.drain_timeout_s": 5}
    log = tmp_path_factory.mktemp("tales") / "server.log"
    with running(tales_spec(changes), mar=folder / package.mar, log=log) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def wanted(tokens: int, prompt: str = "Once upon a time") -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": tokens}


def test_32_streams_get_every_token_and_an_end(server: Running) -> None:
    seen = asyncio.run(streams(server.ports.inference, PATH, [wanted(64)] * 32))
    assert all(each.ended and each.status == 200 for each in seen)
    # Or else nginx collects events until they fill a buffer.
    assert all(b"x-accel-buffering: no" in each.body for each in seen)
    # What TorchServe says to itself.
    assert not any(b"ts_stream_next" in each.body for each in seen)
    eventually(lambda: metric(server, "inference_sequences", model="tales") == 0)
    assert metric(server, "inference_time_between_tokens_seconds_count", model="tales") >= 32 * 63


def test_a_gate_can_read_how_long_clients_waited_for_tokens(server: Running) -> None:
    def counts() -> tuple[int, int]:
        tokens = json.loads(server.get("/latencies")[1])["tokens"]
        return tokens["ttft"]["count"], tokens["itl"]["count"]

    first, gaps = counts()
    asyncio.run(streams(server.ports.inference, PATH, [wanted(64)] * 2))
    assert counts() == (first + 2, gaps + 2 * 63)


def test_the_likeliest_text_is_what_the_package_recorded(server: Running) -> None:
    folder, package = packaged_tales("fake")
    sample = package.record.sample
    assert sample.answer
    with zipfile.ZipFile(folder / package.mar) as mar:
        body, recorded = settled_body(mar.read(sample.file)), mar.read(sample.answer)
    asked = urllib.request.Request(f"{server.url}/predictions/{package.record.url_name}", body, _JSON)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert as_recorded(recorded, answer.read())


def test_what_is_to_be_copied_for_openais_client_works_as_it_is(server: Running) -> None:
    _, program = programs(packaged_tales("fake")[1].record, server=server.url)["openai"]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip(), done.stderr


def test_a_client_that_leaves_frees_its_slot(server: Running) -> None:
    before = metric(server, "inference_sequences_ended_total", reason="cancelled")
    seen = asyncio.run(streams(server.ports.inference, PATH, [wanted(512)] * 32, most=3))
    assert not any(each.ended for each in seen)
    left = eventually(lambda: metric(server, "inference_sequences_ended_total", reason="cancelled") - before)
    eventually(lambda: metric(server, "inference_sequences_ended_total", reason="cancelled") - before == 32)
    assert left <= 32
    assert asyncio.run(stream(server.ports.inference, PATH, wanted(2))).ended


def test_a_client_that_only_sends_no_more_gets_its_stream_to_the_end(server: Running) -> None:
    body = json.dumps(wanted(16) | {"stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        connection.sendall(posted(PATH, b"Content-Type: application/json\r\n", body))
        connection.shutdown(socket.SHUT_WR)
        got = connection.makefile("rb").read()
    assert got.count(b"data: [DONE]") == 1
    assert got.count(b'"text":') >= 16


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_the_old_http_gets_a_text_without_chunks(server: Running, stream: bool) -> None:
    body = json.dumps(wanted(2) | {"stream": stream}).encode()
    request = posted(PATH, b"Content-Type: application/json\r\nConnection: keep-alive\r\n", body)
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=60) as connection:
        connection.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, text = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert text.startswith(b"data: {") and text.endswith(b"[DONE]\n\n") if stream else json.loads(text)["usage"]


def test_openais_client_works_unchanged(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tales"]
    answer = client.completions.create(model="tales", prompt="Once ", max_tokens=8, temperature=0)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (8, "length")
    events = list(client.completions.create(model="tales", prompt="Once ", max_tokens=8, stream=True))
    assert "".join(event.choices[0].text for event in events) == answer.choices[0].text
    said = [{"role": "user", "content": "Once upon a time"}]
    whole = client.chat.completions.create(model="tales", messages=said, max_completion_tokens=4, logprobs=True)
    assert len(whole.choices[0].logprobs.content) == 4
    options = {"include_usage": True}
    *_, last = client.chat.completions.create(model="tales", messages=said, stream=True, stream_options=options)
    assert last.usage.completion_tokens == 512


def test_openais_client_for_javascript_works_unchanged(server: Running) -> None:
    program, folder = needs("node", package="nodejs"), ROOT / "build/javascript/node_modules"
    if not (folder / "openai").is_dir():
        pytest.skip("OpenAI's client for JavaScript is not installed: `.ci/run` says how")
    before = metric(server, "inference_sequences_ended_total", reason="cancelled")
    command = [program, str(ROOT / "tests/e2e/openai_client.js"), f"{server.url}/v1"]
    done = subprocess.run(
        command, env={**os.environ, "NODE_PATH": str(folder)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["models"], seen["end"], seen["logprobs"], seen["usage"]) == (["tales"], [8, "length"], 4, 4)
    assert seen["pieces"] == seen["text"] != ""
    assert seen["streamed"] == seen["said"] != ""
    unsupported = {"kind": "BadRequestError", "status": 400, "code": "unsupported_parameter", "param": "suffix"}
    assert seen["back"] == 4
    assert seen["added"] == unsupported
    assert seen["another"] == {"kind": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"}
    eventually(lambda: metric(server, "inference_sequences_ended_total", reason="cancelled") > before)


def test_openais_paths_are_at_the_root_too(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tales"]
        answer = client.completions.create(model="tales", prompt="Once ", max_tokens=8, temperature=0)
        events = list(client.completions.create(model="tales", prompt="Once ", max_tokens=8, stream=True))
        assert "".join(event.choices[0].text for event in events) == answer.choices[0].text
        said = [{"role": "user", "content": "Once upon a time"}]
        assert client.chat.completions.create(model="tales", messages=said, max_tokens=4).object == "chat.completion"
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="another", messages=said)
        assert unknown.value.code == "model_not_found"


def test_the_doors_own_answers_are_openais_too(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.retrieve("tales")
        assert (model.id, model.object, [each.created for each in client.models.list()]) == ("tales", "model", [0])
        with pytest.raises(openai.NotFoundError) as unknown:
            client.models.retrieve("another")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        pages = "no such page, allowed: /v1/completions, /v1/chat/completions, /v1/models"
        with pytest.raises(openai.NotFoundError, match=pages) as missing:
            client.embeddings.create(model="tales", input="Once")
        assert missing.value.type == "invalid_request_error"
        with pytest.raises(openai.APIStatusError, match="the body is too large, allowed: at most") as large:
            client.completions.create(model="tales", prompt="a" * 25_000_000)
        assert (large.value.status_code, large.value.param) == (413, "body")


@pytest.mark.parametrize("path", ["/v1/completions/", "/v1/chat/completions", PATH, f"{PATH}/"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_text_is_written_for_no_method_but_post(server: Running, method: str, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.inference, timeout=60)
    connection.request(method, path, json.dumps(wanted(2)), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert (answer.status, answer.getheader("Allow")) == (405, "POST")
    assert body == b"" if method == "HEAD" else json.loads(body)["error"]["message"] == "no such method, allowed: POST"


def test_openais_client_sees_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tales", prompt="Once", suffix="the end")
    assert (refused.value.param, refused.value.code) == ("suffix", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="Once")
    with pytest.raises(openai.BadRequestError, match="begins with Once"):
        client.chat.completions.create(model="tales", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.InternalServerError) as busy:
        client.with_options(timeout=30).completions.create(
            model="tales", prompt="Once", max_tokens=512, extra_headers={"X-Request-Timeout-Ms": "1000"}
        )
    assert (busy.value.status_code, int(busy.value.response.headers["retry-after"])) == (503, 1)


def renamed(mar: Path, target: Path, name: str) -> Path:
    """A copy of a package under another name."""
    with zipfile.ZipFile(mar) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            is_named = entry.filename in ("MAR-INF/MANIFEST.json", "marina.json")
            new.writestr(entry, data.replace(b'"tales"', b'"%s"' % name.encode()) if is_named else data)
    return target


def test_short_prompts_are_answered_by_the_small_model_until_it_dies(server: Running, tmp_path: Path) -> None:
    folder, package = packaged_tales("fake")
    mar = renamed(folder / package.mar, tmp_path / "large.mar", "large")
    text = TALES_VARIANTS["fake"]["text"] | {"route": {"to": f"{server.url}/predictions/tales", "short_tokens": 12}}
    changes = {"name": "large", "text": text, "serving.drain_propagation_s": 0, "serving.drain_timeout_s": 20}
    with running(tales_spec(changes), mar=mar, log=tmp_path / "server.log") as large:
        port, path = large.ports.inference, "/predictions/large/1.0/v1/completions"
        long = asyncio.run(stream(port, path, wanted(2, "Once upon a time " * 20)))
        assert long.ended
        assert b'"model":"large"' in long.body
        eventually(lambda: asyncio.run(stream(port, path, wanted(2))).body.count(b'"model":"tales"'), within_s=120)
        assert metric(large, "inference_routed_total", result="forwarded") >= 1
        seen: list[Stream] = []
        asked = threading.Thread(target=lambda: seen.extend(asyncio.run(streams(port, path, [wanted(200)] * 12))))
        asked.start()
        eventually(lambda: metric(server, "inference_sequences", state="running") >= 1, within_s=120)
        (worker,) = worker_pids(server)
        os.kill(worker, signal.SIGKILL)
        asked.join(180)
        # Whichever of them had begun is told why it ends; the others are written by the large model. None hangs.
        assert [each.status for each in seen] == [200] * 12
        assert all(each.ended for each in seen)
        for each in seen:
            assert b'"error"' in each.body or each.body.count(b'"finish_reason":"length"') == 1
    eventually(lambda: worker_pids(server) not in ([], [worker]) and server.readiness()[0], within_s=120)


def test_streams_of_a_worker_that_dies_break_and_the_next_one_serves(server: Running) -> None:
    seen: list[Stream] = []
    asked = threading.Thread(target=lambda: seen.append(asyncio.run(stream(server.ports.inference, PATH, wanted(512)))))
    asked.start()
    eventually(lambda: metric(server, "inference_sequences", state="running") == 1)
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGKILL)
    asked.join(60)
    assert not asked.is_alive()
    assert not seen[0].ended
    eventually(lambda: worker_pids(server) not in ([], [worker]) and server.readiness()[0], within_s=120)
    assert asyncio.run(stream(server.ports.inference, PATH, wanted(2))).ended


def test_a_stop_lets_streams_end_and_ends_those_that_take_too_long(server: Running) -> None:
    async def stopped() -> list[Stream]:
        lengths = [50] * 8 + [512]
        asked = asyncio.gather(*(stream(server.ports.inference, PATH, wanted(tokens)) for tokens in lengths))
        while metric(server, "inference_sequences", state="running") < 9:
            await asyncio.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        return await asked

    seen = asyncio.run(stopped())
    assert all(each.ended for each in seen)
    assert [b"server_stopped" in each.body for each in seen] == [False] * 8 + [True]
    assert server.process.wait(60) == 1
