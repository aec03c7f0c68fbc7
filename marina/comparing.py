"""`compare`: measures whether a package is worse than another one."""

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import add_verb, print_result, read_spec, refuse_ignored, stage_options
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
        "marina compare --baseline kept/verdict.json",
        "marina compare --against http://10.0.0.7:8080 --rate 50",
    )
    add = added.add_argument
    text = "the old package: a MAR, a spec, a verdict.json whose package is still here, or the address of a server"
    add("--against", metavar="OLD", help=text)
    text = "send nothing; compare the newest verdict with this stored verdict.json"
    add("--baseline", metavar="FILE", type=Path, help=text)
    add("--url", metavar="U", help="address where the new package is already served (default: start it)")
    add_load_options(added)
    add("--rate", metavar="R", type=float, help="requests/s to send to each (default: the spec's `slo.throughput_rps`)")
    text = "how long each of the two is measured in a round (default: 1, or what 50 requests take)"
    add("--turn", dest="turn_s", metavar="TIME", type=duration_s, help=text)
    text = "measure for at most this long while undecided (default: 720, or what 40 rounds or the error rate need)"
    add("--max-duration", dest="max_duration_s", metavar="TIME", type=duration_s, help=text)
    add("--warmup", dest="warmup_s", metavar="TIME", type=duration_s, help="load before each turn (default: 0.5)")


def compare(options: argparse.Namespace) -> int:
    from marina.loadtest import CompareOptions, compare_with_baseline, comparison_text, measuring_into
    from marina.loadtest import compare as run

    spec, how = read_spec(options), stage_options(CompareOptions, options)
    if (options.against is None) == (options.baseline is None):
        if options.baseline:
            raise InputError("`--baseline`: not together with `--against`, because it compares with a stored verdict")
        text = "`--against`: missing: a MAR, a spec, a `verdict.json`, or the address of a server"
        raise InputError(text, hint=f"marina compare {options.spec} --against old.mar")
    if options.baseline:
        sending = (*vars(how), "any_package", "cacert", "cert", "headers", "key", "supervisor", "url")
        refuse_ignored(options, sending, "not with `--baseline`, which sends nothing")
    folder, where = options.out / spec.name, server_options(options, spec.name)
    if options.baseline:
        comparison = compare_with_baseline(spec, options.baseline, where)
    else:
        with measuring_into(folder):
            comparison = run(spec, options.against, how, where, quiet=options.quiet)
    print_result(options, comparison.to_data(), comparison_text(comparison), f"report {folder / 'compare.html'}")
    return comparison.exit_code
