"""Which alerts fire in which minute, and which do not."""

from pathlib import Path

import pytest
from rule_scenarios import (
    ANSWERS,
    AT,
    CUDA,
    DURATION,
    HPA,
    KUBE,
    OTHER,
    PAGE,
    POD,
    Scenario,
    promtool,
    rules,
    run_rule_test,
    state,
    traffic,
)
from specs import digits_spec

from marina.k8s.monitoring.catalogue import TARGET_LABELS, find_series
from marina.k8s.monitoring.expressions import SERVER_CONTAINER
from marina.k8s.monitoring.promql import selectors
from marina.k8s.monitoring.workloads import WORKLOADS

QUIET: set[str] = set()


def exported_twice(values: dict[str, int | str]) -> dict[str, str | None]:
    """The series of kube-state-metrics with these values, each exported by two of them, and none by only one."""
    healthy = {name: series for name, series in state(160).items() if name.startswith("kube_")}
    told = healthy | {next(name for name in healthy if part in name): f"{value}x160" for part, value in values.items()}
    both = {name.replace("{", f'{{instance="{label}",'): series for name, series in told.items() for label in "ab"}
    return both | dict.fromkeys(healthy)


OUTAGE = {"MostRequestsFail", "ErrorBudgetFastBurn", "ErrorBudgetSlowBurn"}
# Healthy for 20 minutes, then as the name says; 80 samples at 15 s each are 20 minutes.
FALLS_SILENT = "0+1500x80 120000+0x160"
STARTS = "0x80 0+1500x160"
ARGO, FLAGGER = WORKLOADS["argo-rollouts"], WORKLOADS["flagger"]
# The Deployment's own series, which neither engine has.
NO_DEPLOYMENT: dict[str, str | None] = {name: None for name in state(1) if name.startswith("kube_deployment_")}


def of_rollout(available: str, namespace: str = "namespace") -> dict[str, str | None]:
    """The series of Argo's controller; a scrape that does not honour its labels renames `namespace`."""
    labels = f'{{{namespace}="marina",name="digits"}}'
    series = {f"rollout_info_replicas_{name}{labels}": "1x160" for name in ("desired", "available")}
    return NO_DEPLOYMENT | series | {f"rollout_info_replicas_available{labels}": available}


def of_flagger(available: str, **more: str) -> dict[str, str | None]:
    """One pod of `digits-primary` and, between rollouts, none of `digits`, whose autoscaler is switched off."""
    off = HPA.replace("digits", "digits-primary")
    hpa = {name: values for name, values in state(160).items() if name.startswith("kube_horizontalpodautoscaler")}
    hpa |= {name.replace(HPA, off): values for name, values in hpa.items()}
    blind = f'kube_horizontalpodautoscaler_status_condition{{{HPA},condition="ScalingActive",status="false"}}'
    counts = {
        f'kube_deployment_{part}{{{KUBE},deployment="{name}"}}': values
        for name, (spec, status) in {"digits": ("0x160", "0x160"), "digits-primary": ("1x160", available)}.items()
        for part, values in (("spec_replicas", spec), ("status_replicas_available", status))
    }
    return NO_DEPLOYMENT | hpa | {blind: "1x160"} | counts | more


SCENARIOS = {
    "Argo's pods are all available": Scenario({"40m": QUIET}, of_rollout("1x160"), workload=ARGO),
    "a pod of Argo's is missing": Scenario({"40m": {"ReplicasMissing"}}, of_rollout("0x160"), workload=ARGO),
    "a pod of Argo's is missing, and its labels are renamed": Scenario(
        {"40m": {"ReplicasMissing"}}, of_rollout("0x160", "exported_namespace"), workload=ARGO
    ),
    "Flagger's pods are all available, and the next version's autoscaler is off": Scenario(
        {"40m": QUIET}, of_flagger("1x160"), workload=FLAGGER
    ),
    "a pod of Flagger's is missing": Scenario({"40m": {"ReplicasMissing"}}, of_flagger("0x160"), workload=FLAGGER),
    "the autoscaler of Flagger's pods is blind": Scenario(
        {"40m": {"AutoscalerBlind"}},
        of_flagger(
            "1x160",
            **{
                "kube_horizontalpodautoscaler_status_condition{"
                + HPA.replace("digits", "digits-primary")
                + ',condition="ScalingActive",status="false"}': "1x160"
            },
        ),
        workload=FLAGGER,
    ),
    "a healthy pod fires nothing": Scenario({"5m": QUIET, "40m": QUIET, "2h": QUIET}),
    "a total outage pages within five minutes": Scenario(
        {"20m": QUIET, "25m": OUTAGE}, traffic(FALLS_SILENT) | traffic(STARTS, code="500")
    ),
    "shed requests are failures with a ticket of their own": Scenario(
        {"20m": QUIET, "30m": OUTAGE | {"RequestsShed"}}, traffic(FALLS_SILENT) | traffic(STARTS, code="503")
    ),
    "clients' errors fire nothing": Scenario({"40m": QUIET}, traffic("0+1500x160", code="415")),
    "a flood of clients' errors hides no failure of the service": Scenario(
        {"40m": {"ErrorBudgetFastBurn", "ErrorBudgetSlowBurn"}},
        traffic("0+1470x160") | traffic("0+30x160", code="500") | traffic("0+9000x160", code="415"),
    ),
    "a fast burn is a page": Scenario(
        # 2 % for 50 minutes, after six good hours.
        {"6h": QUIET, "6h50m": {"ErrorBudgetFastBurn", "ErrorBudgetSlowBurn"}},
        traffic("0+6000x360 2160000+5880x60") | traffic("0x360 0+120x60", code="500"),
        interval_s=60,
        evaluated_every="1m",
    ),
    "a slow burn is a ticket and no page": Scenario(
        # 0.4 % for five hours, after twelve good ones.
        {"12h": QUIET, "17h": {"ErrorBudgetSlowBurn"}},
        traffic("0+6000x720 4320000+5976x300") | traffic("0x720 0+24x300", code="500"),
        interval_s=60,
        evaluated_every="2m",
    ),
    "a short disturbance during a deployment fires nothing": Scenario(
        # A fifth of the requests fail for 45 s while one pod takes the place of another, which needs a minute to start.
        {f"6h{minute}m": QUIET for minute in (1, 2, 3, 5, 10, 30)},
        traffic("0+1500x1440 2160000+1200x3 stale")
        | traffic("0x1440 0+300x3 stale", code="503")
        | traffic("_x1440 0+1200x3 3600+1500x120", pod=f'namespace="marina",pod="{OTHER}"')
        | {
            f"marina_ready{{{PAGE}}}": "1x1440 0x3 stale",
            f'marina_ready{{namespace="marina",pod="{OTHER}",model="digits"}}': "_x1440 0x3 1x120",
        },
        evaluated_every="1m",
    ),
    "five failures in a quiet night fire nothing": Scenario(
        # A request a minute, and five that fail.
        {"40m": QUIET},
        traffic("0+0.25x160") | traffic("0x80 0+0.25x20 5x60", code="500"),
    ),
    "most answers are slow": Scenario(
        {"20m": QUIET, "25m": {"MostRequestsSlow", "LatencyBudgetFastBurn", "LatencyBudgetSlowBurn"}},
        traffic("0+1500x160", within="0+1500x80 120000+0x80"),
    ),
    "slightly more answers are slow than the objective allows": Scenario(
        {"40m": {"P99OverObjective", "LatencyBudgetSlowBurn"}}, traffic("0+1500x160", within="0+1470x160")
    ),
    "exactly as many answers are slow as the objective allows": Scenario(
        {"40m": QUIET}, traffic("0+1500x160", within="0+1485x160")
    ),
    "a few slow answers in a quiet night fire nothing": Scenario(
        # A request a minute, of which one in five is slow.
        {"40m": QUIET},
        traffic("0+0.25x160", within="0+0.25x80 20+0.2x80"),
    ),
    "the pods are gone": Scenario({"20m": QUIET, "25m": {"NoData"}}, {f"marina_ready{{{PAGE}}}": "1x80 stale"}),
    "no pod is ready": Scenario(
        {"20m": QUIET, "25m": {"NoPodReady"}, "40m": {"NoPodReady", "PodNotReady"}},
        {f"marina_ready{{{PAGE}}}": "1x80 0x80"},
    ),
    "the only pod fails a minute after each start": Scenario(
        {"9m": QUIET, "15m": {"NoPodReady"}, "20m": {"NoPodReady"}},
        # Kubernetes waits longer each time.
        {f"marina_ready{{{PAGE}}}": "1x40 0x3 stale 0x3 stale _x1 0x3 stale _x2 0x3 stale _x5 0x3 stale _x10 0x3"},
    ),
    "a pod of the Deployment is missing": Scenario(
        {"10m": QUIET, "20m": {"ReplicasMissing"}},
        {f'kube_deployment_spec_replicas{{{KUBE},deployment="digits"}}': "2x80"},
    ),
    "kube-state-metrics runs twice in the cluster": Scenario({"40m": QUIET}, exported_twice({})),
    "kube-state-metrics runs twice, and much is wrong": Scenario(
        {
            "40m": {"ReplicasMissing", "AutoscalerAtMax", "AutoscalerBlind", "ContainerRestarts"}
            | {"MemoryNearLimit", "CpuHigh"}
        },
        exported_twice(
            {
                "spec_replicas": 2,
                "status_desired_replicas": 10,
                "status_condition": 1,
                "restarts_total": "0x20 1x20 2x20 3",
            }
        )
        | {
            f'container_memory_working_set_bytes{{{AT},container="{SERVER_CONTAINER}"}}': "950x160",
            f'container_cpu_usage_seconds_total{{{AT},container="{SERVER_CONTAINER}"}}': "0+29x160",
        },
    ),
    "Prometheus does not read a pod that serves": Scenario(
        {"5m": QUIET, "12m": {"PodsUnseen"}},
        {
            f'kube_deployment_{name}{{{KUBE},deployment="digits"}}': "2x80"
            for name in ("spec_replicas", "status_replicas_available")
        },
    ),
    "a rollout stopped halfway": Scenario(
        {"30m": QUIET, "70m": {"PackagesMixed"}},
        {f'marina_package_info{{namespace="marina",pod="{OTHER}",model="digits",sha256="b"}}': "1x300"},
    ),
    "a container restarts": Scenario(
        {"30m": {"ContainerRestarts"}},
        {f'kube_pod_container_status_restarts_total{{{AT},container="{SERVER_CONTAINER}"}}': "0x20 1x20 2x20 3x60"},
    ),
    "a container restarted twice": Scenario(
        {"30m": QUIET},
        {f'kube_pod_container_status_restarts_total{{{AT},container="{SERVER_CONTAINER}"}}': "0x20 1x20 2x80"},
    ),
    "another model's pod restarts": Scenario(
        {"30m": QUIET},
        {'kube_pod_container_status_restarts_total{namespace="marina",pod="digits-large-6b5f-x2k4p"}': "0+1x120"},
    ),
    "workers die": Scenario(
        {"30m": {"WorkerRestarts"}},
        {f'marina_worker_restarts_total{{{PAGE},worker="9000"}}': "0x20 1x20 2x20 3x60"},
    ),
    # A renewed worker keeps its process, so TorchServe and the supervisor count no restart.
    "workers are renewed because of their memory": Scenario(
        {"30m": QUIET}, {f"marina_worker_renewals_total{{{PAGE}}}": "0x20 1x20 2x20 3x60"}
    ),
    "workers die while others are renewed": Scenario(
        {"30m": {"WorkerRestarts"}},
        {
            f'marina_worker_restarts_total{{{PAGE},worker="9000"}}': "0x20 2x20 3x80",
            f'marina_worker_restarts_total{{{PAGE},worker="9001"}}': "0x60 2x60",
            f"marina_worker_renewals_total{{{PAGE}}}": "0x20 1x20 2x20 3x60",
        },
    ),
    "the cpu is busy": Scenario(
        {"20m": QUIET, "37m": {"CpuHigh"}},
        {f'container_cpu_usage_seconds_total{{{AT},container="{SERVER_CONTAINER}"}}': "0+28x160"},
    ),
    "the cpu is as busy as the autoscaler tolerates": Scenario(
        {"1h": QUIET, "3h": QUIET},
        {f'container_cpu_usage_seconds_total{{{AT},container="{SERVER_CONTAINER}"}}': "0+26x720"},
    ),
    "a sidecar is busy": Scenario(
        {"30m": QUIET},
        {
            f'container_cpu_usage_seconds_total{{{AT},container="log-shipper"}}': "0+27x120",
            f'kube_pod_container_resource_requests{{{AT},container="log-shipper",resource="cpu"}}': "0.05x120",
        },
    ),
    "memory is nearly full": Scenario(
        {"5m": QUIET, "12m": {"MemoryNearLimit"}},
        {f'container_memory_working_set_bytes{{{AT},container="{SERVER_CONTAINER}"}}': "950x80"},
    ),
    "the disk is nearly full": Scenario(
        {"4m": QUIET, "12m": {"DiskNearlyFull"}},
        {f"marina_disk_free_bytes{{{PAGE}}}": "50000000x80"},
    ),
    "the autoscaler is at its maximum": Scenario(
        {"10m": QUIET, "20m": {"AutoscalerAtMax"}},
        {f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}": "10x80"},
    ),
    "the autoscaler's maximum is its minimum": Scenario(
        {"20m": QUIET}, {f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}": "2x80"}
    ),
    "the autoscaler gets no metrics": Scenario(
        {"5m": QUIET, "12m": {"AutoscalerBlind"}},
        {f'kube_horizontalpodautoscaler_status_condition{{{HPA},condition="ScalingActive",status="false"}}': "1x80"},
    ),
    "somebody scaled to no pods, which switches the autoscaler off": Scenario(
        {"20m": {"NoData"}},
        {
            f"marina_ready{{{PAGE}}}": None,
            f'kube_deployment_spec_replicas{{{KUBE},deployment="digits"}}': "0x80",
            f'kube_deployment_status_replicas_available{{{KUBE},deployment="digits"}}': "0x80",
            f'kube_horizontalpodautoscaler_status_condition{{{HPA},condition="ScalingActive",status="false"}}': "1x80",
        },
    ),
    "KEDA's autoscaler gets no metrics": Scenario(
        {"12m": {"AutoscalerBlind"}},
        {
            'kube_horizontalpodautoscaler_status_condition{namespace="marina",'
            'horizontalpodautoscaler="keda-hpa-digits",condition="ScalingActive",status="false"}': "1x80"
        },
        spec={"scaling.autoscaler": "keda"},
    ),
    "GPU memory rises for hours": Scenario(
        {"1h": QUIET, "5h": {"GpuMemoryGrows"}},
        {f'inference_worker_cuda_bytes{{{PAGE},pid="7"}}': "1000+5x301"},
        interval_s=60,
        evaluated_every="2m",
        spec=CUDA,
    ),
    "a pod reserves GPU memory with its first requests": Scenario(
        {"4h5m": QUIET, "5h30m": QUIET},
        {f'inference_worker_cuda_bytes{{{PAGE},pid="7"}}': "_x60 0x2 500x20 1000x260"},
        interval_s=60,
        evaluated_every="2m",
        spec=CUDA,
    ),
    "GPU memory is nearly full": Scenario(
        {"10m": QUIET, "20m": {"GpuMemoryNearlyFull"}},
        {
            # As without honorLabels: `pod` and `namespace` are those of the exporter.
            f'DCGM_FI_DEV_FB_USED{{{AT},gpu="0"}}': None,
            f'DCGM_FI_DEV_FB_FREE{{{AT},gpu="0"}}': None,
            **{
                f'DCGM_FI_DEV_FB_{name}{{namespace="gpu",pod="dcgm-1",exported_namespace="marina",exported_pod="{POD}",'
                'gpu="0"}': f"{value}x80"
                for name, value in (("USED", 97), ("FREE", 3))
            },
        },
        spec=CUDA,
    ),
    "one of a pod's two GPUs is nearly full": Scenario(
        {"20m": {"GpuMemoryNearlyFull"}},
        {
            f'DCGM_FI_DEV_FB_{name}{{{AT},gpu="{gpu}"}}': f"{value}x80"
            for gpu, shares in enumerate(((97, 3), (10, 90)))
            for name, value in zip(("USED", "FREE"), shares, strict=True)
        },
        spec=CUDA,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_alerts_fire_in_their_minutes_and_no_others(name: str, tmp_path: Path) -> None:
    assert not promtool(tmp_path, SCENARIOS[name])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_only_series_that_exist(name: str) -> None:
    for text in state(1) | traffic("") | SCENARIOS[name].series:
        (selector,) = selectors(text)
        series = find_series(selector.name)
        assert series is not None, text
        assert all(series.has(label) or label in TARGET_LABELS for label in selector.labels), text


def test_every_alert_fires_in_some_scenario_and_is_silent_in_another() -> None:
    everything = rules(digits_spec(CUDA))
    names = {name.removeprefix("Marina") for name in everything if "alert" in everything[name]}
    assert set().union(*(fired for scenario in SCENARIOS.values() for fired in scenario.firing.values())) == names
    assert SCENARIOS["a healthy pod fires nothing"].firing["2h"] == QUIET


@pytest.mark.slow
@pytest.mark.parametrize("error_rate", [0.0, 0.001, 0.05, 0.3])
def test_a_total_outage_pages_within_five_minutes_whatever_the_budget(error_rate: float, tmp_path: Path) -> None:
    burning = {"ErrorBudgetFastBurn"} if error_rate < 0.05 else set()
    slow = {"ErrorBudgetSlowBurn"} if error_rate < 0.1 else set()
    outage = Scenario(
        {"20m": QUIET, "25m": {"MostRequestsFail"} | burning | slow},
        traffic(FALLS_SILENT) | traffic(STARTS, code="500"),
        spec={"slo.error_rate": error_rate},
    )
    assert not promtool(tmp_path, outage)


RESTARTS = {f'kube_pod_container_status_restarts_total{{{AT},container="{SERVER_CONTAINER}"}}': "0x20 1x20 2x20 3x60"}
ANNOTATED = [
    ("MostRequestsFail", traffic("0+1500x120", code="500"), {"severity": "page"}, "100% of requests fail"),
    (
        "ContainerRestarts",
        RESTARTS,
        {"severity": "ticket", "pod": POD, "container": SERVER_CONTAINER},
        f"a container of pod {POD} restarted 3 times in an hour",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "series", "labels", "summary"), ANNOTATED)
def test_annotations_have_a_summary_and_a_link_to_the_runbook(
    name: str, series: dict[str, str], labels: dict[str, str], summary: str, tmp_path: Path
) -> None:
    spec = digits_spec({"kubernetes.monitoring.runbook_url": "https://wiki.example/alerts"})
    expected = {
        "exp_labels": {"model": "digits", "namespace": "marina"} | labels,
        "exp_annotations": {
            "summary": f"digits: {summary}",
            "runbook_url": f"https://wiki.example/alerts#marina{name.lower()}",
        },
    }
    test = {"alert_rule_test": [{"eval_time": "25m", "alertname": f"Marina{name}", "exp_alerts": [expected]}]}
    assert not run_rule_test(tmp_path, spec, series, test)


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["1", "1.0"])
def test_an_edge_of_a_whole_second_matches_as_prometheus_2_and_3_store_it(stored: str, tmp_path: Path) -> None:
    own = f'{PAGE},code="200"'
    series = {
        f"{ANSWERS}{{{own}}}": "0+1500x160",
        f'{DURATION}_bucket{{{own},le="{stored}"}}': "0+1500x80 120000+0x80",
        f'{DURATION}_bucket{{{own},le="+Inf"}}': "0+1500x160",
    } | {name: None for name in traffic("") if name not in (f"{ANSWERS}{{{own}}}",) and '"+Inf"' not in name}
    slow = {"MostRequestsSlow", "LatencyBudgetFastBurn", "LatencyBudgetSlowBurn"}
    assert not promtool(tmp_path, Scenario({"20m": QUIET, "25m": slow}, series, spec={"slo.p99_ms": 1000}))
