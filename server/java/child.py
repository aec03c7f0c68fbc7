"""The running Java child: its output, its door, its workers and its end."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from marina.config.errors import InputError
from marina.server.java.door import Door
from marina.server.java.follow import RequestLog, follow_access_log, follow_errors
from marina.server.java.launch import Launch
from marina.server.java.traffic import AccessLogEntry, Traffic
from marina.server.system.output import Output
from marina.server.system.rundir import CLOSING_FILE, end_processes

# Java's exit code under -XX:+ExitOnOutOfMemoryError.
_OUT_OF_MEMORY = 3


class Child:
    """One running TorchServe. Only the thread that created it may call `reap`."""

    def __init__(
        self,
        launch: Launch,
        door: Door,
        *,
        traffic: Traffic,
        log: RequestLog,
        output: Output,
        trace: Callable[[Sequence[AccessLogEntry]], object] | None = None,
    ) -> None:
        self._directory = launch.directory
        self.door = door
        try:
            self._process: subprocess.Popen[bytes] = launch.start(door)
        except OSError as err:
            # The disk is full, or Java cannot be run.
            raise InputError(f"TorchServe cannot be started: {err}") from err
        door.close_java_end()
        assert self._process.stdout
        assert self._process.stderr
        self._readers = [
            follow_access_log(self._process.stdout, traffic, log, output, trace=trace),
            follow_errors(self._process.stderr, log, output),
        ]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if it had not ended at the last `reap`."""
        return self._process.returncode is None

    def reap(self) -> None:
        """Collects every child that has ended: Java, and orphans that this process adopted."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == self.pid:
                self._process.poll()
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)

    def end_answers(self) -> None:
        """Makes workers end their streamed answers now: they poll for this file."""
        (self._directory / CLOSING_FILE).touch()

    def kill(self) -> None:
        """Kills Java and then its workers, and waits until they are gone."""
        if self.running:
            self._process.kill()
            self._process.wait()
        # Java first: it would start a killed worker again.
        end_processes(self._directory)
        for reader in self._readers:
            reader.join(1.0)
        self.door.close()

    def describe_end(self) -> tuple[str, str | None]:
        """How Java ended, and a hint what to do about it."""
        code = self._process.returncode
        if code == _OUT_OF_MEMORY:
            return "TorchServe ran out of heap memory", "raise `serving.java_heap_mb`, or lower `serving.queue`"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = (
                "if nobody sent it, memory ran out: raise `kubernetes.resources.memory`"
                if code == -signal.SIGKILL
                else None
            )
            return f"TorchServe was killed by {name}", hint
        return f"TorchServe exited with code {code}", "its last lines above say why"
