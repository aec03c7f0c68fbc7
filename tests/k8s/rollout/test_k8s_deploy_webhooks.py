"""Webhooks that change what is applied, or refuse to store what Marina keeps."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_apiserver_world import Fault
from k8s_rig import Rig, autoscaler, documents, rig

from marina.config.errors import ClusterError
from marina.k8s.cluster import Document
from marina.k8s.rollout.diff import is_of_others

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as made:
        made.fake.admit = stamp(itertools.count())
        yield made


def stamp(numbers: Iterator[int]) -> Any:
    """A webhook that writes a new annotation at each request, also into the template of pods."""

    def admit(document: Document) -> None:
        if document["kind"] != "Namespace":
            document["metadata"].setdefault("annotations", {})["stamp"] = str(next(numbers))
        if document["kind"] == "Deployment":
            annotations = document["spec"]["template"]["metadata"].setdefault("annotations", {})
            annotations["stamp"] = str(next(numbers))

    return admit


def test_a_webhook_that_writes_something_new_at_each_request_makes_no_new_revision(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", autoscaler("rate")))
    before = cluster.fake.versions()
    assert cluster.deploy(*documents("good:1", autoscaler("rate")), dry_run=True).revision == 1
    assert cluster.deploy(*documents("good:1", autoscaler("rate"))).result == "unchanged"
    assert cluster.fake.versions() == before
    changed = cluster.deploy(*documents("good:2", autoscaler("rate")))
    assert (changed.result, changed.revision, cluster.image) == ("deployed", 2, "good:2")


def test_an_image_whose_registry_a_webhook_replaces_is_not_called_changed(cluster: Rig) -> None:
    def mirrored(document: Document) -> None:
        for container in document["spec"]["template"]["spec"]["containers"] if document["kind"] == "Deployment" else []:
            container["image"] = "mirror.local/" + container["image"].removeprefix("mirror.local/")

    cluster.fake.admit = mirrored
    cluster.deploy(*documents("good:1"))
    assert (cluster.image, cluster.status().causes) == ("mirror.local/good:1", ())
    assert cluster.deploy(*documents("good:1")).result == "unchanged"


def test_a_revision_that_a_quota_or_a_webhook_refuses_to_store_changes_nothing(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    quota = "exceeded quota: team, requested: count/configmaps=1, used: 4, limited: 4"
    cluster.fake.faults.append(Fault("POST", "/configmaps", 403, reason="Forbidden", message=quota))
    with pytest.raises(ClusterError, match=f"^ConfigMap marina.shells.r2: {quota}$"):
        cluster.deploy(*documents("good:2"))
    assert (cluster.status().exit_code, cluster.state.current, cluster.image) == (0, 1, "good:1")
    assert (cluster.record["running"], cluster.record["next"]) == (1, "")
    assert cluster.deploy(*documents("good:2")).revision == 2


def test_a_first_revision_that_could_not_be_stored_has_no_number(cluster: Rig) -> None:
    # The first ConfigMap is the state, the second the revision.
    quota = Fault("POST", "/configmaps", 403, reason="Forbidden", message="exceeded quota: team")
    cluster.fake.faults += [Fault("POST", "/configmaps", passes=True), quota]
    with pytest.raises(ClusterError, match="exceeded quota"):
        cluster.deploy(*documents("good:1"))
    assert ": the first revision failed\n" in cluster.status().to_text()


def test_a_field_that_marina_applies_no_longer_is_a_change(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    without = [*documents("good:1")]
    del without[3]["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert cluster.deploy(*without).revision == 2


def metrics(*types: str) -> Document:
    return {"metadata": {}, "spec": {"metrics": [{"type": kind, "at": at} for at, kind in enumerate(types)]}}


def variables(*names: str) -> Document:
    return {"metadata": {}, "spec": {"env": [{"name": name} for name in names]}}


@pytest.mark.parametrize(
    ("before", "after", "document", "of_others"),
    [
        pytest.param(variables("a"), variables("a", "injected"), variables("a"), True, id="more"),
        pytest.param(variables("a", "b"), variables("b", "a"), variables("b", "a"), False, id="order"),
        pytest.param(metrics("Pods", "Pods"), metrics("Pods"), metrics("Pods"), False, id="twice"),
        pytest.param(metrics("Pods"), metrics("Pods", "Pods"), metrics("Pods", "Pods"), False, id="alike"),
    ],
)
def test_lists_are_of_others_only_if_the_items_of_the_document_stay_as_they_are(
    before: Document, after: Document, document: Document, of_others: bool
) -> None:
    assert is_of_others(before, after, document) == of_others
