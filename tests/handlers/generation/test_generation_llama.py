"""The network against `transformers`, and the engine around it: whole, in pieces, alone and among others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from specs import ROOT

from archiver.torchvision_import import import_torchvision
from handlers.generation import Llama, Sampling, UnknownModel, read_shape
from handlers.generation.slots import Slots
from handlers.generation.torch_engine import TorchEngine

TALES = ROOT / "config/examples/tales/model"
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 95,
    "bos_token_id": 94,
    "pad_token_id": 93,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Mistral": {"head_dim": 16, "sliding_window": None},
    "Qwen2": {"rope_theta": 50_000.0, "tie_word_embeddings": False},
}


@pytest.fixture(params=FAMILIES, scope="module")
def family(request, tmp_path_factory):
    # It imports torchvision where that is installed, and beside torch for processors PyPI's needs a hand.
    import_torchvision()
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{request.param}Config")(**SIZES, **FAMILIES[request.param])
    theirs = getattr(transformers, f"{request.param}ForCausalLM")(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder, safe_serialization=True)
    return theirs, folder


def answers(folder: Path, prompts: list[list[int]], *, slots: int, count: int = 20, chunk: int = 4, **sampling: Any):
    """What the engine writes for each prompt, as many at once as there are slots."""
    places = Slots(slots, context=64, prefill_chunk=chunk)
    engine = TorchEngine(Llama(folder, precision="fp32", slots=slots, context=64), places)
    written: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    waiting = list(written)
    while waiting or engine.usage().sequences:
        while waiting and engine.usage().sequences < slots:
            name = waiting.pop(0)
            engine.add(name, prompts[int(name)], Sampling(**({"temperature": 0} | sampling)))
        for token in engine.step():
            written[token.sequence].append(token.token)
            if len(written[token.sequence]) == count:
                engine.cancel(token.sequence)
    return list(written.values())


PROMPTS = [[3], [5, 9, 1], list(range(4, 30)), [7] * 11, [90, 2, 40, 41, 42, 43, 44, 45]]


def test_scores_are_those_of_transformers(family) -> None:
    theirs, folder = family
    tokens = torch.tensor(PROMPTS[2])
    ours = Llama(folder, precision="fp32", slots=1, context=64).read_whole(tokens)
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_answers_are_those_of_transformers_to_the_token(family) -> None:
    theirs, folder = family
    for prompt, ours in zip(PROMPTS, answers(folder, PROMPTS, slots=3), strict=True):
        with torch.no_grad():
            given = torch.tensor([prompt])
            options = {"do_sample": False, "max_new_tokens": 20, "min_new_tokens": 20, "eos_token_id": None}
            whole = theirs.generate(given, attention_mask=torch.ones_like(given), pad_token_id=93, **options)
        assert ours == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_an_answer_is_the_same_alone_and_among_others_and_in_any_pieces(chunk: int) -> None:
    alone = [answers(TALES, [prompt], slots=1)[0] for prompt in PROMPTS]
    assert answers(TALES, PROMPTS, slots=5, chunk=chunk) == alone


def test_a_seed_gives_the_same_answer_among_others() -> None:
    alone = [answers(TALES, [prompt], slots=1, temperature=1.0, seed=5)[0] for prompt in PROMPTS]
    assert answers(TALES, PROMPTS, slots=5, temperature=1.0, seed=5) == alone


def test_the_tales_model_knows_tales_it_has_not_read() -> None:
    from handlers.generation import Tokens

    model, tokens = Llama(TALES, precision="fp32", slots=1, context=512), Tokens(TALES)
    lost = count = 0.0
    for tale in (TALES.parent / "held-out.txt").read_text().splitlines():
        ids = torch.tensor(tokens.encode(tale))
        lost += float(torch.nn.functional.cross_entropy(model.read_whole(ids)[:-1], ids[1:], reduction="sum"))
        count += len(ids) - 1
    # docs/02-text.md states it.
    assert torch.tensor(lost / count).exp() < 1.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "`architectures`: got `GPT2LMHeadModel`"),
        ({"auto_map": {}}, "`auto_map`"),
        ({"hidden_act": "gelu"}, "`hidden_act`: got `gelu`"),
        ({"mlp_bias": True}, "`mlp_bias`"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "`rope_scaling`: got `llama3`"),
        ({"quantization_config": {"bits": 4}}, "`quantization_config`"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = json.loads((TALES / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownModel, match=message):
        read_shape(tmp_path)
