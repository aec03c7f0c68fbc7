"""vLLM's process: started in its own Python, spoken to over pipes, and gone with everything it started."""

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

from handlers.generation.engines import vllm_runner

logger = logging.getLogger(__name__)

# Of this process's environment: what names its own Python's modules, and where its metrics are kept, which vLLM's
# would be mixed with.
_NOT_PASSED = ("PYTHON", "PROMETHEUS_")
_FIXED = {
    # A model is in its folder, or it is not served.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Code of packages that are installed beside vLLM is not run.
    "VLLM_PLUGINS": "",
}
_DEFAULT = {"VLLM_LOGGING_LEVEL": "WARNING"}


class EngineGone(Exception):
    """vLLM's process has ended, or is of no more use; the message says why."""


class VllmProcess:
    """One runner (`vllm_runner.py`) and what it says, in the order in which it says it."""

    def __init__(self, python: str, arguments: Mapping[str, Any]) -> None:
        """Starts it; whether vLLM takes the arguments, the first message says."""
        # Isolated: nothing of this program's folder or of the user's is on the path of its modules.
        command = [python, "-I", str(Path(vllm_runner.__file__).resolve())]
        try:
            # A session of its own, because vLLM starts processes, and they must end with it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(os.environ),
                start_new_session=True,
            )
        except OSError as err:
            raise EngineGone(f"`text.vllm.python`: `{python}` cannot be run: {err.strerror}") from err
        self._said: queue.SimpleQueue[vllm_runner.Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="vllm", daemon=True).start()
        self.send(arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Never waits for long: the other side always reads."""
        assert self._process.stdin is not None
        try:
            vllm_runner.write_message(self._process.stdin, dict(message))
        except OSError as err:
            raise self.gone() from err

    def receive(self, timeout_s: float | None) -> vllm_runner.Message:
        """The next message; EngineGone when none comes any more, or none in that time."""
        try:
            message = self._said.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise EngineGone(f"vLLM did not answer for {timeout_s:g} s, and was ended") from None
        if message is None:
            raise self.gone()
        if "failed" in message:
            self.kill()
            raise EngineGone(f"vLLM: {message['failed']}")
        return message

    def receive_all(self, timeout_s: float) -> list[vllm_runner.Message]:
        """What was said since the last time, at least one message."""
        messages = [self.receive(timeout_s)]
        while not self._said.empty():
            messages.append(self.receive(timeout_s))
        return messages

    def gone(self) -> EngineGone:
        """Why it is not there any more; whatever it started is not there either, then."""
        self.kill()
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return EngineGone(f"vLLM's process ended {how}")

    def kill(self) -> None:
        """Ends it with its children, which may hold a GPU's memory after it has ended itself."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while (message := vllm_runner.read_message(self._process.stdout)) is not None:
                self._said.put(message)
        except (OSError, ValueError):
            logger.exception("vLLM's answers cannot be read")
        self._said.put(None)


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in ours.items() if not name.startswith(_NOT_PASSED)}
    return _DEFAULT | passed | _FIXED
