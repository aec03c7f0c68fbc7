"""The streams of the fake API server: watches, proxies, port-forwards, logs."""

import asyncio
import json
from typing import Any

from aiohttp import ClientSession, WSMsgType, web
from fake_apiserver_controllers import ready_pods
from fake_apiserver_kinds import Kind
from fake_apiserver_store import Document, Refusal
from fake_apiserver_world import World


class Streams:
    """One coroutine for each kind of stream."""

    def __init__(self, world: World) -> None:
        self._world, self.store = world, world.store

    async def watch(self, request: web.Request, response: web.StreamResponse, kind: Kind, namespace: str) -> None:
        version, seconds = (
            int(request.query.get("resourceVersion") or 0),
            float(request.query.get("timeoutSeconds", 60)),
        )
        await response.prepare(request)
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until and not self._world.closing:
            with self.store.lock:
                gone = version < self.store.oldest
                events = [
                    event
                    for event in self.store.history
                    if event.version > version
                    and event.key[:2] == (kind.group, kind.plural)
                    and namespace in ("", event.key[2])
                    and selected(event.document, request.query)
                ]
                newest = self.store.version
            if gone:
                text = f"too old resource version: {version} ({newest})"
                await _send(response, "ERROR", Refusal(410, "Expired", text).status)
                return
            for event in events:
                await _send(response, event.type, event.document)
            if newest > version and request.query.get("allowWatchBookmarks") == "true" and not events:
                bookmark = {"kind": kind.kind, "apiVersion": kind.group_version}
                await _send(response, "BOOKMARK", bookmark | {"metadata": {"resourceVersion": str(newest)}})
            version = max(version, newest)
            await asyncio.get_running_loop().run_in_executor(None, self._wait_for_change, version)

    def _wait_for_change(self, version: int) -> None:
        with self.store.changed:
            self.store.changed.wait_for(lambda: self._world.closing or self.store.version > version, timeout=0.2)

    async def proxy(self, request: web.Request, kind: Kind, namespace: str, name: str, rest: str) -> web.StreamResponse:
        _, target, port = name.split(":")
        with self.store.lock:
            document = self.store.get(kind, namespace, target)
            if kind.kind == "Service" and not list(ready_pods(self.store, document["spec"]["selector"], namespace)):
                raise Refusal(503, "ServiceUnavailable", f'no endpoints available for service "{target}"')
            if kind.kind == "Service":
                port = _target(document, port)
        if not self._world.proxies or int(port) not in self._world.backends:
            text = f"error trying to reach service: dial tcp 10.0.0.9:{port}: i/o timeout"
            raise Refusal(503, "ServiceUnavailable", text)
        kept = {"Content-Type": request.headers["Content-Type"]} if "Content-Type" in request.headers else {}
        url = f"http://127.0.0.1:{self._world.backends[int(port)]}{rest}"
        async with (
            ClientSession() as session,
            session.request(request.method, url, data=await request.read(), headers=kept) as answer,
        ):
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    async def forward(self, request: web.Request, kind: Kind, namespace: str, name: str, _: str) -> web.StreamResponse:
        port = int(request.query["ports"])
        with self.store.lock:
            self.store.get(kind, namespace, name)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel, port % 256, port // 256]))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._world.backends[port])
        except (KeyError, OSError) as err:
            await socket.send_bytes(b"\x01" + f"error forwarding port {port}: {err}".encode())
            await socket.close()
            return socket

        async def back() -> None:
            while data := await reader.read(65536):
                await socket.send_bytes(b"\x00" + data)
            await socket.close()

        task = asyncio.create_task(back())
        async for message in socket:
            if message.type == WSMsgType.BINARY and message.data[:1] == b"\x00":
                writer.write(message.data[1:])
                await writer.drain()
        writer.close()
        task.cancel()
        return socket

    async def log(self, request: web.Request, kind: Kind, namespace: str, name: str, _: str) -> web.StreamResponse:
        with self.store.lock:
            pod = self.store.get(kind, namespace, name)
        previous = request.query.get("previous") == "true"
        if previous:
            container = pod["status"]["containerStatuses"][0]
            if not container["restartCount"]:
                raise Refusal(400, "BadRequest", "previous terminated container not found")
            if "running" not in container["state"]:
                return web.Response(text="unable to retrieve container logs for containerd://0000")
        lines = [f"line {number} of {'the run before' if previous else 'this run'}" for number in range(100)]
        if name in self._world.logs:
            lines = self._world.logs[name].splitlines()
        return web.Response(text="\n".join(lines[-int(request.query["tailLines"]) :]) + "\n")


def _target(service: Document, port: str) -> str:
    """The pods' port behind a port of a Service; names are those of Marina's own."""
    for known in service["spec"]["ports"]:
        if str(known["port"]) == port:
            return {"inference": "8080"}.get(known["targetPort"], str(known["targetPort"]))
    raise Refusal(503, "ServiceUnavailable", f'no endpoints available for service "{service["metadata"]["name"]}"')


async def _send(response: web.StreamResponse, kind: str, document: Document) -> None:
    await response.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")


def selected(document: Document, query: Any) -> bool:
    """Whether the selectors of a query match an object."""
    labels = document["metadata"].get("labels", {})
    for pair in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = pair.partition("=")
        if labels.get(name) != value:
            return False
    for pair in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = pair.partition("=")
        got: Any = document
        for part in name.removesuffix("!").split("."):
            got = (got or {}).get(part)
        if (got == value) == name.endswith("!"):
            return False
    return True
