"""What `marina manifests` prints: the files, the numbers nobody wrote, and what to type next."""

from __future__ import annotations

from pathlib import Path

from config.spec import Spec
from k8s.manifests.objects import ADDONS
from k8s.manifests.writing import Written


def summarise(written: Written, spec: Spec) -> str:
    """For a person."""
    lines = [f"{written.folder}  {written.image}"]
    lines += [f"  {name:<29} {', '.join(objects)}" for name, objects in written.files.items()]
    widest = max(len(number.value) for number in written.derived)
    lines += ["derived"]
    lines += [f"  {number.name:<29} {number.value:<{widest}}  {number.reason}" for number in written.derived]
    return "\n".join([*lines, "next", *_next(written, spec)])


def _next(written: Written, spec: Spec) -> list[str]:
    steps = [
        (f"marina verify {spec.file}", "the rules of an admission, without a cluster"),
        (f"marina deploy {spec.file}", "applies, waits, proves, or rolls back"),
        (f"kubectl apply --server-side -f {written.folder}", "by hand; -k does the same"),
    ]
    folders = dict.fromkeys(str(Path(name).parent) for name in written.files if "/" in name)
    steps += [
        (f"kubectl apply --server-side -f {written.folder / name}", f"where there is {ADDONS[name]}")
        for name in folders
    ]
    if spec.scaling.autoscaler == "hpa":
        values = written.folder.parent / "prometheus/adapter-values.yaml"
        install = "helm upgrade --install prometheus-adapter prometheus-community/prometheus-adapter"
        where = spec.kubernetes.monitoring.namespace
        steps.append((f"{install} -n {where} -f {values}", "once a cluster"))
    width = min(72, max(len(command) for command, _ in steps))
    return [f"  {command:<{width}}  # {text}" for command, text in steps]
