"""Rules about the cluster: the autoscaler and the network."""

from marina.config.combinations.rule import Conflicts, rule
from marina.config.spec import Spec

# Namespaces that every cluster has.
_OF_CLUSTERS = ("default", "kube-node-lease", "kube-public", "kube-system")


@rule("scaling.min_replicas", "scaling.max_replicas")
def _replicas_ordered(spec: Spec) -> Conflicts:
    low, high = spec.scaling.min_replicas, spec.scaling.max_replicas
    if low > high:
        yield "scaling.min_replicas", f"got {low}, but `max_replicas` is {high}", None


@rule("scaling.metric", "scaling.autoscaler", "kubernetes.resources.gpu")
def _gpu_metric_needs_gpus(spec: Spec) -> Conflicts:
    if spec.scaling.metric == "gpu" and spec.kubernetes.resources.gpu == 0:
        yield "scaling.metric", "got `gpu`, but `kubernetes.resources.gpu` is 0", "metric: requests"


@rule("scaling.target", "scaling.metric")
def _a_share_is_one_of_the_knee(spec: Spec) -> Conflicts:
    scaling = spec.scaling
    if scaling.metric != "requests" and isinstance(scaling.target, str) and scaling.target != "auto":
        text = f"got `{scaling.target}`, a share of the knee, but `metric` is `{scaling.metric}`"
        yield "scaling.target", text, "target: auto, or a number"
    if scaling.metric == "gpu" and not isinstance(scaling.target, str) and scaling.target > 100:
        yield "scaling.target", f"got {scaling.target:g}, allowed for `metric: gpu`: at most 100 percent", None


@rule("scaling.forecast", "scaling.metric", "scaling.autoscaler")
def _forecast_needs_the_request_metric(spec: Spec) -> Conflicts:
    scaling = spec.scaling
    if scaling.forecast == "weekly" and (scaling.metric != "requests" or scaling.autoscaler == "none"):
        field = "autoscaler" if scaling.autoscaler == "none" else "metric"
        text = f"got `weekly`, which forecasts requests, but `{field}` is `{getattr(scaling, field)}`"
        yield "scaling.forecast", text, "forecast: none"


@rule("kubernetes.network")
def _policy_fields_need_a_policy(spec: Spec) -> Conflicts:
    network = spec.kubernetes.network
    for name in ("clients", "dns", "egress"):
        # Compared with the default, because a completed spec, as `marina check` prints it, has every field.
        if getattr(network, name) != type(network).model_fields[name].default and not network.policy:
            field = f"kubernetes.network.{name}"
            yield field, "given, but `policy` is `false`, so it would have no effect", f"delete `{name}`"


@rule("kubernetes.model", "kubernetes.create_namespace")
def _host_path_needs_its_own_namespace(spec: Spec) -> Conflicts:
    cache = spec.kubernetes.model.cache if spec.kubernetes.model else None
    if cache and cache.startswith("/") and spec.kubernetes.create_namespace:
        yield (
            "kubernetes.model.cache",
            f"got `{cache}`, but the rendered Namespace forbids `hostPath`",
            "`create_namespace: false` and a namespace whose owner allows it, or the name of a claim",
        )


@rule("kubernetes.route")
def _gateway_knows_clients_in_one_way(spec: Spec) -> Conflicts:
    auth = spec.kubernetes.route.auth if spec.kubernetes.route else None
    if auth is not None and (auth.api_keys is None) == (auth.jwt is None):
        got = "got neither `api_keys` nor `jwt`" if auth.jwt is None else "got both `api_keys` and `jwt`"
        yield "kubernetes.route.auth", f"{got}, allowed: one of them", "auth: {api_keys: digits-keys}"


@rule("kubernetes.route")
def _gateway_limits_what_it_can_count(spec: Spec) -> Conflicts:
    route = spec.kubernetes.route
    if route is None:
        return
    if route.limit_by == "client" and not isinstance(route.limit_rps, int):
        got = "nothing" if route.limit_rps is None else f"`{route.limit_rps}`"
        text = f"got {got}, but `limit_by` is `client`: nothing measured says what one client may send"
        yield "kubernetes.route.limit_rps", text, "limit_rps: 10"
    if route.limit_by == "client" and route.auth is None:
        yield "kubernetes.route.limit_by", "got `client`, but without `auth` the gateway knows none", "limit_by: all"
    if route.max_parallel != "auto" and not route.has_policies:
        text = f"got {route.max_parallel}, but without `auth` or `limit_rps` no policy is rendered"
        yield "kubernetes.route.max_parallel", text, "limit_rps: auto"


@rule("kubernetes.namespace", "kubernetes.create_namespace")
def _namespaces_of_the_cluster_stay_as_they_are(spec: Spec) -> Conflicts:
    namespace = spec.kubernetes.namespace
    if namespace in _OF_CLUSTERS and spec.kubernetes.create_namespace:
        text = f"got `{namespace}`, which others use, and the rendered Namespace makes it `restricted` for all its pods"
        yield "kubernetes.namespace", text, "create_namespace: false, or a namespace of its own"
