"""What a handler that TorchServe ran, and those who ask it or watch it, find otherwise under Marina, and what to do.

`marina check` prints it for an archive; the topics are explained in docs/how-to/migrate.md."""

from marina.config.render import Ports, frontend_limit
from marina.config.spec import Spec


def differences(spec: Spec) -> dict[str, str]:
    """A sentence for each topic; empty unless the model is an archive."""
    return _closed(spec) | _of_requests(spec) | _of_pods(spec) if spec.model.adopted else {}


def _closed(spec: Spec) -> dict[str, str]:
    page = f"port {Ports().supervisor}"
    return {
        "management": "the management API has no port, as whoever reaches it runs code: change the spec and deploy it",
        "gRPC": f"its ports are closed: clients send HTTP to `/predictions/{spec.url_name}`",
        "tokens": "none is asked for, and a header with one goes to the handler: authenticate at the gateway",
        "TLS": "connections are plain HTTP, without CORS: both are the gateway's, `kubernetes.route`",
        "ping": f"it says Healthy before the model is loaded, as it did: `/ready` on {page} waits for an answer",
        "metrics": f"they are on {page}, the handler's as they were, declared or not; for TorchServe's `Requests2XX` "
        "and its like, `inference_request_duration_seconds_count` counts by `code`",
        "logs": "there are no files of logs and no snapshots: all lines go to stderr, and the state is the spec",
    }


def _of_requests(spec: Spec) -> dict[str, str]:
    limit = frontend_limit(round(spec.serving.max_request_mb * 1_000_000), adopted=True)
    found = {
        "limits": f"a body of over {limit:,} bytes, or of too many parts or fields, gets 413, now with a reason: raise "
        "`serving.max_request_mb`",
        "pickles": "each worker loads the weights, and torch unpickles "
        + ("whatever is in them: `model.trust_pickle`" if spec.model.trust_pickle else "only tensors and plain values"),
        "judgement": "no agreement is measured, and no time of a stage: what the handler computes is its own",
    }
    if spec.max_batch > 1:
        found["batches"] = (
            f"where the handler raises, all of a batch fail, up to {spec.max_batch}, as they did: catch it and call "
            "`context.set_response_status` for the one, or set `serving: {max_batch: 1}`"
        )
    return found


def _of_pods(spec: Spec) -> dict[str, str]:
    found = {
        "environment": "the handler sees all variables of the pod, with tokens and keys, but none that begins with "
        "`TS_`: set them in `kubernetes.pod.env`, and hide some with `model.hidden_env`; threads and `TMPDIR` are the "
        "server's",
        "files": "a pod's root cannot be written, but for `TMPDIR`: mount a volume for what the handler keeps",
    }
    if spec.kubernetes.network.policy:
        named = spec.kubernetes.network.egress
        reached = f"only {', '.join(named)}" if named else "nothing"
        found["network"] = f"a pod reaches {reached}: name what the handler calls in `kubernetes.network.egress`"
    return found
