"""The text that `marina manifests` prints: the files, the derived numbers, and what to type next."""

from pathlib import Path
from shlex import quote

from marina.config.spec import Spec
from marina.k8s.manifests.engines import ENGINES
from marina.k8s.manifests.labels import MANAGED_BY
from marina.k8s.manifests.objects import ADDONS
from marina.k8s.manifests.writing import WrittenFiles

# As `deploy` applies them: two managers of the same fields would be in each other's way.
_APPLY = f"kubectl apply --server-side --field-manager {MANAGED_BY}"


def summary_text(written: WrittenFiles, output_format: str) -> str:
    """The summary for a person; `output_format` is the value of `--format`."""
    lines = [f"{written.folder}  {written.image}"]
    lines += [f"  {name:<29} {', '.join(objects)}" for name, objects in written.files.items()]
    if output_format not in ("helm", "kserve"):
        widest = max(len(number.value) for number in written.derived)
        lines += ["derived"]
        lines += [f"  {number.name:<29} {number.value:<{widest}}  {number.reason}" for number in written.derived]
    return "\n".join(lines)


def next_steps(written: WrittenFiles, spec: Spec, output_format: str) -> list[tuple[str, str]]:
    """The commands to type next, each with what it does."""
    if output_format in ("files", "single"):
        return _for_objects(written, spec)
    if output_format in ENGINES:
        return _for_engine(written, spec, output_format)
    return _for_helm(written, spec) if output_format == "helm" else _for_kserve(written)


def _for_objects(written: WrittenFiles, spec: Spec) -> list[tuple[str, str]]:
    steps = [
        (f"marina verify {spec.file}", "checks them, without a cluster"),
        (f"marina deploy {spec.file}", "applies them, proves that they serve, or rolls back"),
        (f"{_APPLY} -f {quote(str(written.folder))}", "by hand; -k does the same"),
    ]
    return [*steps, *_for_addons(written, spec)]


def _for_addons(written: WrittenFiles, spec: Spec) -> list[tuple[str, str]]:
    folders = dict.fromkeys(str(Path(name).parent) for name in written.files if "/" in name)
    steps = [
        (f"{_APPLY} -f {quote(str(written.folder / name))}", f"if the cluster has {ADDONS[name]}") for name in folders
    ]
    if spec.scaling.autoscaler == "hpa":
        values = written.folder.parent / "prometheus/adapter-values.yaml"
        # With its repository, so that no `helm repo add` is needed before.
        charts = "https://prometheus-community.github.io/helm-charts"
        install = f"helm upgrade --install prometheus-adapter prometheus-adapter --repo {charts}"
        where = spec.kubernetes.monitoring.namespace
        steps.append((f"{install} -n {where} -f {quote(str(values))}", "once per cluster"))
    return steps


def _for_engine(written: WrittenFiles, spec: Spec, output_format: str) -> list[tuple[str, str]]:
    return [
        (f"marina verify {spec.file} --format {output_format}", "checks them, without a cluster"),
        (f"marina image {spec.file} --target loadtest --push", "once: the image of the judge"),
        (f"{_APPLY} -f {quote(str(written.folder))}", f"if the cluster has {ENGINES[output_format]}; it does the rest"),
        *_for_addons(written, spec),
    ]


def _for_helm(written: WrittenFiles, spec: Spec) -> list[tuple[str, str]]:
    namespace = spec.kubernetes.namespace
    # Helm keeps its release in the namespace, which must therefore exist before any object of the chart.
    make = " --create-namespace --set createNamespace=false" if spec.kubernetes.create_namespace else ""
    install = f"helm upgrade --install {spec.name} {quote(str(written.folder))} -n {namespace}{make}"
    return [(install, "values.yaml lists what you can change")]


def _for_kserve(written: WrittenFiles) -> list[tuple[str, str]]:
    apply = f"{_APPLY} -f {quote(str(written.folder))}"
    return [
        (f"{apply} --dry-run=server", "asks the cluster whether it takes them"),
        (apply, "if the cluster has KServe"),
    ]
