"""The language example's encoder behind Marina, TorchServe with a handler of its own kind, FastAPI and BentoML.

    python tests/bench/encoder/bench_encoder.py [--rounds 5] [--only fastapi]

The others run the same folder by `transformers` in fp32, with a worker a core and a thread each; TorchServe and BentoML
batch. They are installed into `build/encoder-peers/venv`, on top of Marina's own environment. All answer one sentence.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE.parent)]

from bench_peers import report  # noqa: E402
from contestants import Contestant, command, kit, kit_mar, kit_spec, torchserve  # noqa: E402
from rounds import Course, measure, start  # noqa: E402

from marina.config.ports import free_port_base  # noqa: E402
from marina.loadtest.sending import LoadRequest  # noqa: E402

EXAMPLE = ROOT / "config/examples/language"
THEIRS = HERE / "contenders"
HOME = ROOT / "build" / "bench-encoder"
BIN = ROOT / "build" / "encoder-peers" / "venv" / "bin"
NAMES = ("torchserve", "fastapi", "bentoml")
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def sentence(url: str) -> LoadRequest:
    """The example's sample."""
    body = (EXAMPLE / "samples/sentence.json").read_bytes()
    return LoadRequest(url=url, body=base64.b64encode(body), content_type="application/json")


def sentences(url: str) -> LoadRequest:
    """The same as a list of one, as BentoML takes what it batches."""
    body = json.dumps({"text": [json.loads((EXAMPLE / "samples/sentence.json").read_bytes())["text"]]}).encode()
    return LoadRequest(url=url, body=base64.b64encode(body), content_type="application/json")


def peer(name: str, workers: int) -> Contestant:
    """One of the others."""
    if name == "torchserve":
        mar, serving = _mar(workers), {"default_workers_per_model": workers}
        return torchserve(name, mar, HOME / "torchserve", request=sentence, settings=serving, threads=1)
    port, folder = free_port_base(), HOME / name
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(BIN / "uvicorn"), "fastapi_text:app", "--port", str(port), "--workers", str(workers)]
    if name == "bentoml":
        words = [str(BIN / "bentoml"), "serve", "bentoml_text:Labels", "--port", str(port)]
    environment = {
        "MODEL": str(EXAMPLE / "model"),
        "WORKERS": str(workers),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{THEIRS}:{ROOT}",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "DO_NOT_TRACK": "1",
        "BENTOML_DO_NOT_TRACK": "1",
        "BENTOML_HOME": str(folder / "bentoml"),
    }
    url = f"http://127.0.0.1:{port}/predict"
    request = sentences(url) if name == "bentoml" else sentence(url)
    return command(name, words, request=request, environment=environment, folder=folder)


def _mar(workers: int) -> Path:
    """An archive as TorchServe's archiver makes it, with batches as large as Marina's."""
    store = HOME / "store"
    store.mkdir(parents=True, exist_ok=True)
    settings = store / "model-config.yaml"
    settings.write_text(f"minWorkers: {workers}\nmaxWorkers: {workers}\nbatchSize: 16\nmaxBatchDelay: 2\n")
    extra = [*(EXAMPLE / "model" / name for name in FILES), THEIRS / "classifier.py"]
    words = [str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", "language", "--version", "1"]
    words += ["--handler", str(THEIRS / "text_handler.py"), "--extra-files", ",".join(map(str, extra))]
    words += ["--config-file", str(settings), "--export-path", str(store), "--force"]
    subprocess.run(words, check=True, capture_output=True)
    return store / "language.mar"


def install() -> None:
    """The others in an environment of their own, which has Marina's packages behind its own."""
    done = BIN.parent / ".installed"
    if done.exists() and done.stat().st_mtime >= (THEIRS / "requirements.txt").stat().st_mtime:
        return
    subprocess.run([sys.executable, "-m", "venv", str(BIN.parent)], check=True)
    constraints = HERE.parent / "peers/constraints.txt"
    words = [str(BIN / "pip"), "install", "--quiet", "--constraint", str(constraints)]
    subprocess.run([*words, "--requirement", str(THEIRS / "requirements.txt")], check=True)
    (site,) = BIN.parent.glob("lib/python*/site-packages")
    # As a site of its own, so that what its own `.pth` files do is done.
    ours = sysconfig.get_path("purelib")
    (site / "kit.pth").write_text(f"import site; site.addsitedir({ours!r})\n", encoding="utf-8")
    done.touch()


def main() -> None:
    """Prints a line a measurement and a table at the end, and writes `bench.json` and `bench.html`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement at saturation")
    parser.add_argument("--open", type=float, default=5.0, help="seconds of a measurement at 70 %% of it")
    options = parser.parse_args()
    install()
    workers = os.cpu_count() or 1
    serving = {"workers": workers, "threads": 1, "max_batch": 16, "max_batch_delay_ms": 2}
    spec = kit_spec({}, serving, EXAMPLE / "spec.yaml", resources={"cpu": str(workers), "memory": f"{workers}Gi"})
    mar = kit_mar(spec, HOME / "marina")
    agreed = json.loads((HOME / "marina/package.json").read_bytes())["record"]["agreement"]["agreement"]
    servers = [kit("Marina", spec, mar, request=sentence)]
    servers += [peer(name, workers) for name in options.only or NAMES]
    course = Course(rounds=options.rounds, seconds=options.seconds, open_s=options.open, cores=workers)
    with ExitStack() as stack:
        rounds = measure(start(servers, stack), course)
    print(f"agreement of {spec.model.precision} with eager fp32 {agreed:.4f}")
    lead = f"One sentence, {course.clients} clients, medians of {course.rounds} interleaved rounds."
    title = "The language example behind four servers"
    report(HOME, rounds, course, schema="marina.bench-encoder/1", title=title, lead=lead)


if __name__ == "__main__":
    main()
