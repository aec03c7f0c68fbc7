"""The policies that the Gateway gets, and the numbers in them."""

import json
import re
from typing import Any

import pytest
from k8s_plans import EDGE, EVIDENCE, documents, planned, the_only
from specs import tales_spec

from marina.config.errors import InputError
from marina.k8s.manifests.notes import derived_numbers
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import Plan

# Any folder will do.
ARCHIVE = {"source": "./samples", "handler": "archive", "name": "BERT_Seq.v1"}


def edge(**changes: Any) -> Plan:
    return planned({"kubernetes.route": {"gateway": "edge/public", **changes}}, evidence=EVIDENCE)


def limited(plan: Plan) -> dict[str, Any]:
    limit: dict[str, Any] = the_only(plan, "BackendTrafficPolicy")["spec"]["rateLimit"]["local"]["rules"][0]["limit"]
    return limit


def test_a_route_alone_needs_no_envoy_gateway() -> None:
    assert not [each for each in documents(edge()) if each["apiVersion"].startswith("gateway.envoyproxy.io")]


def test_the_policies_are_made_before_the_route_that_they_close() -> None:
    files = [name for name in render_objects(planned(EDGE)) if name.startswith("gateway/")]
    assert files == sorted(files)
    assert files[-1] == "gateway/http-route.yaml"


def test_the_limit_is_what_all_pods_hold_divided_by_the_proxies() -> None:
    # 864 requests/s a pod, 10 pods.
    assert limited(edge(limit_rps="auto")) == {"requests": 8640, "unit": "Second"}
    assert limited(edge(limit_rps="auto", gateway_replicas=3)) == {"requests": 2880, "unit": "Second"}
    fixed = {"scaling.autoscaler": "none", "scaling.min_replicas": 2}
    route = {"kubernetes.route": {"gateway": "edge/public", "limit_rps": "auto"}}
    assert limited(planned(fixed | route, evidence=EVIDENCE)) == {"requests": 1728, "unit": "Second"}
    slow = {"scaling.target": 0.5, "scaling.max_replicas": 3}
    assert limited(planned(slow | route)) == {"requests": 1, "unit": "Second"}
    assert limited(planned({"scaling.target": 0.2, "scaling.max_replicas": 3} | route)) == {
        "requests": 36,
        "unit": "Minute",
    }


def test_a_limit_of_what_was_never_measured_is_refused() -> None:
    plan = planned({"kubernetes.route": {"gateway": "edge/public", "limit_rps": "auto"}})
    with pytest.raises(InputError) as refused:
        render_objects(plan)
    assert "`kubernetes.route.limit_rps`: got `auto`, but nothing was measured" in str(refused.value)
    assert "marina calibrate" in str(refused.value.hint)


def test_as_many_requests_may_be_open_as_the_pods_have_places() -> None:
    # 200 in the queue, and batches of 8 for each of 2 workers, on each of 10 pods.
    breaker = the_only(edge(limit_rps=9), "BackendTrafficPolicy")["spec"]["circuitBreaker"]
    assert breaker["maxParallelRequests"] == breaker["maxPendingRequests"] == 2160
    halved = the_only(edge(limit_rps=9, gateway_replicas=2), "BackendTrafficPolicy")["spec"]["circuitBreaker"]
    assert halved["maxParallelRequests"] == 1080
    stated = the_only(edge(limit_rps=9, max_parallel=80), "BackendTrafficPolicy")["spec"]["circuitBreaker"]
    assert stated["maxParallelRequests"] == 80


def test_the_numbers_are_told_with_their_reasons() -> None:
    told = {
        each.name: (each.value, each.reason) for each in derived_numbers(edge(limit_rps="auto", gateway_replicas=2))
    }
    assert told["gateway lets in"] == ("4320 requests a second", "target 864 × 10 pods ÷ 2 proxies")
    assert told["gateway has open"] == ("1080 requests", "10 pods × 216 in the queue and in batches ÷ 2 proxies")
    each = edge(limit_rps=5, limit_by="client", auth={"api_keys": "k"})
    assert {"route, for each client"} <= {number.reason for number in derived_numbers(each)}


def test_the_paths_of_an_archive_share_one_limit() -> None:
    route = {"gateway": "edge/public", "limit_rps": 5}
    (match,) = the_only(planned({"model": ARCHIVE, "kubernetes.route": route}), "HTTPRoute")["spec"]["rules"][0][
        "matches"
    ]
    assert match["path"]["type"] == "RegularExpression"
    for path in ("predictions", "explanations", "v2/models"):
        assert re.fullmatch(match["path"]["value"], f"/{path}/BERT_Seq.v1")
        assert re.fullmatch(match["path"]["value"], f"/{path}/BERT_Seq.v1/infer")
        assert not re.fullmatch(match["path"]["value"], f"/{path}/BERT_Seq-v1")
        assert not re.fullmatch(match["path"]["value"], f"/{path}/BERT_Seq.v10")
    assert re.fullmatch(match["path"]["value"], "/v1/models/BERT_Seq.v1:predict")


def test_a_language_model_is_refused_in_the_words_of_openai() -> None:
    plan = Plan(tales_spec({"kubernetes": {"route": {"gateway": "e/p", "limit_rps": 5}}}), "image", None, None)
    (policy,) = render_objects(plan)["gateway/backend-traffic.yaml"]
    bodies = [json.loads(each["response"]["body"]["inline"]) for each in policy["spec"]["responseOverride"]]
    assert {"message", "type", "param", "code"} == {name for body in bodies for name in body["error"]}
    assert policy["spec"]["circuitBreaker"]["maxParallelRequests"] == 10 * 2 * plan.spec.writing.slots
