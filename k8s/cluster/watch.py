"""A local copy of some objects of a cluster, which is kept up to date: listed, then watched, and again."""

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import urllib3

from marina.config.errors import ClusterError
from marina.k8s.cluster.api_errors import ApiError
from marina.k8s.cluster.cluster import Cluster
from marina.k8s.cluster.reference import Document

# Each watch ends after this time, and all is listed again: a proxy may end streams at once, or keep what they hold.
_WATCH_S = 20
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
# How long the cluster may be out of reach before whoever reads the copy gets the error.
_PATIENCE_S = 60.0


class Mirror:
    """The selected objects of one kind in one namespace; `changed` is set whenever one of them changes."""

    def __init__(
        self,
        cluster: Cluster,
        api_version: str,
        kind: str,
        namespace: str,
        changed: threading.Event,
        *,
        labels: str = "",
        fields: str = "",
    ):
        self._cluster = cluster
        self._what = (api_version, kind, namespace)
        self._selected = {"labels": labels, "fields": fields}
        self._changed = changed
        self._objects: dict[str, Document] = {}
        self._version = ""
        self._failing: tuple[float, ClusterError] | None = None
        self._stop = threading.Event()
        self._stream: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._follow, name=f"watch {kind}", daemon=True)

    def __enter__(self) -> "Mirror":
        # The first list is read here, so that the caller gets its errors.
        self._relist()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if (stream := self._stream) is not None:
            with suppress(Exception):
                stream.shutdown()
        self._thread.join(timeout=5)

    @property
    def objects(self) -> list[Document]:
        """The objects as last seen, oldest first. Raises ClusterError if the cluster has been out of reach for long."""
        if (failing := self._failing) and time.monotonic() - failing[0] >= _PATIENCE_S:
            raise failing[1]
        return sorted(self._objects.values(), key=_age)

    def _relist(self) -> None:
        listed = self._cluster.list(*self._what, **self._selected)
        self._objects = {item["metadata"]["uid"]: item for item in listed["items"]}
        self._version = listed["metadata"]["resourceVersion"]
        self._failing = None
        self._changed.set()

    def _follow(self) -> None:
        for step in itertools.cycle((self._watch, self._relist)):
            begun, pause_s = time.monotonic(), _PAUSE_S
            try:
                step()
            except ClusterError as err:
                status, asked_s = (err.status, err.retry_after_s) if isinstance(err, ApiError) else (0, None)
                # That a version expired says nothing about the cluster.
                if status != 410:
                    self._failing = self._failing or (begun, err)
                pause_s = min(_LONGEST_PAUSE_S, max(_PAUSE_S, asked_s or 0))
            except (urllib3.exceptions.HTTPError, OSError, AttributeError, KeyError, TypeError, ValueError):
                pass  # the stream broke off, or a proxy wrote something else into it
            if self._stop.wait(pause_s):
                return

    def _watch(self) -> None:
        self._stream = self._cluster.watch(*self._what, self._version, seconds=_WATCH_S, **self._selected)
        try:
            # `__exit__` sets the flag before it ends the stream, so this thread sees one of the two.
            if not self._stop.is_set():
                for event in _lines(self._stream):
                    self._update(event)
        finally:
            self._stream.close()
            self._stream = None

    def _update(self, event: Mapping[str, Any]) -> None:
        seen = event["object"]
        if event["type"] == "ERROR":
            raise ApiError(int(seen.get("code") or 0), str(seen.get("message")), body=seen, headers={})
        self._version = seen["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        uid = seen["metadata"]["uid"]
        if event["type"] == "DELETED":
            self._objects.pop(uid, None)
        else:
            self._objects[uid] = seen
        self._changed.set()


def _age(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("creationTimestamp") or "", metadata["name"]


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[Mapping[str, Any]]:
    """The events of a watch as they arrive, until the server ends it."""
    rest = b""
    for piece in response.stream(amt=None, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (json.loads(line) for line in whole if line.strip())
