"""Cold start to `/ready` of ResNet-50: compiled ahead (`aot`), with and without the archive of Java's classes, or at
the start (`jit`), with and without a cache.

    python tests/bench/bench_start.py [--runs 5] [--spec config/examples/resnet50/spec.yaml]

Packages are made once under `build/bench-start`. Every start has a temporary directory of its own, so that nothing that
was compiled before is found; the page cache is warm, as on a node that has the image.
"""

import argparse
import json
import statistics
import sys
import time
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

from board import against, ratio_text  # noqa: E402
from process_tree import unwind_on_sigterm  # noqa: E402
from running import running  # noqa: E402

from marina.archiver.package import package  # noqa: E402
from marina.config.load import parse_spec  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.config.record import RECORD, Record  # noqa: E402
from marina.config.spec import Spec  # noqa: E402

HOME = ROOT / "build" / "bench-start"
FORMS = {"aot": "aot", "aot, no class archive": "aot", "jit, empty cache": "jit", "jit, the MAR's cache": "jit"}


def spec_of(file: Path, compiled: str) -> Spec:
    """The spec with another way to compile; what cannot be waited for in a start is waited for."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    data["model"]["compile"] = compiled
    data.setdefault("serving", {})["drain_propagation_s"] = 0
    return parse_spec(yaml.safe_dump(data, sort_keys=False), file)


def packaged(spec: Spec) -> Path:
    """The MAR of a spec, made when it is not there."""
    out = HOME / f"{spec.name}-{spec.model.compile}"
    if not (out / "model.mar").exists():
        package(spec, out, progress=Progress())
    return out / "model.mar"


def without_cache(mar: Path) -> Path:
    """A copy of a MAR that says nothing of a cache and has none."""
    bare = mar.with_name("bare.mar")
    with zipfile.ZipFile(mar) as source, zipfile.ZipFile(bare, "w") as target:
        record = Record.model_validate_json(source.read(RECORD))
        prefix = f"{record.cache}/"
        files = {name: digest for name, digest in record.files.items() if not name.startswith(prefix)}
        for entry in source.infolist():
            if entry.filename != RECORD and not entry.filename.startswith(prefix):
                target.writestr(entry, source.read(entry))
        target.writestr(RECORD, record.model_copy(update={"cache": None, "files": files}).json_text())
    return bare


def start_s(spec: Spec, mar: Path, *, archive: bool) -> float:
    """From the start of the supervisor's process to the first 200 of `/ready`, in steps of 50 ms."""
    begin = time.monotonic()
    with running(spec, mar=mar, environment={} if archive else {"JDK_JAVA_OPTIONS": "-Xshare:off"}):
        return time.monotonic() - begin


def main() -> None:
    """Prints a line a form, and writes the figures beside the packages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spec", type=Path, default=ROOT / "config/examples/resnet50/spec.yaml")
    options = parser.parse_args()
    unwind_on_sigterm()
    served = {}
    for form, compiled in FORMS.items():
        spec = spec_of(options.spec, compiled)
        mar = packaged(spec)
        served[form] = spec, without_cache(mar) if form == "jit, empty cache" else mar
    figures: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(options.runs):
        for form, (spec, mar) in served.items():
            figures[form].append(start_s(spec, mar, archive="no class archive" not in form))
    print(f"{'':<22} {'median':>8} {'min':>8} {'max':>8} {'spread':>8}  against aot", flush=True)
    for form, times in figures.items():
        middle = statistics.median(times)
        spread = (max(times) - min(times)) / middle
        print(
            f"{form:<22} {middle:>6.1f} s {min(times):>6.1f} s {max(times):>6.1f} s {spread:>7.0%}"
            f"   {ratio_text(against(figures['aot'], times)) if form != 'aot' else ''}",
            flush=True,
        )
    (HOME / f"{options.spec.parent.name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
