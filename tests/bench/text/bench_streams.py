"""What the road adds to an engine: streams from one with steps of a set time, through TorchServe to a client.

    python tests/bench/text/bench_streams.py [--streams 32] [--tokens 256] [--step-ms 20]
    python tests/bench/text/bench_streams.py --stops

The time between tokens is what the client sees; the ideal rate is a token a step for every stream. With `--stops` a
thousand streams go over three servers, of which two stop in the middle, and every fifth client leaves before its end;
exit code 1 when a stream neither ended, nor was left, nor was told why it ends, or when a slot is held after all.
"""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from running import running  # noqa: E402
from specs import tales_spec  # noqa: E402
from stops import Crowd, leaked  # noqa: E402
from streams import streams  # noqa: E402

from marina.archiver.language_model import TUNED  # noqa: E402
from marina.archiver.package import package  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.config.sections import Text  # noqa: E402
from marina.config.spec import Spec  # noqa: E402

# What a stop waits for open answers; the longest takes longer.
DRAIN_S = 2
COUNT, LEAVING = 1000, 0.2
PATH = "/predictions/tales/1.0/v1/completions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--stops", action="store_true", help="a thousand streams, two stops, every fifth leaves")
    args = parser.parse_args()
    text = {"engine": "fake", "context": 2048, "slots": args.streams, "max_tokens": args.tokens}
    spec = tales_spec({"text": text, "serving.drain_propagation_s": 0})
    with tempfile.TemporaryDirectory(prefix="bench-streams-") as folder:
        with patch.dict(TUNED, step_ms=args.step_ms):
            package(spec, Path(folder), progress=Progress(quiet=True))
        if args.stops:
            sys.exit(stops(spec, Path(folder, "model.mar"), args))
        with running(spec, mar=Path(folder, "model.mar")) as server:
            bodies: list[dict[str, object]] = [{"prompt": "Once upon a time", "max_tokens": args.tokens}] * args.streams
            asyncio.run(streams(server.ports.inference, PATH, [body | {"max_tokens": 16} for body in bodies]))
            seen = asyncio.run(streams(server.ports.inference, PATH, bodies))
    gaps = np.concatenate([np.diff(each.times) for each in seen]) * 1000
    first = np.array([each.times[0] - each.sent_at for each in seen]) * 1000
    took_s = max(each.times[-1] for each in seen) - min(each.times[0] for each in seen)
    rate, ideal = sum(len(each.times) - 1 for each in seen) / took_s, args.streams * 1000 / args.step_ms
    ended = sum(each.ended for each in seen)
    print(f"{args.streams} streams of {args.tokens} tokens, steps of {args.step_ms:g} ms; {ended} ended")
    print(f"first token: p50 {np.percentile(first, 50):.1f} ms, p99 {np.percentile(first, 99):.1f} ms")
    print(f"between tokens: p50 {np.percentile(gaps, 50):.1f} ms, p99 {np.percentile(gaps, 99):.1f} ms")
    print(f"{rate:.0f} tokens/s, {rate / ideal:.1%} of {ideal:.0f}")


def stops(spec: Spec, mar: Path, args: argparse.Namespace) -> int:
    """Prints what became of each stream; the exit code."""
    # The package's answers may be longer than those that the drain waits for.
    text = (spec.text or Text()).model_copy(update={"max_tokens": int(DRAIN_S * 1000 / args.step_ms)})
    serving = spec.serving.model_copy(update={"drain_propagation_s": 1, "drain_timeout_s": DRAIN_S})
    spec = spec.model_copy(update={"text": text, "serving": serving})
    with ExitStack() as stack:
        servers = [stack.enter_context(running(spec, mar=mar)) for _ in range(3)]
        crowd = Crowd(servers, PATH, count=COUNT, leaving=LEAVING, most_tokens=args.tokens)
        asyncio.run(crowd.run())
        held = leaked(servers[-1])
    print(f"{COUNT} streams of up to {args.tokens} tokens, steps of {args.step_ms:g} ms; 2 stops of {DRAIN_S} s")
    for name, count in sorted(crowd.outcomes.items()):
        print(f"{count:>6}  {name}")
    print(f"servers that stopped exited with {crowd.exits}; slots held at the end: {held}")
    return int(held > 0 or any(name.startswith("lost") for name in crowd.outcomes))


if __name__ == "__main__":
    main()
