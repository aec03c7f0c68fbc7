"""The forms of sources that lie elsewhere."""

import pytest
from specs import make_spec

from marina.config.errors import SpecError
from marina.config.remote import Remote, meant_hub_id, parse_remote

COMMIT, DIGEST = "a" * 40, f"sha256:{'b' * 64}"


@pytest.mark.parametrize(
    ("text", "parts", "file", "pinned"),
    [
        ("hf:me/tales", ("hf", "me/tales", None), None, False),
        ("hf:me/tales@v1.0#a/b.safetensors", ("hf", "me/tales", "v1.0"), "a/b.safetensors", False),
        (f"hf:me/tales.pt@{COMMIT}", ("hf", "me/tales.pt", COMMIT), None, True),
        ("timm:resnet50.a1_in1k", ("timm", "resnet50.a1_in1k", None), None, False),
        ("mlflow:models:/net@champion", ("mlflow", "models:/net", "champion"), None, False),
        ("mlflow:models:/net/3#data/model.pth", ("mlflow", "models:/net", "3"), "data/model.pth", True),
        ("mlflow:runs:/0ab/state.pth", ("mlflow", "runs:/0ab/state.pth", None), "state.pth", False),
        ("oci://localhost:5000/a/net:1", ("oci", "localhost:5000/a/net", "1"), None, False),
        (f"oci://ghcr.io/a/net:1@{DIGEST}", ("oci", "ghcr.io/a/net", DIGEST), None, True),
        ("s3://models/a/tales/", ("s3", "models/a/tales/", None), None, False),
        ("az://models/a/old.mar", ("az", "models/a/old.mar", None), "old.mar", False),
    ],
)
def test_a_source_elsewhere_is_read(
    text: str, parts: tuple[str, str, str | None], file: str | None, pinned: bool
) -> None:
    remote = parse_remote(text)
    assert remote == Remote(text, *parts, remote.file if remote else None)
    assert (remote.one_file, remote.is_folder, remote.is_pinned) == (file, file is None, pinned)


@pytest.mark.parametrize(
    "text",
    [
        "hf:./me/tales",
        "hf:/me/tales",
        "hf:tales",
        "hf:me/tales/more",
        "torchvision:resnet18",
        "./net.py:Net",
        "oci:x",
        "",
    ],
)
def test_what_is_here_is_not_elsewhere(text: str) -> None:
    assert parse_remote(text) is None


def test_a_pinned_text_means_the_version() -> None:
    for text, version, pinned in (
        ("hf:me/tales@main#x", COMMIT, f"hf:me/tales@{COMMIT}#x"),
        ("mlflow:models:/net@champion", "3", "mlflow:models:/net/3"),
        ("oci://ghcr.io/a/net:1", DIGEST, f"oci://ghcr.io/a/net@{DIGEST}"),
        ("s3://models/tales", "c", None),
    ):
        remote = parse_remote(text)
        assert remote
        assert remote.pinned_to(version) == pinned


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("me/tales", "hf:me/tales"),
        ("hf-hub:me/tales", "hf:me/tales"),
        ("hf://me/tales:main", "hf:me/tales"),
        ("https://huggingface.co/me/tales/tree/main", "hf:me/tales"),
        ("bert-base-uncased", "hf:OWNER/bert-base-uncased"),
        ("resnet50", None),
        ("a/b/c", None),
    ],
)
def test_an_id_of_the_hub_is_recognised(text: str, meant: str | None) -> None:
    assert meant_hub_id(text) == meant


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model.source": "oci:net"}, "`model.source`: got `oci:net`, allowed: `oci://REGISTRY/NAME:TAG`"),
        ({"model.source": "me/tales"}, "; a model of Hugging Face's hub is `hf:me/tales`"),
        (
            {"model.weights": "hf:me/tales"},
            "`model.weights`: got `hf:me/tales`, which is a folder, allowed: one file of it",
        ),
    ],
)
def test_what_is_written_wrongly_is_an_error_with_its_form(changes: dict[str, str], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(changes)
    assert text in caught.value.message


def test_weights_may_lie_elsewhere() -> None:
    spec = make_spec({"model.weights": "s3://models/net.safetensors"}, files=True)
    assert [remote.text for remote in spec.remotes] == ["s3://models/net.safetensors"]
