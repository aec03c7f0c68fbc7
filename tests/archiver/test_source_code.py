"""`compile: eager`: models that cannot be exported run from their source, and the package has everything it needs."""

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from specs import ROOT, make_spec

from marina.archiver import user_code
from marina.archiver.inspecting.inspect import inspect
from marina.archiver.package import package
from marina.archiver.user_code import import_file, local_modules
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import Package

MODEL = """
import torch
from torch import nn

from parts.scale import halved

class Shrink(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        x = self.second(self.first(x))
        while x.norm() > 1:
            x = halved(x)
        return x

    def _load_from_state_dict(self, state, prefix, versions, *rest):
        if "version" not in versions:
            raise ValueError("as torchvision's MNASNet does")
        super()._load_from_state_dict(state, prefix, versions, *rest)

def build():
    return Shrink()
"""
SIZES = """
import torch
from torch import nn

class Lower(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ torch.eye(3)

class Counting(nn.Module):
    def forward(self, x):
        return torch.stack([x[row] for row in range(len(x))])

class Pairs(nn.Module):
    def forward(self, x, mask):
        x = x * mask
        x = x if x.shape[1] % 2 == 0 else nn.functional.pad(x, (0, 1))
        return x.view(len(x), -1, 2).sum((1, 2))

class Places(nn.Module):
    def forward(self, x, mask):
        return (x * mask + torch.zeros(16)).sum(1)
"""
FILES = {
    "model.py": MODEL,
    "parts/__init__.py": "",
    "parts/scale.py": "def halved(x):\n    from .factor import FACTOR\n    return x * FACTOR\n",
    "parts/factor.py": "FACTOR = 0.5\n",
    "parts/training.py": "import promql_parser\n",
    "sizes.py": SIZES,
    "hungry.py": "import promql_parser\nfrom model import build\n",
}
EAGER: dict[str, Any] = {
    "model.source": "./model.py:build",
    "model.handler": "tensor",
    "model.inputs": {"x": {"shape": [4], "min": -100.0, "max": 100.0}},
    "model.compile": "eager",
    "model.batch_sizes": [1],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def packaged(folder: Path, changes: dict[str, Any] | None = None) -> Package:
    spec = make_spec(EAGER | (changes or {}), folder / "spec.yaml")
    return package(spec, folder / "build", progress=Progress(quiet=True))


def message(folder: Path, changes: dict[str, Any]) -> str:
    with pytest.raises(SourceError) as raised:
        packaged(folder, changes)
    return f"{raised.value.message} | {raised.value.hint}".replace(str(folder), "DIR")


def test_the_modules_that_a_file_imports_are_packed(folder: Path) -> None:
    assert list(local_modules(folder / "model.py")) == [
        "model.py",
        "parts/__init__.py",
        "parts/factor.py",
        "parts/scale.py",
    ]


def test_a_file_may_import_from_its_own_package_by_the_name_of_that(folder: Path) -> None:
    (folder / "parts/model.py").write_text("from parts.scale import halved\nimport torch.nn\n", encoding="utf-8")
    modules = ["parts/__init__.py", "parts/factor.py", "parts/model.py", "parts/scale.py"]
    assert sorted(local_modules(folder / "parts/model.py")) == modules
    assert callable(import_file(make_spec(EAGER, folder / "spec.yaml"), folder / "parts/model.py", "f").halved)


def test_a_folder_with_the_name_of_an_installed_package_is_not_taken_for_it(folder: Path) -> None:
    (folder / "parts").rename(folder / "torch")
    (folder / "torch/model.py").write_text("import torch.nn\n", encoding="utf-8")
    assert list(local_modules(folder / "torch/model.py")) == ["model.py"]


def test_a_linked_file_finds_its_neighbours_beside_the_file_that_it_leads_to(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "model.py").symlink_to(folder / "model.py")
    assert callable(import_file(make_spec(EAGER, linked / "spec.yaml"), linked / "model.py", "f").halved)
    assert list(local_modules(linked / "model.py")) == list(local_modules(folder / "model.py"))


@pytest.mark.parametrize("field", ["model.source", "model.handler"])
def test_code_that_the_python_of_an_image_cannot_read_is_refused(
    field: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "IMAGE_PYTHON", (3, 9))
    late = "\ndef late(x):\n    match x:\n        case 1:\n            return x\n"
    own = "from marina.handlers import TensorHandler\nclass Own(TensorHandler):\n    pass\n"
    (folder / "own.py").write_text(own + (late if field == "model.handler" else ""), encoding="utf-8")
    with (folder / "parts/factor.py").open("a", encoding="utf-8") as file:
        file.write(late if field == "model.source" else "")
    said = message(folder, {"model.handler": "./own.py:Own"})
    where = "parts/factor.py:6" if field == "model.source" else "own.py:8"
    text = "Pattern matching is only supported in Python 3.10 and greater, allowed: Python 3.9, which images have"
    assert said.startswith(f"DIR/spec.yaml: `{field}`: `DIR/{where}`: {text}")


@pytest.mark.slow
def test_a_model_that_branches_on_values_is_packaged_as_source_and_the_report_says_so(
    folder: Path,
) -> None:
    torch.manual_seed(7)
    record = packaged(folder).record
    assert record.code is not None
    assert (record.code.file, record.code.factory, record.code.shared) == ("model.py", "build", ("second.weight",))
    assert record.agreement.agreement == 1
    report = inspect(folder / "build/model.mar")
    assert report.sound, report.as_text()
    assert "RUNS       the source of `build` in source/model.py, in the worker" in report.as_text()
    with zipfile.ZipFile(folder / "build/model.mar") as archive:
        names = {name for name in archive.namelist() if name.startswith("source/")}
    assert names == {f"source/{name}" for name in local_modules(folder / "model.py")}


@pytest.mark.slow
def test_a_failed_export_names_the_line_and_a_way_out(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert message(folder, {"model.compile": "export"}) == (
        "DIR/model.py:16: `while x.norm() > 1:` cannot be exported: Data-dependent branching | compile: eager, which "
        "runs this file as it is; or decide with `torch.where` or `torch.cond`, and keep `aot`"
    )
    assert "class GraphModule" not in capfd.readouterr().err


@pytest.mark.slow
def test_an_import_that_a_pod_lacks_fails_when_packaging(folder: Path) -> None:
    said = message(folder, {"model.source": "./hungry.py:build"})
    assert (
        "ModuleNotFoundError: No module named 'promql_parser': promql-parser is installed here, but a pod has only"
        in said
    )
    assert said.endswith(
        "| `requirements: ./requirements.txt` under `model`, with the line `promql-parser` in that file, or if "
        "`promql_parser` is yours, put it beside the file that imports it"
    )


def test_a_file_that_would_hide_a_module_of_the_worker_is_refused(folder: Path) -> None:
    (folder / "numpy.py").write_text("", encoding="utf-8")
    (folder / "parts/factor.py").write_text("FACTOR = 0.5\ndef late():\n    import numpy\n", encoding="utf-8")
    assert "`DIR/numpy.py` would hide the module `numpy` in the worker | rename the file" in message(folder, {})


THREE: dict[str, Any] = {"x": {"shape": [3]}}
VARYING: dict[str, Any] = {"x": {"shape": [{"max": 16}]}, "mask": {"mask_of": "x"}}


def exported(name: str, inputs: dict[str, Any] = THREE) -> dict[str, Any]:
    changes = {"model.compile": "export", "model.batch_sizes": [1, 4]}
    return changes | {"model.source": f"./sizes.py:{name}", "model.inputs": inputs}


def test_a_model_that_does_not_take_every_length_is_named(folder: Path) -> None:
    said = message(folder, exported("Places", VARYING))
    assert said.startswith("DIR/spec.yaml: `model.source`: the model fails on inputs (4, 1")
    assert said.endswith("| requests may have any length from 1 to 16: pad in `forward`, or use a fixed `shape`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        (
            "Counting",
            THREE,
            "the model's code fixes the batch size | `batch_sizes: [4]` packages that one",
        ),
        (
            "Pairs",
            VARYING,
            "the model's code does not treat all lengths alike | `buckets: [16]`, to which every request is "
            "padded; or compile: eager",
        ),
    ],
)
def test_code_that_cannot_be_exported_for_every_size_says_for_which(
    name: str, inputs: dict[str, Any], expected: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert message(folder, exported(name, inputs)).endswith(f"cannot be exported: {expected}")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_model_that_computes_in_lower_precision_by_itself_is_exported(folder: Path) -> None:
    assert packaged(folder, exported("Lower")).record.agreement.agreement == 1


def test_another_model_finds_its_own_neighbour_of_the_same_name(tmp_path: Path) -> None:
    for folder, width in (("first", 3), ("second", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sizes.py").write_text(f"WIDTH = {width}\n", encoding="utf-8")
        text = "def build():\n    from sizes import WIDTH\n    return WIDTH\n"
        (tmp_path / folder / f"{folder}.py").write_text(text, encoding="utf-8")
    spec = make_spec(EAGER, tmp_path / "spec.yaml")
    first, second = (import_file(spec, tmp_path / name / f"{name}.py", "f") for name in ("first", "second"))
    assert second.build() == 5
    assert sys.modules[first.build.__module__] is first


def test_a_file_at_the_root_of_a_clone_packs_nothing_of_marina(tmp_path: Path) -> None:
    for name in ("marina", "handlers", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    file = tmp_path / "own.py"
    file.write_text("from marina.handlers import TensorHandler\nimport marina.config.errors\n", encoding="utf-8")
    assert list(local_modules(file)) == ["own.py"]
    spec = make_spec(EAGER, tmp_path / "spec.yaml")
    assert import_file(spec, file, "f").TensorHandler.__module__ == "marina.handlers.tensor"
    file.write_text("from handlers import TensorHandler\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"imports from `handlers`, which is called `marina\.handlers`"):
        import_file(spec, file, "f")


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        pytest.param("from serving.pre import x", ["serving/handler.py", "serving/pre.py"], id="its folder's name"),
        pytest.param("from .pre import x", ["serving/handler.py", "serving/pre.py"], id="relative"),
        pytest.param("import pre", ["handler.py", "pre.py"], id="beside it"),
        pytest.param("import importlib as i; i.import_module('pre')", ["handler.py", "pre.py"], id="importlib"),
    ],
)
def test_a_folder_without_an_init_file_is_a_package_if_it_is_imported_as_one(
    handler: str, found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/handler.py").write_text(f"{handler}\n", encoding="utf-8")
    (tmp_path / "serving/pre.py").write_text("x = 1\n", encoding="utf-8")
    assert list(local_modules(tmp_path / "serving/handler.py")) == found
    import_file(make_spec(file=tmp_path / "spec.yaml"), tmp_path / "serving/handler.py", "model.handler")


@pytest.mark.parametrize("handler", ["serving/handler.py", "deep/serving/handler.py"])
@pytest.mark.parametrize("files", [["serving/__init__.py", "common/__init__.py"], []], ids=["init files", "none"])
def test_packages_beside_that_of_a_file_are_packed_with_what_they_import(
    handler: str, files: list[str], tmp_path: Path
) -> None:
    texts = {
        handler: "from common.pre import x\nimport settings\nimport boxes\nimport yaml\n",
        f"{Path(handler).parent}/boxes.py": "import common.post as post\n",
        "common/pre.py": "from .post import x\n",
        "common/post.py": "x = 1\n",
        "common/unused.py": "",
        "settings.py": "",
        "yaml/__init__.py": "raise SystemExit\n",
    }
    for name, text in (texts | dict.fromkeys(files, "")).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = local_modules(tmp_path / handler)
    expected = {handler, "boxes.py", "common/pre.py", "common/post.py", "settings.py"}
    assert {name for name in found if not name.endswith("__init__.py")} == expected
    assert ("common/__init__.py" in found) == bool(files)
    import_file(make_spec(file=tmp_path / "spec.yaml"), tmp_path / handler, "model.handler")


def test_an_import_that_finds_nothing_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("import pre\n", encoding="utf-8")
    (tmp_path / "pre.py").write_text("\nimport nothing_of_this_name\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"failed at `.*/pre\.py:2`: ModuleNotFoundError: No module named"):
        import_file(make_spec(file=tmp_path / "spec.yaml"), tmp_path / "handler.py", "model.handler")
