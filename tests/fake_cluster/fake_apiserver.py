"""An API server for tests: HTTPS, discovery, server-side apply with field owners, subresources, and faults.

It answers the requests of the tests as a real server of 1.36 does, and refuses all others, so that no test passes by
accident. Pods follow a script; port-forwards lead to real servers on this machine.
"""

import asyncio
import base64
import re
import ssl
import threading
from copy import deepcopy
from pathlib import Path

import fake_apiserver_fields as fields
import yaml
from aiohttp import web
from certificates import self_signed
from fake_apiserver_controllers import KIND, Controllers
from fake_apiserver_kinds import BUILT_IN, INSTALLABLE, Kind, defaults
from fake_apiserver_objects import Objects
from fake_apiserver_store import Document, Refusal, key, now
from fake_apiserver_streams import Streams, selected
from fake_apiserver_world import Fault, World

TOKEN = "a-token-for-tests"
_OBJECT = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$"
)


class FakeCluster(World):
    """One cluster; `with FakeCluster(folder) as cluster:` writes a kubeconfig into the folder."""

    def __init__(self, folder: Path, *, groups: tuple[str, ...] = (), minor: str = "36") -> None:
        super().__init__([*BUILT_IN, *(kind for kind in INSTALLABLE if kind.group in groups)], minor)
        self.folder = folder
        self.controllers = Controllers(self.store)
        self._single, self._streams = Objects(self), Streams(self)
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})

    def __enter__(self) -> "FakeCluster":
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="api server", daemon=True)
        self._thread.start()
        assert started.wait(10)
        self.kubeconfig = self._write_kubeconfig()
        self.controllers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.controllers.stop()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def put(self, document: Document, manager: str = "kubectl") -> Document:
        """Writes an object in the name of somebody else."""
        with self.store.lock:
            kind = self._kind_of(document)
            metadata = document["metadata"]
            before = self.store.objects.get(key(kind, metadata.get("namespace", ""), metadata["name"]))
            written = fields.update(before, defaults({**(before or {}), **document}), manager, moment=now())
            if before:
                written["metadata"] |= {"uid": before["metadata"]["uid"]}
            return self.store.put(kind, written)

    def scale(self, namespace: str, name: str, replicas: int, manager: str = "kube-controller-manager") -> None:
        """Sets the number of pods in the way of an autoscaler."""
        with self.store.lock:
            before = self.store.get(KIND["Deployment"], namespace, name)
            after = deepcopy(before)
            after["spec"]["replicas"] = replicas
            written = fields.update(before, after, manager, moment=now(), subresource="scale")
            self.store.put(KIND["Deployment"], written)

    def get(self, kind: str, name: str, namespace: str = "") -> Document | None:
        """An object as it is stored."""
        with self.store.lock:
            wanted = next(served for served in self.kinds if served.kind == kind)
            return deepcopy(self.store.objects.get(key(wanted, namespace, name)))

    def names(self, kind: str, namespace: str) -> list[str]:
        with self.store.lock:
            wanted = next(served for served in self.kinds if served.kind == kind)
            return [document["metadata"]["name"] for document in self.store.list(wanted, namespace)]

    def versions(self) -> dict[str, str]:
        """The version of every object, to see whether any was written; of Deployments the generation, because their
        controllers write the status."""
        with self.store.lock:
            return {
                "/".join(place): str(
                    document["metadata"]["generation" if place[1] == "deployments" else "resourceVersion"]
                )
                for place, document in self.store.objects.items()
                if place[1] not in ("pods", "replicasets", "events")
            }

    def _serve(self, started: threading.Event) -> None:
        asyncio.run(self._main(started))

    async def _main(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=32 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self_signed(self.folder))
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = runner.addresses[0][1]
        started.set()
        await self._stop.wait()
        await runner.cleanup()

    def _write_kubeconfig(self) -> Path:
        authority = base64.b64encode((self.folder / "ca.pem").read_bytes()).decode()
        data = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [
                {
                    "name": "fake",
                    "cluster": {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "jane", "user": {"token": TOKEN}}],
            "contexts": [{"name": name, "context": {"cluster": "fake", "user": "jane"}} for name in ("fake", "other")],
        }
        file = self.folder / "kubeconfig"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        return file

    def _kind_of(self, document: Document) -> Kind:
        wanted = (document["apiVersion"], document["kind"])
        return next(kind for kind in self.kinds if (kind.group_version, kind.kind) == wanted)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        place = request.path_qs
        self.requests.append((request.method, place))
        for fault in self.faults:
            if fault.times and fault.method == request.method and re.search(fault.path, place):
                fault.times -= 1
                if fault.act:
                    fault.act()
                if fault.status == -2:
                    await self._route(request)
                if not fault.passes:
                    return await self._fail(request, fault)
                break
        try:
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            return await self._route(request)
        except Refusal as err:
            return web.json_response(err.status, status=err.code)

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.status == -1:
            await asyncio.sleep(30)
        if fault.status <= 0:
            assert request.transport
            request.transport.abort()
            return web.Response()
        body = Refusal(fault.status, fault.reason, fault.message).status
        return web.json_response(body, status=fault.status, headers=fault.headers)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if (page := self.discovery(path)) is not None:
            return web.json_response(page)
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            asked = (await request.json())["spec"]["resourceAttributes"]
            return web.json_response({"status": {"allowed": self.allowed(asked)}}, status=201)
        match = _OBJECT.match(path)
        kind = match and next(
            (
                served
                for served in self.kinds
                if served.plural == match["plural"]
                and served.group_version == (match["core"] or f"{match['group']}/{match['version']}")
            ),
            None,
        )
        if not match or not kind or (match["namespace"] and not kind.namespaced):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        namespace, name, sub = match["namespace"] or "", match["name"] or "", match["sub"] or ""
        streams = {"portforward": self._streams.forward, "log": self._streams.log, "exec": self._streams.execute}
        if sub in streams:
            self.authorize("create" if sub == "exec" else "get", kind, namespace, sub)
            return await streams[sub](request, kind, namespace, name)
        if sub == "eviction":
            self.authorize("create", kind, namespace, sub)
            with self.store.lock:
                self._single.evict(self.controllers, self.store.get(kind, namespace, name))
            return web.json_response({"kind": "Status", "status": "Success"}, status=201)
        return await self._objects(request, kind, namespace, name)

    async def _objects(self, request: web.Request, kind: Kind, namespace: str, name: str) -> web.StreamResponse:
        query = request.query
        if request.method == "GET" and not name:
            self.authorize("list", kind, namespace)
            with self.store.lock:
                items = [document for document in self.store.list(kind, namespace) if selected(document, query)]
                version = str(self.store.version)
            listed = {"kind": f"{kind.kind}List", "apiVersion": kind.group_version, "items": items}
            return web.json_response(listed | {"metadata": {"resourceVersion": version}})
        verbs = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        self.authorize(verbs[request.method], kind, namespace)
        body = await request.read()
        with self.store.lock:
            status, document = self._single.answer(request, kind, namespace, name, body)
        words = self.warnings.get(kind.plural) if request.method in ("POST", "PUT", "PATCH") else None
        headers = {"Warning": f'299 - "{words}"'} if words else {}
        return web.json_response(document, status=status, headers=headers)
