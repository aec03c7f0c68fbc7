"""Models of pictures in a folder, as `transformers` saves it, answer as `transformers` itself does."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import marina
from marina.archiver.graph import activation, build_graph
from marina.archiver.sources import load_source
from marina.archiver.staging import _explicit_image
from marina.config.errors import SourceError
from marina.config.load import load_spec
from marina.config.spec import Spec
from marina.handlers.detection import find_objects
from marina.handlers.pictures import decode_placed
from marina.handlers.record import parse_image

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_SEEN = {**_SMALL, "image_size": 64, "patch_size": 16}
_SQUARE = {"size": {"height": 64, "width": 64}}
_CUT = {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}
_TEXTS = {**_SMALL, "vocab_size": 100}
# The classes of the model, its configuration and its processor, and their arguments.
MADE: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "classify": (
        *("ViTForImageClassification", "ViTConfig", "ViTImageProcessor"),
        _SEEN | {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}},
        _SQUARE | {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.3]},
    ),
    "several labels": (
        *("DeiTForImageClassification", "DeiTConfig", "DeiTImageProcessor"),
        _SEEN | {"num_labels": 4, "problem_type": "multi_label_classification"},
        {"size": {"height": 72, "width": 72}, "crop_size": {"height": 64, "width": 64}},
    ),
    "segment": (
        *("SegformerForSemanticSegmentation", "SegformerConfig", "SegformerImageProcessor"),
        {
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 1, 1],
            "decoder_hidden_size": 16,
            "num_labels": 6,
        },
        _SQUARE,
    ),
    "detect": (
        *("YolosForObjectDetection", "YolosConfig", "YolosImageProcessor"),
        {**_SMALL, "image_size": [64, 64], "num_detection_tokens": 10, "num_labels": 5},
        _SQUARE,
    ),
    "embed": (
        *("CLIPModel", "CLIPConfig", "CLIPImageProcessor"),
        {"text_config": _TEXTS, "vision_config": _SEEN, "projection_dim": 16},
        _CUT,
    ),
    "convnext": (
        *("ConvNextForImageClassification", "ConvNextConfig", "ConvNextImageProcessor"),
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 6},
        {"size": {"shortest_edge": 64}},
    ),
}


LEVELS = "mean: [0.1, 0.2, 0.3], std: [0.3, 0.2, 0.1]"


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    # Of a size whose crops have no half pixels, which libraries round in several ways.
    down, across = np.mgrid[0:140, 0:188]
    waves = [np.sin(across / 9 + shift) * np.cos(down / 7) * 127 + 128 for shift in range(3)]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(kind: str) -> tuple[Any, Any]:
    """Saves a model with its processor; returns both."""
    import transformers

    name, config, processor, fields, how = MADE[kind]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**fields)).eval()
    with torch.no_grad():
        # Random heads hardly tell pictures apart.
        for key, value in model.named_parameters():
            if "class" in key:
                value.mul_(20)
    made = getattr(transformers, processor)(**how)
    model.save_pretrained("model")
    made.save_pretrained("model")
    return model, made


def answered(spec: Spec, picture: Image.Image) -> tuple[list[np.ndarray], Any, Any]:
    """The outputs of Marina's graph for a picture, how it was read, and where it lies."""
    source = load_source(spec)
    assert source.image is not None
    how = parse_image(_explicit_image(spec, source.image).model_dump())
    body = io.BytesIO()
    picture.save(body, "PNG")
    pixels, placement = decode_placed(body.getvalue(), how)
    with torch.no_grad():
        outputs = build_graph(spec, source, "fp32")(torch.from_numpy(np.ascontiguousarray(pixels))[None])
    return [output[0].numpy() for output in outputs], how, placement


def init(*more: str) -> Spec:
    assert marina.main(["init", "mine", "--quiet", "--source", "hf:./model", *more]) == 0
    return load_spec(Path("mine/spec.yaml"))


@pytest.mark.parametrize("kind", ["classify", "several labels", "convnext"])
def test_classes_and_their_shares_are_those_of_transformers(kind: str, picture: Image.Image) -> None:
    model, processor = save(kind)
    (shares, classes), _, _ = answered(init(), picture)
    with torch.no_grad():
        logits = model(**processor(images=picture, return_tensors="pt")).logits[0]
    expected = logits.sigmoid() if kind == "several labels" else logits.softmax(-1)
    assert classes.tolist() == expected.topk(len(classes)).indices.tolist()
    assert np.abs(shares - expected.topk(len(classes)).values.numpy()).max() < 2e-3
    if kind == "classify":
        assert load_source(load_spec(Path("mine/spec.yaml"))).labels == ("cat", "dog", "owl")


def test_a_mask_is_that_of_transformers(picture: Image.Image) -> None:
    model, processor = save("segment")
    ((scores, *_), how, _) = answered(init(), picture)
    with torch.no_grad():
        output = model(**processor(images=picture, return_tensors="pt"))
    assert np.abs(scores - output.logits[0].numpy()).max() < 1e-2
    assert (how.task, how.activation, how.mask_size) == ("segment", "softmax", "input")


def test_a_mask_has_the_pictures_size_only_where_all_of_it_is_seen(picture: Image.Image) -> None:
    save("segment")
    init()
    file = Path("mine/spec.yaml")
    file.write_text(file.read_text().replace("task: segment", "task: segment\n  mask_size: picture"))
    _, how, _ = answered(load_spec(file), picture)
    assert how.mask_size == "picture"
    cut = "mask_size: picture\n  image: {height: 64, width: 64, mean: [0.5], std: [0.5]}"
    file.write_text(file.read_text().replace("mask_size: picture", cut))
    with pytest.raises(SourceError, match="cut off before the model sees it"):
        load_source(load_spec(file))


def test_boxes_are_those_of_transformers(picture: Image.Image) -> None:
    model, processor = save("detect")
    lines = "detection: {boxes: cxcywh, unit: fraction, background: last, min_score: 0}"
    spec = init("--set", lines)
    (scores, boxes), how, placement = answered(spec, picture)
    assert how.detection is not None
    found = find_objects(boxes, scores, None, how.detection, activation=activation(spec), size=(64, 64))
    with torch.no_grad():
        output = model(**processor(images=picture, return_tensors="pt"))
    size = [(picture.height, picture.width)]
    (theirs,) = processor.post_process_object_detection(output, threshold=0, target_sizes=size)
    order = theirs["scores"].argsort(descending=True)
    assert found.classes.tolist() == theirs["labels"][order].tolist()
    assert np.abs(found.scores - theirs["scores"][order].numpy()).max() < 1e-3
    bounds = np.array([picture.width, picture.height] * 2)
    expected = theirs["boxes"][order].numpy().clip(0, bounds)
    assert np.abs(placement.to_picture(found.boxes) - expected).max() < 0.2


def test_a_vector_is_that_of_transformers(picture: Image.Image) -> None:
    model, processor = save("embed")
    (embedding,), how, _ = answered(init(), picture)
    with torch.no_grad():
        theirs = model.get_image_features(**processor(images=picture, return_tensors="pt"))
    expected = (theirs if isinstance(theirs, torch.Tensor) else theirs.pooler_output)[0].numpy()
    assert how.task == "embed"
    assert np.abs(embedding - expected).max() < 1e-2


def test_a_task_that_the_folder_has_no_weights_for_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save("embed")
    assert marina.main(["init", "mine", "--quiet", "--source", "hf:./model", "--task", "detect"]) == 2
    assert "nothing says what makes scores of the numbers of a `clip`" in capsys.readouterr().err


def test_a_folder_that_does_not_say_how_pictures_are_scaled_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save("classify")
    settings = Path("model/preprocessor_config.json")
    written = json.loads(settings.read_text(encoding="utf-8"))
    for changed, words in (
        (
            {"size": {"longest_edge": 80, "shortest_edge": 60}},
            "fit: squash, mean: [0.4, 0.5, 0.6], std: [0.2, 0.2, 0.3]",
        ),
        ({"do_flip_channel_order": True}, "self.model(picture.flip(1))"),
    ):
        settings.write_text(json.dumps(written | changed), encoding="utf-8")
        assert marina.main(["init", "mine", "--quiet", "--source", "hf:./model"]) == 2
        assert words in capsys.readouterr().err
    settings.unlink()
    assert marina.main(["init", "mine", "--quiet", "--source", "hf:./model"]) == 2
    assert "put the model's `preprocessor_config.json` into" in capsys.readouterr().err
    assert marina.main(["init", "mine", "--quiet", "--source", "hf:./model", "--set", f"image: {{{LEVELS}}}"]) == 2
    assert "missing: `--fit`" in capsys.readouterr().err
    image = init("--set", f"image: {{{LEVELS}}}", "--fit", "letterbox").model.image
    assert image is not None
    assert (image.fit, image.width, image.mean) == ("letterbox", 64, (0.1, 0.2, 0.3))


def test_a_model_of_transformers_in_a_file_needs_its_processor(capsys: pytest.CaptureFixture[str]) -> None:
    save("classify")
    made = "from transformers import ViTForImageClassification\n\n\ndef build():\n    "
    Path("model.py").write_text(f"{made}return ViTForImageClassification.from_pretrained('model')\n", encoding="utf-8")
    words = ["init", "mine", "--quiet", "--source", "./model.py"]
    assert marina.main(words) == 0, capsys.readouterr().err
    image = load_spec(Path("mine/spec.yaml")).model.image
    assert image is not None
    assert image.mean == (0.4, 0.5, 0.6)
    shutil.rmtree("mine")
    Path("model/preprocessor_config.json").unlink()
    assert marina.main(words) == 2
    assert "put its `preprocessor_config.json` into model" in capsys.readouterr().err
    assert marina.main([*words, "--set", f"image: {{{LEVELS}}}"]) == 2
    assert "hint: --fit crop;" in capsys.readouterr().err
    assert marina.main([*words, "--fit", "squash", "--normalize", "0.1,0.2,0.3/0.5"]) == 0
    image = load_spec(Path("mine/spec.yaml")).model.image
    assert image is not None
    assert image.mean == (0.1, 0.2, 0.3)
