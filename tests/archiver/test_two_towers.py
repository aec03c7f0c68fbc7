"""CLIP and SigLIP, as `transformers` saves them with both of their processors: pictures by default, texts if asked for,
each answered as by `transformers` itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marina
from marina.archiver.graph import build_graph
from marina.archiver.sources import load_source
from marina.config.load import load_spec
from marina.handlers.torchvision_import import prepare_torchvision

_SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
_SEEN = {**_SMALL, "image_size": 32, "patch_size": 16}
_SQUARE = {"size": {"height": 32, "width": 32}}
_WORDS = ("[PAD]", "[UNK]", "the", "cat", "on", "a", "mat", "[END]")


@pytest.fixture(params=["CLIP", "Siglip"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    prepare_torchvision()
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    marks = {"pad_token_id": 0, "eos_token_id": 7, "bos_token_id": 1}
    texts = {**_SMALL, **marks, "vocab_size": len(_WORDS), "max_position_embeddings": 8}
    config = getattr(transformers, f"{request.param}Config")(text_config=texts, vision_config=_SEEN)
    made = getattr(transformers, f"{request.param}Model")(config).eval()
    made.save_pretrained("model")
    getattr(transformers, f"{request.param}ImageProcessor")(**_SQUARE, do_center_crop=False).save_pretrained("model")
    tokenizer: Any = Tokenizer(models.WordLevel({word: place for place, word in enumerate(_WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A [END]", None, [("[END]", 7)])
    tokenizer.save("model/tokenizer.json")
    return made


def answered(values: list[np.ndarray]) -> np.ndarray:
    spec = load_spec(Path("mine/spec.yaml"))
    graph = build_graph(spec, load_source(spec), "fp32")
    with torch.no_grad():
        found: np.ndarray = graph(*map(torch.from_numpy, values))[0][0].numpy()
    return found


def plain(found: Any) -> torch.Tensor:
    vector: torch.Tensor = found if isinstance(found, torch.Tensor) else found.pooler_output
    return vector


def init(*more: str) -> int:
    return marina.main(["init", "mine", "--quiet", "--source", "hf:./model", *more])


@pytest.mark.usefixtures("model")
def test_pictures_are_taken_unless_texts_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert init() == 0, capsys.readouterr().err
    assert "`--handler text` serves its part for texts" in capsys.readouterr().out
    spec = load_spec(Path("mine/spec.yaml"))
    assert (spec.model.handler, spec.model.task) == ("image", "embed")


def test_a_text_gets_the_vector_of_transformers(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--handler", "text") == 0, capsys.readouterr().err
    is_padded = type(model).__name__ == "SiglipModel"
    assert load_spec(Path("mine/spec.yaml")).encoding.buckets == ((8,) if is_padded else "dynamic")
    # As a worker pads a text to the longest of its batch, or to the only length.
    ids = np.array([[2, 3, 4, 5, 6, 7, 0, 0]])
    mask = (np.arange(8) < 6).astype(np.int64)[None]
    alone = ids if is_padded else ids[:, :6]
    with torch.no_grad():
        expected = plain(model.get_text_features(input_ids=torch.from_numpy(alone)))[0]
    expected = torch.nn.functional.normalize(expected, dim=0)
    assert np.abs(answered([ids, mask]) - expected.numpy()).max() < 1e-5


def test_lengths_that_siglip_was_not_trained_with_are_refused(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if type(model).__name__ != "SiglipModel":
        pytest.skip("CLIP takes texts of any length")
    assert init("--handler", "text") == 0
    file = Path("mine/spec.yaml")
    file.write_text(file.read_text(encoding="utf-8").replace("buckets: [8]", "buckets: [4, 8]"), encoding="utf-8")
    assert marina.main(["package", "mine/spec.yaml", "--quick", "--quiet"]) == 2
    assert "hint: encoding: {max_tokens: 8, buckets: [8]}" in capsys.readouterr().err
