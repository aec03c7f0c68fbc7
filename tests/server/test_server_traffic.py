from itertools import pairwise

import pytest
from specs import make_spec, tales_spec

from marina.config.histogram import Histogram
from marina.config.latency import EDGES_MS, EDGES_S
from marina.server.java.traffic import AccessLogEntry, RequestSpan, Traffic, parse_line

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPEC = make_spec({"name": "m", "version": "1.0", "slo": {"p99_ms": 50}})


def answered(path: str = "/predictions/m", code: int = 200, ms: int = 4, client: str = "10.0.0.1:5") -> AccessLogEntry:
    return AccessLogEntry(client, "POST", path, code, ms)


def test_line_of_the_access_log_is_read_without_its_query() -> None:
    line = 'A 10.0.0.1:52000 "POST /predictions/m?name=secret HTTP/1.1" 200 37.125'
    assert parse_line(line) == AccessLogEntry("10.0.0.1:52000", "POST", "/predictions/m", 200, 37.125)


def test_a_line_may_end_with_its_trace_and_what_the_door_stamped() -> None:
    line = 'A 10.0.0.1:5 "POST /predictions/m HTTP/1.1" 200 4.000 ' + TRACE
    only_named = parse_line(line)
    assert only_named
    assert (only_named.trace, only_named.span) == (TRACE, None)
    traced = parse_line(f"{line} 00000000000000ab - 1764000000000000 5 7 4005 120 -")
    assert traced
    assert traced.span == RequestSpan(TRACE, "00000000000000ab", None, 1_764_000_000_000_000, 5, 7, 4005, 120, None)


def test_a_bucket_keeps_its_newest_traced_request() -> None:
    traffic = Traffic(SPEC)
    spans = [RequestSpan(f"{number:032x}", f"{number:016x}", None, 1_000_000, 0, 0, 0, 0, None) for number in range(3)]
    traffic.record(
        AccessLogEntry("10.0.0.1:5", "POST", "/predictions/m", 200, ms, span=span)
        for ms, span in zip((3.5, 3.7, 30), spans, strict=True)
    )
    traffic.record([answered("/predictions/m", ms=3.9)])
    found = traffic.histograms()[200].exemplars
    assert {exemplar.trace: exemplar.seconds for exemplar in found.values()} == {
        spans[1].trace: 0.0037,
        spans[2].trace: 0.03,
    }
    assert all(traffic.histograms()[200].buckets[bucket] for bucket in found)


@pytest.mark.parametrize("line", ["Model server started.", "A ", 'A 1 "GET / HTTP/1.1" 200', ""])
def test_other_lines_are_no_answers(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        pytest.param("/predictions/m", True, id="plain"),
        pytest.param("/predictions/m/1.0", True, id="with its version"),
        pytest.param("/predictions/m/1.0/v1/completions", True, id="with a path behind the version"),
        pytest.param("/explanations/m", True, id="explanation"),
        pytest.param("/v1/models/m:predict", True, id="KServe 1"),
        pytest.param("/v2/models/m/infer", True, id="KServe 2"),
        pytest.param("/v2/models/m/versions/1.0/infer", True, id="KServe 2 with its version"),
        pytest.param("/m/predict", True, id="TorchServe's first path"),
        pytest.param("/m/1.0/predict", True, id="TorchServe's first path with its version"),
        pytest.param("/m/2.0/predict", False, id="TorchServe's first path with another version"),
        pytest.param("/models/m/invoke", True, id="SageMaker's path"),
        pytest.param("/models//invoke", True, id="SageMaker's path without a name"),
        pytest.param("/v1/embeddings", True, id="OpenAI's embeddings"),
        pytest.param("/v1/audio/transcriptions", True, id="OpenAI's transcriptions"),
        pytest.param("/predictions/%6d", True, id="escaped"),
        pytest.param("/predictions/m//", True, id="slashes behind it"),
        pytest.param("/predictions/m/" + "%2F" * 60 + "...", True, id="more slashes than the log has room for"),
        pytest.param("/v1/models/m:predict:predict", True, id="KServe 1 with more behind it"),
        pytest.param("/v1/completions", False, id="the model writes no text"),
        pytest.param("/v2/models/m/versions/2.0/infer", False, id="another version of KServe 2"),
        pytest.param("/predictions/m/2.0", False, id="another version is TorchServe's 404"),
        pytest.param("/predictions/mm", False, id="another model"),
        pytest.param("/predictions/m/1x0", False, id="the dot is a dot"),
        pytest.param("/ping", False, id="ping"),
        pytest.param("/models/m", False, id="describe"),
    ],
)
def test_only_what_torchserve_counts_as_an_arrival_is_counted(path: str, counts: bool) -> None:
    assert Traffic(SPEC).is_inference(answered(path)) is counts


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        pytest.param("/predictions/BERT_Seq.v1", True, id="its name in URLs"),
        pytest.param("/predictions/BERT_Seq.v1/2.0", True, id="its version in URLs"),
        pytest.param("/predictions/m", False, id="its name in Kubernetes"),
        pytest.param("/predictions/BERT_SeqXv1", False, id="the dot is a dot"),
        pytest.param("/v1/models/BERT_Seq.v1:explain", True, id="KServe 1"),
        pytest.param("/v2/models/BERT_Seq.v1/infer", True, id="KServe 2"),
        pytest.param("/v2/models/BERT_Seq.v1/versions/2.0/infer", False, id="unknown to TorchServe"),
        pytest.param("/v1/embeddings", False, id="a path of Marina's"),
    ],
)
def test_an_archive_is_asked_by_its_name_in_urls(path: str, counts: bool) -> None:
    model = {"source": "./old.mar", "handler": "archive", "name": "BERT_Seq.v1", "version": "2.0"}
    spec = make_spec({"name": "m", "model": model, "load.sample": "x.json"})
    assert Traffic(spec).is_inference(answered(path)) is counts


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_texts_asked_for_as_openais_clients_do_are_counted(path: str) -> None:
    traffic = Traffic(tales_spec())
    assert traffic.is_inference(answered(path))
    assert not traffic.is_inference(answered("/v1/embeddings"))


def test_a_preflight_asks_no_model() -> None:
    assert not Traffic(SPEC).is_inference(AccessLogEntry("10.0.0.1:5", "OPTIONS", "/predictions/m", 200, 1))


def test_edges_are_whole_milliseconds_and_close_where_objectives_are() -> None:
    assert list(EDGES_MS) == sorted(set(EDGES_MS))
    assert min(EDGES_MS) >= 1
    near = [edge for edge in EDGES_MS if 10 <= edge <= 1000]
    assert max(high / low for low, high in pairwise(near)) <= 1.25


def test_duration_on_an_edge_is_within_it() -> None:
    traffic = Traffic(SPEC)
    traffic.record([answered(ms=50), answered(ms=51), answered(ms=900_000, code=503)])
    histograms = traffic.histograms()
    within = EDGES_S.index(0.05) + 1
    assert sum(histograms[200].buckets[:within]) == 1
    assert histograms[200].count == 2
    assert histograms[200].total_s == pytest.approx(0.101)
    assert histograms[503].buckets[-1] == 1


def test_the_first_failure_of_any_kind_is_an_increase() -> None:
    shown = Traffic(SPEC).histograms()
    assert {code: shown[code].count for code in shown} == {200: 0, 500: 0, 503: 0, 507: 0}


def test_own_inferences_are_no_users() -> None:
    traffic = Traffic(SPEC)
    traffic.begin_own_inference("127.0.0.1:7")
    assert traffic.own_open == 1
    assert traffic.record([answered(client="127.0.0.1:7"), answered()]) == [answered()]
    assert traffic.own_open == 0
    assert traffic.histograms()[200].count == 1
    # When the same address comes again it is a user's, because ports are reused.
    assert traffic.record([answered(client="127.0.0.1:7")])


def test_an_own_inference_that_found_no_room_is_not_taken_off_the_arrivals() -> None:
    traffic = Traffic(SPEC)
    traffic.begin_own_inference("127.0.0.1:7")
    traffic.withdraw_own_inference("127.0.0.1:7")
    assert (traffic.own_open, traffic.arrivals(10)) == (0, 10)


def test_arrivals_never_fall_while_an_own_inference_is_on_its_way() -> None:
    traffic = Traffic(SPEC)
    assert traffic.arrivals(10) == 10
    traffic.begin_own_inference("127.0.0.1:7")
    assert traffic.arrivals(10) == 10
    assert traffic.arrivals(11) == 10
    assert traffic.arrivals(12) == 11


def test_the_answers_are_in_buckets_of_a_hundredth() -> None:
    traffic = Traffic(SPEC)
    traffic.record([answered(ms=40), answered(ms=42)])
    counted = Histogram.from_data(traffic.answers()["200"])
    assert (counted.over(41.0), counted.count) == (1, 2)
    assert "500" not in traffic.answers()
