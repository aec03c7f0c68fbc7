"""`python -m marina.server SPEC --mar MAR`: does what `marina serve` does, without loading the other verbs."""

import argparse
import os
import signal
import sys
from pathlib import Path


def main() -> int:
    """Returns the exit code of the server, or of the error that kept it from starting."""
    for number in (signal.SIGTERM, signal.SIGQUIT):
        # The kernel drops what PID 1 does not handle, and the imports below take a second. Once there is something to
        # drain, `Signals` takes over.
        signal.signal(number, lambda *_: sys.exit(0))
    from marina.config.errors import MarinaError
    from marina.config.load import load_spec
    from marina.config.signatures import FOLDER
    from marina.server.serving import serve

    if sys.stderr is None:
        # It was closed before this process started; then nobody reads the log.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # If it is full, only the thread that writes the log waits; an error would end the log.
    os.set_blocking(sys.stderr.fileno(), True)
    parser = argparse.ArgumentParser(
        prog="python -m marina.server", description="Serves a packaged model, as in a pod."
    )
    add = parser.add_argument
    add("spec", metavar="SPEC", type=Path, help="spec of the model")
    add("--mar", metavar="FILE", type=Path, required=True, help="the MAR to serve")
    text = "inference on port N, the supervisor's pages on N+10 (default: 8080)"
    text = "folder with the signatures that `serving.verify` demands (default: `signatures` beside the MAR)"
    add("--signatures", metavar="DIR", type=Path, help=text)
    add("--port-base", metavar="N", type=int, default=8080, help=text)
    text = "address on which inference and the pages listen (default: 127.0.0.1)"
    add("--host", metavar="ADDRESS", default="127.0.0.1", help=text)
    add("--docs", action="store_true", help="serve /docs, a page to try the model, and /openapi.json")
    text = "also write the log to this file, rotated once (default: $MARINA_LOG_FILE)"
    add("--log-file", metavar="FILE", type=Path, default=os.environ.get("MARINA_LOG_FILE"), help=text)
    options = parser.parse_args()
    try:
        spec = load_spec(options.spec, files=False)
        return serve(
            spec,
            mar=options.mar,
            port_base=options.port_base,
            host=options.host,
            docs=options.docs,
            log_file=options.log_file,
            signatures=options.signatures or options.mar.parent / FOLDER,
        )
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code


if __name__ == "__main__":
    sys.exit(main())
