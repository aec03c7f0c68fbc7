"""A headless Chromium that tests drive: over the pipe of its DevTools protocol, without a port or a driver."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One page of one browser."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, os.fdopen(back, "rb", closefd=False)
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.said: list[dict[str, Any]] = []
        """Events: what the page asked the network for, and what it complained about."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        number = self._number
        order = {"id": number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._to, json.dumps(order).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                result: dict[str, Any] = message["result"]
                return result
            self.said.append(message)

    def open(self, url: str, *, size: tuple[int, int] = (1200, 900), scale: float = 1, dark: bool = False) -> None:
        """A page, loaded, in a size and in a scheme; a picture of it has `scale` times as many points."""
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **shape)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        reply = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, script: str, *, within_s: float = 30) -> Any:
        """The first true value of an expression."""
        deadline = time.monotonic() + within_s
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"still {value!r}: {script}"
            time.sleep(0.02)
        return value

    def click(self, selector: str) -> None:
        """With a real mouse, so that what lies over an element gets it instead."""
        spot = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)

    def drop(self, file: Path, selector: str) -> None:
        """A file, dragged onto an element."""
        spot = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=spot[0], y=spot[1], data=data)

    def picture(self) -> bytes:
        """The visible part of the page as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def asked(self) -> list[str]:
        """Every address that the page asked for."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors of scripts, and what the browser refused."""
        logged = [event["params"]["entry"] for event in self._events("Log.entryAdded")]
        thrown = [event["params"]["exceptionDetails"]["text"] for event in self._events("Runtime.exceptionThrown")]
        return thrown + [entry["text"] for entry in logged if entry["level"] == "error"]

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.said if event.get("method") == method]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            piece = self._back.raw.read(65536)  # type: ignore[attr-defined]
            assert piece, "the browser has ended"
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser(chromium: str, folder: Path) -> Iterator[Browser]:
    """A browser whose profile lies in `folder`; it is gone afterwards."""
    theirs_in, to = os.pipe()
    back, theirs_out = os.pipe()

    def pipes() -> None:
        # Chromium reads orders from 3 and writes to 4. Above both first: one of ours may have such a number.
        orders, answers = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(orders, 3)
        os.dup2(answers, 4)

    command = [chromium, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(to, back)
    finally:
        os.close(to)
        process.terminate()
        process.wait(120)
        os.close(back)
