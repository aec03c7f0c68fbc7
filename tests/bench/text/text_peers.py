"""Others' engines for language models, and the models as they read them, below a bench's folder.

The first use installs them into a virtual environment there, compiles llama.cpp, and converts the model."""

import shutil
import subprocess
import sys
from pathlib import Path

import torch
from llama_gguf import llama_server, write_gguf

ROOT = Path(__file__).resolve().parent.parent.parent.parent
# Our server gives its workers large pages, so every side gets them.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
PACKAGES = ("openvino-genai", "ctranslate2", "optimum-intel", "nncf")
CONVERT = {
    "openvino": (
        "from optimum.intel import OVModelForCausalLM as M, OVWeightQuantizationConfig as Q; "
        "M.from_pretrained({model!r}, export=True, quantization_config=Q(bits=8), compile=False)"
        ".save_pretrained({out!r})"
    ),
    "ctranslate2": (
        "from ctranslate2.converters import TransformersConverter as T; "
        "T({model!r}).convert({out!r}, quantization='int8')"
    ),
}


def ready(side: str, model: Path, out: Path) -> tuple[Path, Path]:
    """The Python that runs an engine, and the model as that reads it."""
    if side == "llama.cpp":
        python, home = peers_python(out), out / "llama.cpp"
        llama_server(home, python)
        return python, write_gguf(model, home)
    if side in CONVERT:
        return peers_python(out), converted(side, model, out)
    return Path(sys.executable), model


def peers_python(out: Path) -> Path:
    python = out / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", out / "venv"], check=True)
        packages = next((out / "venv" / "lib").glob("python*")) / "site-packages"
        # torch is ours; what is installed beside it goes before.
        (packages / "ours.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *PACKAGES]
        try:
            subprocess.run(install, check=True)
        except subprocess.CalledProcessError:
            # Half of it would look like all of it the next time.
            shutil.rmtree(out / "venv")
            raise
    return python


def converted(side: str, model: Path, out: Path) -> Path:
    """By the side's own converter."""
    folder = model.with_name(f"{model.name}-{side}")
    if not folder.exists():
        before = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        before += "from marina.archiver.torchvision_import import import_torchvision as i; i(); "
        code = CONVERT[side].format(model=str(model), out=f"{folder}.new")
        shutil.rmtree(f"{folder}.new", ignore_errors=True)
        subprocess.run([peers_python(out), "-c", before + code], check=True, stdout=subprocess.DEVNULL)
        shutil.move(f"{folder}.new", folder)
    return folder
