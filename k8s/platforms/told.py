"""What `marina manifests` prints of a form, and what to type next."""

from __future__ import annotations

from config.spec import Spec
from k8s.manifests import Written, summarise


def tell(written: Written, spec: Spec, form: str) -> str:
    """For a person."""
    if form in ("files", "single"):
        return summarise(written, spec)
    lines = [f"{written.folder}  {written.image}"]
    lines += [f"  {name:<29} {', '.join(objects)}" for name, objects in written.files.items()]
    namespace = spec.kubernetes.namespace
    # Helm keeps its release in the namespace, which must be there before any object of the chart.
    make = " --create-namespace --set createNamespace=false" if spec.kubernetes.create_namespace else ""
    steps = {
        "helm": [
            (
                f"helm upgrade --install {spec.name} {written.folder} -n {namespace}{make}",
                "values.yaml has what may change",
            ),
            (f"helm test {spec.name} -n {namespace}", "sends an inference"),
        ],
        "kserve": [
            (f"marina verify --dir {written.folder}", "the rules of an admission, without a cluster"),
            (f"kubectl apply --server-side -f {written.folder}", "where there is KServe"),
        ],
    }[form]
    width = min(72, max(len(command) for command, _ in steps))
    return "\n".join([*lines, "next", *(f"  {command:<{width}}  # {text}" for command, text in steps)])
