"""Every PromQL expression is made here: for rules with the spec's own names, for the dashboard with its variables.

Failed is what is the service's fault: codes of 500 and more, shed requests (503) too. Codes of 400 are the clients' and
count neither as failed nor as answered. How fast it is, is asked of good answers only: an error is quick.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from config.latency import FIRST_EDGES_S, GAP_EDGES_S, edges_around
from config.sections import Cost
from config.spec import Spec

# The container of the server in its pod, and what Kubernetes makes of a Deployment's name: a hash for the ReplicaSet
# and five characters for the pod, without vowels and look-alikes, so that no other model's pods are meant.
SERVER_CONTAINER = "server"
POD_NAME = "-[bcdfghjklmnpqrstvwxz2456789]{1,10}-[bcdfghjklmnpqrstvwxz2456789]{5}"

# How often rules are evaluated; the sums over recorded rates count on it.
RULE_INTERVAL_S = 30
READINGS_PER_RATE = 4
# What the forecast is recorded as, how far back it looks, and the pods' start where that was never measured.
EXPECTED = "inference_expected:rate"
_WEEK_S, _WEEKS = 604_800, (1, 2, 3)
_COLD_START_S = 60

_DURATION = "inference_request_duration_seconds"
FIRST, GAP = "inference_time_to_first_token_seconds", "inference_time_between_tokens_seconds"
_PIECES = {FIRST: FIRST_EDGES_S, GAP: GAP_EDGES_S}
WAITING, RUNNING = 'state="waiting"', 'state="running"'
FAILED, SHED, GOOD, OWED = 'code=~"5.."', 'code="503"', 'code=~"2.."', 'code!~"4.."'


def objective_s(spec: Spec) -> str | None:
    """The objective, seconds; None without one."""
    return None if spec.slo is None else f"{spec.slo.p99_ms / 1000:.6g}"


def edge_matcher(edge: str) -> str:
    """A matcher of a histogram's edge: Prometheus 3 stores `1` as `1.0`."""
    return f'le=~"{edge.replace(".", "[.]")}([.]0)?"'


def autoscaler_names(spec: Spec) -> str:
    """A pattern of the HorizontalPodAutoscaler's name: KEDA makes one of its own."""
    return f"{spec.name}|keda-hpa-{spec.name}"


def rate_window(spec: Spec) -> str:
    """What a short rate is taken over: a few readings, so that one that fails changes little."""
    return f"{READINGS_PER_RATE * spec.kubernetes.monitoring.scrape_interval_s}s"


@dataclass(frozen=True)
class Queries:
    """Expressions about one model's pods. `window` is what rates are taken over."""

    namespace: str
    model: str
    window: str
    autoscaler: str

    def of(self, name: str, *matchers: str) -> str:
        """A series of the page, or a recorded one, of this model."""
        own = "model_name" if name.startswith("ts_") else "model"
        return self._select(name, f'{own}="{self.model}"', *matchers)

    def of_pods(self, name: str, *matchers: str) -> str:
        """A series that knows pods, not models."""
        return self._select(name, f'pod=~"{self.model}{POD_NAME}"', *matchers)

    def of_server(self, name: str, *matchers: str) -> str:
        """A series of the server's container."""
        return self.of_pods(name, f'container="{SERVER_CONTAINER}"', *matchers)

    def of_deployment(self, name: str) -> str:
        """A series of the Deployment."""
        return self._select(name, f'deployment="{self.model}"')

    def of_autoscaler(self, name: str, *matchers: str) -> str:
        """A series of the autoscaler."""
        return self._select(name, f'horizontalpodautoscaler=~"{self.autoscaler}"', *matchers)

    def rate(self, selector: str, *by: str) -> str:
        """The rate of a counter, summed."""
        return f"sum by ({', '.join(('namespace', *by))}) (rate({selector}[{self.window}]))"

    def arrivals(self, *by: str) -> str:
        """Requests that arrived, shed ones too, a second."""
        return self.rate(self.of("ts_inference_requests_total"), *by)

    def answers(self, matcher: str, *by: str) -> str:
        """Answers with certain codes, a second."""
        return self.rate(self.of(f"{_DURATION}_count", matcher), *by)

    def answers_or_zero(self, matcher: str) -> str:
        """As `answers`, and 0 where there is traffic, but never was such a code: nothing is not the same as unknown."""
        return f"{self.answers(matcher)} or 0 * {self.answers(OWED)}"

    def within(self, limit: str) -> str:
        """Good answers within a limit, a second: exact on an edge of the histogram, between two of them its share."""
        return self._within(_DURATION, edges_around(float(limit)), GOOD)

    def _within(self, histogram: str, place: tuple[float, float, float], *matchers: str) -> str:
        low, high, share = place
        edges = [self.of(f"{histogram}_bucket", *matchers, edge_matcher(f"{edge:.6g}")) for edge in (low, high)]
        if not share:
            return self.rate(edges[0])
        return f"({1 - share:.6g} * {self.rate(edges[0])} + {share:.6g} * {self.rate(edges[1])})"

    def counted(self, pieces: str) -> str:
        """First texts, or gaps between tokens, a second."""
        return self.rate(self.of(f"{pieces}_count"))

    def late(self, pieces: str, limit_s: float) -> str:
        """Those of them over a limit, a second."""
        within = self._within(pieces, edges_around(limit_s, _PIECES[pieces]))
        return f"clamp_min({self.counted(pieces)} - {within}, 0)"

    def sequences(self, state: str, *by: str) -> str:
        """Answers of a language model that wait for a slot, or have one."""
        return f"sum by ({', '.join(('namespace', *by))}) ({self.of('inference_sequences', state)})"

    def slow(self, limit: str) -> str:
        """Good answers over a limit, a second."""
        return f"clamp_min({self.answers(GOOD)} - {self.within(limit)}, 0)"

    def latency(self, share: float) -> str:
        """A percentile of good answers, seconds; exact to a bucket."""
        return self.quantile(share, self.of(f"{_DURATION}_bucket", GOOD))

    def quantile(self, share: float, buckets: str, *by: str) -> str:
        """A percentile of a histogram."""
        return f"histogram_quantile({share:g}, {self.rate(buckets, *by, 'le')})"

    def mean(self, histogram: str, *by: str) -> str:
        """The mean of a histogram."""
        total, count = (self.rate(self.of(f"{histogram}_{part}"), *by) for part in ("sum", "count"))
        return f"{total} / {count}"

    def cost(self, cost: Cost) -> str:
        """What 10,000 good answers cost now: every pod is paid, whether it is ready and asked or not."""
        pods = f"count by (namespace) ({self.of('marina_ready')})"
        return f"{pods} * {cost.per_10k(1.0):.6g} / {self.answers(GOOD)}"

    def queue_time(self) -> str:
        """Mean time that a request waits for a worker, seconds. Under a request a second it says too little: an idle
        pod's 0 / 0 is not a number, and autoscalers need one."""
        return f"{self.rate(self.of('ts_queue_latency_seconds_total'))} / clamp_min({self.arrivals()}, 1)"

    def recorded(self, name: str) -> str:
        """A series that `rules` records."""
        return self.of(f"model:{name}")

    def expected(self, now: str, lead_s: int) -> str:
        """The larger of the rate now and the median of the last three weeks at this hour, earlier by `lead_s`; weeks
        that nothing is known of do not count."""
        arrivals = self.recorded("inference_arrivals:rate5m")
        weeks = (
            f'label_replace({arrivals} offset {week * _WEEK_S - lead_s}s, "week", "{week}", "", "")' for week in _WEEKS
        )
        before = f"quantile by (namespace) (0.5, {' or '.join(weeks)})"
        return f'max by (namespace) ({now} or label_replace({before}, "of", "weeks", "", ""))'

    def recorded_ratio(self, part: str, whole: str, window: str) -> str:
        """The share of requests over a long window, each request with the same weight, from recorded rates."""
        sums = (f"sum_over_time({self.recorded(f'{name}:rate5m')}[{window}])" for name in (part, whole))
        return " / ".join(sums)

    def recorded_count(self, part: str, window: str) -> str:
        """How many requests that were, from recorded rates."""
        return f"{RULE_INTERVAL_S} * sum_over_time({self.recorded(f'{part}:rate5m')}[{window}])"

    def cpu_share(self) -> str:
        """Cores in use as a share of the request, by pod: what the autoscaler looks at."""
        used = self.rate(self.of_server("container_cpu_usage_seconds_total"), "pod")
        asked = self.of_server("kube_pod_container_resource_requests", 'resource="cpu"')
        return f"{used} / sum by (namespace, pod) ({asked})"

    def throttled_share(self) -> str:
        """Scheduling periods in which a pod was held back by its cpu limit, as a share."""
        held, all_ = (
            self.rate(self.of_server(f"container_cpu_cfs_{name}periods_total"), "pod") for name in ("throttled_", "")
        )
        return f"{held} / {all_}"

    def memory_share(self) -> str:
        """Memory that counts against the limit, as a share of it, by pod."""
        used = self.of_server("container_memory_working_set_bytes")
        limit = self.of_server("kube_pod_container_resource_limits", 'resource="memory"')
        return f"sum by (namespace, pod) ({used}) / sum by (namespace, pod) ({limit})"

    def gpu(self, name: str) -> str:
        """A series of DCGM by pod. Its own namespace and pod are called `exported_…` where the scrape does not honour
        them."""
        matchers = f'exported_namespace="{self.namespace}",exported_pod=~"{self.model}{POD_NAME}"'
        renamed = f"{name}{{{matchers}}}"
        for label in ("namespace", "pod"):
            renamed = f'label_replace({renamed}, "{label}", "$1", "exported_{label}", "(.*)")'
        return f"sum by (namespace, pod) ({self.of_pods(name)} or {renamed})"

    def gpu_memory_share(self) -> str:
        """GPU memory in use as a share of what the device has, by pod."""
        used, free = self.gpu("DCGM_FI_DEV_FB_USED"), self.gpu("DCGM_FI_DEV_FB_FREE")
        return f"{used} / ({used} + {free})"

    def _select(self, name: str, *matchers: str) -> str:
        return f"{name}{{{','.join((self._namespace, *matchers))}}}"

    @property
    def _namespace(self) -> str:
        return f'namespace="{self.namespace}"'


def rule_queries(spec: Spec) -> Queries:
    """With the spec's own names, over five minutes."""
    return Queries(spec.kubernetes.namespace, spec.name, "5m", autoscaler_names(spec))


def dashboard_queries() -> Queries:
    """With the dashboard's variables; Grafana chooses the window."""
    return Queries("$namespace", "$model", "$__rate_interval", "$model|keda-hpa-$model")


def scaling_queries(spec: Spec) -> Queries:
    """With the spec's own names, over the window that the autoscaler looks at."""
    return Queries(spec.kubernetes.namespace, spec.name, rate_window(spec), autoscaler_names(spec))


def expected_query(spec: Spec) -> str:
    """What a KEDA trigger asks about the forecast."""
    return f"max({rule_queries(spec).recorded(EXPECTED)})"


def forecast_lead_s(cold_start_s: float | None) -> int:
    """How much earlier the past is read: a cold start, in half minutes so that measuring again changes little, and
    the five minutes that its rates are means of."""
    return 300 + 30 * math.ceil((_COLD_START_S if cold_start_s is None else cold_start_s) / 30)


def running_query(spec: Spec) -> str:
    """What a KEDA trigger asks about the slots in use."""
    return f"sum({scaling_queries(spec).sequences(RUNNING)})"


def keda_query(spec: Spec) -> str:
    """What a KEDA trigger asks Prometheus, for all pods together: with `metricType: AverageValue` KEDA divides by their
    number. The queue's time is a mean already and wants `metricType: Value`."""
    queries = scaling_queries(spec)
    return {
        "requests": f"sum({queries.arrivals()})",
        "queue_time": f"sum({queries.queue_time()})",
        "gpu": f"sum({queries.gpu('DCGM_FI_DEV_GPU_UTIL')})",
        "waiting": f"sum({queries.sequences(WAITING)})",
    }[spec.scaling.metric]
