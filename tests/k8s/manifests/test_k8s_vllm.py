"""A pod with vLLM: its GPUs, shared memory and weights, and the alerts that it does not have."""

from pathlib import Path
from typing import Any

import k8s_plans
import pytest
from specs import changed, tales_spec

from marina.config.errors import InputError
from marina.config.record import write_json
from marina.k8s.manifests.notes import derived_numbers
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import make_plan
from marina.k8s.monitoring.catalogue import page_series
from marina.k8s.verify import verify

SERVED: dict[str, Any] = {
    "model.precision": "bf16",
    "text": {
        "engine": "vllm",
        "context": 512,
        "max_tokens": 256,
        "vllm": {"weights": "/models/tales", "args": {"tensor_parallel_size": 2}},
    },
    "serving": {"device": "cuda", "startup_timeout_s": 900},
    "kubernetes": {
        "resources": {"cpu": "8", "memory": "32Gi", "gpu": 2},
        "pod": {
            "volumes": {"weights": {"persistentVolumeClaim": {"claimName": "tales", "readOnly": True}}},
            "mounts": {"/models/tales": "weights:ro"},
        },
    },
    "scaling": {"metric": "waiting", "min_replicas": 2},
}
IMAGE = k8s_plans.IMAGE | {
    "ref": "registry.local/marina/tales",
    "digest": None,
    "package_sha256": None,
    "target": "cuda",
}


@pytest.mark.slow
def test_a_pod_with_vllm_has_its_gpus_its_shared_memory_and_its_weights(tmp_path: Path) -> None:
    plan = make_plan(tales_spec(SERVED), tmp_path)
    files = render_objects(plan)
    pod = files["40-deployment.yaml"][0]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "2"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    mounts = {mount["mountPath"]: mount["name"] for mount in server["volumeMounts"]}
    assert (mounts["/dev/shm"], mounts["/models/tales"]) == ("shm", "weights")
    assert server["startupProbe"]["failureThreshold"] * server["startupProbe"]["periodSeconds"] == 960
    assert [each for each in verify(files, plan) if each.level == "error"] == []
    without = make_plan(tales_spec(), tmp_path)
    assert "shm" not in str(render_objects(without)["40-deployment.yaml"])
    assert plan.temporary_bytes - without.temporary_bytes == 2**30
    # What the processes share counts towards the pod's memory.
    guessed = make_plan(tales_spec(changed({"kubernetes.resources.memory": "auto"}, SERVED)), tmp_path)
    assert derived_numbers(guessed)[0].value == "4Gi"
    assert derived_numbers(guessed)[0].reason.endswith("at least 2Gi, + 2048Mi of /dev/shm")


def test_the_gpu_memory_that_vllm_reserves_fires_no_alert(tmp_path: Path) -> None:
    spec = tales_spec(SERVED)
    files = str(render_objects(make_plan(spec, tmp_path)))
    assert "inference_worker_cuda_bytes" not in files + str([series.name for series in page_series(spec)])
    assert "GpuMemoryNearlyFull" not in files
    assert "DCGM_FI_DEV_GPU_UTIL" in files


def test_vllm_needs_the_image_with_vllm(tmp_path: Path) -> None:
    write_json(tmp_path / "image.json", IMAGE)
    with pytest.raises(InputError, match=r"an image for `cuda`, but `text\.engine` is `vllm`"):
        make_plan(tales_spec(SERVED), tmp_path)
    write_json(tmp_path / "image.json", IMAGE | {"target": "vllm"})
    assert make_plan(tales_spec(SERVED), tmp_path).image == "registry.local/marina/tales:1.0"
