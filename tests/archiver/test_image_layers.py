import hashlib
import re
from pathlib import Path

import pytest
from oci import layer, write_layout

from archiver.containers.layers import Layer, read_image_file, read_layout
from config.errors import InputError

BASE, TOP = layer({"etc/os": b"debian", "bom.json": b"old"}), layer({"./bom.json": b"new"})
HISTORY = [
    {"created_by": "ADD base.tar /"},
    {"created_by": "/bin/sh -c #(nop) ENV A=1", "empty_layer": True},
    {"created_by": f"/bin/sh -c #(nop) COPY dir:{'a' * 64} in /opt/marina "},
]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_layers_are_measured_uncompressed(tmp_path: Path, compressed: bool, nested: bool) -> None:
    write_layout(tmp_path / "image.tar", [BASE, TOP], history=HISTORY, compressed=compressed, nested=nested)
    layout = read_layout(tmp_path / "image.tar")
    assert layout.layers == (
        Layer(f"sha256:{hashlib.sha256(BASE).hexdigest()}", len(BASE), "ADD base.tar /"),
        Layer(f"sha256:{hashlib.sha256(TOP).hexdigest()}", len(TOP), "COPY /opt/marina"),
    )
    assert layout.bytes == len(BASE) + len(TOP)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_read_from_the_topmost_layer_that_has_it(tmp_path: Path, compressed: bool) -> None:
    write_layout(tmp_path / "image.tar", [BASE, TOP], history=HISTORY, compressed=compressed)
    assert read_image_file(tmp_path / "image.tar", "bom.json") == b"new"
    assert read_image_file(tmp_path / "image.tar", "etc/os") == b"debian"
    assert read_image_file(tmp_path / "image.tar", "etc/passwd") is None


def test_a_layer_with_another_digest_than_configured_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    write_layout(file, [BASE, TOP], history=HISTORY)
    damaged = file.read_bytes().replace(b"debian", b"devuan")
    file.write_bytes(damaged)
    with pytest.raises(InputError, match=r"image\.tar: layer 0 is sha256:\w+, the image's configuration says sha256:"):
        read_layout(file)


def test_a_file_that_is_not_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(layer({"manifest.json": b"[]"}))
    with pytest.raises(InputError, match=re.escape("image.tar: not an OCI image layout: KeyError")):
        read_layout(tmp_path / "image.tar")
    (tmp_path / "image.tar").write_bytes(b"text")
    with pytest.raises(InputError, match="not an image: "):
        read_layout(tmp_path / "image.tar")
