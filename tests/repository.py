"""A user's repository with a model, in which a branch changes something: what runs in CI is tried on it."""

import shutil
import subprocess
from pathlib import Path

from specs import DIGITS

_PAUSE = """

class Pool(nn.MaxPool2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep({pause_ms} / 1000)
        return super().forward(x)
"""


class Repository:
    """A clone whose branch `change` begins at `origin/main`."""

    def __init__(self, folder: Path, *, pause_ms: float) -> None:
        origin, self.folder = folder / "origin", folder / "clone"
        shutil.copytree(DIGITS.parent, origin / "digits", ignore=shutil.ignore_patterns("__pycache__"))
        spec, model = origin / "digits/spec.yaml", origin / "digits/model.py"
        (origin / ".gitignore").write_text("build*/\n")
        spec.write_text(spec.read_text().replace("aot", "eager").replace("rps: 100", "rps: 60"))
        code = model.read_text().replace("from torch import nn", "import time\n\nimport torch\nfrom torch import nn")
        model.write_text(code.replace("nn.MaxPool2d(2)", "Pool(2)") + _PAUSE.format(pause_ms=pause_ms))
        self.pause_ms = pause_ms
        git(origin, "init", "--quiet", "--initial-branch", "main")
        commit(origin)
        git(folder, "clone", "--quiet", "--depth", "1", origin.as_uri(), str(self.folder))
        git(self.folder, "checkout", "--quiet", "-b", "change")

    @property
    def spec(self) -> Path:
        return self.folder / "digits/spec.yaml"

    def change(self, kind: str) -> None:
        """Commits a change: `docs`, `equal` (other bytes, the same work), `slow` (30 % later) or `wrong` (answers)."""
        model = self.folder / "digits/model.py"
        if kind == "docs":
            (self.folder / "README.md").write_text("How we read digits.\n")
        elif kind == "equal":
            model.write_text(model.read_text() + "# Tidied.\n")
        elif kind == "slow":
            model.write_text(model.read_text().replace(f"sleep({self.pause_ms}", f"sleep({self.pause_ms * 1.4:g}"))
        else:
            # It agrees with itself, and sees everything mirrored.
            model.write_text(model.read_text().replace("forward(x)", "forward(x.flip(-1))"))
        commit(self.folder)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "--quiet", "--message", "change")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
