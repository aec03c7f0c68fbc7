"""A package around `tiny_handler.py`: a real MAR for a real TorchServe, made in milliseconds, without a model."""

import json
import zipfile
from pathlib import Path

from specs import ROOT

from marina.config.load import parse_spec
from marina.config.record import Agreement, MachineKey, Port, Record, Sample
from marina.config.render import render_model_config
from marina.config.spec import Spec

HANDLER = Path(__file__).with_name("tiny_handler.py")


def make_tiny(
    folder: Path, *, name: str = "tiny", manifest: bool = True, p99_ms: float = 50, **serving: object
) -> tuple[Spec, Path]:
    """A spec written into `folder` and its MAR, damaged without `manifest`; `serving` are fields of the spec's."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = serving.setdefault("workers", 1)
    data = {
        "name": name,
        "model": {
            "source": "./model.py:build",
            "weights": "random",
            "handler": "./tiny_handler.py:TinyHandler",
            "inputs": {"x": {"shape": [1]}},
            "batch_sizes": [1, 8],
            "compile": "export",
        },
        "serving": {"threads": 1, "max_batch": 1, "drain_propagation_s": 0, "java_heap_mb": 128, **serving},
        "slo": {"p99_ms": p99_ms},
        "kubernetes": {"resources": {"cpu": str(workers), "memory": "1Gi"}},
    }
    file = folder / "spec.yaml"
    file.write_text(json.dumps(data, indent=2))
    spec = parse_spec(file.read_text(), file, files=False)
    return spec, _write_mar(spec, folder / "tiny.mar", manifest)


def _write_mar(spec: Spec, mar: Path, manifest: bool) -> Path:
    model = {"modelName": spec.name, "handler": HANDLER.name, "modelVersion": spec.version}
    text = json.dumps({"runtime": "python", "model": model | {"configFile": "model-config.yaml"}, "createdOn": "-"})
    with zipfile.ZipFile(mar, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", text if manifest else "{")
        for file in (HANDLER, ROOT / "handlers/renewal.py", ROOT / "handlers/starting.py"):
            archive.write(file, file.name)
        # In front of site-packages: TorchServe's worker only asks whether an answer is a tensor. Saves a second.
        archive.writestr("torch.py", "class Tensor:\n    pass\n")
        archive.writestr("model-config.yaml", render_model_config(spec))
        archive.writestr("marina.json", _record(spec).json_text())
        archive.writestr("sample.json", "{}")
    return mar


def _record(spec: Spec) -> Record:
    values = Port(name="x", shape=(1,), dtype="float32")
    return Record(
        name=spec.name,
        version=spec.version,
        source=spec.model.source,
        weights=spec.model.weights,
        handler=spec.model.handler,
        precision="fp32",
        compile="export",
        device="cpu",
        workers=spec.workers,
        threads=spec.threads,
        batch_sizes=spec.model.batch_sizes,
        image=None,
        inputs=(values,),
        outputs=(values,),
        labels=None,
        max_request_bytes=10_000_000,
        max_response_bytes=10_000_000,
        sample=Sample(file="sample.json", content_type="application/json"),
        key=MachineKey(torch="none", device="cpu"),
        artifacts=(),
        program=None,
        cache=None,
        agreement=Agreement(
            inputs="generated", count=1, measure="tolerance", agreement=1.0, max_abs_difference=0.0, cosine=1.0
        ),
        files={},
    )
