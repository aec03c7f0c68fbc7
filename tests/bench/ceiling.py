"""The rate that an artifact reaches without a server: processes that decode the photo and run the model, nothing else.

    python tests/bench/ceiling.py FOLDER PHOTO BATCH     one such process, driven by lines on its standard input

What they run is what a worker runs, with its environment: the handler's decoding, the compiled function, its threads.
Between two measurements they wait, so that a server can be measured while they are there.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Rate:
    """What all processes reached together, and what each photo cost."""

    rps: float
    cpu_ms: float


class Ceiling:
    """The waiting processes."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def measure(self, seconds: float) -> Rate:
        """Lets all of them work for some seconds at the same time."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        said = [json.loads(process.stdout.readline()) for process in self._processes if process.stdout]
        photos = sum(part["photos"] for part in said)
        return Rate(
            sum(part["photos"] / part["took_s"] for part in said), 1e3 * sum(part["cpu_s"] for part in said) / photos
        )


@contextmanager
def ceiling(mar: Path, photo: Path, *, batch: int, processes: int, environment: dict[str, str]) -> Iterator[Ceiling]:
    """Processes for a package, as many as its server has workers, ready when entered."""
    with tempfile.TemporaryDirectory(prefix="bench-ceiling-") as folder:
        with zipfile.ZipFile(mar) as archive:
            archive.extractall(folder)
        words = [sys.executable, str(Path(__file__)), folder, str(photo), str(batch)]
        started = [
            subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                process.stdout.readline()
            yield Ceiling(started)
        finally:
            for process in started:
                process.kill()
                process.wait()


def main() -> None:
    """One process: says that it is ready, then a line of figures for each line with a number of seconds."""
    sys.path[:0] = [str(ROOT)]
    import torch

    from marina.handlers.artifact import load_artifact
    from marina.handlers.batching import Batcher
    from marina.handlers.pictures import decode_image
    from marina.handlers.record import load_record

    folder, photo, batch = Path(sys.argv[1]), bytearray(Path(sys.argv[2]).read_bytes()), int(sys.argv[3])
    record = load_record(folder)
    assert record.image is not None
    torch.set_num_threads(record.threads)
    batcher = Batcher(load_artifact(record, folder, torch.device("cpu")), record.inputs, record.outputs)
    batcher.warm_up()
    print("ready", flush=True)
    for line in sys.stdin:
        begin, cpu, photos = time.monotonic(), time.process_time(), 0
        while (took := time.monotonic() - begin) < float(line):
            batcher.run([[decode_image(photo, record.image)] for _ in range(batch)])
            photos += batch
        said = {"photos": photos, "took_s": took, "cpu_s": time.process_time() - cpu, "pid": os.getpid()}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
