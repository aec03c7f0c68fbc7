"""A session with one server: one request, and any number of runs. `run_load_test`, `calibrate` and `compare` share
it."""

import fcntl
import ssl
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from marina.config.errors import InputError
from marina.config.machine import stops_as_interrupt, usable_cores
from marina.config.measured import Machine, Objective, PeakMemory, ServerLimits
from marina.config.progress import Progress
from marina.config.quantity import quantity
from marina.config.record import Package, read_package
from marina.config.spec import Spec
from marina.loadtest.judging import client_timeout_s
from marina.loadtest.measuring import Measurement, OtherProcessesWatch, PackageIdentity, ServerWatch, this_machine
from marina.loadtest.reporting import LiveLine
from marina.loadtest.running import target
from marina.loadtest.running.options import SendingOptions
from marina.loadtest.running.target import Target
from marina.loadtest.scheduling import Schedule, Trace
from marina.loadtest.sending import (
    Generator,
    Header,
    LoadPlan,
    LoadRequest,
    OnSecond,
    Server,
    generate,
    packaged_request,
    spec_request,
    with_samples,
)

# One process can use a whole core, so more processes than cores do not send more; a few more do no harm.
_MOST_PROCESSES_PER_CORE = 4


class RemoteServer(Protocol):
    """A server in a cluster, with generators beside it; neither is on this machine."""

    url: str
    """The server's address, as the generators reach it."""
    servers: tuple[Server, ...]
    """The pods behind it, which get the requests in turn; empty: the URL gets them."""
    pods: int
    cold_start_s: float | None
    """Of the only pod; None for several pods, or if it is unknown."""
    confined: ServerLimits | None
    """The limits of the only pod; None for several pods."""

    def memory(self) -> PeakMemory | None:
        """The peak memory of the only pod; None for several pods, or if it is unknown."""

    def generate(self, plan: LoadPlan, on_second: OnSecond) -> Measurement:
        """Runs a plan beside the server, with one process for each of its parts."""

    def served_sha256(self) -> str:
        """The hash of the package that the server serves; InputError if the server does not say."""

    def machine(self) -> Machine:
        """The machine that sent the load; before any load, this machine."""


@dataclass(frozen=True)
class TargetOptions:
    """Which server to test: the options that `loadtest`, `calibrate` and `compare` have in common."""

    out: Path
    """The folder with the package, which also gets the records: `build/<name>`."""
    url: str | None = None
    """The address of a server that is already running; None starts one."""
    supervisor: str | None = None
    started: Target | None = None
    """A server that the caller has started, and will stop."""
    any_package: bool = False
    """Do not check which package the server serves."""
    command: Sequence[str] | None = None
    """The command that starts a server; None: `marina serve`."""
    as_pod: bool = False
    """Whether a server that is started is limited to the resources of its pod."""
    remote: RemoteServer | None = None
    headers: tuple[Header, ...] = field(default=(), repr=False)
    """Headers of every request; they are in no record."""
    cacert: Path | None = None
    """Certificates to trust, for the server and the supervisor's pages; None for those of the system."""
    cert: Path | None = None
    """The client's certificate, which also has its key unless `key` names that."""
    key: Path | None = None

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """TLS settings with these certificates; None if there are none."""
        if self.cacert is None and self.cert is None:
            return None
        context = ssl.create_default_context(cafile=self.cacert)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context

    def addressed(self, request: LoadRequest) -> LoadRequest:
        """The request with these headers and certificates."""
        files = {"cacert": self.cacert, "cert": self.cert, "key": self.key}
        named = {name: None if file is None else str(file.absolute()) for name, file in files.items()}
        return request.model_copy(update={"headers": self.headers, **named})


@dataclass(frozen=True)
class Session:
    """A server that is up and can be measured."""

    target: Target
    request: LoadRequest
    package: Package | None
    objective: Objective
    processes: int
    timeout_s: float
    where: TargetOptions
    progress: Progress
    generator: Generator | None = None
    """The generator of all runs; None starts a new one for each run."""

    @property
    def machine(self) -> Machine:
        """The machine that sent the load."""
        return self.where.remote.machine() if self.where.remote else this_machine()

    def soak(self, schedule: Schedule, label: str) -> Measurement:
        """One long run, during which the server's memory and open files are read."""
        page = partial(target.metrics, self.target.supervisor, self.where.tls)
        with ServerWatch(page, schedule.total_s) as watch:
            measured = self.measure(schedule, label)
        return measured.model_copy(update={"vitals": watch.vitals})

    def measure(self, schedule: Schedule, label: str) -> Measurement:
        """One run of a schedule. The server's package is checked before and after it."""
        before = self.identify()
        plan = LoadPlan(
            request=self.request,
            schedule=schedule,
            parts=self.processes,
            timeout_s=self.timeout_s,
            **self.objective.limits,
        )
        # The processes of a server that was not started here are unknown.
        ours = [self.generator.pid] if self.generator else []
        watch = OtherProcessesWatch([self.target.pid, *ours]) if self.target.pid is not None else None
        with LiveLine(label, schedule, quiet=self.progress.quiet) as line:
            sends = self.where.remote or self.generator
            measurement = (sends.generate if sends else generate)(plan, line.show)
        others = watch.end() if watch else None
        server_end = None if self.where.remote else target.describe_end(self.target)
        after = self.identify() if server_end is None else before
        changed = before is not None and before.found is not None and after != before
        identity = after if changed else before
        return measurement.model_copy(update={"identity": identity, "others": others, "server_end": server_end})

    def identify(self) -> PackageIdentity | None:
        """The package that should be served, and the one that is; None if `--any-package` skips this check."""
        if self.where.any_package:
            return None
        wanted = self.package.sha256 if self.package else None
        why = None if wanted else "nothing was packaged here, so the server's package cannot be compared"
        try:
            here, remote = self.target.supervisor, self.where.remote
            served = remote.served_sha256() if remote else target.served_sha256(here, tls=self.where.tls)
            return PackageIdentity(wanted=wanted, found=served, why_unknown=why)
        except InputError as err:
            return PackageIdentity(wanted=wanted, found=None, why_unknown=why or err.message)


@contextmanager
def measuring_into(folder: Path) -> Iterator[None]:
    """Locks a folder until its context ends, or the process does; InputError if it is locked.

    Meanwhile SIGTERM and a closed terminal do what Ctrl-C does."""
    lock = folder / ".measuring"
    folder.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            text = f"{folder}: another measurement is running and will write its records there"
            raise InputError(text, hint="wait until it ends, or choose another folder by `--out`") from err
        try:
            with stops_as_interrupt():
                yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def open_session(
    spec: Spec,
    where: TargetOptions,
    objective: Objective,
    options: SendingOptions,
    *,
    trace: Trace | None = None,
    quiet: bool = False,
) -> Iterator[Session]:
    """A session with the server that `where` names; a server without an address is started, and stopped at the end."""
    timeout_s = client_timeout_s(objective, options.timeout_s)
    if where.remote is None:
        _check_processes(options.processes)
    package, progress = find_package(where), Progress(quiet=quiet)
    with ExitStack() as stack:
        url = where.remote.url if where.remote else where.url
        with progress.step("start the server" if url is None else f"find {url}"):
            opened = stack.enter_context(open_target(spec, where))
        request = packaged_request(package, where.out, opened.url) if package else spec_request(spec, opened.url)
        request = with_samples(request, spec, package.record if package else None, trace)
        if where.remote:
            request = request.model_copy(update={"servers": where.remote.servers})
        request = where.addressed(request)
        yield Session(opened, request, package, objective, options.processes, timeout_s, where, progress)


def _check_processes(processes: int) -> None:
    """InputError if this machine has too few cores for so many processes that send."""
    cores = usable_cores()
    most = _MOST_PROCESSES_PER_CORE * cores
    if processes > most:
        noun = "1 core" if cores == 1 else f"{cores} cores"
        text = f"`--processes`: got {processes}, allowed on this machine, which has {noun}: at most {most}"
        raise InputError(text, hint=f"--processes {cores}: each can use a whole core, so more of them do not send more")


def open_target(spec: Spec, where: TargetOptions, option: str = "--url") -> AbstractContextManager[Target]:
    """The server that `where` names; one without an address is started, and stopped at the end of the context.

    `option` is the one that gave the address."""
    if remote := where.remote:
        limits, memory = remote.confined, remote.memory
        return nullcontext(Target(remote.url, "", remote.cold_start_s, confined=limits, remote_memory=memory))
    if where.started is not None:
        return nullcontext(where.started)
    if where.url is not None:
        opened = target.existing_server(where.url, where.supervisor, option)
        leave = ", or leave `--url` out" if option == "--url" else ""
        target.check_listening(opened.url, f"marina serve {spec.file}{leave}", where.tls, option)
        return nullcontext(opened)
    usual = where.out == Path("build") / spec.name
    command = where.command or target.serve_command(spec.file, None if usual else where.out.parent)
    stated = spec.kubernetes.resources.memory
    confined = target.confine(spec.cores, None if stated == "auto" else int(quantity(stated))) if where.as_pod else None
    return target.started_server(spec, where.out / "server.log", command=command, confinement=confined)


def find_package(where: TargetOptions) -> Package | None:
    """The package of the build folder; None if there is none and the server is already running."""
    if (where.url is not None or where.remote is not None) and not (where.out / "package.json").exists():
        return None
    return read_package(where.out)
