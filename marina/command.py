"""`marina VERB`: the parser of all verbs, and what an error of theirs ends with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from config.errors import MarinaError, SpecError
from marina import cluster, measuring, packaging, serving
from marina.arguments import EXIT_CODES, print_json
from marina.starting import demo, doctor, init

# In the order of the flow.
_STAGES = (init, packaging, serving, measuring, cluster, demo, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except MarinaError as err:
        if options.json:
            print_json(_error_record(err))
        else:
            print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `marina … | head` is no failure; without this Python complains again when it closes stdout.
        sys.stderr.close()
        return 0


def parser() -> argparse.ArgumentParser:
    """All verbs, in the order of the flow."""
    whole = argparse.ArgumentParser(
        prog="marina",
        description="From a PyTorch model to a TorchServe service that is proven to meet its objective.",
        epilog=EXIT_CODES,
    )
    verbs = whole.add_subparsers(metavar="VERB", required=True)
    for stage in _STAGES:
        stage.add_verbs(verbs)
    return whole


def _error_record(err: MarinaError) -> dict[str, Any]:
    record: dict[str, Any] = {"error": err.message, "hint": err.hint, "exit_code": err.exit_code}
    if isinstance(err, SpecError):
        record["problems"] = [vars(problem) for problem in err.problems]
    return record
