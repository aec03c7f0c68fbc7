"""The program of a pod that sends load: `python -m marina.loadtest.sending.pod PLAN`, the same in each of several pods.

The first pod leads, and writes what happens to its output, which is the pod's log. It also sends its own part."""

import argparse
import os
import sys
from pathlib import Path

from marina.config.errors import MarinaError
from marina.loadtest.sending.plan import LoadPlan
from marina.loadtest.sending.sender import send_plan
from marina.loadtest.sending.worker import work


def main() -> int:
    """Runs one part of a plan; the leader's is part 0."""
    parser = argparse.ArgumentParser(prog="python -m marina.loadtest.sending.pod", description="one pod of a load test")
    parser.add_argument("plan", type=Path, help="the plan as JSON, the same in every pod")
    parser.add_argument("--part", type=int, default=int(os.environ.get("JOB_COMPLETION_INDEX", "0")))
    parser.add_argument("--leader", required=True, help="the host of part 0")
    parser.add_argument("--port", type=int, required=True, help="the port on which part 0 listens")
    options = parser.parse_args()
    try:
        plan = LoadPlan.model_validate_json(options.plan.read_text(encoding="utf-8"))
        if options.part == 0:
            send_plan(plan, sys.stdout, host="*", port=options.port, local=1)
        else:
            work(options.leader, options.port, options.part)
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
