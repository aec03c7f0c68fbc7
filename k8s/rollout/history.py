"""What this kit remembers in the cluster, one spec at a time: which revision runs, what it applied, and how to go back.

Two kinds of ConfigMap, in the namespace of the spec; no spec's name has a dot, so none of its objects is in their way:
`marina.NAME` holds the state, `marina.NAME.rN` the manifests of revision N, as `kubectl apply` takes them, and the
sample that its pods are asked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from config.errors import ClusterError, Refused
from k8s.cluster import ApiError, Cluster, Document, Ref
from k8s.rollout.inference import CanaryRequest

SCHEMA = "marina.state/1"
KEPT = 3
# A deploy renews its hold while it works; the hold of a killed one expires.
HOLD_S = 60
# An object in a cluster holds 1 MiB at most, with its metadata.
_LARGEST = 1_000_000
_PART = "rollout"
_MANIFESTS, _REQUEST, _SAMPLE = "manifests.json", "request.json", "sample"

Phase = Literal["deployed", "deploying", "failed", "interrupted", "deleting"]


@dataclass(frozen=True)
class State:
    """Where one spec stands in one namespace."""

    phase: Phase = "deployed"
    current: int = 0
    """The last revision that came up; 0 before the first."""
    trying: int = 0
    """The revision that is, or was, on its way; 0 when there is none."""
    last: int = 0
    """The highest number ever given."""
    good: tuple[int, ...] = ()
    """Revisions that came up once and are kept, oldest first."""
    undone: tuple[int, ...] = ()
    """Those of them that a rollback left, or passed over."""
    objects: tuple[Ref, ...] = ()
    """All that was ever applied and may still be there."""
    message: str = ""
    holder: str = ""
    """Who is changing it; empty when nobody is."""
    until: str = ""
    """When the hold ends by itself."""
    version: str = field(default="", compare=False)
    """The resourceVersion this was read at."""

    @property
    def held(self) -> bool:
        """Whether somebody is at work right now."""
        return bool(self.holder) and self.until > _stamp(datetime.now(UTC))

    def to_go_back_to(self) -> int:
        """The revision that a rollback means when none is named: the one that ran before; 0 when there is none."""
        if self.phase != "deployed" and self.current:
            return self.current
        before = [number for number in self.good if number < self.current and number not in self.undone]
        return max(before, default=0)

    def keeping(self, number: int) -> tuple[int, ...]:
        """What is kept once a new revision has come up: those that a rollback left go first, then the oldest."""
        by_worth = sorted((*self.good, number), key=lambda revision: (revision not in self.undone, revision))
        return tuple(sorted(by_worth[-KEPT:]))

    def to_text(self) -> str:
        data = {key: value for key, value in asdict(self).items() if key != "version"}
        return json.dumps({"schema": SCHEMA, **data}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str, version: str) -> State:
        data: dict[str, Any] = json.loads(text)
        if data.pop("schema", None) != SCHEMA:
            raise ValueError(f"not `{SCHEMA}`")
        known = {key: value for key, value in data.items() if key in {field.name for field in fields(cls)}}
        tuples = {key: tuple(data[key]) for key in ("good", "undone")}
        return cls(**known | tuples | {"objects": tuple(Ref(**ref) for ref in data["objects"]), "version": version})


@dataclass(frozen=True)
class Revision:
    """What was applied, the facts that `status` shows of it, and what its pods are asked."""

    number: int
    documents: tuple[Document, ...]
    facts: dict[str, str]
    request: CanaryRequest | None = None
    """None where no package was at hand, or its sample was too large to be kept."""


class Store:
    """The two kinds of ConfigMap of one spec. Every write is over the version that was read: the slower one is told."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name

    def load(self) -> State | None:
        """The state; None where this spec was never deployed."""
        document = self._cluster.get(self._ref())
        if document is None:
            return None
        try:
            return State.parse(document["data"]["state.json"], document["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError) as err:
            raise ClusterError(
                f"ConfigMap `{self._ref().name}` in `{self._namespace}` holds no state that this marina reads",
                hint=f"kubectl -n {self._namespace} get configmap {self._ref().name} -o yaml",
            ) from err

    def hold(self, state: State, holder: str) -> State:
        """The state with a hold on it; Refused while another's lasts."""
        if state.held and state.holder != holder:
            raise Refused(
                f"`{self._name}` is being changed by {state.holder} right now; its hold lasts until {state.until}",
                hint="wait for it; the hold of a killed process ends within a minute",
            )
        return self.save(replace(state, holder=holder))

    def save(self, state: State) -> State:
        """Writes the state, renewing our hold if it has one; Refused when somebody else wrote it since it was read."""
        if state.holder:
            state = replace(state, until=_stamp(datetime.now(UTC) + timedelta(seconds=HOLD_S)))
        document = self._document(self._ref().name, {"state.json": state.to_text()})
        try:
            if state.version:
                document["metadata"]["resourceVersion"] = state.version
                written = self._cluster.replace(document)
            else:
                written = self._cluster.create(document)
        except ApiError as err:
            if err.lost_race or err.status == 404:
                raise Refused(
                    f"`{self._name}` was changed by somebody else at the same time", hint="marina status SPEC"
                ) from err
            raise
        return replace(state, version=written["metadata"]["resourceVersion"])

    def keep(self, revision: Revision) -> bool:
        """Stores what a revision is made of; false when its sample is too large to be kept with it."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": revision.documents}, separators=(",", ":"))
        if len(text.encode()) > _LARGEST:
            raise ClusterError(f"the manifests are {len(text.encode())} bytes, and a ConfigMap holds {_LARGEST}")
        document = self._document(self._ref(revision.number).name, {_MANIFESTS: text, **revision.facts})
        request = revision.request
        fits = request is None or len(text.encode()) + len(request.body) <= _LARGEST
        if request and fits:
            named = {"model": request.model, "content_type": request.content_type, "sha256": request.sha256}
            document["data"][_REQUEST] = json.dumps(named)
            document["binaryData"] = {_SAMPLE: base64.b64encode(request.body).decode()}
        try:
            self._cluster.create(document)
        except ApiError as err:
            if not err.lost_race:
                raise
            # Left behind by a run that ended before it could say so; the number is ours now.
            self._cluster.apply(document, force=True)
        return fits

    def read(self, number: int) -> Revision | None:
        """A kept revision; None when it is not kept any more."""
        document = self._cluster.get(self._ref(number))
        if document is None:
            return None
        data, sample = document["data"], (document.get("binaryData") or {}).get(_SAMPLE)
        request = None
        if sample is not None:
            request = CanaryRequest(**json.loads(data[_REQUEST]), body=base64.b64decode(sample))
        facts = {key: value for key, value in data.items() if key not in (_MANIFESTS, _REQUEST)}
        return Revision(number, tuple(json.loads(data[_MANIFESTS])["items"]), facts, request)

    def forget(self, *, keep: Iterable[int] = ()) -> None:
        """Deletes the revisions that are not to be kept."""
        kept = {self._ref(number).name for number in keep}
        for name, uid in self._revisions():
            if name not in kept:
                self._cluster.delete(Ref("v1", "ConfigMap", self._namespace, name), uid=uid)

    def owns(self, ref: Ref) -> bool:
        """Whether an object is one of these ConfigMaps."""
        return ref.kind == "ConfigMap" and (ref == self._ref() or ref.name.startswith(f"{self._ref().name}.r"))

    def erase(self) -> None:
        """Deletes everything that is remembered of this spec."""
        self.forget()
        if document := self._cluster.get(self._ref()):
            self._cluster.delete(self._ref(), uid=document["metadata"]["uid"])

    def _revisions(self) -> list[tuple[str, str]]:
        listed = self._cluster.list("v1", "ConfigMap", self._namespace, labels=_selector(self._name))
        prefix = f"{self._ref().name}.r"
        items = (item["metadata"] for item in listed["items"])
        return [(item["name"], item["uid"]) for item in items if item["name"].startswith(prefix)]

    def _ref(self, number: int | None = None) -> Ref:
        suffix = "" if number is None else f".r{number}"
        return Ref("v1", "ConfigMap", self._namespace, f"marina.{self._name}{suffix}")

    def _document(self, name: str, data: dict[str, str]) -> Document:
        metadata = {"name": name, "namespace": self._namespace, "labels": _labels(self._name)}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def others_in(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """The other specs that are deployed in a namespace."""
    listed = cluster.list("v1", "ConfigMap", namespace, labels=f"app.kubernetes.io/component={_PART}")
    names = {item["metadata"]["labels"].get("app.kubernetes.io/instance", "") for item in listed["items"]}
    return sorted(names - {name})


def _labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": _PART,
        "app.kubernetes.io/part-of": "marina",
        "app.kubernetes.io/managed-by": "marina",
    }


def _selector(name: str) -> str:
    return f"app.kubernetes.io/instance={name},app.kubernetes.io/component={_PART}"


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
