"""`python -m marina.k8s.drilling.guard RELEASE CONTEXT KUBECONFIG`: opens nodes that a drill left closed.

Its standard input is a pipe from the drill. It says that all nodes are open, or just ends, however the drill ended."""

import signal
import sys
import time
from pathlib import Path

from marina.config.errors import MarinaError
from marina.k8s.cluster import connect
from marina.k8s.drilling.cordon import DONE, end_leftover_cordons

# How long an API server may be out of reach; the next drill tries again.
_TRIES_S, _PAUSE_S = 600.0, 2.0


def main() -> int:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return 0
    release, context, kubeconfig = sys.argv[1:]
    until = time.monotonic() + _TRIES_S
    while True:
        try:
            inside = context == "in-cluster" and not kubeconfig
            end_leftover_cordons(
                connect(None if inside else context, Path(kubeconfig) if kubeconfig else None), release
            )
            return 0
        except MarinaError:
            if time.monotonic() > until:
                return 1
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
