"""Reads and writes of single objects, as the fake API server does them."""

import json

import fake_apiserver_fields as fields
import yaml
from aiohttp import web
from fake_apiserver_controllers import KIND, Controllers, is_ready
from fake_apiserver_kinds import Kind, defaults
from fake_apiserver_store import Document, Refusal, key, now
from fake_apiserver_world import World

# The top-level fields of the known kinds.
_DECLARED = {"apiVersion", "automountServiceAccountToken", "binaryData", "data", "imagePullSecrets", "immutable",
             "kind", "metadata", "secrets", "spec", "stringData", "type"}  # fmt: skip


class Objects:
    """One method per HTTP method; all are called with the store's lock held."""

    def __init__(self, world: World) -> None:
        self._world, self.store = world, world.store

    def answer(self, request: web.Request, kind: Kind, namespace: str, name: str, body: bytes) -> tuple[int, Document]:
        act = {
            "GET": self._get,
            "POST": self._create,
            "PUT": self._replace,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        return act[request.method](request, kind, namespace, name, body)

    def _get(self, _: web.Request, kind: Kind, namespace: str, name: str, __: bytes) -> tuple[int, Document]:
        return 200, self.store.get(kind, namespace, name)

    def _create(self, request: web.Request, kind: Kind, namespace: str, _: str, body: bytes) -> tuple[int, Document]:
        document = json.loads(body)
        name = document["metadata"]["name"]
        self._must_exist(namespace)
        if key(kind, namespace, name) in self.store.objects:
            raise Refusal(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        written = fields.update(None, defaults(document), request.query.get("fieldManager", "python"), moment=now())
        return 201, self.store.put(kind, written)

    def _replace(
        self, request: web.Request, kind: Kind, namespace: str, name: str, body: bytes
    ) -> tuple[int, Document]:
        document, before = json.loads(body), self.store.get(kind, namespace, name)
        version = document["metadata"].get("resourceVersion")
        if version and version != before["metadata"]["resourceVersion"]:
            text = (
                f'Operation cannot be fulfilled on {kind.plural} "{name}": the object has been modified; please apply '
            )
            raise Refusal(409, "Conflict", text + "your changes to the latest version and try again")
        written = fields.update(before, defaults(document), request.query.get("fieldManager", "python"), moment=now())
        kept = ("uid", "creationTimestamp", "generation")
        written["metadata"] |= {field: before["metadata"][field] for field in kept}
        return 200, self.store.put(kind, written)

    def _patch(self, request: web.Request, kind: Kind, namespace: str, name: str, body: bytes) -> tuple[int, Document]:
        query = request.query
        if request.content_type != "application/apply-patch+yaml":
            raise Refusal(415, "UnsupportedMediaType", f"the fake does not know {request.content_type}")
        if not query.get("fieldManager"):
            raise Refusal(422, "Invalid", "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        config = yaml.safe_load(body)
        self._must_fit(config, kind, namespace, name)
        before = self.store.objects.get(key(kind, namespace, name))
        if before is None:
            self._must_exist(namespace)
            self._world.authorize("create", kind, namespace)
        force = query.get("force", "").lower() in ("1", "true")
        try:
            done = fields.apply(before, config, query["fieldManager"], force=force, moment=now(), defaults=defaults)
        except fields.Conflicts as err:
            status = fields.conflict_status(err.found)
            raise Refusal(409, "Conflict", status["message"], status["details"]) from err
        self._world.admit(done)
        if query.get("dryRun") == "All":
            return 200 if before else 201, done
        return 200 if before else 201, self.store.put(kind, done)

    def _delete(self, request: web.Request, kind: Kind, namespace: str, name: str, body: bytes) -> tuple[int, Document]:
        before = self.store.get(kind, namespace, name)
        options = json.loads(body) if body else {}
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != before["metadata"]["uid"]:
            text = f"the UID in the precondition ({wanted}) does not match the UID in record"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {kind.plural} "{name}": {text}')
        if options.get("dryRun") == ["All"]:
            return 200, before
        if before["metadata"].get("finalizers"):
            before["metadata"].setdefault("deletionTimestamp", now())
            return 200, self.store.put(kind, before)
        self.store.remove(key(kind, namespace, name))
        return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def evict(self, controllers: Controllers, pod: Document) -> None:
        """Deletes a pod if its disruption budget allows that."""
        labels, space = pod["metadata"].get("labels", {}), pod["metadata"]["namespace"]
        for budget in self.store.list(KIND["PodDisruptionBudget"], space):
            chosen = budget["spec"]["selector"]["matchLabels"].items()
            if chosen <= labels.items():
                pods = [each for each in self.store.list(KIND["Pod"], space) if chosen <= _labels(each).items()]
                alive = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
                templates = [each["spec"] for each in self.store.list(KIND["Deployment"], space)]
                wanted = sum(each["replicas"] for each in templates if chosen <= _labels(each["template"]).items())
                if sum(map(is_ready, alive)) <= wanted - budget["spec"]["maxUnavailable"]:
                    text = "Cannot evict pod as it would violate the pod's disruption budget."
                    raise Refusal(429, "TooManyRequests", text)
        controllers.delete(pod, "Pod")

    def _must_fit(self, config: Document, kind: Kind, namespace: str, name: str) -> None:
        """Checks an apply against the schema and the address."""
        if (config.get("apiVersion"), config.get("kind")) != (kind.group_version, kind.kind):
            raise Refusal(400, "BadRequest", "apiVersion and kind do not match the address")
        metadata = config["metadata"]
        if metadata.get("name") != name or metadata.get("namespace", namespace) != namespace:
            raise Refusal(400, "BadRequest", "the name of the object does not match the address")
        if "managedFields" in metadata:
            raise Refusal(400, "BadRequest", "metadata.managedFields must be nil")
        if unknown := set(config) - _DECLARED:
            what = f"{namespace}/{name}; {kind.group_version}, Kind={kind.kind}"
            text = f"failed to create typed patch object ({what}): "
            raise Refusal(500, "InternalError", text + f".{min(unknown)}: field not declared in schema")

    def _must_exist(self, namespace: str) -> None:
        if namespace and key(KIND["Namespace"], "", namespace) not in self.store.objects:
            raise Refusal(
                404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )


def _labels(document: Document) -> dict[str, str]:
    labels: dict[str, str] = document["metadata"].get("labels", {})
    return labels
