"""An archive's handler is given the same by Marina as by TorchServe alone, and so are its clients."""

import re
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import pytest
from archives import make_archive
from load import Load
from running import Running, running
from stock_server import stock_server
from waiting import eventually, metric

from marina.archiver.package import package
from marina.config.load import parse_spec
from marina.config.progress import Progress
from marina.server.system.exits import Exit

pytestmark = pytest.mark.e2e

NAME, HANDLER = "BERT_Seq.v1", Path(__file__).parent.parent / "echo_handler.py"
CONFIG = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 100, "responseTimeout": 2}
METRICS = """
dimensions: [Level]
ts_metrics: {counter: [{name: theirs, unit: count, dimensions: []}]}
model_metrics:
  counter: [{name: SeenRequests, unit: Count, dimensions: [ModelName, Level]}]
"""
SPEC = f"""
name: bert
model: {{source: ./store/{NAME}.mar, handler: archive, name: {NAME}, version: "2.0", metrics: metrics.yaml}}
load: {{sample: sample.json}}
serving: {{workers: 1, threads: 1, max_batch: 4, max_batch_delay_ms: 100, response_timeout_s: 2, max_request_mb: 6.5535,
  drain_propagation_s: 0, java_heap_mb: 256}}
"""
SECRETS = {"HF_TOKEN": "hf", "AWS_SECRET_ACCESS_KEY": "aws", "MODEL_API_KEY": "key"}
FORM, MULTIPART, JSON = "application/x-www-form-urlencoded", "multipart/form-data; boundary=XX", "application/json"
MODEL = f"/predictions/{NAME}"
PARTS = (
    '--XX\r\nContent-Disposition: form-data; name="data"; filename="x.png"\r\nContent-Type: image/png\r\n\r\nPNG\r\n'
    '--XX\r\nContent-Disposition: form-data; name="json"\r\nContent-Type: application/json\r\n\r\n{"a": 1}\r\n'
    '--XX\r\nContent-Disposition: form-data; name="text"\r\n\r\nplain\r\n--XX--\r\n'
)


def request(path: str = MODEL, body: str = "", kind: str = "", method: str = "POST", head: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *filter(None, [head, kind and f"Content-Type: {kind}"])]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", body]).encode("latin-1")


def order(text: str) -> bytes:
    return request(body=f"do={text}", kind=FORM)


REQUESTS = {
    "raw": request(body="\0\xff", kind="application/octet-stream"),
    "of no type": request(body="text"),
    "empty": request(),
    "JSON": request(body='{"a": [1]}', kind=JSON),
    "JSON with its charset": request(body='{"a": [1]}', kind=f"{JSON}; charset=utf-8"),
    "broken JSON": request(body='{"a":', kind=JSON),
    "text": request(body="text", kind="text/plain"),
    "form": request(body="a=1&b=x+y&a=2", kind=FORM),
    "multipart": request(body=PARTS, kind=MULTIPART),
    "broken multipart": request(body="--XX\r\nContent-Disposition: form-data\r\n\r\n", kind=MULTIPART),
    "GET with a query": request(f"{MODEL}?x=1", method="GET"),
    "HEAD": request(method="HEAD"),
    "PUT": request(body="text", kind="text/plain", method="PUT"),
    "PATCH": request(body="text", method="PATCH"),
    "DELETE": request(method="DELETE"),
    "OPTIONS": request(method="OPTIONS"),
    "OPTIONS of the server": request("/", method="OPTIONS"),
    "description": request("/api-description", method="GET"),
    "ping": request("/ping", method="GET"),
    "version": request(f"{MODEL}/2.0", "text"),
    "another version": request(f"{MODEL}/1.0", "text"),
    "path after the version": request(f"{MODEL}/2.0/v1/chat%20x/completions", "text"),
    "slash behind": request(f"{MODEL}/", "text"),
    "escaped": request(f"{MODEL.replace('_', '%5F')}", "text"),
    "unknown model": request("/predictions/other", "text"),
    "unknown path": request("/nowhere", method="GET"),
    "explanation": request(f"/explanations/{NAME}", "text"),
    "KServe 1": request(f"/v1/models/{NAME}:predict", '{"instances": [1]}', JSON),
    "KServe 1 as a form": request(f"/v1/models/{NAME}:predict", '{"instances": [1]}', FORM),
    "KServe 1, explanation": request(f"/v1/models/{NAME}:explain", '{"instances": [1]}', JSON),
    "KServe 2": request(f"/v2/models/{NAME}/infer", '{"inputs": []}', JSON),
    "KServe 2, explanation": request(f"/v2/models/{NAME}/explain", '{"inputs": []}', JSON),
    "KServe 2 with a version": request(f"/v2/models/{NAME}/versions/2.0/infer", '{"inputs": []}', JSON),
    "embeddings": request("/v1/embeddings", '{"input": "x"}', JSON),
    "TorchServe's first path": request(f"/{NAME}/predict?x=1&y=2", "text", "text/plain"),
    "SageMaker": request("/invocations?x=%20a", '{"a": 1}', JSON),
    "SageMaker of a model": request(f"/models/{NAME}/invoke?x=1", "text"),
    "headers": request(body="text", head="Authorization: Bearer x\r\nx-LOWER: 1\r\nX-Marina-Protocol: v2"),
    "chunks": request(method="PUT", head="Transfer-Encoding: chunked") + b"2\r\nab\r\n0\r\n\r\n",
    "largest": request(body="x" * 6_553_500),
    "failing": order("fail"),
    "refused by the handler": order("refuse"),
    "out of memory": order("memory"),
    "status, type and header of the handler's": order("status"),
    "streamed": order("stream"),
    "answers of a wrong number": order("few"),
    "no list": order("text"),
    "answers that are no JSON": order("object"),
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store, text = tmp_path_factory.mktemp("archive") / "store", HANDLER.read_text(encoding="utf-8")
    store.mkdir()
    return make_archive(store, {"echo.py": text}, handler="echo.py", name=NAME, version="2.0", config=CONFIG)


@pytest.fixture(scope="module")
def stock(archive: Path) -> Iterator[int]:
    """The port of TorchServe itself."""
    properties = "metrics_mode=prometheus\nmodel_metrics_auto_detect=true\n"
    with stock_server(archive.parent, [NAME], properties, SECRETS) as port:
        yield port


@pytest.fixture(scope="module")
def adopted(archive: Path) -> Iterator[Running]:
    folder = archive.parent.parent
    (folder / "sample.json").write_text("{}", encoding="utf-8")
    (folder / "metrics.yaml").write_text(METRICS, encoding="utf-8")
    spec = parse_spec(SPEC, folder / "spec.yaml")
    packaged = package(spec, folder, progress=Progress(quiet=True))
    with running(spec, mar=folder / packaged.mar, log=folder / "server.log", environment=SECRETS) as server:
        yield server


def answer(server: Running | int, data: bytes) -> tuple[int, str, dict[str, str | None], bytes]:
    port = server if isinstance(server, int) else server.ports.inference
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(data)
        got = HTTPResponse(connection, method=data.split(b" ", 1)[0].decode())
        got.begin()
        named = {name: got.getheader(name) for name in ("content-type", "transfer-encoding", "x-own", "cache-control")}
        return got.status, got.reason, named, got.read()


@pytest.mark.parametrize("asked", REQUESTS)
def test_a_client_gets_what_torchserve_answers(asked: str, stock: int, adopted: Running) -> None:
    expected = answer(stock, REQUESTS[asked])
    assert answer(adopted, REQUESTS[asked]) == expected


def test_a_batch_is_one_for_the_handler(stock: int, adopted: Running) -> None:
    def batch(server: Running | int) -> set[tuple[int, bytes]]:
        with ThreadPoolExecutor(4) as clients:
            answers = clients.map(lambda _: answer(server, request(body="text")), range(4))
            return {(status, body) for status, _, _, body in answers}

    def whole(answers: set[tuple[int, bytes]]) -> bool:
        return len(answers) == 1 and b'"count": 4' in next(iter(answers))[1]

    expected = eventually(lambda: answers if whole(answers := batch(stock)) else None)
    assert eventually(lambda: answers if whole(answers := batch(adopted)) else None) == expected


def test_errors_of_marina_are_in_torchserves_form(adopted: Running) -> None:
    status, _, named, body = answer(adopted, request(body="x" * 6_553_501))
    assert (status, named["content-type"]) == (413, "application/json")
    assert body == (
        b'{\n  "code": 413,\n  "type": "BadRequestException",\n'
        b'  "message": "the body is too large, allowed: at most 6553500 bytes"\n}\n'
    )
    status, _, _, body = answer(adopted, request(body="&".join(["a=1"] * 1001), kind=FORM))
    assert (status, b"at most 1000" in body) == (413, True)


def test_metrics_of_the_handler_are_on_the_page_as_torchserve_has_them(stock: int, adopted: Running) -> None:
    def own(page: str) -> set[str]:
        names = "SeenRequests|Took|Share|Lag|words_total"
        return set(re.findall(rf"(?m)^(?:# TYPE )?(?:{names})(?:_bucket|_count|_sum)?\b.*$", page))

    for server in (stock, adopted):
        assert answer(server, order("count"))[0] == 200
    expected = eventually(lambda: found if len(found := own(_page(stock + 2))) > 20 else None)
    eventually(lambda: own(adopted.get("/metrics")[1]) == expected)
    page = adopted.get("/metrics")[1]
    assert "Requests2XX" not in page
    assert page.count("# TYPE marina_ready ") == 1


def test_a_worker_that_hangs_or_ends_answers_as_under_torchserve_and_comes_back(stock: int, adopted: Running) -> None:
    def failed() -> float:
        return metric(adopted, "inference_request_duration_seconds_count", code="500")

    before = failed()
    for text in ("hang", "exit"):
        assert answer(adopted, order(text)) == answer(stock, order(text))
        eventually(lambda: _answers(stock) and _answers(adopted))
    eventually(lambda: failed() == before + 2)
    eventually(lambda: adopted.readiness()[0])


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        return str(page.read().decode())


def _answers(server: Running | int) -> bool:
    with suppress(OSError, HTTPException):
        return answer(server, request(body="text"))[0] == 200
    return False


def test_a_stop_at_last_loses_no_answer_and_no_piece_of_one(adopted: Running) -> None:
    port = adopted.ports.inference
    streamed = Load(port, MODEL, b"do=stream", rate=8, content_type=FORM)
    with streamed, Load(port, MODEL, b"text", rate=30) as whole:
        eventually(lambda: len(streamed.sent) > 5)
        assert adopted.stop() == Exit.DRAINED
        eventually(lambda: streamed.sent[-1].outcome == whole.sent[-1].outcome == "refused")
    for load in (streamed, whole):
        assert {request.outcome for request in load.sent if request.connected} == {"200"}
