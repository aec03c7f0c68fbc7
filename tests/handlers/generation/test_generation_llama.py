"""The network compared with `transformers`, and the engine around it: prompts in pieces, answers alone and together."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from generating import TEXT
from specs import ROOT
from transformers_networks import FAMILIES, save_network

from marina.archiver.native import compile_decoder
from marina.config.cpu_targets import FLAGS, CpuTarget
from marina.handlers.generation.engine import Engine, Sampling
from marina.handlers.generation.engines import make_engine
from marina.handlers.generation.engines.compiled import LIBRARY, CompiledDecoder
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.network_engines import CompiledEngine, TorchEngine
from marina.handlers.generation.engines.shape import UnknownModel, read_shape
from marina.handlers.generation.engines.slots import Slots
from marina.handlers.machine import cpu_flags
from marina.handlers.record import TextSpec

# The decoder is compiled.
pytestmark = pytest.mark.slow

# The networks are too small for two threads.
torch.set_num_threads(1)
TALES = ROOT / "config/examples/tales/model"
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.fixture(params=FAMILIES, scope="module")
def family(request, library, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copy(library, folder)
    return save_network(request.param, folder), folder


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    file: Path = tmp_path_factory.mktemp("library") / LIBRARY
    compile_decoder("native", file)
    return file


@pytest.fixture(scope="module")
def tales(library, tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tales") / "model"
    shutil.copytree(TALES, folder)
    shutil.copy(library, folder)
    return folder


def engine_of(kind: str, folder: Path, places: Slots, slots: int, precision: str = "fp32") -> Engine:
    if kind == "torch":
        return TorchEngine(Llama(folder, precision=precision, slots=slots, context=64), places)
    return CompiledEngine(CompiledDecoder(folder, precision=precision, slots=slots, context=64), places)


def answers(
    folder: Path,
    prompts: list[list[int]],
    *,
    slots: int,
    count: int = 20,
    chunk: int = 4,
    kind: str = "torch",
    precision: str = "fp32",
    row_cost: float | None = None,
    **sampling: Any,
) -> list[list[int]]:
    """What the engine writes for each prompt, as many at once as there are slots."""
    places = Slots(slots, context=64, prefill_chunk=chunk)
    places.row_cost = row_cost
    engine = engine_of(kind, folder, places, slots, precision)
    written: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    waiting = list(written)
    while waiting or engine.usage().sequences:
        while waiting and engine.usage().sequences < slots:
            name = waiting.pop(0)
            engine.add(name, prompts[int(name)], Sampling(**({"temperature": 0} | sampling)))
        for token in engine.step():
            if len(written[token.sequence]) < count:
                written[token.sequence].append(token.token)
                if len(written[token.sequence]) == count:
                    engine.cancel(token.sequence)
    return list(written.values())


PROMPTS = [[3], [5, 9, 1], list(range(4, 30)), [7] * 11, [90, 2, 40, 41, 42, 43, 44, 45]]


def test_scores_are_the_same_as_in_transformers(family) -> None:
    reference, folder = family
    tokens = torch.tensor(PROMPTS[2])
    computed = Llama(folder, precision="fp32", slots=1, context=64).read_whole(tokens)
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["torch", "aot"])
def test_answers_have_the_same_tokens_as_in_transformers(family, kind: str) -> None:
    reference, folder = family
    for prompt, computed in zip(PROMPTS, answers(folder, PROMPTS, slots=3, kind=kind), strict=True):
        with torch.no_grad():
            given = torch.tensor([prompt])
            options = {"do_sample": False, "max_new_tokens": 20, "min_new_tokens": 20, "eos_token_id": None}
            whole = reference.generate(given, attention_mask=torch.ones_like(given), pad_token_id=93, **options)
        assert computed == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("rope", ROPES)
def test_positions_are_scaled_as_in_transformers(rope: str, tmp_path: Path) -> None:
    reference = save_network("Llama", tmp_path, rope_parameters={"rope_type": rope, "rope_theta": 1000.0} | ROPES[rope])
    tokens = torch.arange(3, 60)
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
    computed = Llama(tmp_path, precision="fp32", slots=1, context=64).read_whole(tokens)
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["torch", "aot"])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_an_answer_is_the_same_alone_and_among_others_and_in_any_pieces(tales: Path, kind: str, chunk: int) -> None:
    alone = [answers(tales, [prompt], slots=1, kind=kind)[0] for prompt in PROMPTS]
    assert answers(tales, PROMPTS, slots=5, chunk=chunk, kind=kind) == alone


@pytest.mark.parametrize("kind", ["torch", "aot"])
def test_a_seed_gives_the_same_answer_among_others(tales: Path, kind: str) -> None:
    alone = [answers(tales, [prompt], slots=1, kind=kind, temperature=1.0, seed=5)[0] for prompt in PROMPTS]
    assert answers(tales, PROMPTS, slots=5, kind=kind, temperature=1.0, seed=5) == alone


# Prompts with and without repetition.
REPETITIVE = [[5, 9, 1, 7] * 6, [7] * 11, list(range(4, 30)), [9, 8, 7, 6, 5] * 5]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.7, "seed": 5}], ids=["greedy", "seeded"])
def test_guesses_change_no_token(tales: Path, precision: str, sampling: dict[str, Any], monkeypatch) -> None:
    options: dict[str, Any] = {"kind": "aot", "precision": precision, "count": 30} | sampling
    expected = [answers(tales, [prompt], slots=1, **options)[0] for prompt in REPETITIVE]
    rows: list[int] = []
    step = CompiledDecoder.step

    def counted(self, tokens, slots, positions, wanted):
        rows.append(len(wanted))
        return step(self, tokens, slots, positions, wanted)

    monkeypatch.setattr(CompiledDecoder, "step", counted)
    # Guesses that cost nothing are always made.
    assert [answers(tales, [prompt], slots=1, row_cost=0.0, **options)[0] for prompt in REPETITIVE] == expected
    assert max(rows) > 1
    assert sum(map(bool, rows)) < 30 * len(REPETITIVE)
    assert answers(tales, REPETITIVE, slots=4, row_cost=0.0, **options) == expected


def test_the_cost_of_a_row_is_measured_unless_speculation_is_off(tales: Path) -> None:
    def row_cost(speculation: str) -> float | None:
        text = TextSpec(**TEXT | {"engine": "aot", "context": 64, "speculation": speculation})
        engine = make_engine(text, tales, "int8")
        assert isinstance(engine, CompiledEngine)
        return engine._slots.row_cost

    assert row_cost("off") is None
    assert row_cost("auto") is not None


SYSTEM = [*range(20, 56)]


@pytest.mark.parametrize("kind", ["torch", "aot"])
def test_a_prompt_that_begins_like_the_text_of_a_slot_is_not_read_again(tales: Path, kind: str) -> None:
    prompts = [[*SYSTEM, 7, 8], [*SYSTEM, 9], [*SYSTEM, 7, 8, 3], [1, *SYSTEM]]
    cold = [answers(tales, [prompt], slots=1, kind=kind, count=5)[0] for prompt in prompts]
    engine = engine_of(kind, tales, Slots(2, context=64, prefill_chunk=4), 2)
    steps, reused = [], []
    for name, prompt in enumerate(prompts):
        engine.add(str(name), prompt, Sampling(temperature=0))
        written: list[int] = []
        count = 0
        while len(written) < 5:
            written += [token.token for token in engine.step() if token.sequence == str(name)]
            count += not written
        assert written == cold[name]
        steps.append(count)
        reused.append(engine.usage().reused_tokens)
        # The second sequence is still running while the third is read, in the slot of the first.
        if name != 1:
            engine.cancel(str(name))
        if name == 2:
            engine.cancel("1")
    # A prompt in pieces of four: nine steps before the one that gives the first token, or none.
    assert (steps, reused) == ([9, 0, 0, 9], [0, 36, 74, 74])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_compiled_scores_are_the_same_to_the_bit_whatever_is_beside_them(tales: Path, precision: str) -> None:
    tokens = list(range(7, 57))
    model = CompiledDecoder(tales, precision=precision, slots=3, context=64)
    whole = model.step(tokens, [1] * 50, list(range(50)), list(range(50)))
    for at in range(50):
        beside = [2] if at % 2 else []
        rows = model.step([tokens[at], *beside], [0, *beside], [at, *(at for _ in beside)], [0])
        assert torch.equal(rows[0], whole[at])


@pytest.mark.parametrize(
    ("precision", "error", "agreement"),
    [("fp32", 1e-5, 1), ("bf16", 0.01, 0.99), ("int8", 0.03, 0.99), ("int4", 0.2, 0.97)],
)
def test_compiled_scores_of_a_tale_are_near_those_in_fp32(
    tales: Path, precision: str, error: float, agreement: float
) -> None:
    from marina.handlers.generation.tokenizer import ModelTokenizer

    tale = (TALES.parent / "held-out/tales.txt").read_text().splitlines()[0]
    tokens = ModelTokenizer(TALES).encode(tale)
    places = range(len(tokens))
    model = CompiledDecoder(tales, precision=precision, slots=1, context=512)
    scores = model.step(tokens, [0] * len(tokens), places, places)
    expected = Llama(TALES, precision="fp32", slots=1, context=512).read_whole(torch.tensor(tokens))
    assert (scores - expected).abs().mean() < error
    assert (scores.argmax(-1) == expected.argmax(-1)).float().mean() >= agreement


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_whole_numbers_are_multiplied_to_the_same_result_on_every_target(
    tales: Path, tmp_path: Path, target: CpuTarget, precision: str
) -> None:
    """Their instructions differ, so a few floats are added in another order."""
    if not set(FLAGS[target]) <= cpu_flags():
        pytest.skip(f"this machine has no {target}")
    shutil.copytree(TALES, tmp_path / "model")
    compile_decoder(target, tmp_path / "model" / LIBRARY)
    rows = ([*range(7, 57)], [0] * 50, range(50), range(50))
    native, other = (
        CompiledDecoder(folder, precision=precision, slots=1, context=64).step(*rows)
        for folder in (tales, tmp_path / "model")
    )
    assert (other - native).abs().max() < 0.2


def test_the_tales_model_knows_tales_it_has_not_read() -> None:
    from marina.handlers.generation.tokenizer import ModelTokenizer

    model, tokens = Llama(TALES, precision="fp32", slots=1, context=512), ModelTokenizer(TALES)
    lost = count = 0.0
    for tale in (TALES.parent / "held-out/tales.txt").read_text().splitlines():
        ids = torch.tensor(tokens.encode(tale))
        lost += float(torch.nn.functional.cross_entropy(model.read_whole(ids)[:-1], ids[1:], reduction="sum"))
        count += len(ids) - 1
    # docs/reference/language-models.md states it.
    assert torch.tensor(lost / count).exp() < 1.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "`architectures`: got `GPT2LMHeadModel`"),
        ({"auto_map": {}}, "`auto_map`"),
        ({"hidden_act": "gelu"}, "`hidden_act`: got `gelu`"),
        ({"mlp_bias": True}, "`mlp_bias`"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "`rope_scaling`: got `longrope`"),
        ({"quantization_config": {"bits": 4}}, "`quantization_config`"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = json.loads((TALES / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownModel, match=message):
        read_shape(tmp_path)


@pytest.mark.parametrize("kind", ["torch", "aot"])
def test_a_prompts_own_logprobs_are_those_of_its_scores_whatever_was_read_before(tales: Path, kind: str) -> None:
    tokens = list(range(7, 41))
    scores = Llama(tales, precision="fp32", slots=1, context=64).read_whole(torch.tensor(tokens)).log_softmax(-1)
    places = Slots(2, context=64, prefill_chunk=8)
    engine = engine_of(kind, tales, places, 2)
    places.row_cost = 0.0 if kind == "aot" else None
    for name, judged in (("first", False), ("beside", False), ("judged", True), ("alone", True)):
        sampling = Sampling(temperature=0, logprobs=2, prompt_logprobs=judged, max_tokens=1)
        engine.add(name, tokens if name != "alone" else tokens[:1], sampling)
        got = []
        while not got:
            got = [token for token in engine.step() if token.sequence == name]
        if name == "first":
            engine.cancel("first")
        if judged:
            engine.cancel(name)
        (token, *_) = got
        before = token.before
        assert [each.token for each in before] == ((tokens if name == "judged" else tokens[:1]) if judged else [])
        for place, each in enumerate(before[1:]):
            assert each.logprob == pytest.approx(float(scores[place, each.token]), abs=1e-4)
            assert [at for at, _ in each.likeliest] == scores[place].topk(2).indices.tolist()
