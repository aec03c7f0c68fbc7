"""Builds every PromQL expression: for rules with the names in the spec, for the dashboard with its variables.

A request has failed if it is the service's fault: a code of 500 or more, which includes shed requests (503). Codes from
400 to 499 are the client's fault and count neither as failed nor as answered. Latency is that of good answers only,
because errors are quick."""

import math
from dataclasses import dataclass

from marina.config.latency import FIRST_EDGES_S, GAP_EDGES_S, edges_around
from marina.config.sections import Cost
from marina.config.spec import Spec
from marina.k8s.monitoring.workloads import DEPLOYMENT, Workload

# The server's container, and a pattern for what Kubernetes appends to a Deployment's name: a hash for the ReplicaSet
# and five characters for the pod, both without vowels and look-alikes. It keeps another model's pods from matching.
SERVER_CONTAINER = "server"
POD_NAME = "-[bcdfghjklmnpqrstvwxz2456789]{1,10}-[bcdfghjklmnpqrstvwxz2456789]{5}"

# How often rules are evaluated; the sums over recorded rates rely on it.
RULE_INTERVAL_S = 30
SCRAPES_PER_RATE = 4
# The name of the recorded forecast, how far back it looks, and the cold start to assume if none was measured.
EXPECTED = "inference_expected:rate"
_WEEK_S, _WEEKS = 604_800, (1, 2, 3)
_COLD_START_S = 60

DURATION = "inference_request_duration_seconds"
FIRST, GAP = "inference_time_to_first_token_seconds", "inference_time_between_tokens_seconds"
_EDGES = {FIRST: FIRST_EDGES_S, GAP: GAP_EDGES_S}
WAITING, RUNNING = 'state="waiting"', 'state="running"'
FAILED, SHED, GOOD, ANSWERED = 'code=~"5.."', 'code="503"', 'code=~"2.."', 'code!~"4.."'


def objective_s(spec: Spec) -> str | None:
    """The p99 objective in seconds, as text; None without an objective."""
    return None if spec.slo is None else f"{spec.slo.p99_ms / 1000:.6g}"


def edge_matcher(edge: str) -> str:
    """A matcher for one edge of a histogram. Prometheus 3 stores `1` as `1.0`."""
    return f'le=~"{edge.replace(".", "[.]")}([.]0)?"'


def rate_window(spec: Spec) -> str:
    """The window of a short rate: a few scrapes, so that a failed one changes little."""
    return f"{SCRAPES_PER_RATE * spec.kubernetes.monitoring.scrape_interval_s}s"


@dataclass(frozen=True)
class Queries:
    """Builds expressions about one model's pods. Rates are taken over `window`."""

    namespace: str
    model: str
    window: str
    workload: Workload = DEPLOYMENT

    def of(self, name: str, *matchers: str) -> str:
        """A series of this model, from the pods' page or recorded."""
        own = "model_name" if name.startswith("ts_") else "model"
        return self._select(name, f'{own}="{self.model}"', *matchers)

    def of_pods(self, name: str, *matchers: str) -> str:
        """A series of this model's pods, for series without a model label."""
        return self._select(name, f'pod=~"{self._pods}"', *matchers)

    def of_server(self, name: str, *matchers: str) -> str:
        """A series of the server's containers."""
        return self.of_pods(name, f'container="{SERVER_CONTAINER}"', *matchers)

    def wanted(self) -> str:
        """How many pods there should be."""
        return self.workload.pods(self.workload.wanted, self.namespace, self.model)

    def available(self) -> str:
        """How many pods are available."""
        return self.workload.pods(self.workload.available, self.namespace, self.model)

    def of_autoscaler(self, name: str, *matchers: str) -> str:
        """A series of the autoscaler."""
        return self._select(name, f'horizontalpodautoscaler=~"{self.workload.autoscalers(self.model)}"', *matchers)

    def rate(self, selector: str, *by: str) -> str:
        """The rate of a counter per second, summed over all pods or `by` labels."""
        return f"sum by ({', '.join(('namespace', *by))}) (rate({selector}[{self.window}]))"

    def arrivals(self, *by: str) -> str:
        """Requests per second that arrive, including shed ones."""
        return self.rate(self.of("ts_inference_requests_total"), *by)

    def answers(self, matcher: str, *by: str) -> str:
        """Answers per second with certain codes."""
        return self.rate(self.of(f"{DURATION}_count", matcher), *by)

    def answers_or_zero(self, matcher: str) -> str:
        """As `answers`, but 0 instead of no result if there is traffic and such a code never occurred."""
        return f"{self.answers(matcher)} or 0 * {self.answers(ANSWERED)}"

    def within(self, limit: str) -> str:
        """Good answers per second within a limit in seconds. Exact on an edge of the histogram, interpolated between
        two."""
        return self._within(DURATION, edges_around(float(limit)), GOOD)

    def _within(self, histogram: str, position: tuple[float, float, float], *matchers: str) -> str:
        low, high, share = position
        edges = [self.of(f"{histogram}_bucket", *matchers, edge_matcher(f"{edge:.6g}")) for edge in (low, high)]
        if not share:
            return self.rate(edges[0])
        return f"({1 - share:.6g} * {self.rate(edges[0])} + {share:.6g} * {self.rate(edges[1])})"

    def count_rate(self, histogram: str) -> str:
        """Observations of a histogram per second, such as first tokens or gaps between tokens."""
        return self.rate(self.of(f"{histogram}_count"))

    def late(self, histogram: str, limit_s: float) -> str:
        """First tokens, or gaps between tokens, over a limit, per second."""
        within = self._within(histogram, edges_around(limit_s, _EDGES[histogram]))
        return f"clamp_min({self.count_rate(histogram)} - {within}, 0)"

    def sequences(self, state: str, *by: str) -> str:
        """Answers of a language model in one state: those that wait for a slot, or those that have one."""
        return f"sum by ({', '.join(('namespace', *by))}) ({self.of('inference_sequences', state)})"

    def slow(self, limit: str) -> str:
        """Good answers per second over a limit in seconds."""
        return f"clamp_min({self.answers(GOOD)} - {self.within(limit)}, 0)"

    def latency(self, share: float) -> str:
        """A percentile of the latency of good answers, in seconds; exact to a bucket."""
        return self.quantile(share, self.of(f"{DURATION}_bucket", GOOD))

    def quantile(self, share: float, buckets: str, *by: str) -> str:
        """A percentile of a histogram."""
        return f"histogram_quantile({share:g}, {self.rate(buckets, *by, 'le')})"

    def mean(self, histogram: str, *by: str) -> str:
        total, count = (self.rate(self.of(f"{histogram}_{part}"), *by) for part in ("sum", "count"))
        return f"{total} / {count}"

    def cost(self, cost: Cost) -> str:
        """The cost of 10,000 good answers now. Every pod costs, even if it is not ready or gets no requests."""
        pods = f"count by (namespace) ({self.of('marina_ready')})"
        return f"{pods} * {cost.per_10k(1.0):.6g} / {self.answers(GOOD)}"

    def queue_time(self) -> str:
        """Mean seconds that a request waits for a worker; a shed one never does. Divides by at least one request per
        second, which understates the mean below that rate: an idle pod would give 0 / 0, and autoscalers need a
        number."""
        waiting = f"{self.arrivals()} - {self.answers(SHED)}"
        return f"{self.rate(self.of('ts_queue_latency_seconds_total'))} / clamp_min({waiting}, 1)"

    def recorded(self, name: str) -> str:
        """A series that a recording rule makes."""
        return self.of(f"model:{name}")

    def expected(self, now: str, lead_s: int) -> str:
        """The larger of the rate `now` and the median of the last three weeks at this time of the week plus `lead_s`.
        Weeks without data do not count."""
        arrivals = self.recorded("inference_arrivals:rate5m")
        weeks = (
            f'label_replace({arrivals} offset {week * _WEEK_S - lead_s}s, "week", "{week}", "", "")' for week in _WEEKS
        )
        before = f"quantile by (namespace) (0.5, {' or '.join(weeks)})"
        return f'max by (namespace) ({now} or label_replace({before}, "of", "weeks", "", ""))'

    def recorded_ratio(self, part: str, whole: str, window: str) -> str:
        """The share of `part` in `whole` over a long window, from recorded rates, so that every request has equal
        weight."""
        sums = (f"sum_over_time({self.recorded(f'{name}:rate5m')}[{window}])" for name in (part, whole))
        return " / ".join(sums)

    def recorded_count(self, part: str, window: str) -> str:
        """How many requests `part` counted in a window, from recorded rates."""
        return f"{RULE_INTERVAL_S} * sum_over_time({self.recorded(f'{part}:rate5m')}[{window}])"

    def cpu_share(self) -> str:
        """Cores in use as a share of the cpu request, by pod; the autoscaler scales by the same share."""
        used = self.rate(self.of_server("container_cpu_usage_seconds_total"), "pod")
        requested = self.of_server("kube_pod_container_resource_requests", 'resource="cpu"')
        return f"{used} / max by (namespace, pod) ({requested})"

    def throttled_share(self) -> str:
        """The share of scheduling periods in which a pod was throttled by its cpu limit."""
        throttled, all_ = (
            self.rate(self.of_server(f"container_cpu_cfs_{name}periods_total"), "pod") for name in ("throttled_", "")
        )
        return f"{throttled} / {all_}"

    def memory_share(self) -> str:
        """Memory in use as a share of the memory limit, by pod."""
        used = self.of_server("container_memory_working_set_bytes")
        limit = self.of_server("kube_pod_container_resource_limits", 'resource="memory"')
        return f"max by (namespace, pod) ({used}) / max by (namespace, pod) ({limit})"

    def gpu(self, name: str, over: str = "sum", *by: str) -> str:
        """A DCGM series by pod and `by` labels, `over` all GPUs of each. If a scrape does not honour DCGM's own labels,
        they are renamed to `exported_namespace` and `exported_pod`; both forms are found."""
        matchers = f'exported_namespace="{self.namespace}",exported_pod=~"{self._pods}"'
        renamed = f"{name}{{{matchers}}}"
        for label in ("namespace", "pod"):
            renamed = f'label_replace({renamed}, "{label}", "$1", "exported_{label}", "(.*)")'
        return f"{over} by ({', '.join(('namespace', 'pod', *by))}) ({self.of_pods(name)} or {renamed})"

    def gpu_use(self) -> str:
        """The utilisation of each pod's GPUs, in percent."""
        return self.gpu("DCGM_FI_DEV_GPU_UTIL", "avg")

    def gpu_memory_share(self) -> str:
        """GPU memory in use as a share of the device's memory, of the fullest device of each pod."""
        used, free = (self.gpu(f"DCGM_FI_DEV_FB_{name}", "sum", "gpu") for name in ("USED", "FREE"))
        return f"max by (namespace, pod) ({used} / ({used} + {free}))"

    @property
    def _pods(self) -> str:
        """A pattern for the names of the pods."""
        return f"{self.model}{self.workload.between}{POD_NAME}"

    def _select(self, name: str, *matchers: str) -> str:
        namespace = f'namespace="{self.namespace}"'
        return f"{name}{{{','.join((namespace, *matchers))}}}"


def rule_queries(spec: Spec, workload: Workload = DEPLOYMENT) -> Queries:
    """Queries for rules, with the names in the spec and rates over five minutes."""
    return Queries(spec.kubernetes.namespace, spec.name, "5m", workload)


def dashboard_queries(workload: Workload = DEPLOYMENT) -> Queries:
    """Queries for the dashboard, with its variables; Grafana chooses the window of rates."""
    return Queries("$namespace", "$model", "$__rate_interval", workload)


def scaling_queries(spec: Spec) -> Queries:
    """Queries for the autoscaler, with the names in the spec and rates over a few scrapes."""
    return Queries(spec.kubernetes.namespace, spec.name, rate_window(spec))


def expected_query(spec: Spec) -> str:
    """A KEDA trigger's query for the forecast."""
    return f"max({rule_queries(spec).recorded(EXPECTED)})"


def forecast_lead_s(cold_start_s: float | None) -> int:
    """How many seconds ahead the forecast looks: a cold start, rounded up to half minutes so that a new measurement
    changes little, and the five minutes that its rates are averaged over."""
    return 300 + 30 * math.ceil((_COLD_START_S if cold_start_s is None else cold_start_s) / 30)


def running_query(spec: Spec) -> str:
    """A KEDA trigger's query for the slots in use."""
    return f"sum({scaling_queries(spec).sequences(RUNNING)})"


def keda_query(spec: Spec) -> str:
    """A KEDA trigger's query for the scaling metric, over all pods together: with `metricType: AverageValue` KEDA
    divides by their number. The queue time is already a mean and needs `metricType: Value`."""
    queries = scaling_queries(spec)
    return {
        "requests": f"sum({queries.arrivals()})",
        "queue_time": f"sum({queries.queue_time()})",
        "gpu": f"sum({queries.gpu_use()})",
        "waiting": f"sum({queries.sequences(WAITING)})",
    }[spec.scaling.metric]
