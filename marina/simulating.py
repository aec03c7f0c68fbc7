"""`simulate`: replays traffic through the autoscaler, without a cluster."""

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import add_out_option, add_verb, print_json, read_spec
from marina.config.duration import duration_s
from marina.config.errors import InputError
from marina.config.progress import Progress

# The smallest and largest value of each option.
_RANGES = {
    "step": (0.001, 1000),
    "knee": (0.001, 1_000_000),
    "cold_start": (0.001, 3600),
    "scale_up_window": (0, 3600),
}


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        simulate,
        "show how the autoscaler would follow your traffic, without a cluster",
        "marina simulate my/spec.yaml --trace day.csv",
        "marina simulate --step 2.2 --scale-up-window 300",
        "marina simulate --knee 100 --cold-start 20",
    )
    parser = add_out_option(added)
    traffic = parser.add_mutually_exclusive_group().add_argument
    text = "traffic as a CSV of time and requests/s (default: a working day)"
    traffic("--trace", metavar="FILE", type=Path, help=text)
    text = "traffic that jumps to X times the target rate of `min_replicas` pods, for half an hour"
    traffic("--step", metavar="X", type=float, help=text)
    add = parser.add_argument
    add("--knee", metavar="RPS", type=float, help="requests/s that one pod can hold (default: the measured knee)")
    text = "time until a new pod is ready (default: the measured cold start)"
    add("--cold-start", metavar="TIME", type=duration_s, help=text)
    add("--forecast", action="store_true", help="also simulate the other value of `scaling.forecast`, and compare")
    text = "also simulate this stabilisation window for adding pods, and compare"
    add("--scale-up-window", metavar="TIME", type=duration_s, help=text)


def simulate(options: argparse.Namespace) -> int:
    from marina.config.record import write_text
    from marina.k8s import simulating
    from marina.k8s.manifests import make_plan

    for name, (low, high) in _RANGES.items():
        given = getattr(options, name)
        if given is not None and not low <= given <= high:
            raise InputError(f"`--{name.replace('_', '-')}`: got {given:g}, allowed: {low:g} to {high}")
    spec = read_spec(options)
    out = options.out / spec.name
    traffic: Any = simulating.read_traffic(options.trace) if options.trace else options.step or "day"
    window = options.scale_up_window
    others = (None if window is None else int(window), options.forecast)
    how = simulating.SimulationOptions(traffic, options.knee, options.cold_start, *others)
    progress = Progress(quiet=options.quiet)
    with progress.step("replay the traffic"):
        simulation = simulating.simulate(make_plan(spec, out), how)
    page = out / "simulation.html"
    write_text(page, simulating.simulation_html(simulation))
    if options.json:
        print_json(simulation.to_data())
        return 0
    for assumption in simulation.assumed:
        progress.say(f"note: assumed, not measured: {assumption}")
    print(f"{simulation.to_text()}\n{page}")
    return 0
