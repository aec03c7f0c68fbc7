"""The streams of the fake API server: port-forwards and logs."""

import asyncio
import json
from typing import Any

from aiohttp import WSMsgType, web
from fake_apiserver_kinds import Kind
from fake_apiserver_store import Document, Refusal
from fake_apiserver_world import World


class Streams:
    """One coroutine for each kind of stream."""

    def __init__(self, world: World) -> None:
        self._world, self.store = world, world.store

    async def forward(self, request: web.Request, kind: Kind, namespace: str, name: str) -> web.StreamResponse:
        port = int(request.query["ports"])
        with self.store.lock:
            pod = self.store.get(kind, namespace, name)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel, port % 256, port // 256]))
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", (self._world.backends | self._world.backend_of(pod))[port]
            )
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

    async def execute(self, request: web.Request, kind: Kind, namespace: str, name: str) -> web.StreamResponse:
        with self.store.lock:
            pod = self.store.get(kind, namespace, name)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        code, said = await asyncio.to_thread(self._world.execute, pod, request.query.getall("command"))
        cause = {"reason": "ExitCode", "message": str(code)}
        status = {"status": "Failure", "details": {"causes": [cause]}} if code else {"status": "Success"}
        await socket.send_bytes(b"\x01" + said.encode())
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket

    async def log(self, request: web.Request, kind: Kind, namespace: str, name: str) -> web.StreamResponse:
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
