import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from loadtest_rig import SPEC, write_package
from specs import digits_spec
from test_loadtest_slo import measured

from marina.config.errors import InputError, MarinaError
from marina.config.load import parse_spec
from marina.config.measured import ServingSettings
from marina.config.ports import free_port_base
from marina.config.progress import Progress
from marina.config.record import Package, Record
from marina.loadtest.calibrating import tuning
from marina.loadtest.calibrating.knee import NeverHeld, Untrusted
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.trials import RateTrials, ServerEnded
from marina.loadtest.judging.slo import objective_of
from marina.loadtest.measuring import peak_memory, this_machine
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test, target
from marina.loadtest.sending.plan import Expected
from marina.loadtest.sending.samples import expected_of, packaged_request, spec_request

RECORD: dict[str, Any] = {
    "schema": "marina.package/1", "name": "digits", "version": "1.0", "source": "s", "weights": None,
    "handler": "image", "precision": "fp32", "compile": "aot", "device": "cpu",
    "workers": 1, "threads": 1, "batch_sizes": [1], "image": None, "inputs": [],
    "outputs": [{"name": "logits", "shape": [3], "dtype": "float32"}], "labels": "labels.txt",
    "max_request_bytes": 1, "max_response_bytes": 1,
    "sample": {"file": "sample.png", "content_type": "image/png"}, "key": {"torch": "2", "device": "cpu"},
    "artifacts": [], "program": None, "cache": None,
    "agreement": {
        "inputs": "generated", "count": 1, "measure": "top-1", "agreement": 1, "max_abs_difference": 0, "cosine": 1,
    },
    "files": {},
}  # fmt: skip


def record(**changes: Any) -> Record:
    return Record.model_validate(RECORD | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, Expected(form="json", keys=("top_indices", "top_probs", "top_labels")), id="labelled image"),
        pytest.param({"labels": None}, Expected(form="json", keys=("top_indices", "top_probs")), id="image"),
        pytest.param({"handler": "tensor"}, Expected(form="json", keys=("logits",)), id="tensor in JSON"),
        pytest.param(
            {"handler": "tensor", "sample": {"file": "s.npy", "content_type": "application/x-npy"}},
            Expected(form="npy"),
            id="tensor in npy",
        ),
        pytest.param({"handler": "./mine.py:Mine"}, Expected(), id="own handler"),
    ],
)
def test_the_package_says_what_a_good_answer_is(changes: dict[str, Any], expected: Expected) -> None:
    assert expected_of(record(**changes)) == expected


def test_the_packages_sample_is_sent_to_the_models_path(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.mar", "w") as archive:
        archive.writestr("sample.png", b"pixels")
    package = Package(mar="model.mar", sha256="aa", bytes=1, record=record())
    request = packaged_request(package, tmp_path, "http://x:1/")
    assert (request.url, request.body, request.content_type) == (
        "http://x:1/predictions/digits",
        b"pixels",
        "image/png",
    )


def test_without_a_package_the_specs_sample_is_sent() -> None:
    spec = digits_spec({})
    request = spec_request(spec, "http://x:1")
    assert spec.load.sample is not None
    assert request.body == spec.path(spec.load.sample).read_bytes()
    assert request.expected.keys == ("top_indices", "top_probs")


def test_without_package_and_sample_the_message_says_what_to_type() -> None:
    spec = digits_spec({"load.sample": None})
    with pytest.raises(
        InputError, match=r"`load\.sample`: missing, and without a package there is no other sample to send"
    ) as raised:
        spec_request(spec, "http://x:1")
    assert raised.value.hint == f"marina package {spec.file}"


def test_a_url_where_nothing_listens_says_at_once_what_to_type(tmp_path: Path) -> None:
    write_package(tmp_path / "build")
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    url = f"http://127.0.0.1:{free_port_base()}"
    with pytest.raises(InputError) as raised:
        run_load_test(spec, RunOptions(rate=1), TargetOptions(out=tmp_path / "build", url=url), quiet=True)
    assert raised.value.message == f"`--url`: got `{url}`, but nothing answers there: Connection refused"
    assert raised.value.hint == f"marina serve {spec.file}, or leave `--url` out"


def test_https_to_a_server_without_tls_is_told_to_use_http() -> None:
    def answer() -> None:
        client, _ = listening.accept()
        with client:
            client.recv(65536)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match="no TLS connection can be made: WRONG_VERSION_NUMBER") as raised:
            target.check_listening(f"https://{place}", "")
    assert raised.value.hint == f"--url http://{place}, without TLS"


def test_more_processes_than_a_machine_can_use_are_refused_before_any_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "build")
    monkeypatch.setattr("marina.loadtest.running.session.usable_cores", lambda: 2)
    spec = parse_spec(SPEC, tmp_path / "spec.yaml", files=False)
    with pytest.raises(InputError) as raised:
        run_load_test(spec, RunOptions(rate=1, processes=9), TargetOptions(out=tmp_path / "build"), quiet=True)
    assert raised.value.message == "`--processes`: got 9, allowed on this machine, which has 2 cores: at most 8"
    assert raised.value.hint == "--processes 2: each can use a whole core, so more of them do not send more"


def test_the_end_of_a_server_is_its_exit_code_or_its_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = target.Target(f"http://127.0.0.1:{listener.getsockname()[1]}", supervisor="")
        assert target.describe_end(server) is None
        assert target.describe_end(replace(server, exit_code=lambda: 137)) == "its process ended with code 137"
    assert target.describe_end(server) == f"nothing listens at {server.url} any more"


def test_a_server_that_ends_before_it_is_ready_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", r"print('a\n\nhint: b\nc\nerror: no MAR\n\nhint: make one'); raise SystemExit(2)"]
    with (
        pytest.raises(MarinaError, match=r"ended with code 2 before it was ready: no MAR\n\nhint: make one"),
        target.started_server(digits_spec({}), tmp_path / "server.log", command=command),
    ):
        pass


def test_the_machine_names_its_processor_and_its_instructions(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor: 0\nmodel name\t: Some  CPU @ 2GHz\nflags\t\t: fpu avx2 avx512f sse\n")
    machine = this_machine(file)
    assert (machine.processor, machine.isa) == ("Some CPU @ 2GHz", ("avx2", "avx512f"))
    assert (machine.memory_bytes, machine.cores) == (psutil.virtual_memory().total, len(os.sched_getaffinity(0)))


def test_peak_memory_is_told_apart_by_process(tmp_path: Path) -> None:
    # A supervisor with a Java and a worker, each of which once had so many megabytes.
    (tmp_path / "java").symlink_to(sys.executable)
    begin = "subprocess.Popen([{}, '-c', 'b\\'x\\' * {} * 2**20; print(flush=True); input()', {}])"
    children = (f"{str(tmp_path / 'java')!r}", 200, "'-jar'"), ("sys.executable", 100, "'model_' + 'service_worker.py'")
    code = "\n".join(["import subprocess, sys", *(begin.format(*child) for child in children), "input()"])
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.readline()
        memory = peak_memory(process.pid)
    assert 200 * 2**20 < memory.java_bytes < 260 * 2**20
    assert [100 * 2**20 < size < 160 * 2**20 for size in memory.workers_bytes] == [True]
    assert 0 < memory.supervisor_bytes < 60 * 2**20
    assert peak_memory(process.pid).total_bytes == 0


SETTINGS = ServingSettings(workers=1, threads=2, max_batch=8, max_batch_delay_ms=5)


def test_a_tuned_spec_still_means_the_same_files(tmp_path: Path) -> None:
    spec = digits_spec({})
    tuned = tuning.tuned_spec(spec, SETTINGS, tmp_path / "tuned")
    assert (tuned.workers, tuned.threads, tuned.max_batch) == (1, 2, 8)
    assert tuned.load.sample is not None
    assert spec.load.sample is not None
    assert tuned.path(tuned.load.sample) == spec.path(spec.load.sample).resolve()
    assert tuned.model.handler == "image"


class FakeTrials:
    """Takes the place of the runs of one setting: a batch of eight holds most, but nothing holds before a warm-up."""

    served: ServingSettings

    def __init__(self, *_: object) -> None:
        self.warm = False

    def warm_up(self, rate: float) -> None:
        assert rate < 100.0 * self.served.max_batch
        self.warm = True

    def holds(self, rate: float) -> bool:
        return self.warm and 100.0 * self.served.max_batch >= rate

    def find(self, first: float | None) -> Any:
        del first
        if self.served.max_batch == 1:
            raise NeverHeld("nothing")
        return type("Found", (), {"rps": 100.0 * self.served.max_batch})


@contextmanager
def fake_session(settings: ServingSettings) -> Any:
    FakeTrials.served = settings
    yield None


def test_tuning_records_what_it_tried_and_names_the_settings_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RateTrials", FakeTrials)
    spec = digits_spec({"serving.max_batch": 1})
    tuned = tuning.tune_settings(spec, CalibrateOptions(), tmp_path, serve=fake_session)
    assert tuned.best.settings.max_batch == 8
    data = json.loads((tmp_path / "tune.json").read_text())
    assert (data["schema"], data["rps"], data["best"]["max_batch"]) == ("marina.tune/1", 800, 8)
    hint = tuned.to_text(spec.file).splitlines()[-1]
    assert hint.startswith(f"hint: set under `serving` in {spec.file}: workers: ")
    assert "max_batch: 8" in hint


def test_a_setting_that_cannot_be_measured_ends_the_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untrusted(*_: object) -> float:
        raise Untrusted("4 runs were INVALID")

    monkeypatch.setattr(FakeTrials, "find", untrusted)
    monkeypatch.setattr(tuning, "RateTrials", FakeTrials)
    with pytest.raises(MarinaError, match="4 runs were INVALID"):
        tuning.tune_settings(digits_spec({}), CalibrateOptions(), tmp_path, serve=fake_session)


def trials_of(**changes: Any) -> RateTrials:
    """Trials against a server whose every run has these fields."""
    session: Any = SimpleNamespace(
        measure=lambda *_: measured(*[20.0] * 1000, **changes), progress=Progress(quiet=True), target=None
    )
    return RateTrials(session, objective_of(digits_spec({})), CalibrateOptions())


@pytest.mark.parametrize("first", [None, 100.0], ids=["in a burst", "in a run"])
def test_ctrl_c_ends_a_search_at_once(first: float | None) -> None:
    with pytest.raises(KeyboardInterrupt):
        trials_of(interrupted=True).find(first)


@pytest.mark.parametrize("first", [None, 100.0], ids=["in a burst", "in a run"])
def test_a_server_that_dies_during_a_search_is_an_error(first: float | None) -> None:
    with pytest.raises(ServerEnded, match=r"the server died at .* requests/s: its process ended with code 137"):
        trials_of(server_end="its process ended with code 137").find(first)


def test_ctrl_c_ends_the_tuning_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(RateTrials):
        def __init__(self, *_: object) -> None:
            self.__dict__ = trials_of(interrupted=True).__dict__

    monkeypatch.setattr(tuning, "RateTrials", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune_settings(digits_spec({}), CalibrateOptions(), tmp_path, serve=fake_session)


@pytest.mark.parametrize(("code", "error"), [(130, KeyboardInterrupt), (2, MarinaError)])
def test_ctrl_c_while_settings_are_packaged_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[BaseException]
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, "", "interrupted"))
    with pytest.raises(error):
        tuning.tune_settings(digits_spec({}), CalibrateOptions(), tmp_path)


def test_a_trial_is_long_enough_for_its_percentile_and_for_a_queue_to_show() -> None:
    objective = objective_of(digits_spec({"slo.p99_ms": 900}))
    assert CalibrateOptions(arrivals="constant").length_s(10, objective) == pytest.approx(110)
    assert CalibrateOptions(arrivals="constant").length_s(10_000, objective) == pytest.approx(30)
    assert CalibrateOptions(trial_s=3).length_s(10, objective) == pytest.approx(110)
    assert CalibrateOptions(trial_s=3).length_s(10_000, objective) == 3
