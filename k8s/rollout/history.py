"""What Marina stores in the cluster about each release: which revision runs, who is changing it, and how to go back.

There are two kinds of ConfigMap in the spec's namespace. `marina.NAME` holds the state; `marina.NAME.rN` holds the
manifests of revision N, as `kubectl apply` accepts them, and the sample for the inference. A revision is stored before
it is applied, so what Marina applied is what is in these. No spec's name has a dot, so their names are never those of
its own objects."""

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
KEPT, _REMEMBERED = 3, 10
# A running deploy extends its hold again and again; that of a killed one expires this long after the last time.
HOLD_S = 60
# The cluster stores at most 1 MiB per object, including its metadata.
_LARGEST = 1_000_000
_MANIFESTS, _REQUEST, _SAMPLE, _ANSWER = "manifests.json", "request.json", "sample", "answer"

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
    """The kept revisions, all of which were ready once. The ones to go back to come last."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why each of the packages (or images) that were refused or rolled back is not deployed again unknowingly."""
    message: str = ""
    holder: str = ""
    """Who holds the release; empty if nobody does."""
    until: str = ""
    """When the hold expires unless it is extended, by the holder's clock: for people only, as clocks differ."""
    version: str = field(default="", compare=False)
    """The resourceVersion at which the state was read."""

    def rollback_target(self) -> int:
        """The revision to which a rollback goes by default: the one that ran before; 0 if there is none."""
        if self.phase != "deployed":
            # A rollback that was killed is continued by the same command: only a deploy has a new number.
            return self.trying if self.phase == "deploying" and self.trying in self.good else self.current
        return next((number for number in reversed(self.good) if number < self.current), 0)

    def kept_with(self, number: int) -> tuple[int, ...]:
        """The revisions to keep once `number` serves. Those that a rollback leaves are the first to go."""
        left = [other for other in self.good if number < other <= self.current]
        before = [other for other in self.good if other != number and other not in left]
        return tuple([*left, *before, number][-KEPT:])

    def refuse(self, facts: dict[str, str], why: str) -> dict[str, str]:
        """`refused` with one more; the oldest are forgotten."""
        others = {package: text for package, text in self.refused.items() if package != identity(facts)}
        return dict([*others.items(), (identity(facts), why)][-_REMEMBERED:])

    def to_text(self) -> str:
        data = {key: value for key, value in asdict(self).items() if key != "version"}
        return json.dumps({"schema": SCHEMA, **data}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str, version: str) -> "State":
        """Raises ValueError, KeyError or TypeError if somebody wrote something else."""
        data: dict[str, Any] = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"not `{SCHEMA}`")
        # An older Marina wrote no `refused`.
        data = {"refused": {}, **data}
        known = {given.name: data[given.name] for given in fields(cls) if given.name != "version"}
        state = cls(**known | {"good": tuple(data["good"]), "version": version})
        blank = cls()
        if any(type(value) is not type(getattr(blank, name)) for name, value in vars(state).items()):
            raise ValueError("a value of another type")
        sum(state.good)
        return state


def identity(facts: dict[str, str]) -> str:
    """What a revision serves: its package, or if that is unknown, its image."""
    return facts.get("package") or facts.get("image", "")


@dataclass(frozen=True)
class Revision:
    """The documents of one revision, the facts that `status` shows, and the request that its pods must answer."""

    number: int
    documents: tuple[Document, ...]
    facts: dict[str, str]
    request: CanaryRequest | None = None
    """None if there was no package, or its sample was too large to store."""


class Store:
    """The two kinds of ConfigMap of one spec."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, typed: str) -> None:
        self._cluster, self._namespace, self._name, self._typed = cluster, namespace, name, typed

    def load(self) -> State | None:
        """The state; None if this spec was never deployed."""
        document = self._cluster.get(self._ref())
        if document is None:
            return None
        try:
            return State.parse(document["data"]["state.json"], document["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError) as err:
            raise self._unreadable(self._ref(), "state", "get configmap {} -o yaml") from err

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
                gone = f"ConfigMap `{self._ref().name}`, which holds the state of `{self._name}`, was deleted meanwhile"
                raise Refused(gone, hint="marina deploy SPEC writes it again") from err
            raise
        return replace(state, version=written["metadata"]["resourceVersion"])

    def save_revision(self, revision: Revision) -> bool:
        """Stores a revision. False if its sample was too large and was left out."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": revision.documents}, separators=(",", ":"))
        if len(text.encode()) > _LARGEST:
            raise ClusterError(f"the manifests are {len(text.encode())} bytes, but a ConfigMap holds {_LARGEST}")
        document = self._document(self._ref(revision.number).name, {_MANIFESTS: text, **revision.facts})
        request = revision.request
        answer = request.answer if request else None
        fits = request is None or len(text.encode()) + len(request.body) + len(answer or b"") <= _LARGEST
        if request and fits:
            named = {"model": request.model, "content_type": request.content_type, "sha256": request.sha256}
            document["data"][_REQUEST] = json.dumps(named)
            bodies = {_SAMPLE: request.body} | ({} if answer is None else {_ANSWER: answer})
            document["binaryData"] = {key: base64.b64encode(body).decode() for key, body in bodies.items()}
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
        return self._parsed(document) if document else None

    def revisions(self) -> list[Revision]:
        """All stored revisions, in the order of their numbers."""
        return sorted(map(self._parsed, self._stored()), key=lambda revision: revision.number)

    def delete_revisions(self, *, keep: Iterable[int] = ()) -> None:
        """Deletes all stored revisions but those to keep."""
        kept = {self._ref(number).name for number in keep}
        for document in self._stored():
            if document["metadata"]["name"] not in kept:
                ref = Ref("v1", "ConfigMap", self._namespace, document["metadata"]["name"])
                self._cluster.delete(ref, uid=document["metadata"]["uid"])

    def erase(self) -> None:
        """Deletes the state and all revisions."""
        self.delete_revisions()
        if document := self._cluster.get(self._ref()):
            self._cluster.delete(self._ref(), uid=document["metadata"]["uid"])

    def _stored(self) -> list[Document]:
        labels = f"app.kubernetes.io/instance={self._name},app.kubernetes.io/component=rollout"
        listed = self._cluster.list("v1", "ConfigMap", self._namespace, labels=labels)
        return [document for document in listed if document["metadata"]["name"].startswith(f"{self._ref().name}.r")]

    def _parsed(self, document: Document) -> Revision:
        name = document["metadata"]["name"]
        try:
            data, request = document["data"], None
            bodies = {key: base64.b64decode(body) for key, body in (document.get("binaryData") or {}).items()}
            if _SAMPLE in bodies:
                named = json.loads(data[_REQUEST])
                request = CanaryRequest(**named, body=bodies[_SAMPLE], answer=bodies.get(_ANSWER))
            documents = tuple(json.loads(data[_MANIFESTS])["items"])
            for manifest in documents:
                Ref.of(manifest)
            facts = {key: value for key, value in data.items() if key not in (_MANIFESTS, _REQUEST)}
            return Revision(int(name.rpartition(".r")[2]), documents, facts, request)
        except (KeyError, TypeError, ValueError) as err:
            ref = Ref("v1", "ConfigMap", self._namespace, name)
            raise self._unreadable(ref, "revision", "delete configmap {}") from err

    def _unreadable(self, ref: Ref, what: str, typed: str) -> ClusterError:
        text = f"ConfigMap `{ref.name}` in `{self._namespace}` holds no {what} that this marina can read"
        return ClusterError(text, hint=f"kubectl -n {self._namespace} {typed.format(ref.name)}")

    def _ref(self, number: int | None = None) -> Ref:
        suffix = "" if number is None else f".r{number}"
        return Ref("v1", "ConfigMap", self._namespace, f"marina.{self._name}{suffix}")

    def _document(self, name: str, data: dict[str, str]) -> Document:
        given = {"name": self._name, "instance": self._name, "component": "rollout"}
        labels = {f"app.kubernetes.io/{key}": value for key, value in given.items()}
        labels |= {"app.kubernetes.io/part-of": "marina", "app.kubernetes.io/managed-by": "marina"}
        metadata = {"name": name, "namespace": self._namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@dataclass(frozen=True)
class Placement:
    """Where one spec is, or will be, deployed. Rollback, delete and status need nothing else."""

    cluster: Cluster
    name: str
    namespace: str
    typed: str = "SPEC"
    """How the user named it on the command line, for the hints about what to type next."""

    @property
    def store(self) -> Store:
        """The release's state and revisions in the cluster."""
        return Store(self.cluster, self.namespace, self.name, self.typed)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
