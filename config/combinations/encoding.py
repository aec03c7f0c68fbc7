"""Rules about encoders and their folders."""

from collections.abc import Iterator
from os.path import isdir

from marina.config.combinations.rule import FILES, Conflicts, rule
from marina.config.hf_folder import TOKENIZER_CONFIG, FolderRefused, read_model_folder
from marina.config.spec import Spec


@rule("model")
def _the_task_fits_its_fields(spec: Spec) -> Conflicts:
    model = spec.model
    if model.labels is not None and model.task in ("answer", "embed", "fill", "rerank"):
        yield "model.labels", f"not for `task: {model.task}`, whose answers have no classes", "delete `labels`"
    # Compared with the default, because a completed spec, as `marina check` prints it, has every field.
    if model.encodes and model.task != "embed" and spec.encoding.pooling != "mean":
        yield "model.encoding.pooling", "only for `task: embed`", "delete `pooling`"


@rule("model.source", "model.task", into=FILES)
def _the_folder_holds_an_encoder(spec: Spec) -> Conflicts:
    model = spec.model
    if not model.encodes or model.folder is None or not isdir(spec.path(model.folder)):
        return
    try:
        folder = read_model_folder(spec.path(model.folder), pickled=True)
        pooling = folder.read_embedding().pooling if model.task == "embed" else None
        folder.left_out(str(model.task))
    except FolderRefused as err:
        yield "model.source", str(err), err.hint
        return
    made_for = folder.made_for
    is_usual = made_for != "embed" or "For" in folder.architecture or folder.architecture.endswith("Model")
    if model.task != "embed" and is_usual and made_for != ("classify" if model.task == "rerank" else model.task):
        text = f"got `{model.task}`, but the folder holds a `{folder.architecture}`"
        yield "model.task", text, f"task: {made_for}"
    if model.task == "fill" and folder.mask is None:
        text = f"got `fill`, but the folder's `{TOKENIZER_CONFIG}` has no `mask_token`"
        yield "model.task", text, 'add `"mask_token": "[MASK]"` to it, or what texts have for it'
    if pooling is not None and pooling != spec.encoding.pooling:
        text = f"got `{spec.encoding.pooling}`, but the folder says that its embeddings are made by `{pooling}`"
        yield "model.encoding.pooling", text, f"pooling: {pooling}"
    longest = folder.longest
    if longest is not None and spec.encoding.max_tokens > longest:
        text = f"got {spec.encoding.max_tokens}, but the model was made for {longest} tokens"
        yield "model.encoding.max_tokens", text, f"max_tokens: {longest}"


def encoder_warnings(spec: Spec) -> Iterator[str]:
    """What of an encoder looks like a mistake."""
    if not spec.model.encodes or spec.is_elsewhere(spec.model.folder):
        return
    folder = read_model_folder(spec.path(spec.model.folder or ""), pickled=True)
    yield from (f"`model.source`: {sentence}" for sentence in folder.left_out(str(spec.model.task)))
    if spec.model.task != "embed":
        return
    if (cut := folder.cut) and spec.encoding.max_tokens > cut:
        yield (
            f"`model.encoding.max_tokens`: {spec.encoding.max_tokens}, but `sentence-transformers` cuts off this "
            f"folder's texts after {cut}: `max_tokens: {cut}` with `truncate: right` gives the same numbers"
        )
