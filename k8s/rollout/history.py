"""What Marina stores in the cluster about each release: which revision runs, what was applied, and how to go back.

There are two kinds of ConfigMap in the spec's namespace. `marina.NAME` holds the state; `marina.NAME.rN` holds the
manifests of revision N, as `kubectl apply` accepts them, and the sample for the inference. No spec's name has a dot, so
these names are never those of its own objects."""

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from marina.config.errors import ClusterError, Refused
from marina.k8s.cluster import ApiError, Cluster, Document, Ref
from marina.k8s.rollout.inference import CanaryRequest

SCHEMA = "marina.state/1"
KEPT = 3
# A running deploy extends its hold again and again; that of a killed one expires this long after the last time.
HOLD_S = 60
# The cluster stores at most 1 MiB per object, including its metadata.
_LARGEST = 1_000_000
_COMPONENT = "rollout"
_MANIFESTS, _REQUEST, _SAMPLE = "manifests.json", "request.json", "sample"

Phase = Literal["deployed", "deploying", "failed", "interrupted", "deleting"]


@dataclass(frozen=True)
class State:
    """The state of one spec's release in one namespace."""

    phase: Phase = "deployed"
    current: int = 0
    """The last revision that became ready; 0 if none has."""
    trying: int = 0
    """The revision that is being deployed, or failed to deploy; 0 if there is none."""
    last: int = 0
    """The highest revision number given so far."""
    good: tuple[int, ...] = ()
    """The kept revisions, all of which were ready once, oldest first."""
    undone: tuple[int, ...] = ()
    """Those of the kept revisions that a rollback left or skipped."""
    objects: tuple[Ref, ...] = ()
    """Every object that was applied and may still exist."""
    message: str = ""
    holder: str = ""
    """Who holds the release; empty if nobody does."""
    until: str = ""
    """When the hold expires unless it is extended, by the holder's clock: for people only, as clocks differ."""
    version: str = field(default="", compare=False)
    """The resourceVersion at which the state was read."""

    def rollback_target(self) -> int:
        """The revision to which a rollback goes by default: the one that ran before; 0 if there is none."""
        if self.phase == "deploying" and self.trying in self.good:
            # A rollback that was killed, because only a deploy has a new number: the same command continues it.
            return self.trying
        if self.phase != "deployed" and self.current:
            return self.current
        before = [number for number in self.good if number < self.current and number not in self.undone]
        return max(before, default=0)

    def kept_with(self, number: int) -> tuple[int, ...]:
        """The revisions to keep once a new one is ready. Those that a rollback left go first, then the oldest."""
        by_worth = sorted((*self.good, number), key=lambda revision: (revision not in self.undone, revision))
        return tuple(sorted(by_worth[-KEPT:]))

    def to_text(self) -> str:
        data = {key: value for key, value in asdict(self).items() if key != "version"}
        return json.dumps({"schema": SCHEMA, **data}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str, version: str) -> "State":
        data: dict[str, Any] = json.loads(text)
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            raise ValueError(f"not `{SCHEMA}`")
        known = {key: value for key, value in data.items() if key in {field.name for field in fields(cls)}}
        tuples = {key: tuple(data[key]) for key in ("good", "undone")}
        state = cls(**known | tuples | {"objects": tuple(Ref(**ref) for ref in data["objects"]), "version": version})
        # Somebody may have edited it.
        numbers = (state.current, state.trying, state.last, *state.good, *state.undone)
        texts = (state.phase, state.message, state.holder, state.until)
        if not all(isinstance(number, int) for number in numbers) or not all(isinstance(entry, str) for entry in texts):
            raise ValueError("a value of another type")
        return state


@dataclass(frozen=True)
class Revision:
    """The documents of one revision, the facts that `status` shows, and the request that its pods must answer."""

    number: int
    documents: tuple[Document, ...]
    facts: dict[str, str]
    request: CanaryRequest | None = None
    """None if there was no package, or its sample was too large to store."""


class Store:
    """The two kinds of ConfigMap of one spec. Every write is refused if somebody else wrote since the last read."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, typed: str) -> None:
        self._cluster, self._namespace, self._name, self._typed = cluster, namespace, name, typed

    def load(self) -> State | None:
        """The state; None if this spec was never deployed."""
        document = self._cluster.get(self._ref())
        if document is None:
            return self._recovered()
        try:
            return State.parse(document["data"]["state.json"], document["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError) as err:
            raise self._unreadable(self._ref(), "state", "get configmap {} -o yaml") from err

    def _recovered(self) -> State | None:
        """What the revisions tell if somebody deleted the state; None if there are none."""
        numbers = sorted(int(name.rpartition(".r")[2]) for name, _ in self._revisions())
        if not numbers:
            return None
        stored = filter(None, map(self.read_revision, numbers))
        objects = sorted({Ref.of(document) for revision in stored for document in revision.documents})
        text = f"somebody deleted ConfigMap `{self._ref().name}`, so it is unknown which revision runs"
        last, kept = numbers[-1], tuple(numbers)
        # One of them may have failed, so a rollback goes to none unless it is named.
        return State("failed", trying=last, last=last, good=kept, undone=kept, objects=tuple(objects), message=text)

    def save(self, state: State) -> State:
        """Writes the state and extends its hold, if any. Raises Refused if somebody else wrote it since it was read."""
        if state.holder:
            # It differs every time: a write that changes nothing keeps its version, and would extend nothing.
            state = replace(state, until=_stamp(datetime.now(UTC) + timedelta(seconds=HOLD_S)))
        document = self._document(self._ref().name, {"state.json": state.to_text()})
        try:
            if state.version:
                document["metadata"]["resourceVersion"] = state.version
                written = self._cluster.replace(document)
            else:
                written = self._cluster.create(document)
        except ApiError as err:
            # If the answer to our own write was lost, it was sent again, over itself.
            if err.lost_race:
                if (stored := self.load()) == state:
                    return stored
                who = stored.holder if stored and stored.holder else "somebody else"
                text = f"`{self._name}` was changed by {who} at the same time"
                raise Refused(text, hint=f"marina status {self._typed}; then try again") from err
            if err.status == 404:
                raise Refused(
                    f"ConfigMap `{self._ref().name}`, which holds the state of `{self._name}`, was deleted meanwhile",
                    hint="marina deploy SPEC writes it again",
                ) from err
            raise
        return replace(state, version=written["metadata"]["resourceVersion"])

    def save_revision(self, revision: Revision) -> bool:
        """Stores a revision. False if its sample was too large and was left out."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": revision.documents}, separators=(",", ":"))
        if len(text.encode()) > _LARGEST:
            raise ClusterError(f"the manifests are {len(text.encode())} bytes, but a ConfigMap holds {_LARGEST}")
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
            # A run that was killed before it saved the state left this revision; its number is free again. All of it is
            # replaced: of what is only applied, another package's sample would stay.
            self._cluster.replace(document)
        return fits

    def read_revision(self, number: int) -> Revision | None:
        """A stored revision; None if it is not stored any more."""
        document = self._cluster.get(self._ref(number))
        if document is None:
            return None
        try:
            data, sample = document["data"], (document.get("binaryData") or {}).get(_SAMPLE)
            request = None
            if sample is not None:
                request = CanaryRequest(**json.loads(data[_REQUEST]), body=base64.b64decode(sample))
            facts = {key: value for key, value in data.items() if key not in (_MANIFESTS, _REQUEST)}
            documents = tuple(json.loads(data[_MANIFESTS])["items"])
            for manifest in documents:
                Ref.of(manifest)
        except (KeyError, TypeError, ValueError) as err:
            raise self._unreadable(self._ref(number), "revision", "delete configmap {}") from err
        return Revision(number, documents, facts, request)

    def _unreadable(self, ref: Ref, what: str, typed: str) -> ClusterError:
        return ClusterError(
            f"ConfigMap `{ref.name}` in `{self._namespace}` holds no {what} that this marina can read",
            hint=f"kubectl -n {self._namespace} {typed.format(ref.name)}",
        )

    def delete_revisions(self, *, keep: Iterable[int] = ()) -> None:
        """Deletes all stored revisions but those to keep."""
        kept = {self._ref(number).name for number in keep}
        for name, uid in self._revisions():
            if name not in kept:
                self._cluster.delete(Ref("v1", "ConfigMap", self._namespace, name), uid=uid)

    def owns(self, ref: Ref) -> bool:
        """Whether an object is one of these ConfigMaps."""
        return ref.kind == "ConfigMap" and (ref == self._ref() or ref.name.startswith(f"{self._ref().name}.r"))

    def erase(self) -> None:
        """Deletes the state and all revisions."""
        self.delete_revisions()
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
    listed = cluster.list("v1", "ConfigMap", namespace, labels=f"app.kubernetes.io/component={_COMPONENT}")
    names = {item["metadata"]["labels"].get("app.kubernetes.io/instance", "") for item in listed["items"]}
    return sorted(names - {name})


def _labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": _COMPONENT,
        "app.kubernetes.io/part-of": "marina",
        "app.kubernetes.io/managed-by": "marina",
    }


def _selector(name: str) -> str:
    return f"app.kubernetes.io/instance={name},app.kubernetes.io/component={_COMPONENT}"


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
