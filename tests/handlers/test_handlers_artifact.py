import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from unittest import TestCase

import pytest
import torch
from fakes import EAGER, ONE_INPUT, FakeContext, TinyDouble, ask, rewrite, start, write_package
from tools import needs

from marina.archiver.compiling.environment import cached_instruction_checks
from marina.handlers.artifact import pick_device
from marina.handlers.machine import machine_key, machine_mismatches
from marina.handlers.program import ARTIFACTS, load_program, use_cache
from marina.handlers.record import RecordError, load_record, parse_record
from marina.handlers.tensor import TensorHandler

# The compiler warns about torch itself.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:::torch", "ignore:.*treespec.*:FutureWarning"),
]
CPU = torch.device("cpu")
GOOD = b"[[0,1,2],[3,4,5]]"
DOUBLED = {"doubled": [[0, 2, 4], [6, 8, 10]]}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path):
    return write_package(tmp_path, TinyDouble, ONE_INPUT)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A real AOTInductor package; those of the digits have two batch sizes."""
    needs("g++", package="g++")
    directory = tmp_path_factory.mktemp("aot")
    program = torch.export.export(TinyDouble(), (torch.ones(4, 2, 3),))
    with cached_instruction_checks():
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(directory / "model-b4.pt2"),
            inductor_configs={"aot_inductor.precompile_headers": False},
        )
    aot = {"compile": "aot", "key": machine_key(CPU), "artifacts": [{"file": "model-b4.pt2", "batch": 4}]}
    return write_package(directory, TinyDouble, ONE_INPUT, aot)


def change(directory, **changes):
    path = directory / "marina.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cpuinfo(path, *flags):
    path.write_text(f"processor\t: 0\nflags\t\t: fpu {' '.join(flags)}\n\nprocessor\t: 1\n")
    return path


def test_a_compiled_package_answers_in_its_batch_size(compiled):
    handler = start(TensorHandler(), compiled)
    assert (handler.artifact.kind, handler.artifact.batch_sizes) == ("aot", (4,))
    assert [reply.json() for reply in ask(handler, *[GOOD] * 5)] == [DOUBLED] * 5


def test_compiled_packages_are_loaded_without_the_compiler(compiled):
    code = (
        "import sys; sys.path.insert(0, 'tests'); from fakes import *;"
        "from marina.handlers.tensor import TensorHandler;"
        f"handler = start(TensorHandler(), Path({str(compiled)!r})); ask(handler, {GOOD!r});"
        "print([name for name in ('torch._inductor.config', 'torch._dynamo.config', 'torchao') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_package_of_another_torch_is_refused_with_the_remedy(compiled, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    with pytest.raises(RecordError) as caught:
        start(TensorHandler(), compiled)
    key = json.loads((compiled / "marina.json").read_text())["key"]
    assert str(caught.value) == (
        f"the compiled model does not fit this machine: `torch`: packaged for `{key['torch']}`, here `2.99.0`: "
        "package on a machine like this one"
    )


def test_package_of_another_build_of_the_same_torch_is_loaded(compiled, monkeypatch):
    version = torch.__version__.partition("+")[0]
    monkeypatch.setattr(torch, "__version__", f"{version}+cu130")
    assert ask(start(TensorHandler(), compiled), GOOD)[0].json() == DOUBLED


def test_compiled_kernels_of_the_package_are_used(package, monkeypatch):
    needs("g++", package="g++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "another folder")
    (package / "cache").mkdir()
    change(package, compile="jit", cache="cache", batch_sizes=[3])  # a kernel that no other test compiles
    handler = start(TensorHandler(), package)
    assert ask(handler, GOOD)[0].json() == DOUBLED
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(package / "cache")
    assert list((package / "cache").rglob("*.so"))


def test_rejected_cache_is_logged(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "another folder")
    (tmp_path / ARTIFACTS).write_bytes(b"no artifacts")
    with TestCase().assertLogs("marina.handlers", "WARNING") as log:
        use_cache(tmp_path)
    assert "the compile cache was rejected" in log.output[0]


def test_cpu_that_lacks_flags_differs_and_one_with_more_does_not(tmp_path):
    key = {"torch": torch.__version__.partition("+")[0], "device": "cpu", "isa": ["avx2", "amx_int8", "avx512f"]}
    assert machine_mismatches(key, CPU, cpuinfo(tmp_path / "old", "avx2")) == [
        "`isa`: this CPU lacks `amx_int8`, `avx512f`"
    ]
    assert machine_mismatches(key, CPU, cpuinfo(tmp_path / "new", "avx2", "amx_int8", "avx512f", "amx_bf16")) == []


def test_key_for_another_device_differs():
    key = {"torch": torch.__version__.partition("+")[0], "device": "cuda", "capability": "9.0", "cuda": "13.0"}
    assert machine_mismatches(key, CPU) == ["`device`: packaged for `cuda`, here `cpu`"]


def test_key_of_this_machine_fits_it():
    assert machine_mismatches(machine_key(CPU), CPU) == []


def test_worker_without_a_gpu_is_refused_where_one_was_asked_for(package):
    change(package, device="cuda")
    with pytest.raises(RecordError, match="got `cuda`, but TorchServe gave this worker no GPU"):
        start(TensorHandler(), package)


def test_gpu_is_left_alone_where_the_cpu_was_asked_for(package):
    assert pick_device(load_record(package), gpu_id=0) == CPU


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"compile": "jit", "program": None}, "`program`: missing, but `jit` needs it", id="no program"),
        pytest.param({"compile": "aot", "key": machine_key(CPU)}, "`artifacts`: empty", id="no artifacts"),
        pytest.param(
            {"compile": "aot", "key": machine_key(CPU), "artifacts": [{"file": "gone.pt2", "batch": 1}]},
            "`gone.pt2` is not in the package",
            id="artifact gone",
        ),
        pytest.param({"batch_sizes": []}, "`batch_sizes`: got", id="no batch sizes"),
        pytest.param({"inputs": []}, "`inputs` and `outputs`: at least one", id="no inputs"),
        pytest.param({"schema": "marina.package/2"}, "`schema`: got `marina.package/2`", id="another schema"),
        pytest.param({"inputs": [{"name": "x", "shape": [2]}]}, r"`inputs\[0\].dtype`: missing", id="key in a list"),
        pytest.param({"image": {"height": 1}}, "`image.width`: missing", id="key in a section"),
    ],
)
def test_broken_package_says_what_is_missing(package, changes, message):
    change(package, **changes)
    with pytest.raises(RecordError, match=message):
        start(TensorHandler(), package)


@pytest.mark.parametrize("name", sorted(set(EAGER) - {"schema", "handler"}))
def test_missing_key_of_the_record_is_named(name):
    record = {key: value for key, value in (EAGER | ONE_INPUT).items() if key != name}
    with pytest.raises(RecordError, match=f"marina.json: `{name}`: missing"):
        parse_record(record)


def test_unknown_key_of_the_record_is_ignored():
    assert parse_record({**EAGER, **ONE_INPUT, "from_the_future": 1}).name == "tiny"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}'])
def test_record_that_is_none_is_an_error(tmp_path, text):
    (tmp_path / "marina.json").write_text(text)
    with pytest.raises(RecordError, match=r"marina\.json: "):
        load_record(tmp_path)


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


PICKLED = json.dumps(
    {"config": {"secret": {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}}}
)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        pytest.param(
            {"data/constants/opaque_obj_0": pickle.dumps(Bomb())}, "not a program of plain tensors", id="object"
        ),
        pytest.param(
            {"data/weights/model.pt": pickle.dumps(Bomb())}, "not a program of plain tensors", id="legacy weights"
        ),
        pytest.param(
            {"data/weights/model_weights_config.json": PICKLED}, "tensors stored as pickles", id="pickled weight"
        ),
        pytest.param(
            {"data/constants/model_constants_config.json": PICKLED}, "stored as pickles", id="pickled constant"
        ),
        pytest.param(
            {"data/sample_inputs/model.pt": pickle.dumps(Bomb())}, "has pickled sample inputs", id="sample inputs"
        ),
    ],
)
def test_program_that_asks_for_unpickling_is_refused(package, monkeypatch, entries, message):
    monkeypatch.chdir(package)
    program = package / "program.pt2"
    program.write_bytes(rewrite(program.read_bytes(), entries))
    with pytest.raises(RecordError, match=message):
        load_program(package / "program.pt2")
    assert not (package / "unpickled").exists()


def test_file_that_is_no_program_is_refused(package):
    (package / "program.pt2").write_bytes(b"PK")
    with pytest.raises(RecordError, match=r"program\.pt2: not a readable torch.export program"):
        TensorHandler().initialize(FakeContext(package))
