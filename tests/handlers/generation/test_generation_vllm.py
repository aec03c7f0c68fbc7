"""vLLM's engine in its own process: what it gets, what it returns, and how it ends."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from generating import TEXT, Rounds, events, serving, write_text_package
from packages import standin_python
from waiting import eventually

from marina.handlers.generation.engine import NoToken, Sampling, Token
from marina.handlers.generation.engines import vllm_engine, vllm_runner
from marina.handlers.generation.engines.vllm_engine import (
    EngineGone,
    VllmEngine,
    check_files,
    fingerprint_files,
    make_vllm,
    sampling_arguments,
)
from marina.handlers.record import RecordError, TextSpec, VllmSpec

# The stand-in misbehaves if a prompt ends with one of these tokens.
DIES, HANGS, PRINTS, IS_REFUSED = 201, 202, 203, 204
SETTINGS: dict[str, Any] = {"weights": None, "args": {}, "files": {}}


@pytest.fixture(scope="module")
def python() -> str:
    return standin_python()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text("{}")
    return folder


def make_engine(python: str, model: Path, **settings: Any) -> VllmEngine:
    text = TextSpec(**TEXT | {"engine": "vllm", "ends": (7,)}, vllm=VllmSpec(**SETTINGS | settings, python=python))
    return make_vllm(text, model, "bf16")


@pytest.fixture
def engine(python: str, model: Path) -> Iterator[VllmEngine]:
    engine = make_engine(python, model)
    yield engine
    engine.close()


def take_tokens(engine: VllmEngine, count: int) -> list[Token | NoToken]:
    tokens: list[Token | NoToken] = []
    while len(tokens) < count:
        tokens += engine.step()
    return tokens


def first_of(engine: VllmEngine, *names: str) -> dict[str, Token | NoToken]:
    """The first token of each sequence; how many tokens of the others come meanwhile is random."""
    seen: dict[str, Token | NoToken] = {}
    while not seen.keys() >= set(names):
        for token in engine.step():
            seen.setdefault(token.sequence, token)
    return seen


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_several_sequences_get_tokens_until_they_are_cancelled(engine: VllmEngine) -> None:
    assert (engine.version, engine.usage()) == ("0.32.0+standin", (0, 2, 0, 2048, 0))
    engine.add("a", [1, 2, 3], Sampling())
    engine.add("b", list(range(10, 42)), Sampling())
    got = take_tokens(engine, 12)
    assert [each.token for each in got if each.sequence == "a"][:4] == [1, 2, 3, 1]
    assert [each.token for each in got if each.sequence == "b"][:4] == [10, 11, 12, 13]
    usage = engine.usage()
    assert (usage.sequences, usage.cached_tokens, usage.reused_tokens) == (2, 35 + len(got), 32)
    engine.cancel("a")
    assert engine.usage().sequences == 1
    # Tokens of a cancelled sequence that were on their way are dropped.
    assert {each.sequence for each in take_tokens(engine, 50)} == {"b"}


def test_log_probabilities_come_with_the_tokens_if_asked_for(engine: VllmEngine) -> None:
    engine.add("none", [5], Sampling())
    engine.add("own", [5], Sampling(logprobs=0))
    first = first_of(engine, "none", "own")
    assert first["none"].logprob != first["none"].logprob
    assert (first["own"].logprob, first["own"].likeliest) == (-0.3, ())
    engine.cancel("none")
    engine.add("two", [5], Sampling(logprobs=2))
    token = first_of(engine, "two")["two"]
    assert (token.token, token.logprob, token.likeliest) == (5, -0.3, ((6, -0.1), (7, -0.2)))


def test_a_sequence_that_vllm_ends_or_refuses_is_over(engine: VllmEngine) -> None:
    engine.add("short", [1, 2, 3], Sampling(max_tokens=2))
    engine.add("refused", [1, IS_REFUSED], Sampling())
    got = take_tokens(engine, 4)
    assert NoToken("refused") in got
    assert [each for each in got if each.sequence == "short"][2] == NoToken("short")
    engine.cancel("short")
    engine.cancel("refused")
    engine.add("ends", [5, 6, 7, 8], Sampling())
    assert [getattr(each, "token", None) for each in take_tokens(engine, 4)] == [5, 6, 7, None]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        pytest.param(
            Sampling(temperature=0.5, top_p=0.9, top_k=5, seed=3, logprobs=2, max_tokens=9),
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3, "logprobs": 2, "max_tokens": 9},
            id="unchanged",
        ),
        pytest.param(Sampling(top_p=0), {"temperature": 0.0, "top_p": 1.0}, id="a top_p that vLLM does not take"),
        # For vLLM -1 means no seed.
        pytest.param(Sampling(seed=-1), {"seed": 2**63 - 1}, id="a negative seed"),
        pytest.param(Sampling(), {"seed": None, "logprobs": None, "max_tokens": None}, id="nothing"),
        pytest.param(Sampling(), {"ignore_eos": True, "stop_token_ids": [7]}, id="only the end tokens of the package"),
        pytest.param(Sampling(ignore_eos=True), {"ignore_eos": True, "stop_token_ids": []}, id="no end tokens"),
    ],
)
def test_vllm_gets_the_sampling_that_was_asked_for(sampling: Sampling, expected: dict[str, Any]) -> None:
    assert expected.items() <= sampling_arguments(sampling, [7]).items()


def test_what_vllm_prints_does_not_reach_the_answers(engine: VllmEngine) -> None:
    engine.add("a", [1, PRINTS], Sampling())
    assert [each.token for each in take_tokens(engine, 6)][:4] == [1, PRINTS, 1, PRINTS]


def test_the_death_of_vllm_is_noticed_during_a_step_and_between_steps(python: str, model: Path) -> None:
    engine = make_engine(python, model)
    engine.add("a", [1, DIES], Sampling())
    with pytest.raises(EngineGone, match="vLLM's process ended by SIGKILL"):
        take_tokens(engine, 1)
    idle = make_engine(python, model)
    os.kill(idle._process.pid, signal.SIGKILL)

    def notices() -> bool:
        with suppress(EngineGone):
            return idle.usage() is None
        return True

    eventually(notices)


@pytest.mark.slow
def test_vllm_is_killed_if_a_step_hangs(python: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "STEP_TIMEOUT_S", 2)
    engine = make_engine(python, model)
    engine.add("a", [1, HANGS], Sampling())
    with pytest.raises(EngineGone, match="vLLM did not answer for 2 s, and was killed"):
        take_tokens(engine, 1)
    assert is_gone(engine._process.pid)


@pytest.mark.slow
def test_vllm_ends_with_its_worker_even_in_the_middle_of_a_step(python: str, model: Path) -> None:
    program = (
        "import sys, time\n"
        "from marina.handlers.generation.engines.vllm_engine import VllmProcess\n"
        f"process = VllmProcess({python!r}, {{'model': {str(model)!r}, 'max_model_len': 64, 'max_num_seqs': 2}})\n"
        "process.receive(60)\n"
        f"process.send({{'add': 'a', 'prompt': [1, {HANGS}], 'sampling': {{}}}})\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not is_gone(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: is_gone(pid))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"args": {"tensor_paralel_size": 2}}, "unexpected keyword argument 'tensor_paralel_size'"),
        ({"weights": "/nowhere"}, "`text.vllm.weights`: `/nowhere` is not a folder here; is its volume mounted"),
    ],
)
def test_vllm_that_cannot_start_says_why(python: str, model: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make_engine(python, model, **settings)


def test_a_missing_python_is_named(model: Path) -> None:
    with pytest.raises(RecordError, match=r"`text\.vllm\.python`: `/nowhere/python` cannot be run: No such file"):
        make_engine("/nowhere/python", model)


def test_mounted_weights_are_compared_with_the_packaged_ones(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(3_000_000))
    (tmp_path / "config.json").write_text("{}")
    files = fingerprint_files(sorted(tmp_path.iterdir()))
    check_files(tmp_path, files)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RecordError, match="differs from the packaged file: head"):
        check_files(tmp_path, files)
    (tmp_path / "b.safetensors").touch()
    with pytest.raises(RecordError, match=r"b\.safetensors` is not in the package"):
        check_files(tmp_path, files)


def test_the_runner_imports_only_vllm_and_the_standard_library() -> None:
    tree = ast.parse(Path(vllm_runner.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"vllm"}


@pytest.fixture
def rounds(python: str, tmp_path: Path) -> Iterator[Rounds]:
    """The handler, with the stand-in as its engine."""
    directory = write_text_package(tmp_path, engine="vllm", slots=2, vllm=SETTINGS | {"python": python})
    (directory / "model" / "config.json").write_text("{}")
    with serving(directory) as rounds:
        yield rounds


def test_an_engine_that_dies_ends_its_answers_with_an_error_and_then_its_worker(rounds: Rounds, monkeypatch) -> None:
    failures: list[float] = []
    monkeypatch.setattr(rounds.handler.loop, "_tell_failure", lambda: failures.append(time.monotonic()))
    head = {"url_path": "v1/completions", "content-type": "application/json"}

    def request(**body: Any) -> tuple[bytearray, dict[str, str]]:
        return bytearray(json.dumps({"prompt": "abc", "max_tokens": 200} | body).encode()), head

    rounds.begin({"stream": request(stream=True), "whole": request()})
    while rounds.bodies["stream"].count(b"data: ") < 2:
        rounds.round()
    os.kill(rounds.handler.loop._engine._process.pid, signal.SIGKILL)
    while rounds.open:
        rounds.round()
    *_, error, done = events(rounds.bodies["stream"])
    assert (error["error"]["code"], done) == ("engine_failed", "[DONE]")
    assert (rounds.status["whole"], json.loads(rounds.bodies["whole"])["error"]["code"]) == (200, "engine_failed")
    rounds.begin({"late": request()})
    assert rounds.status["late"] == 503
    assert len(failures) == 1
