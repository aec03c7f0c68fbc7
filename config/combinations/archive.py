"""Rules about archives that were made for TorchServe."""

from os.path import exists, isfile

from marina.config.combinations.rule import FILES, Conflicts, rule
from marina.config.spec import Spec


@rule("model.handler", "load.sample")
def _an_archive_has_a_sample(spec: Spec) -> Conflicts:
    if spec.model.adopted and spec.load.sample is None:
        text = "missing: an archive does not say what its requests look like, and a server is ready once it answers one"
        yield "load.sample", text, "add `load: {sample: ./request.json}`, a file with the body of a request"


@rule("model.handler", "serving.cache")
def _answers_are_not_cached(spec: Spec) -> Conflicts:
    if spec.model.adopted and spec.serving.cache is not None:
        text = "not for an archive, whose handler may answer the same body differently"
        yield "serving.cache", text, "delete `cache`"


@rule("model.source", into=FILES)
def _archive_exists(spec: Spec) -> Conflicts:
    source = spec.model.source
    if spec.model.adopted and not spec.is_elsewhere(source) and not exists(spec.path(source)):
        text = f"no such file or folder: `{spec.path(spec.model.source)}`"
        yield "model.source", text, "a `.mar`, a `.tar.gz` or a folder as torch-model-archiver makes it"


@rule("model.metrics", into=FILES)
def _metrics_exist(spec: Spec) -> Conflicts:
    if spec.model.metrics and not isfile(spec.path(spec.model.metrics)):
        yield "model.metrics", f"no such file: `{spec.path(spec.model.metrics)}`", "put it there, or delete `metrics`"
