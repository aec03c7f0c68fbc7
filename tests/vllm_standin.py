"""A Python in which the stand-in for vLLM can be imported, and nothing else of ours."""

import venv
from pathlib import Path

STANDIN = Path(__file__).resolve().parent / "standin"


def standin_python(folder: Path) -> Path:
    """A virtual environment with nothing in it but the path of the stand-in; its folder."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = (folder / "lib").glob("python3.*/site-packages")
    (site / "standin.pth").write_text(f"{STANDIN}\n", encoding="utf-8")
    return folder
