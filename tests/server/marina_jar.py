"""Writes `server/java/marina.jar` from the Java sources in the folders beside it: the same bytes for the same sources
and compiler.

`make jar` runs it; a test checks that the jar was made from the current sources.
"""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[2] / "server" / "java"
JAR = _FOLDER / "marina.jar"
# The oldest Java that a server may use, and the version of the compiler that made the committed classes.
RELEASE, COMPILER = "11", 17
_DATE = (1980, 1, 1, 0, 0, 0)


def sources() -> list[Path]:
    return sorted(_FOLDER.glob("*/*.java"))


def digest() -> str:
    """The sha256 of all sources, in the order of their names."""
    text = hashlib.sha256()
    for file in sources():
        text.update(file.name.encode() + b"\0" + file.read_bytes())
    return text.hexdigest()


def torchserve() -> Path:
    """TorchServe's jar, against which the sources are compiled."""
    spec = importlib.util.find_spec("ts")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "frontend" / "model-server.jar"


def build(target: Path) -> None:
    """Compiles the sources and packs them into `target`."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(file) for file in sources()]
        command = ["javac", "--release", RELEASE, "-proc:none", "-cp", str(torchserve()), "-d", folder, *files]
        subprocess.run(command, check=True)
        classes = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(Path(folder).rglob("*.class"))}
    manifest = f"Manifest-Version: 1.0\nSources: {digest()}\n\n".encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, data in {"META-INF/MANIFEST.MF": manifest, **classes}.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            jar.writestr(entry, data)


if __name__ == "__main__":
    build(JAR)
    print(f"{JAR}: {JAR.stat().st_size} bytes", file=sys.stderr)
