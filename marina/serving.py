"""`serve`: runs one TorchServe under its supervisor."""

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import DEFECT, add_out_option, add_verb, read_spec
from marina.config.errors import InputError

_EXIT_CODES = f"""\
exit codes:
  0    stopped by you, every request answered
  1    stopped by you, requests unanswered
  2    the input is wrong
  4    Java ended by itself
  5    the model cannot be loaded, or its workers kept failing
  {DEFECT}   a defect of marina itself"""


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        serve,
        "run the server until you stop it",
        "marina serve",
        "marina serve my/spec.yaml --port-base 9000 --host 0.0.0.0",
        exit_codes=_EXIT_CODES,
        as_json="an error",
        progress=False,
    )
    add = add_out_option(added).add_argument
    add("--mar", metavar="FILE", type=Path, help="the MAR to serve (default: DIR/NAME/model.mar)")
    text = "inference on port N, the supervisor's pages on N+10 (default: 8080)"
    add("--port-base", metavar="N", type=int, default=8080, help=text)
    text = "address on which inference and the pages listen (default: 127.0.0.1)"
    add("--host", metavar="ADDRESS", default="127.0.0.1", help=text)
    text = "refuse a package without the signatures that the spec's `serving.verify` demands, as a pod does"
    add("--verify", action="store_true", help=text)
    text = "serve /docs, a page to try the model, and /openapi.json (default: on)"
    add("--docs", action=argparse.BooleanOptionalAction, default=True, help=text)


def serve(options: argparse.Namespace) -> int:
    from marina.config.signatures import FOLDER
    from marina.server.serving import serve as run

    spec = read_spec(options)
    mar = options.mar or options.out / spec.name / "model.mar"
    if options.verify and spec.serving.verify is None:
        hint = "serving: {verify: {keys: [release.pub]}}"
        raise InputError(f"`--verify`: {spec.file} has no `serving.verify`, which names the keys", hint=hint)
    signatures = mar.parent / FOLDER if options.verify else None
    port_base, host, docs = options.port_base, options.host, options.docs
    return run(spec, mar=mar, port_base=port_base, host=host, docs=docs, signatures=signatures)
