"""The engine `vllm` through a real TorchServe, on what stands in for vLLM and on a real one if there is one: streams,
clients that leave, its death, and a stop. The tests share one server, and the last one stops it."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packages import VLLM_PYTHON, packaged_tales, tales_changes
from running import Running, running
from specs import tales_spec
from streams import Stream, stream, streams
from waiting import children, eventually, metric, worker_pids

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PATH = "/v1/completions"


REAL = pytest.mark.skipif(VLLM_PYTHON is None, reason="no VLLM_PYTHON, a Python with vLLM")


@pytest.fixture(scope="module", params=["vllm", pytest.param("real vllm", marks=[REAL, pytest.mark.timeout(1200)])])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, package = packaged_tales(request.param)
    changes = tales_changes(request.param) | {"serving.drain_propagation_s": 0, "serving.drain_timeout_s": 60}
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with running(tales_spec(changes), mar=folder / package.mar, log=log) as server:
        yield server


def wanted(tokens: int, prompt: str = "Once upon a time") -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}


def engine_pids(server: Running) -> list[int]:
    return [pid for worker in worker_pids(server) for pid in children(worker) if "vllm_runner" in command(pid)]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_streams_get_every_token_and_who_leaves_frees_a_slot(server: Running) -> None:
    seen = asyncio.run(streams(server.ports.inference, PATH, [wanted(32)] * 24))
    assert all(each.ended and each.status == 200 for each in seen)
    eventually(lambda: metric(server, "inference_sequences", model="tales") == 0)
    seen = asyncio.run(streams(server.ports.inference, PATH, [wanted(400)] * 8, most=2))
    assert not any(each.ended for each in seen)
    assert asyncio.run(stream(server.ports.inference, PATH, wanted(2))).ended
    eventually(lambda: metric(server, "inference_sequences", model="tales") == 0)


async def once_begun(server: Running, count: int, act: Callable[[], object]) -> list[Stream]:
    """Does something when each of so many long answers has begun and none has ended; the answers at their end."""
    answers = [Stream() for _ in range(count)]
    asked = asyncio.gather(*(stream(server.ports.inference, PATH, wanted(400), seen=answer) for answer in answers))
    while not all(answer.times for answer in answers):
        await asyncio.sleep(0.01)
    assert not any(answer.ended for answer in answers)
    act()
    return await asyncio.wait_for(asked, 120)


def test_the_death_of_vllm_ends_its_answers_with_an_error_and_the_next_one_serves(server: Running) -> None:
    (engine,) = engine_pids(server)
    (answer,) = asyncio.run(once_begun(server, 1, lambda: os.kill(engine, signal.SIGKILL)))
    assert b"engine_failed" in answer.body
    # Nobody is asking when the next one dies.
    eventually(lambda: engine_pids(server) not in ([], [engine]) and server.readiness()[0], within_s=120)
    (next_engine,) = engine_pids(server)
    os.kill(next_engine, signal.SIGKILL)
    eventually(lambda: engine_pids(server) not in ([], [next_engine]) and server.readiness()[0], within_s=120)
    assert asyncio.run(stream(server.ports.inference, PATH, wanted(2))).ended


def test_a_stop_lets_streams_end_and_leaves_no_vllm(server: Running) -> None:
    engines = engine_pids(server)

    answers = asyncio.run(once_begun(server, 8, lambda: server.process.send_signal(signal.SIGTERM)))
    assert all(answer.ended for answer in answers)
    assert server.process.wait(120) == 0
    assert [command(pid) for pid in engines] == [""]
