"""Spans of a real server, decoded by a real receiver of OTLP."""

import asyncio
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from collector import Collector, Span, collector
from conftest import packaged_for
from old_archives import OLD_ARCHIVES, archive_of, write_spec
from packages import TALES_VARIANTS, packaged_tales
from running import Running, running
from specs import digits_spec, tales_spec
from streams import stream
from tools import needs
from waiting import DIGIT, eventually, metric, scan

from marina.archiver import package as packaging
from marina.config.load import load_spec
from marina.config.ports import free_port_base
from marina.config.progress import Progress
from marina.config.spec import Spec

STEPS = ("queue", "decode", "infer", "encode")
Traced = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Collector]:
    with collector() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced(digits_mar: Path, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Serves the digits with spans that go to an address."""

    @contextmanager
    def serve(endpoint: str, **changes: object) -> Iterator[Running]:
        folder = tmp_path_factory.mktemp("traced")
        fields = {"serving.drain_propagation_s": 0, "serving.threads": 1, "serving.workers": 1} | changes
        spec = digits_spec({"tracing": {"endpoint": endpoint, "sample": fields.pop("sample", 0)}} | fields)
        mar = packaged_for(spec, digits_mar, folder / "model.mar")
        with running(spec, mar=mar, log=folder / "server.log") as server:
            yield server

    return serve


@pytest.fixture(scope="module")
def server(traced: Traced, receiver: Collector) -> Iterator[Running]:
    with traced(receiver.url, **{"serving.access_log": "all", "serving.log": "json"}) as server:
        yield server


def parent_of(number: int, *, sampled: bool = True) -> tuple[str, dict[str, str]]:
    """A trace's id, and the header by which a request belongs to it."""
    trace = f"{number + 1:032x}"
    return trace, {"traceparent": f"00-{trace}-{0xABC:016x}-{'01' if sampled else '00'}"}


def post(url: str, body: bytes = DIGIT, **headers: str) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "image/png"} | headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as err:
        return err.code


def root(spans: list[Span]) -> Span:
    (found,) = [span for span in spans if span.kind == 2]
    return found


def batches(receiver: Collector) -> list[Span]:
    return [span for span in list(receiver.spans) if span.name == "batch"]


def test_each_of_200_requests_in_batches_has_its_own_spans_and_one_link(server: Running, receiver: Collector) -> None:
    url, known = f"{server.url}/predictions/digits", len(receiver.spans)
    asked = {}
    for number in range(200):
        # A third of them is bad, and a quarter not traced.
        kind = ("good", "large", "bad")[number % 3]
        asked[number] = kind, *parent_of(number, sampled=number % 4 != 3)
    bodies = {"good": DIGIT, "large": scan(256), "bad": b"not a picture"}

    def send(number: int) -> int:
        kind, _, header = asked[number]
        return post(url, bodies[kind], **header)

    with ThreadPoolExecutor(16) as clients:
        statuses = list(clients.map(send, asked))
    assert Counter(statuses) == {200: 134, 415: 66}
    wanted = sum(number % 4 != 3 for number in asked)
    eventually(lambda: sum(span.kind == 2 for span in receiver.spans[known:]) == wanted)
    linked = Counter(link for batch in batches(receiver) for link in batch.links)
    for number, (kind, trace, _) in asked.items():
        spans = receiver.of(trace)
        if number % 4 == 3:
            assert spans == []
            continue
        request = root(spans)
        assert request.parent == f"{0xABC:016x}"
        assert request.attributes["http.response.status_code"] == statuses[number]
        names = ("queue", "decode") if kind == "bad" else STEPS
        assert sorted(span.name for span in spans if span is not request) == sorted(names)
        assert {span.parent for span in spans if span is not request} == {request.id}
        # One link from a batch, and one to it where the model ran.
        assert linked[trace, request.id] == 1
        assert sum(map(len, (span.links for span in spans))) == (kind != "bad")
        times = [(span.begin_ns, span.end_ns) for name in STEPS for span in spans if span.name == name]
        assert times == sorted(times)
        # The door's stamps are cut off at a microsecond.
        assert request.begin_ns <= times[0][0] <= times[-1][1] <= request.end_ns + 1000
    # They were batches, or this test says nothing.
    assert max(len(batch.links) for batch in batches(receiver)) > 1
    ids = {(span.trace, span.id) for span in batches(receiver)}
    assert {link for span in receiver.spans if span.name == "infer" for link in span.links} <= ids


def test_a_span_of_a_request_has_the_names_of_the_conventions(server: Running, receiver: Collector) -> None:
    trace, header = parent_of(1000)
    assert post(f"{server.url}/predictions/digits?name=hunter2", **header, **{"X-Request-Id": "mine"}) == 200
    request = root(eventually(lambda: receiver.of(trace)))
    assert request.name == "POST /predictions/digits"
    assert request.resource["service.name"] == "digits"
    client_port = request.attributes.pop("client.port")
    assert client_port > 0
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/predictions/digits",
        "url.path": "/predictions/digits",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "server.port": server.ports.inference,
        "http.request.body.size": len(DIGIT),
        "http.response.status_code": 200,
        "http.response.header.x-request-id": ["mine"],
        "marina.model": "digits",
        "marina.model.version": "1.0",
    }
    assert "hunter2" not in repr(receiver.spans)


def test_the_access_log_names_the_trace_even_of_requests_that_are_not_recorded(server: Running) -> None:
    recorded, header = parent_of(2000)
    unrecorded, other = parent_of(2001, sampled=False)
    for each in (header, other, {}):
        assert post(f"{server.url}/predictions/digits", **each) == 200

    def lines() -> list[dict[str, object]]:
        logged = [json.loads(line) for line in server.log.read_text().splitlines()]
        return [line for line in logged if line["logger"] == "request"]

    eventually(lambda: {recorded, unrecorded} <= {line.get("trace_id") for line in lines()})
    assert any("trace_id" not in line for line in lines())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/predictions/other", DIGIT, 404), ("/nowhere", DIGIT, 404), ("/predictions/digits", b"x" * 30_000_000, 413)],
    ids=["another model", "no page", "too large"],
)
def test_requests_that_the_door_refuses_have_spans(
    path: str, body: bytes, status: int, server: Running, receiver: Collector
) -> None:
    trace, header = parent_of(3000 + len(receiver.spans))
    assert post(server.url + path, body, **header) == status
    (request,) = eventually(lambda: receiver.of(trace))
    assert request.attributes["http.response.status_code"] == status
    assert "http.route" not in request.attributes or status == 413
    assert not request.is_error


@pytest.mark.parametrize(
    "header",
    [
        "00-00000000000000000000000000000000-0000000000000abc-01",
        "00-00000000000000000000000000000abc-0000000000000000-01",
        "ff-00000000000000000000000000000abc-0000000000000abc-01",
        "00-00000000000000000000000000000ABC-0000000000000abc-01",
        "00-00000000000000000000000000000abc-0000000000000abc-01-more",
        "00-abc-abc-01",
        "",
    ],
)
def test_a_header_that_is_not_valid_begins_no_trace(header: str, server: Running, receiver: Collector) -> None:
    known = len(receiver.spans)
    trace, valid = parent_of(4000 + known)
    assert post(f"{server.url}/predictions/digits", traceparent=header) == 200
    assert post(f"{server.url}/predictions/digits", **valid) == 200
    eventually(lambda: len(receiver.of(trace)) == 5)
    assert {span.trace for span in receiver.spans[known:] if span.kind == 2} == {trace}


def test_the_supervisors_own_inferences_and_probes_are_not_traced(traced: Traced) -> None:
    with collector() as receiver, traced(receiver.url, sample=1.0) as server:
        for _ in range(3):
            urllib.request.urlopen(f"{server.url}/ping", timeout=60).close()
        assert post(f"{server.url}/predictions/digits") == 200
        assert server.stop() == 0
        # The stop waits for the last of them.
        assert sum(span.kind == 2 for span in receiver.spans) == 1
        assert Counter(span.name for span in receiver.spans) == {
            "POST /predictions/digits": 1,
            **dict.fromkeys((*STEPS, "batch"), 1),
        }


def test_a_stop_sends_the_spans_of_all_answers(traced: Traced) -> None:
    with collector() as receiver, traced(receiver.url, sample=1.0) as server:
        large = scan(1024)
        statuses: list[int] = []
        clients = [
            threading.Thread(target=lambda: statuses.append(post(f"{server.url}/predictions/digits", large)))
            for _ in range(8)
        ]
        for client in clients:
            client.start()
        eventually(lambda: metric(server, "marina_in_flight") == 8 or len(statuses) > 0)
        assert server.stop() == 0
        for client in clients:
            client.join()
        answered = sum(status == 200 for status in statuses)
        assert answered == 8
        assert sum(span.kind == 2 for span in receiver.spans) == answered
        assert sum(len(batch.links) for batch in batches(receiver)) == answered


def test_a_worker_that_is_killed_loses_no_span_of_an_answer_that_it_gave(traced: Traced) -> None:
    with collector() as receiver, traced(receiver.url, sample=1.0, **{"serving.max_batch": 1}) as server:
        assert post(f"{server.url}/predictions/digits") == 200
        assert server.stop() == 0
        assert Counter(span.name for span in receiver.spans)["infer"] == 1


@pytest.mark.parametrize("is_hanging", [False, True], ids=["refuses", "never answers"])
def test_a_collector_that_is_dead_costs_nothing_but_spans(traced: Traced, is_hanging: bool) -> None:
    with ExitStack() as stack:
        port = free_port_base()
        if is_hanging:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
        with traced(f"http://127.0.0.1:{port}", sample=1.0) as server:
            for _ in range(20):
                assert post(f"{server.url}/predictions/digits") == 200
            eventually(lambda: "traces are lost" in server.log.read_text())
            begun = time.monotonic()
            assert server.stop() == 0
            took_s = time.monotonic() - begun
            assert "every request that was sent before the listener closed is answered" in server.log.read_text()
            assert took_s < 60
        assert "Traceback" not in server.log.read_text()


def test_spans_are_sent_again_when_the_collector_is_back(traced: Traced) -> None:
    with collector() as receiver:
        receiver.status = 400
        with traced(receiver.url, sample=1.0) as server:
            assert post(f"{server.url}/predictions/digits") == 200
            eventually(lambda: metric(server, "marina_spans_lost_total") == 6)
            receiver.status = 200
            assert post(f"{server.url}/predictions/digits") == 200
            eventually(lambda: metric(server, "marina_spans_sent_total") == 6)
            assert len(receiver.spans) == 6
            assert "traces are sent again" in server.log.read_text()


def test_a_bucket_of_latencies_names_a_traced_request(server: Running, tmp_path: Path) -> None:
    trace, header = parent_of(5000)
    assert post(f"{server.url}/predictions/digits", **header) == 200
    config = {"targets": [f"127.0.0.1:{server.ports.supervisor}"]}
    scrape = {"global": {"scrape_interval": "1s"}, "scrape_configs": [{"job_name": "m", "static_configs": [config]}]}
    (tmp_path / "p.yml").write_text(json.dumps(scrape))
    url = f"http://127.0.0.1:{(port := free_port_base())}"
    command = [
        needs("prometheus", package="prometheus"),
        f"--config.file={tmp_path}/p.yml",
        f"--storage.tsdb.path={tmp_path}/db",
    ]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as prometheus:
        try:

            def exemplars() -> set[str]:
                query = "query=inference_request_duration_seconds_bucket&start=0&end=9999999999"
                try:
                    with urllib.request.urlopen(f"{url}/api/v1/query_exemplars?{query}", timeout=60) as answer:
                        found = json.load(answer)["data"]
                except OSError:
                    return set()
                return {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}

            eventually(lambda: trace in exemplars())
        finally:
            prometheus.terminate()


def test_the_usual_form_of_the_page_has_the_same_metrics(server: Running) -> None:
    def families(**headers: str) -> set[str]:
        request = urllib.request.Request(f"{server.pages}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            page = answer.read().decode()
        assert ("openmetrics" in answer.headers["Content-Type"]) == bool(headers) == page.endswith("# EOF\n")
        samples = [line.partition("{")[0].partition(" ")[0] for line in page.splitlines() if line[0] != "#"]
        return set(samples)

    assert families() == families(Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")


def test_a_streamed_text_has_its_wait_its_writing_and_its_tokens(receiver: Collector, tmp_path: Path) -> None:
    folder, package = packaged_tales("fake")
    changes = {"text": TALES_VARIANTS["fake"]["text"] | {"max_tokens": 250}, "serving.drain_propagation_s": 0}
    spec = tales_spec(changes | {"tracing": {"endpoint": receiver.url, "sample": 0}})
    with running(spec, mar=folder / package.mar, log=tmp_path / "server.log") as server:
        trace, header = parent_of(6000)
        wanted = {"prompt": "Once upon a time", "max_tokens": 40}
        seen = asyncio.run(stream(server.ports.inference, "/v1/completions", wanted, headers=header))
        assert seen.ended
        spans = eventually(lambda: [] if len(found := receiver.of(trace)) < 4 else found)
        request = root(spans)
        assert request.name == "POST /v1/completions"
        assert request.events == ["answer begins"]
        assert sorted(span.name for span in spans if span is not request) == ["decode", "infer", "queue"]
        (infer,) = [span for span in spans if span.name == "infer"]
        assert infer.attributes["gen_ai.operation.name"] == "text_completion"
        assert infer.attributes["gen_ai.usage.output_tokens"] == 40
        assert infer.attributes["gen_ai.response.finish_reasons"] == ["length"]
        several, header = parent_of(6003)
        body = json.dumps({"prompt": ["Once", "upon a time"], "max_tokens": 5, "n": 2}).encode()
        assert post(f"{server.url}/v1/completions", body, **header, **{"Content-Type": "application/json"}) == 200
        spans = eventually(lambda: [] if len(found := receiver.of(several)) < 4 else found)
        (infer,) = [span for span in spans if span.name == "infer"]
        assert infer.attributes["gen_ai.usage.output_tokens"] == 20
        assert infer.attributes["gen_ai.response.finish_reasons"] == ["length"] * 4
        # Refused by the handler.
        refused, header = parent_of(6001)
        body = json.dumps({"prompt": "x", "max_tokens": -1}).encode()
        assert post(f"{server.url}/v1/completions", body, **header, **{"Content-Type": "application/json"}) == 400
        spans = eventually(lambda: [] if len(found := receiver.of(refused)) < 2 else found)
        assert {span.name: span.attributes.get("error.type") for span in spans} == {
            "POST /v1/completions": None,
            "decode": "400",
        }
        unseen, header = parent_of(6002, sampled=False)
        asyncio.run(stream(server.ports.inference, "/v1/completions", wanted, headers=header))
    assert receiver.of(unseen) == []


def test_an_archives_handler_is_one_step(receiver: Collector, tmp_path: Path) -> None:
    kind = "statuses"
    old = OLD_ARCHIVES[kind]()
    (tmp_path / "store").mkdir()
    loaded = load_spec(write_spec(tmp_path, kind, old, archive_of(tmp_path / "store", kind, old)))
    package = packaging.package(loaded, tmp_path / "out", progress=Progress(quiet=True))
    traced = Spec.model_validate(loaded.model_dump() | {"tracing": {"endpoint": receiver.url, "sample": 0.0}})
    with running(traced, mar=tmp_path / "out" / package.mar) as server:
        trace, header = parent_of(7000)
        json_type = {"Content-Type": "application/json"}
        assert post(f"{server.url}/predictions/Old_{kind}", old.sample.body, **header, **json_type) == 201
        spans = eventually(lambda: [] if len(found := receiver.of(trace)) < 3 else found)
    assert sorted(span.name for span in spans) == sorted([root(spans).name, "infer", "queue"])
    assert sum((trace, root(spans).id) in batch.links for batch in batches(receiver)) == 1
