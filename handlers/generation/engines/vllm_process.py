"""vLLM's process: it runs in its own Python, is controlled over pipes, and is ended together with all its children."""

import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marina.handlers.generation.engines import vllm_runner

logger = logging.getLogger(__name__)

# Variables that vLLM's process does not get: those of this Python, and the folder of this process's metrics, which vLLM
# would write its own into.
_NOT_PASSED = ("PYTHON", "PROMETHEUS_")
_FIXED = {
    # Models are only read from their folder, never downloaded.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # No plugins of packages that are installed beside vLLM.
    "VLLM_PLUGINS": "",
}
_DEFAULT = {"VLLM_LOGGING_LEVEL": "WARNING"}


class EngineGone(Exception):
    """vLLM's process has ended, or cannot be used any longer; the message says why."""


class VllmProcess:
    """A process of `vllm_runner.py`, and its messages in their order."""

    def __init__(self, python: str, arguments: Mapping[str, Any]) -> None:
        """Starts the process; its first message says whether vLLM accepts the arguments."""
        # `-I`: neither this program's folder nor the user's is on the path of its imports.
        command = [python, "-I", str(Path(vllm_runner.__file__).resolve())]
        try:
            # A session of its own, so that the processes that vLLM starts can be ended with it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(os.environ),
                start_new_session=True,
            )
        except OSError as err:
            raise EngineGone(f"`text.vllm.python`: `{python}` cannot be run: {err.strerror}") from err
        self._messages: queue.SimpleQueue[vllm_runner.Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="vllm", daemon=True).start()
        self.send(arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message. It never blocks for long, because the runner has a thread that always reads."""
        assert self._process.stdin is not None
        try:
            vllm_runner.write_message(self._process.stdin, dict(message))
        except OSError as err:
            raise self.gone() from err

    def receive(self, timeout_s: float | None) -> vllm_runner.Message:
        """The next message. Raises EngineGone if vLLM has ended, or sends none in time: then it is killed."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise EngineGone(f"vLLM did not answer for {timeout_s:g} s, and was killed") from None
        if message is None:
            raise self.gone()
        if "failed" in message:
            self.kill()
            raise EngineGone(f"vLLM: {message['failed']}")
        return message

    def receive_all(self, timeout_s: float) -> list[vllm_runner.Message]:
        """All messages that have come since the last call, at least one."""
        messages = [self.receive(timeout_s)]
        while not self._messages.empty():
            messages.append(self.receive(timeout_s))
        return messages

    def gone(self) -> EngineGone:
        """The error that says how the process ended. Kills what is left of it."""
        self.kill()
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return EngineGone(f"vLLM's process ended {how}")

    def kill(self) -> None:
        """Kills the process and its children, which may hold a GPU's memory after the process itself has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while (message := vllm_runner.read_message(self._process.stdout)) is not None:
                self._messages.put(message)
        except (OSError, ValueError):
            logger.exception("vLLM's messages cannot be read")
        self._messages.put(None)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in own.items() if not name.startswith(_NOT_PASSED)}
    return _DEFAULT | passed | _FIXED
