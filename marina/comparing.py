"""`compare`: measures whether a package is worse than another one."""

import argparse
from typing import Any

from marina.arguments import add_verb, print_result, read_spec, stage_options
from marina.config.duration import duration_s
from marina.config.errors import InputError
from marina.measuring import add_load_options, server_options


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        compare,
        "say whether a package is worse than another one: PASS, FAIL or INVALID",
        "marina compare --against old.mar",
        "marina compare my/spec.yaml --against my/old/spec.yaml",
        "marina compare --against http://10.0.0.7:8080 --rate 50",
    )
    add = added.add_argument
    text = "the old package: a MAR, a spec, or the address of a server"
    add("--against", metavar="OLD", help=text)
    add("--url", metavar="U", help="address where the new package is already served (default: start it)")
    add_load_options(added)
    add("--rate", metavar="R", type=float, help="requests/s to send to each (default: the spec's `slo.throughput_rps`)")
    text = "how long each of the two is measured in a round (default: 1, or what 50 requests take)"
    add("--turn", dest="turn_s", metavar="TIME", type=duration_s, help=text)
    text = "measure for at most this long while undecided (default: 720, or what 40 rounds or the error rate need)"
    add("--max-duration", dest="max_duration_s", metavar="TIME", type=duration_s, help=text)
    add("--warmup", dest="warmup_s", metavar="TIME", type=duration_s, help="load before each turn (default: 0.5)")


def compare(options: argparse.Namespace) -> int:
    from marina.loadtest.comparing import CompareOptions, comparison_text
    from marina.loadtest.comparing import compare as run
    from marina.loadtest.running import measuring_into

    spec, how = read_spec(options), stage_options(CompareOptions, options)
    if options.against is None:
        text = "`--against`: missing: a MAR, a spec, or the address of a server"
        raise InputError(text, hint=f"marina compare {options.spec} --against old.mar")
    folder, where = options.out / spec.name, server_options(options, spec.name)
    with measuring_into(folder):
        comparison = run(spec, options.against, how, where, quiet=options.quiet)
    print_result(options, comparison.to_data(), comparison_text(comparison), f"report {folder / 'compare.html'}")
    return comparison.exit_code
