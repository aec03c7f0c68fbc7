"""Archives for TorchServe, made by torch-model-archiver from files that a test writes."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

# A handler with no network: it answers with the length of each body.
LENGTHS = "def handle(data, context):\n    return None if data is None else [str(len(row['body'])) for row in data]\n"


def make_archive(
    folder: Path,
    files: dict[str, str | bytes],
    *,
    handler: str = "handler.py",
    name: str = "Old_Model",
    version: str = "v1",
    form: str = "default",
    config: dict[str, Any] | None = None,
    **options: str,
) -> Path:
    """An archive in the folder, with all the files; `options` are those of torch-model-archiver, such as
    `model_file`."""
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "files"
        for place, content in files.items():
            file = written / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        if config is not None:
            (written / "model-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
            options["config_file"] = "model-config.yaml"
        command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name, "--version", version]
        command += ["--handler", handler, "--export-path", str(folder), "--archive-format", form]
        named = {f"{handler.partition(':')[0].removesuffix('.py')}.py", *options.values()}
        extra = sorted({place.partition("/")[0] for place in files} - named)
        if extra:
            # A folder's content would be put beside the others; a pattern keeps the folder.
            command += ["--extra-files", ",".join(place if (written / place).is_file() else "." for place in extra)]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", value]
        subprocess.run(command, check=True, cwd=written, env={"TMPDIR": scratch, "PATH": ""}, capture_output=True)
    return folder / {"default": f"{name}.mar", "tgz": f"{name}.tar.gz", "no-archive": name}[form]


def spec_text(archive: Path | str, sample: str = "./body.json", **model: Any) -> str:
    """A spec that adopts the archive."""
    data = {
        "name": "adopted",
        "model": {"source": str(archive), "handler": "archive", "name": "Old_Model", "version": "v1", **model},
        "serving": {"workers": 1, "threads": 1},
        "load": {"sample": sample},
    }
    return yaml.safe_dump(data, sort_keys=False)
