"""`marina init`: what it writes works, wrong options are errors, and existing files stay."""

import json
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from specs import ROOT

import marina
from marina.command import parser
from marina.config.load import load_spec
from marina.starting.init_model import _row_ms
from marina.starting.init_spec import ModelFacts, spec_text

pytestmark = pytest.mark.slow

NETS = """
from dataclasses import dataclass

import torch
from torch import nn

@dataclass
class Scores:
    logits: torch.Tensor
    loss: torch.Tensor | None = None

class Named(nn.Sequential):
    # Answers as the classifiers of `transformers` do.
    def forward(self, x):
        return Scores(super().forward(x))

def named():
    return Named(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

def grey():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

def age():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))

def table():
    return nn.Sequential(nn.Linear(7, 3))

def silent():
    return nn.Flatten()

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
"""
SMALL = "torchvision:shufflenet_v2_x0_5"
SCALED = ["--fit", "crop", "--normalize", "0..1"]
PACKAGED = [
    pytest.param([], "image", id="image"),
    pytest.param(["--handler", "own"], "./handler.py:OwnHandler", id="own"),
    pytest.param(
        ["--source", "nets.py:grey", "--handler", "own", "--input", "input:float32:1,32,32", *SCALED],
        "./handler.py:OwnHandler",
        id="grey images",
    ),
    pytest.param(["--source", "fixed.pt2", "--handler", "own"], "./handler.py:OwnHandler", id="program of one batch"),
]
CHECKED = [
    pytest.param(["--handler", "tensor"], "tensor", id="tensor"),
    pytest.param(["--template", "text"], "./handler.py:OwnHandler", id="text template"),
    pytest.param(["--task", "detect"], "image", id="a detector to try"),
    pytest.param(["--task", "segment"], "image", id="a model of masks to try"),
    pytest.param(["--source", SMALL], "image", id="torchvision"),
    pytest.param(["--source", SMALL, "--handler", "own"], "./handler.py:OwnHandler", id="photographs"),
    pytest.param(["--source", SMALL, "--handler", "tensor"], "tensor", id="torchvision tensor"),
    pytest.param(["--source", "./nets.py:table"], "tensor", id="table"),
    pytest.param(
        ["--source", "nets.py:named", "--input", "x:float32:3,32,32", *SCALED], "image", id="named scores of pictures"
    ),
    pytest.param(["--source", "nets.py:age"], "tensor", id="one number for a picture"),
    pytest.param(["--source", "nets.py:silent", "--input", "x:float32:2,5"], "tensor", id="shape given"),
    pytest.param(["--source", "free.pt2"], "tensor", id="program"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A program for any batch, and one for a batch of four."""
    import torch

    folder, network, rows = tmp_path_factory.mktemp("programs"), torch.nn.Linear(5, 2), torch.zeros(4, 5)
    any_batch = ({0: torch.export.Dim("batch", min=1, max=64)},)
    for name, dynamic in (("free", any_batch), ("fixed", None)):
        torch.export.save(torch.export.export(network, (rows,), dynamic_shapes=dynamic), folder / f"{name}.pt2")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def init(*arguments: str) -> int:
    return marina.main(["init", "mine", "--quiet", *arguments])


@pytest.fixture
def put_programs(here: Path, programs: dict[str, bytes]) -> None:
    for name, program in programs.items():
        (here / name).write_bytes(program)


@pytest.mark.usefixtures("put_programs")
@pytest.mark.parametrize(("arguments", "handler"), PACKAGED)
def test_its_spec_can_be_packaged_at_once(
    arguments: list[str], handler: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(*arguments) == 0
    spec = here / "mine/spec.yaml"
    assert load_spec(spec).model.handler == handler
    # Not compiled, which saves half a minute each; the handler answers the sample in the same way.
    spec.write_text(spec.read_text(encoding="utf-8").replace("compile: aot", "compile: export"), encoding="utf-8")
    assert marina.main(["package", "mine/spec.yaml", "--quiet"]) == 0
    assert "agreement 1.0000" in capsys.readouterr().out


@pytest.mark.usefixtures("put_programs")
@pytest.mark.parametrize(("arguments", "handler"), CHECKED)
def test_its_spec_passes_the_check(arguments: list[str], handler: str, here: Path) -> None:
    assert init(*arguments) == 0
    assert load_spec(here / "mine/spec.yaml").model.handler == handler


def test_the_next_commands_that_it_prints_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--handler", "tensor") == 0
    said, _, following = capsys.readouterr().out.partition("\nnext\n")
    assert [line.split()[0] for line in said.splitlines()] == [
        "mine/model.py",
        "mine/samples/sample.json",
        "mine/spec.schema.json",
        "mine/spec.yaml",
    ]
    verbs = [parser().parse_args(line.split()[1:]).run.__name__ for line in following.splitlines()]
    assert verbs == ["check", "package", "serve", "loadtest"]


def test_as_json_it_lists_the_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--handler", "own", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["files"] == [
        f"mine/{name}" for name in ("handler.py", "model.py", "samples/sample.json", "spec.schema.json", "spec.yaml")
    ]
    assert all((here / file).is_file() for file in record["files"])


def test_every_line_that_is_commented_out_may_be_used(here: Path) -> None:
    assert init() == 0
    spec = here / "mine/spec.yaml"
    text = spec.read_text(encoding="utf-8")
    (here / "mine/calibration").mkdir()
    (here / "mine/labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)), encoding="utf-8")
    spec.write_text(
        text.replace("  # labels", "  labels").replace("  # calibration", "  calibration"), encoding="utf-8"
    )
    assert set(yaml.safe_load(spec.read_text(encoding="utf-8"))["model"]) >= {"labels", "calibration"}
    assert load_spec(spec).model.labels == "./labels.txt"


def test_existing_files_are_never_overwritten(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["marina", "init", "mine", "--source", "my net.mar"])
    (here / "mine").mkdir()
    (here / "mine/model.py").write_text("mine", encoding="utf-8")
    assert init() == 2
    assert capsys.readouterr().err == (
        "error: `NAME`: already there: `mine/model.py`; nothing is overwritten\n\n"
        "hint: another name: marina init mine-2 --source 'my net.mar'\n"
    )
    assert (here / "mine/model.py").read_text(encoding="utf-8") == "mine"
    assert [file.name for file in (here / "mine").iterdir()] == ["model.py"]


def test_a_second_init_ends_before_it_loads_the_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine").mkdir()
    (here / "mine/spec.yaml").touch()
    monkeypatch.setattr("marina.starting.init_model.find_model_facts", lambda *_: pytest.fail("it was loaded"))
    assert init() == 2


def test_a_model_that_is_in_the_folder_already_is_used(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "nets.py").rename(here / "mine/nets.py")
    assert init("--source", "mine/nets.py:table") == 0
    assert load_spec(here / "mine/spec.yaml").model.source == "./nets.py:table"


def test_a_path_may_look_like_a_comment(here: Path) -> None:
    (here / "my nets #2").mkdir()
    (here / "nets.py").rename(here / "my nets #2/nets.py")
    assert init("--source", "my nets #2/nets.py:table") == 0
    assert load_spec(here / "mine/spec.yaml").model.source == "../my nets #2/nets.py:table"


WRONG = [
    pytest.param(
        ["--source", "torchvision:resnet5"],
        "`--source`: torchvision has no model `resnet5`\n\nhint: --source torchvision:resnet50",
        id="misspelt",
    ),
    pytest.param(["--source", "gone.py:build"], "`--source`: no such file: `gone.py`", id="no file"),
    pytest.param(
        ["--source", "nets.py:tabel"],
        "`--source`: `./nets.py` has no function `tabel`\n\nhint: --source ./nets.py:table",
        id="no function",
    ),
    pytest.param(
        ["--source", "empty.py"],
        "`--source`: `empty.py` defines no `torch.nn.Module`, and no function such as `build`\n\n"
        "hint: in empty.py: `def build(): return Net(…)`",
        id="no model in the file",
    ),
    pytest.param(
        ["--source", "nets.py:Wide"],
        "`--source`: `./nets.py:Wide` needs `width`, allowed: no required arguments\n\n"
        "hint: in ./nets.py: `def build(): return Wide(width=…)`, then `--source ./nets.py:build`",
        id="a class that needs something",
    ),
    pytest.param(
        ["--source", "hf:"], "`--source`: got `hf:`, without a path\n\nhint: --source ./model.py:Net", id="no path"
    ),
    pytest.param(
        ["--template", "text", "--handler", "tensor"],
        "`--handler`: got `tensor`, but `--template` writes a handler of your own\n\nhint: leave out one of the two",
        id="two handlers",
    ),
    pytest.param(
        ["--source", "net.safetensors"],
        "`--source`: got `net.safetensors`, but such a file goes with the code of its model\n\n"
        "hint: --source ./model.py:Net --weights net.safetensors",
        id="weights alone",
    ),
    pytest.param(
        ["--source", "resnet18"],
        "`--source`: got `resnet18`, allowed: `torchvision:NAME`, `./file.py:NAME`, `./program.pt2`, `./model.pt`, "
        "`hf:./folder` or `hf:OWNER/NAME`"
        "\n\nhint: --source torchvision:resnet18",
        id="a model of torchvision without its prefix",
    ),
    pytest.param(
        ["--source", "gpt2.onnx"],
        "`--source`: `gpt2.onnx` is ONNX, a graph that was exported, and Marina compiles PyTorch's own code\n\n"
        "hint: --source ./model.py:Net --weights net.pt, with the model's own code and the checkpoint of its training",
        id="another format",
    ),
    pytest.param(
        ["--source", "hf:some models/bert"],
        "`--source`: no such folder: `./some models/bert`\n\n"
        "hint: --source hf:OWNER/bert, if it is on Hugging Face's hub",
        id="a name on the hub",
    ),
    pytest.param(
        ["--source", "torchvision:ssdlite320_mobilenet_v3_large"],
        "`--source`: `torchvision:ssdlite320_mobilenet_v3_large` answers another number of boxes for each picture, by "
        "operators of torchvision's own, which a pod lacks\n\n"
        "hint: a detector of transformers, such as YOLOS or RT-DETR: --source hf:OWNER/NAME",
        id="a detector of torchvision",
    ),
    pytest.param(
        ["--source", "torchvision:r3d_18"],
        "`--source`: `torchvision:r3d_18` takes clips, not pictures\n\nhint: in model.py: `def build(): return "
        "torchvision.models.get_model('r3d_18')`, then --source ./model.py:build --handler tensor",
        id="a model of clips",
    ),
    pytest.param(
        ["--source", "nets.py:grey"],
        "`--source`: nothing says whether its 3 numbers for a picture are scores of classes or an embedding\n\n"
        "hint: --task classify, or --task embed",
        id="numbers that nothing names",
    ),
    pytest.param(
        ["--source", "nets.py:grey", "--task", "segment"],
        "`--source`: `task: segment` has one output of 3 sides, but its outputs are [3]\n\nhint: --handler tensor",
        id="no mask",
    ),
    pytest.param(
        ["--source", "nets.py:grey", "--set", "scores: sigmoid"],
        "`--set`: got `scores: sigmoid`, allowed: `FIELD: VALUE` with one of `activation`, `detection`, `image`, "
        "`outputs`\n\nhint: --set 'activation: sigmoid'",
        id="a line of no field",
    ),
    pytest.param(
        ["--source", "nets.py:silent"],
        "`--input`: missing for `input`: no layer shows what `forward` takes\n\nhint: --input input:float32:3,224,224",
        id="shape unknown",
    ),
    pytest.param(
        ["--source", "nets.py:table", "--input", "x:float32:4,x"],
        "`--input`: got `x:float32:4,x`, allowed: NAME:DTYPE:SHAPE such as `ids:int64:128` or `ids:int64:{max: 512}`, "
        "or NAME:mask_of:INPUT",
        id="shape misspelt",
    ),
    pytest.param(
        ["--source", "nets.py:table", "--handler", "image"],
        "`--handler`: got `image`, but the model takes input [7], allowed: 1 or 3 channels, rows, columns\n\n"
        "hint: --handler tensor, or --input input:float32:3,224,224",
        id="no image",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_after_an_error_nothing_is_written(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(*arguments) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not (here / "mine").exists()


@pytest.mark.parametrize("taken", ["mine", "mine/samples"])
def test_a_file_where_a_folder_must_be_is_named_and_left_alone(
    taken: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / taken).parent.mkdir(exist_ok=True)
    (here / taken).write_text("mine")
    assert init() == 2
    assert capsys.readouterr().err == f"error: `NAME`: cannot write {taken}: File exists\n"
    assert (here / taken).read_text() == "mine"
    assert not (here / "mine/spec.yaml").exists()


def test_shapes_that_the_model_does_not_take_are_found_by_trying(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("--source", "nets.py:table", "--input", "input:float32:8") == 2
    message = capsys.readouterr().err
    assert "`--input`: the model fails on `input` float32 [8]: RuntimeError: " in message
    assert not (here / "mine").exists()


def test_the_only_model_of_a_file_needs_no_name(here: Path) -> None:
    (here / "one.py").write_text("from torch import nn\nnet = nn.Linear(3, 2)\n", encoding="utf-8")
    assert init("--source", "one.py") == 0
    assert load_spec(here / "mine/spec.yaml").model.source == "../one.py:net"


def test_a_name_that_kubernetes_would_refuse_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert marina.main(["init", "My_Model"]) == 2
    assert "error: `NAME`: got `My_Model`, allowed: at most 40 lower-case letters, digits" in capsys.readouterr().err


def test_files_of_our_packages_that_are_not_python_are_installed_too() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = [name.rstrip("*") for name in setuptools["packages"]["find"]["include"]]
    installed = {
        file
        for package, patterns in setuptools["package-data"].items()
        for pattern in patterns
        for file in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    assert installed
    left_out = [
        file
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc", ".java") and file not in installed
        # All examples but the first are for readers of the repository.
        if not file.is_relative_to(ROOT / "config" / "examples")
    ]
    assert left_out == []


@pytest.mark.parametrize(
    ("row_ms", "p99_ms", "rate"), [(None, 100, "20"), (0.5, 100, "20"), (67.0, 850, "14"), (3000.0, 36000, "0.3")]
)
def test_the_model_can_meet_the_objective_to_start_from(row_ms: float | None, p99_ms: int, rate: str) -> None:
    facts = ModelFacts("torchvision:resnet18", "image", picture=(3, 224, 224), row_ms=row_ms)
    text = spec_text("mine", facts, "samples/sample.png")
    assert f"  p99_ms: {p99_ms} " in text
    assert f"  throughput_rps: {rate} " in text
    assert ("one takes" in text) is (p99_ms > 100)


def test_the_time_that_a_busy_machine_makes_a_model_wait_does_not_count() -> None:
    assert _row_ms(lambda: time.sleep(0.2), ()) < 200
