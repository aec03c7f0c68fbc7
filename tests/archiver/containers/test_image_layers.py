import hashlib
import re
from pathlib import Path

import pytest
from oci import layer, write_layout

from marina.archiver.containers.layers import read_image_file, read_layout
from marina.config.errors import InputError
from marina.config.record import ImageLayer

BASE, TOP = layer({"etc/os": b"debian", "bom.json": b"old"}), layer({"./bom.json": b"new"})
HISTORY = [
    {"created_by": "ADD base.tar /"},
    {"created_by": "/bin/sh -c #(nop) ENV A=1", "empty_layer": True},
    {"created_by": f"/bin/sh -c #(nop) COPY dir:{'a' * 64} in /opt/marina "},
]


@pytest.fixture(
    params=["docker", "docker compressed", "docker nested", "docker compressed nested", "folder", "folder compressed"]
)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The image as builders export it."""
    how = {word: word in request.param for word in ("compressed", "nested", "folder")}
    write_layout(tmp_path / "image", [BASE, TOP], history=HISTORY, **how)
    return tmp_path / "image"


def digest_of(tar: bytes) -> str:
    return f"sha256:{hashlib.sha256(tar).hexdigest()}"


def test_layers_are_measured_uncompressed(exported: Path) -> None:
    layout = read_layout(exported)
    assert layout.layers == (
        ImageLayer(digest=digest_of(BASE), bytes=len(BASE), created_by="ADD base.tar /"),
        ImageLayer(digest=digest_of(TOP), bytes=len(TOP), created_by="COPY /opt/marina"),
    )
    assert layout.bytes == len(BASE) + len(TOP)


def test_a_file_is_read_from_the_topmost_layer_that_has_it(exported: Path) -> None:
    assert read_image_file(exported, "bom.json") == b"new"
    assert read_image_file(exported, "etc/os") == b"debian"
    assert read_image_file(exported, "etc/passwd") is None


@pytest.mark.parametrize("folder", [False, True])
def test_a_layer_with_another_digest_than_configured_is_refused(tmp_path: Path, folder: bool) -> None:
    exported = tmp_path / "image"
    write_layout(exported, [BASE, TOP], history=HISTORY, folder=folder)
    for file in exported.iterdir() if folder else [exported]:
        file.write_bytes(file.read_bytes().replace(b"debian", b"devuan"))
    with pytest.raises(InputError, match=r"image: layer 0 is sha256:\w+, the image's configuration says sha256:"):
        read_layout(exported)


def test_what_is_not_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(layer({"manifest.json": b"[]"}))
    with pytest.raises(InputError, match=re.escape("image.tar: not an OCI image layout: KeyError")):
        read_layout(tmp_path / "image.tar")
    (tmp_path / "image.tar").write_bytes(b"text")
    with pytest.raises(InputError, match="not an image: "):
        read_layout(tmp_path / "image.tar")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}: not an image: ")):
        read_layout(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"text")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}: not an image: ")):
        read_layout(tmp_path)


def test_a_folder_that_lacks_a_layer_is_refused(tmp_path: Path) -> None:
    exported = tmp_path / "image"
    write_layout(exported, [BASE, TOP], history=HISTORY, folder=True)
    (exported / hashlib.sha256(TOP).hexdigest()).unlink()
    with pytest.raises(InputError, match=r"image: not an image: .*No such file"):
        read_layout(exported)
