"""A service whose pods another engine replaces: `deploy` leaves it alone, and `status` says who to ask."""

from pathlib import Path
from typing import Any

import pytest
from k8s_rig import NAME, SPACE, documents, rig

from marina.config.errors import ClusterError

pytestmark = pytest.mark.slow
GROUPS = {
    "Rollout": ("argoproj.io/v1alpha1", "argo-rollouts", "kubectl argo rollouts get rollout shells -n sea"),
    "Canary": ("flagger.app/v1beta1", "flagger", "kubectl get canary shells -n sea"),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_deploy_refuses_and_status_says_who_replaces_the_pods(kind: str, tmp_path: Path) -> None:
    version, output_format, command = GROUPS[kind]
    with rig(tmp_path, groups=[version.partition("/")[0]]) as cluster:
        found: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": {"name": NAME, "namespace": SPACE}}
        cluster.fake.put(found)
        with pytest.raises(ClusterError, match=f"engine: .* replaces its pods, as {kind} {NAME} says") as refused:
            cluster.deploy(*documents())
        assert f"--format {output_format}" in str(refused.value.hint)
        assert not cluster.fake.names("Deployment", SPACE)
        status = cluster.status()
        assert f"`{command}` shows it" in status.to_text()
        assert status.to_data()["engine"] in status.to_text()


def test_a_cluster_with_these_engines_is_deployed_to_as_any_other(tmp_path: Path) -> None:
    with rig(tmp_path, groups=["argoproj.io", "flagger.app"]) as cluster:
        assert cluster.deploy(*documents()).result == "deployed"
        assert "engine" not in cluster.status().to_text()
