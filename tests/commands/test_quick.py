"""`marina package --quick`: a package for a first look, which needs no compiler and is never deployed."""

from pathlib import Path

import pytest
import torch._inductor.config  # noqa: F401  It reads CXX when it is imported, and would keep the one that is set below
from specs import ROOT

from marina import main
from marina.config.record import read_package

SPEC = ROOT / "config/examples/digits/spec.yaml"


@pytest.mark.slow
def test_a_package_for_a_first_look_needs_no_compiler_and_gets_no_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    text = SPEC.read_text(encoding="utf-8").replace("precision: fp32", "precision: int8")
    for file in ("./model.py", "./digits.safetensors", "./labels.txt", "./calibration", "./samples"):
        text = text.replace(file, str(SPEC.parent / file))
    (spec := tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    out = ["--out", str(tmp_path / "build"), "--quiet"]
    assert main(["package", str(spec), "--quick", *out]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"for a first look only: not compiled, so slower; before you deploy, run `marina package {spec} --out {out[1]}`"
    )
    record = read_package(tmp_path / "build/digits").record
    assert (record.compile, record.precision, record.batch_sizes) == ("export", "fp32", (1, 8))
    assert main(["manifests", str(spec), *out]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/build/digits/model.mar: packaged with `--quick`, or before the spec changed: "
        f"`compile` is export, now aot, `precision` is fp32, now int8\n\nhint: marina package {spec} --out {out[1]}\n"
    )
