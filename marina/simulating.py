"""`simulate`: replays traffic through the autoscaler, without a cluster."""

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import add_out_option, add_verb, print_json, print_result, read_spec
from marina.config.duration import duration_s
from marina.config.errors import InputError
from marina.config.progress import Progress


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        simulate,
        "show how the autoscaler would follow your traffic, without a cluster",
        "marina simulate my/spec.yaml --trace day.csv",
        "marina simulate --step 2.2 --scale-up-window 300",
        "marina simulate --knee 100 --cold-start 20 --node-time 90",
        "marina simulate --recorded hpa.jsonl",
    )
    parser = add_out_option(added)
    traffic = parser.add_mutually_exclusive_group().add_argument
    traffic(
        "--trace", metavar="FILE", type=Path, help="traffic as a CSV of time and requests/s (default: a working day)"
    )
    text = "traffic that jumps to X times the target rate of `min_replicas` pods, for half an hour"
    traffic("--step", metavar="X", type=float, help=text)
    text = "compare the recorded decisions of a real autoscaler with the simulation's; exit with 1 if any differs"
    traffic("--recorded", metavar="FILE", type=Path, help=text)
    add = parser.add_argument
    add("--knee", metavar="RPS", type=float, help="requests/s that one pod can hold (default: the measured knee)")
    text = "time until a new pod is ready (default: the measured cold start)"
    add("--cold-start", metavar="TIME", type=duration_s, help=text)
    text = "time until a new pod has a node (default: 0)"
    add("--node-time", metavar="TIME", type=duration_s, default=0, help=text)
    add("--forecast", action="store_true", help="also simulate the other value of `scaling.forecast`, and compare")
    text = "also simulate this stabilisation window for adding pods, and compare"
    add("--scale-up-window", metavar="TIME", type=duration_s, help=text)


def simulate(options: argparse.Namespace) -> int:
    from marina.config.record import write_text
    from marina.k8s import simulating
    from marina.k8s.manifests import make_plan

    _check_ranges(options)
    if options.recorded:
        _refuse_beside_recorded(options)
        comparison = simulating.compare_recorded(simulating.read_recording(options.recorded))
        print_result(options, comparison.to_data(), comparison.to_text())
        return 1 if comparison.differs else 0
    spec = read_spec(options)
    out = options.out / spec.name
    traffic: Any = simulating.read_traffic(options.trace) if options.trace else options.step or "day"
    window = options.scale_up_window
    others = (None if window is None else int(window), options.forecast)
    how = simulating.SimulationOptions(traffic, options.knee, options.cold_start, options.node_time, *others)
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


def _refuse_beside_recorded(options: argparse.Namespace) -> None:
    """A recording tells everything that these options would, and their values would be ignored."""
    for name in ("knee", "cold_start", "node_time", "forecast", "scale_up_window"):
        if getattr(options, name) not in (None, False, 0):
            raise InputError(f"`--{name.replace('_', '-')}`: not with `--recorded`, which replays what was recorded")


def _check_ranges(options: argparse.Namespace) -> None:
    most = {"step": 1000, "knee": 1_000_000, "cold_start": 3600, "node_time": 3600, "scale_up_window": 3600}
    for name, high in most.items():
        low = 0 if name in ("node_time", "scale_up_window") else 0.001
        given = getattr(options, name)
        if given is not None and not low <= given <= high:
            raise InputError(f"`--{name.replace('_', '-')}`: got {given:g}, allowed: {low:g} to {high}")
