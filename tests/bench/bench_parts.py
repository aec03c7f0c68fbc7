"""The parts of an answer, one at a time in one process: each as Marina does it, and as it would be done without.

    python tests/bench/bench_parts.py

CPU time, medians. The model is the int8 package of `make bench-serve`, in batches of 8, with and without what the
server tells the allocator.
"""

import json
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]

from bench_serve import variant  # noqa: E402
from board import against, ratio_text  # noqa: E402
from contestants import PHOTO  # noqa: E402
from rounds import worker_environment  # noqa: E402

BATCH, RUNS = 8, 200
HEADERS = ("Host", "User-Agent", "Accept", "Content-Type", "Content-Length", "X-Forwarded-For")


def median_us(act: Callable[[], object], runs: int = RUNS) -> float:
    """CPU microseconds of one call, the first tenth left out."""
    times = []
    for _ in range(runs):
        begun = time.process_time_ns()
        act()
        times.append((time.process_time_ns() - begun) / 1e3)
    return statistics.median(times[runs // 10 :])


def message(body: bytes) -> bytes:
    """A batch as TorchServe writes it to a worker."""
    end = struct.pack("!i", -1)

    def sized(text: bytes) -> bytes:
        return struct.pack("!i", len(text)) + text

    headers = b"".join(sized(name.encode()) + sized(b"127.0.0.1:8080") for name in HEADERS)
    request = sized(bytes(36)) + headers + end + sized(b"body") + sized(b"image/jpeg") + sized(body) + end
    return b"I" + request * BATCH + end


def reading(size: int) -> dict[str, float]:
    """Microseconds a request that a worker needs to read a batch, by TorchServe's reader and by ours."""
    from ts.protocol.otf_message_handler import retrieve_msg

    from marina.handlers.receive import Receiver

    data, times_us = message(bytes(size)), {}
    for name, read in (("TorchServe's reader", retrieve_msg), ("Marina's reader", Receiver().receive)):
        ours, theirs = socket.socketpair()
        writer = os.fork()
        if writer == 0:
            for _ in range(RUNS):
                theirs.sendall(data)
                theirs.recv(1)
            os._exit(0)

        def batch(read: Callable[[socket.socket], object] = read, ours: socket.socket = ours) -> None:
            read(ours)
            ours.sendall(b"x")

        times_us[f"{name}, {size:,} bytes"] = median_us(batch) / BATCH
        os.waitpid(writer, 0)
    return times_us


def decoding() -> dict[str, float]:
    """Microseconds of the photo's decoding, of its parts, and of what was not chosen."""
    import numpy as np
    import simplejpeg
    import torch

    from marina.handlers.pictures import decode_image, resize_and_crop
    from marina.handlers.record import ImageSpec

    torch.set_num_threads(1)
    body, spec = bytearray(PHOTO.read_bytes()), ImageSpec(224, 224, 232, 3, (0.0,), (1.0,), "bilinear", 5, 40_000_000)

    def jpeg(side: int) -> Any:
        return np.ascontiguousarray(simplejpeg.decode_jpeg(body, "RGB", min_height=side, min_width=side))

    times_us = {"decode the photo, all of it": median_us(lambda: decode_image(body, spec))}
    for eighths in (4, 3, 5, 6, 7, 8, 1):
        side, label = 720 * eighths // 8, "  " if eighths == 4 else "instead: "
        scale = f"at {eighths}/8" if eighths < 8 else "in full"
        times_us[f"{label}JPEG {scale}"] = median_us(partial(jpeg, side))
        if side >= spec.resize:
            times_us[f"{label}resize {side} to 224"] = median_us(partial(resize_and_crop, jpeg(side), spec))
    return times_us


def model(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """What a run of the model costs in a process of its own."""
    words = [sys.executable, str(Path(__file__)), "model", str(folder)]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    times_us: dict[str, float] = json.loads(done.stdout)
    return times_us


def run_model(folder: Path) -> None:
    """In that process: prints microseconds and page faults a batch."""
    import torch

    from marina.handlers.artifact import load_artifact
    from marina.handlers.record import load_record

    record = load_record(folder)
    torch.set_num_threads(record.threads)
    artifact = load_artifact(record, folder, torch.device("cpu"))
    times_us = {}
    for size in artifact.batch_sizes:
        pixels = [torch.randint(0, 256, (size, *record.inputs[0].shape), dtype=torch.uint8)]
        for _ in range(3):
            artifact.run(pixels)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        times_us[f"us {size}"] = median_us(partial(artifact.run, pixels), 40)
        times_us[f"faults {size}"] = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 40
    print(json.dumps(times_us))


def main() -> None:
    """Prints a line a part."""
    if sys.argv[1:2] == ["model"]:
        run_model(Path(sys.argv[2]))
        return
    print("a request of a batch of 8, µs")
    for name, value in {**reading(20), **reading(PHOTO.stat().st_size)}.items():
        print(f"  {name:<40} {value:8.1f}")
    print("the photo, µs")
    for name, value in decoding().items():
        print(f"  {name:<40} {value:8.0f}")
    spec, mar = variant("int8, by 8")
    settings = worker_environment(spec, mar)
    plain = {name: value for name, value in settings.items() if name != "GLIBC_TUNABLES"}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(mar) as archive:
        archive.extractall(folder)
        rounds = [(model(Path(folder), settings), model(Path(folder), plain)) for _ in range(5)]
    print("int8, an image, µs; page faults a batch")
    for size in spec.model.batch_sizes:
        for index, name in enumerate(("as the server sets malloc", "as glibc sets it")):
            image = statistics.median(pair[index][f"us {size}"] for pair in rounds) / size
            faults = statistics.median(pair[index][f"faults {size}"] for pair in rounds)
            print(f"  batch {size}, {name:<31} {image:8.0f} {faults:8,.0f}")
        ours, theirs = ([pair[index][f"us {size}"] for pair in rounds] for index in (0, 1))
        print(f"  batch {size}, first / second {ratio_text(against(theirs, ours))}")


if __name__ == "__main__":
    main()
