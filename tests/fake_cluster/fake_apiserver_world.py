"""The settings of the fake API server: its kinds, what it forbids, its faults, and the servers behind its pods."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fake_apiserver_kinds import BUILT_IN, Kind
from fake_apiserver_store import Document, Refusal, Store

USER = "jane"


@dataclass
class Fault:
    """A fault that the next matching requests get instead of their answers."""

    method: str
    path: str
    """A pattern to search for in path and query."""
    status: int = 0
    """0 drops the connection; -1 does not answer until the client gives up; -2 does what was asked, and then drops the
    connection."""
    times: int = 1
    reason: str = ""
    message: str = "on order of the test"
    headers: dict[str, str] = field(default_factory=dict)
    act: Callable[[], None] | None = None
    """Called when it happens."""
    passes: bool = False
    """Whether the request is then still answered."""


@dataclass
class World:
    """Tests set these while the server runs."""

    kinds: list[Kind] = field(default_factory=lambda: list(BUILT_IN))
    minor: str = "36"
    metrics_groups: list[str] = field(default_factory=lambda: ["metrics.k8s.io", "custom.metrics.k8s.io"])
    store: Store = field(default_factory=Store)
    backends: dict[int, int] = field(default_factory=dict)
    """Ports of pods, and the local ports behind them."""
    backend_of: Callable[[Document], dict[int, int]] = lambda _: {}
    """Those of one pod, if it has others than the rest."""
    execute: Callable[[Document, list[str]], tuple[int, str]] = lambda *_: (0, "")
    """Runs a command in a pod: its exit code and output."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    """(verb, resource) that the user may not do, such as ("patch", "deployments.apps")."""
    logs: dict[str, str] = field(default_factory=dict)
    """The logs of pods, by name; other pods have a hundred lines."""
    admit: Callable[[Document], None] = lambda _: None
    """A webhook that may change every object that is applied, before it is stored."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    """The warning in every answer to a write, by plural."""

    def discovery(self, path: str) -> Document | None:
        """The page at a path of discovery; None for other paths."""
        if path == "/version":
            return {"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor.rstrip('+')}.2"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        versions = sorted({(kind.group, kind.version) for kind in self.kinds if kind.group})
        versions += [(group, "v1beta1") for group in self.metrics_groups]
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*version) for version in versions]}
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in dict(versions):
            return _group(parts[1], dict(versions)[parts[1]])
        if parts == ["api", "v1"]:
            return _resources("v1", [kind for kind in self.kinds if not kind.group])
        if parts[0] == "apis" and len(parts) == 3 and tuple(parts[1:]) in versions:
            served = [kind for kind in self.kinds if (kind.group, kind.version) == tuple(parts[1:])]
            return _resources("/".join(parts[1:]), served)
        return None

    def allowed(self, asked: Document) -> bool:
        if asked["resource"] == "*":
            return not self.denied
        sub = f"/{asked['subresource']}" if asked.get("subresource") else ""
        group = f".{asked['group']}" if asked.get("group") else ""
        return (asked["verb"], f"{asked['resource']}{sub}{group}") not in self.denied

    def authorize(self, verb: str, kind: Kind, namespace: str, sub: str = "") -> None:
        asked = {"verb": verb, "resource": kind.plural, "group": kind.group, "subresource": sub}
        if not self.allowed(asked):
            resource = kind.plural + (f"/{sub}" if sub else "")
            text = f'{kind.plural} is forbidden: User "{USER}" cannot {verb} resource "{resource}" in API group '
            text += f'"{kind.group}"'
            raise Refusal(403, "Forbidden", text + (f' in the namespace "{namespace}"' if namespace else ""))


def _group(group: str, version: str) -> Document:
    named = {"groupVersion": f"{group}/{version}", "version": version}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [named], "preferredVersion": named}


def _resources(group_version: str, kinds: list[Kind]) -> Document:
    resources = []
    for kind in kinds:
        shared = {"singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind}
        resources.append(
            {"name": kind.plural, "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"], **shared}
        )
        resources += [
            {"name": f"{kind.plural}/{sub}", "verbs": ["get"], **shared, "singularName": ""}
            for sub in kind.subresources
        ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
