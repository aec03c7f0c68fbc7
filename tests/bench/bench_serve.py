"""ResNet-50 over HTTP, one photo: the handler of a tutorial, TorchServe's stock handler, and Marina's ways to compile.

    python tests/bench/bench_serve.py [--rounds 5] [--only int8 --only bf16]

All servers run at once and are measured in turn, round after round, so that what the machine does meanwhile meets all
of them; the ceiling is the int8 artifact without a server, in the same turns. Packages are made once, under
`build/bench-serve`. The clients run on the same cores; what they cost stands beside what the server costs.
"""

import argparse
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]

from anatomy import anatomy  # noqa: E402
from board import Column, against, ratio_text, table, write_report  # noqa: E402
from ceiling import ceiling  # noqa: E402
from contestants import PHOTO, STOCK, Contestant, kit, kit_mar, kit_spec, stock  # noqa: E402
from rounds import Course, measure, start, summary, worker_environment  # noqa: E402

from marina.config.spec import Spec  # noqa: E402
from marina.loadtest.comparing.ratios import Ratio  # noqa: E402

HOME = ROOT / "build" / "bench-serve"
KIT = {
    name: {"compile": compiled, "precision": precision, "batch_sizes": [1, 4]}
    for name, compiled, precision in (
        ("export", "export", "fp32"),
        ("jit", "jit", "fp32"),
        ("fp32", "aot", "fp32"),
        ("bf16", "aot", "bf16"),
        ("int8", "aot", "int8"),
    )
}
# int8 with other settings of the model and of the server, on some cores: one core, for what a second one adds; one
# worker with both; and other batches, of which larger ones cost less and smaller ones make nobody wait.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, int], set[int] | None]] = {
    "int8, 1 core": ({}, {"workers": 1, "threads": 1}, {0}),
    "int8, 1 × 2": ({}, {"workers": 1, "threads": 2}, None),
    "int8, by 8": ({"batch_sizes": [1, 4, 8]}, {}, None),
    "int8, by 2": ({"batch_sizes": [1, 2]}, {}, None),
    "int8, by 1": ({"batch_sizes": [1]}, {}, None),
    # What it costs that every node may run it.
    "int8, v3": ({"cpu_target": "x86-64-v3"}, {}, None),
}
# TorchServe's stock handler and a tutorial's, as TorchServe starts them and with the one setting that helps them most.
STOCK_THREADS: dict[str, tuple[str, int | None]] = {
    "article": ("article", None),
    "stock": ("stock", None),
    "article, 1 thread": ("article", 1),
    "stock, 1 thread": ("stock", 1),
}
COLUMNS = (
    Column("rps", "requests/s"),
    Column("spread", "spread", "{:.0%}"),
    Column("cpu_ms", "server CPU ms"),
    Column("client_cpu_ms", "client CPU ms", "{:.2f}"),
    Column("p50_ms", "p50 at 70 %"),
    Column("p99_ms", "p99 at 70 %"),
    Column("resident_mb", "MB", "{:,.0f}"),
    Column("start_s", "start s"),
    Column("foreign", "foreign", "{:.0%}"),
)


def contestants(names: list[str]) -> tuple[list[Contestant], Spec, Path]:
    """The servers, and the package whose ceiling is measured."""
    contestants: list[Contestant] = []
    for name, (handler, threads) in STOCK_THREADS.items():
        if name in names:
            _stock_packages()
            contestants.append(stock(name, HOME / handler, article=handler == "article", threads=threads))
    for name, model in KIT.items():
        spec = kit_spec(model)
        if name in names or name == "int8":
            mar = kit_mar(spec, HOME / f"resnet50-{name}")
        if name in names:
            contestants.append(kit(name, spec, mar))
    contestants += [kit(name, *variant(name), cores=cores) for name, (_, _, cores) in VARIANTS.items() if name in names]
    return contestants, spec, mar


def variant(name: str) -> tuple[Spec, Path]:
    """One of the variants and its package."""
    model, serving, _ = VARIANTS[name]
    spec = kit_spec(KIT["int8"] | model, serving)
    target = model.get("cpu_target", "native")
    return spec, kit_mar(spec, HOME / f"resnet50-int8-{target}-{spec.workers}x{spec.threads}-by-{spec.max_batch}")


def _stock_packages() -> None:
    folder, wanted = HOME / "stock-packages", STOCK / "requirements.txt"
    if not (folder / "captum").is_dir():
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*words, "--requirement", str(wanted)], check=True)


def main() -> None:
    """Prints a line a measurement and a table at the end, and writes `bench.json` and `bench.html`."""
    every = [*STOCK_THREADS, *KIT, *VARIANTS]
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=every)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement at saturation")
    parser.add_argument("--open", type=float, default=5.0, help="seconds of a measurement at 70 %% of it")
    options = parser.parse_args()
    servers, spec, mar = contestants(options.only or every)
    course = Course(rounds=options.rounds, seconds=options.seconds, open_s=options.open, cores=spec.workers)
    batch, environment = spec.max_batch, worker_environment(spec, mar)
    with ExitStack() as stack:
        top = stack.enter_context(ceiling(mar, PHOTO, batch=batch, processes=spec.workers, environment=environment))
        up = start(servers, stack)
        measured = measure(up, course, beside={"ceiling": lambda: asdict(top.measure(options.seconds))})
        parts = anatomy(up["int8"], course) if "int8" in up else {}
    rows = {name: summary(each) for name, each in measured.items()}
    report(rows, measured, course, parts)


def report(
    rows: dict[str, dict[str, Any]],
    measured: dict[str, list[dict[str, Any]]],
    course: Course,
    parts: dict[str, float],
) -> None:
    """The table, the ratios that Marina promises, and the files."""
    print("\n" + table(rows, COLUMNS) + "\n")
    compared = ratios(measured)
    for name, quotient in compared.items():
        print(f"{name:<32} {ratio_text(quotient)}")
    if parts:
        print("\nint8, CPU ms of an answer")
    for name, value in parts.items():
        print(f"  {name:<30} {value:5.2f}")
    write_report(
        HOME,
        title="ResNet-50 over HTTP",
        lead=f"One 720×720 JPEG of 110 kB, {course.clients} clients, medians of {course.rounds} interleaved rounds.",
        record={
            "schema": "marina.bench-serve/1",
            "course": asdict(course),
            "rounds": measured,
            "ratios": {name: asdict(quotient) for name, quotient in compared.items()},
            "anatomy": parts,
        },
        rows=rows,
        columns=COLUMNS,
        bars=[("rps", "Requests a second"), ("cpu_ms", "Server CPU a request, ms"), ("p99_ms", "p99 at 70 %, ms")],
    )
    print(f"\n{HOME / 'bench.html'}")


def ratios(measured: dict[str, list[dict[str, Any]]]) -> dict[str, Ratio]:
    """int8 over HTTP against the others, by the rounds' requests a second."""
    if "int8" not in measured:
        return {}
    rates = {name: [each["rps"] for each in rounds] for name, rounds in measured.items()}
    others = [name for name in ("ceiling", *STOCK_THREADS, *VARIANTS) if name in rates]
    return {f"int8 / {name}": against(rates[name], rates["int8"]) for name in others}


if __name__ == "__main__":
    main()
