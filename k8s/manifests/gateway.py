"""What the Gateway does beside routing, as policies of Envoy Gateway 1.9: who may come in, how much at once, and what
it answers itself."""

import json
import math
from fractions import Fraction

from marina.config.errors import InputError
from marina.config.sections import Auth
from marina.k8s.manifests.labels import metadata
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest, resource

_API = "gateway.envoyproxy.io/v1alpha1"
# Where a key may come: the second as OpenAI's clients send it, of which Envoy drops the word `Bearer`.
_KEY_HEADERS = ["x-api-key", "authorization"]
# The gateway writes the client's name into it, whatever the client wrote there.
CLIENT_HEADER = "x-client-id"
# Retries may be this share of the open requests, and always this many: otherwise they double the load of a service that
# refuses because it is full.
_RETRY_PERCENT, _RETRY_LEAST = 20, 3
_RETRY_WITHIN = {"baseInterval": "25ms", "maxInterval": "250ms"}
# What the gateway answers by itself: the words, OpenAI's type and code, and the seconds after which to try again.
_ANSWERS: dict[int, tuple[str, str, str | None, int | None]] = {
    401: ("no valid key or token", "invalid_request_error", "invalid_api_key", None),
    403: ("this key or token is not for this service", "invalid_request_error", None, None),
    429: ("too many requests: try again in a second", "rate_limit_error", "rate_limit_exceeded", 1),
    503: ("no server is free or reachable: try again in a second", "server_error", None, 1),
    504: ("no server answered in time", "server_error", None, None),
}


def security(plan: Plan) -> list[Manifest]:
    """Who may come in; empty for everybody."""
    route = plan.spec.kubernetes.route
    return [_security(plan, route.auth)] if route and route.auth else []


def traffic(plan: Plan) -> list[Manifest]:
    """How much may come in, what is tried again, and what the gateway answers; empty if the route asks for none."""
    route = plan.spec.kubernetes.route
    return [_traffic(plan)] if route and route.has_policies else []


def limit(plan: Plan) -> tuple[int, str] | None:
    """How many requests in which unit of time each proxy lets in, or each client may send; None for no limit. Raises
    InputError if nothing was measured that it follows from."""
    route = plan.spec.kubernetes.route
    if route is None or route.limit_rps is None:
        return None
    if route.limit_by == "client":
        assert isinstance(route.limit_rps, int)
        return route.limit_rps, "Second"
    rate: float | Fraction
    if isinstance(route.limit_rps, int):
        rate = Fraction(route.limit_rps, route.gateway_replicas)
    elif plan.target_rps_per_pod is None:
        text = "got `auto`, but nothing was measured and `scaling.target` is no number"
        hint = f"marina calibrate {plan.spec.file}, or limit_rps: 100"
        raise InputError(f"{plan.spec.place('kubernetes', 'route', 'limit_rps')}: {text}", hint=hint)
    else:
        rate = plan.target_rps_per_pod * plan.most_pods / route.gateway_replicas
    # Envoy lets in a whole number at once, however long its unit, so the unit is a second if that is at all possible.
    return (math.floor(rate), "Second") if rate >= 1 else (max(1, math.floor(60 * rate)), "Minute")


def max_parallel(plan: Plan) -> int:
    """How many requests each proxy may have open: what all pods can queue and compute, or the spec's number."""
    spec = plan.spec
    route = spec.kubernetes.route
    assert route is not None
    whole = plan.most_pods * places(plan) if route.max_parallel == "auto" else route.max_parallel
    return math.ceil(whole / route.gateway_replicas)


def places(plan: Plan) -> int:
    """How many requests one pod can queue and compute."""
    spec = plan.spec
    return spec.waiting + spec.writing.slots if spec.model.writes else spec.queue + spec.workers * spec.max_batch


def _security(plan: Plan, auth: Auth) -> Manifest:
    if auth.jwt is None:
        fields: Manifest = {
            "apiKeyAuth": {
                "credentialRefs": [{"name": auth.api_keys}],
                "extractFrom": [{"headers": _KEY_HEADERS}],
                "forwardClientIDHeader": CLIENT_HEADER,
                "sanitize": True,
            }
        }
    else:
        provider = {
            "name": plan.name,
            "issuer": auth.jwt.issuer,
            "audiences": list(auth.jwt.audiences) or None,
            "claimToHeaders": [{"claim": "sub", "header": CLIENT_HEADER}],
            "remoteJWKS": {"uri": auth.jwt.jwks},
        }
        fields = {"jwt": {"providers": [provider]}}
    return resource(_API, "SecurityPolicy", metadata(plan), spec=_target(plan) | fields)


def _traffic(plan: Plan) -> Manifest:
    most = max_parallel(plan)
    spec = _target(plan) | {
        # With HTTP/1.1, each open request has a connection of its own. Were there no more connections than requests,
        # those over the limit would wait for one instead of getting a 503.
        "circuitBreaker": {
            "maxConnections": 2 * most,
            "maxParallelRequests": most,
            "maxPendingRequests": most,
            "retryBudget": {"percent": {"numerator": _RETRY_PERCENT}, "minRetryConcurrency": _RETRY_LEAST},
        },
        "rateLimit": _rate_limit(plan),
        # Nothing that a server may have begun to compute: not `reset`, and not `5xx`.
        "retry": {
            "numRetries": 1,
            "perRetry": {"backOff": _RETRY_WITHIN},
            "retryOn": {
                "triggers": ["connect-failure", "reset-before-request", "retriable-status-codes"],
                "httpStatusCodes": [503],
            },
        },
        "responseOverride": [_answer(plan, status) for status in _ANSWERS],
    }
    return resource(_API, "BackendTrafficPolicy", metadata(plan), spec=spec)


def _rate_limit(plan: Plan) -> Manifest | None:
    limited, route = limit(plan), plan.spec.kubernetes.route
    if limited is None or route is None:
        return None
    rule: Manifest = {"limit": {"requests": limited[0], "unit": limited[1]}}
    if route.limit_by == "all":
        return {"local": {"rules": [rule]}}
    each = {"headers": [{"name": CLIENT_HEADER, "type": "Distinct"}]}
    return {"global": {"rules": [{"clientSelectors": [each], **rule}]}}


def _answer(plan: Plan, status: int) -> Manifest:
    text, kind, code, after_s = _ANSWERS[status]
    error = {"message": text, "type": kind, "param": None, "code": code} if plan.spec.model.writes else text
    again = {"set": [{"name": "Retry-After", "value": str(after_s)}]} if after_s else None
    return {
        "match": {"statusCodes": [{"type": "Value", "value": status}]},
        # Our servers' own answers pass as they are.
        "source": "Local",
        "response": {
            "contentType": "application/json",
            "body": {"type": "Inline", "inline": json.dumps({"error": error})},
            "header": again,
        },
    }


def _target(plan: Plan) -> Manifest:
    return {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": plan.name}]}
