"""Text encoders from a folder that `transformers` saved: the network, the graph of its task, and calibration texts.

`transformers` is needed on the packaging machine only: a pod has the compiled graph and the tokenizer's own file."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from marina.archiver.transformers_folder import import_transformers, load_pretrained
from marina.config.errors import SourceError
from marina.config.hf_folder import (
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    FolderRefused,
    ModelFolder,
    read_model_folder,
)
from marina.config.record import EncoderSetup, Port
from marina.config.sections import Encoder
from marina.config.spec import Spec
from marina.handlers.encoder import TextReader
from marina.handlers.record import EncodingSpec
from marina.handlers.validation import RequestError

CLASSES = {
    "answer": "AutoModelForQuestionAnswering",
    "classify": "AutoModelForSequenceClassification",
    "embed": "AutoModel",
    "fill": "AutoModelForMaskedLM",
    "rerank": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
}
OUTPUTS = {
    "answer": ("starts", "ends"),
    "classify": ("top_probs", "top_indices"),
    "embed": ("embedding",),
    "fill": ("top_probs", "top_indices"),
    "rerank": ("score",),
    "tokens": ("probabilities",),
}
# Of classes, and of tokens in the place of a mask.
MOST_CLASSES = 5
SAMPLE_TEXT = "Hello."
# Capitals, accents, digits and punctuation, which tokenizers may drop or split in several ways.
_ODD_TEXT = "The Café's 12 cats, über."
# Models with token types whose configuration does not count them.
_WITH_TYPES = ("funnel", "xlnet")


class EncoderGraph(nn.Module):
    """Takes token ids and their mask, and returns the task's answer in float32."""

    def __init__(self, network: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.network = network
        self.task = spec.model.task
        self.classes = int(getattr(network.config, "num_labels", 0))
        # Such labels do not exclude each other.
        self.has_many = self.task == "classify" and problem_type(network) == "multi_label_classification"
        self.has_decoder = self.task in ("classify", "rerank") and _has_decoder(network)
        # SigLIP reads the padding, as it did in its training.
        self.reads_padding = self.task == "embed" and getattr(network.config, "model_type", None) == "siglip"
        self.pooling, self.normalise = spec.encoding.pooling, False
        self.dense = nn.Sequential()
        if self.task == "embed":
            said = _read(spec).read_embedding()
            self.normalise, self.dense = said.is_normalised, nn.Sequential(*map(_dense_layer, said.dense))
            self.dense = self.dense.eval().to(spec.serving.device)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.task == "embed" and hasattr(self.network, "get_text_features"):
            ids, mask = inputs[:2]
            masked = {} if self.reads_padding else {"attention_mask": mask}
            tower: Any = self.network
            found = tower.get_text_features(input_ids=ids, **masked)
            pooled = (found if isinstance(found, torch.Tensor) else found.pooler_output).to(torch.float32)
            return (torch.nn.functional.normalize(pooled, dim=-1),)
        if self.task == "embed":
            return (self._embedding(self._outputs(inputs).last_hidden_state.to(torch.float32), inputs[1]),)
        if self.task == "answer":
            found = self._outputs(inputs)
            return found.start_logits.to(torch.float32), found.end_logits.to(torch.float32)
        logits = self._logits_at_end(*inputs) if self.has_decoder else self._outputs(inputs).logits
        logits = logits.to(torch.float32)
        if self.task == "rerank":
            return (torch.sigmoid(logits[:, 0]),)
        probabilities = torch.sigmoid(logits) if self.has_many else torch.softmax(logits, dim=-1)
        if self.task == "tokens":
            return (probabilities,)
        top_probs, top_indices = torch.topk(probabilities, min(MOST_CLASSES, probabilities.shape[-1]))
        return top_probs, top_indices

    def _outputs(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        names = ("input_ids", "attention_mask", "token_type_ids")
        return self.network(**dict(zip(names, inputs, strict=False)))

    def _logits_at_end(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What a classifier with a decoder, such as BART, says at the last end token of each text. Its own code takes
        only batches whose texts have equally many of them, and cannot be exported."""
        network: Any = self.network
        # BART's decoder shifts the text itself, T5's does not.
        shifted = {"decoder_input_ids": network._shift_right(ids)} if hasattr(network, "_shift_right") else {}
        states = network.base_model(ids, attention_mask=mask, **shifted).last_hidden_state
        is_end = (ids == network.config.eos_token_id) & (mask == 1)
        last = (is_end * torch.arange(ids.shape[1], device=ids.device)).argmax(1)
        return network.classification_head(states[torch.arange(len(ids), device=ids.device), last])  # type: ignore[no-any-return]

    def _embedding(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "last":
            # Texts are padded at their ends.
            pooled = states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        else:
            weights = mask.unsqueeze(-1).to(torch.float32)
            pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        pooled = self.dense(pooled)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalise else pooled


def _dense_layer(folder: Path) -> nn.Module:
    """A linear layer of `sentence-transformers`, with the function that follows it."""
    from safetensors.torch import load_file

    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    linear.load_state_dict(
        {name.removeprefix("linear."): value for name, value in load_file(folder / "model.safetensors").items()}
    )
    activation: nn.Module = getattr(nn, config["activation_function"].rpartition(".")[2])()
    return nn.Sequential(linear, activation)


def problem_type(network: Any) -> str | None:
    """What a classifier was trained for, as its configuration says."""
    return getattr(getattr(network, "config", None), "problem_type", None)


def _has_decoder(network: Any) -> bool:
    return getattr(network.config, "is_encoder_decoder", False) is True


def _check_end(spec: Spec, folder: ModelFolder, end: object) -> None:
    """Raises SourceError if the tokenizer does not add the token at which a classifier with a decoder decides."""
    if end not in _token_ids(folder, SAMPLE_TEXT):
        raise SourceError(
            f"{spec.file}: `model.source`: `{TOKENIZER}` adds no token {end} to a text, the `eos_token_id` of "
            f"`{CONFIG}`, at which the model decides",
            hint=f"save the tokenizer that the model was trained with: tokenizer.save_pretrained('{folder.path}')",
        )


def _check_mask(spec: Spec, folder: ModelFolder) -> None:
    """Raises SourceError if the tokenizer does not take the mask in a text for one token."""
    with_mask, without = (len(_token_ids(folder, text)) for text in (f"{SAMPLE_TEXT} {folder.mask}", SAMPLE_TEXT))
    if with_mask != without + 1:
        raise SourceError(
            f"{spec.file}: `model.source`: `{TOKENIZER}` makes {with_mask - without} tokens of `{folder.mask}`, the "
            f"`mask_token` of `{TOKENIZER_CONFIG}`, allowed: 1",
            hint=f"AutoTokenizer.from_pretrained('{folder.path}').save_pretrained('{folder.path}')",
        )


def _token_ids(folder: ModelFolder, text: str) -> list[int]:
    """The tokens that a worker makes of a text."""
    how = EncodingSpec("embed", len(text) + 8, "error", TOKENIZER)
    (((ids,), _),) = TextReader(str(folder.path / TOKENIZER), how, ["input_ids"]).read([text])
    return [int(token) for token in ids]


def _check_tokenizer(spec: Spec, folder: ModelFolder) -> None:
    """Raises SourceError if the tokenizer's settings change what its file says, as `do_lower_case` may: `transformers`
    follows the settings, and a worker reads the file alone."""
    if not (folder.path / TOKENIZER_CONFIG).is_file():
        return
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)(_ODD_TEXT)["input_ids"]
    except Exception:
        return  # as for settings of a newer version
    if theirs != (ours := _token_ids(folder, _ODD_TEXT)):
        raise SourceError(
            f"{spec.file}: `model.source`: `{TOKENIZER}` makes other tokens of `{_ODD_TEXT}` than `transformers` with "
            f"`{TOKENIZER_CONFIG}`, {ours} instead of {theirs}",
            hint=f"AutoTokenizer.from_pretrained('{folder.path}').save_pretrained('{folder.path}')",
        )


def load_encoder(spec: Spec) -> tuple[nn.Module, tuple[Port, ...], tuple[str, ...] | None]:
    """The network in fp32, its inputs, and the labels in its configuration."""
    folder = _read(spec)
    task = str(spec.model.task)
    network = load_network(spec, folder, CLASSES[task])
    outputs = getattr(network.config, "num_labels", 0)
    if task == "rerank" and outputs != 1:
        raise SourceError(
            f"{spec.file}: `model.task`: got `rerank`, but `{spec.model.source}` returns {outputs} numbers per pair, "
            "allowed: 1",
            hint="task: classify",
        )
    if task == "embed" and _has_decoder(network):
        # Its decoder would write a text for the one that the encoder reads.
        network = network.get_encoder()
    if task == "classify" and (outputs == 1 or problem_type(network) == "regression"):
        raise SourceError(
            f"{spec.file}: `model.task`: got `classify`, but `{spec.model.source}` returns numbers that are not "
            "probabilities of classes",
            hint="task: rerank" if outputs == 1 else None,
        )
    if task in ("classify", "rerank") and _has_decoder(network):
        _check_end(spec, folder, network.config.eos_token_id)
    if task == "fill":
        _check_mask(spec, folder)
    _check_tokenizer(spec, folder)
    described = network.config.text_config if folder.has_two_towers else network.config
    vocabulary = getattr(described, "vocab_size", None)
    if not isinstance(vocabulary, int):
        kind = f"`{spec.model.source}` is a `{type(network).__name__}`, whose `{CONFIG}` has no `vocab_size`"
        raise SourceError(
            f"{spec.file}: `model.source`: {kind}, allowed: an encoder of texts alone",
            hint="source: ./model.py:build, with `handler: tensor` or a handler of your own",
        )
    if folder.config.get("model_type") == "siglip":
        _check_one_length(spec, folder)
    length = (spec.encoding.max_tokens,)
    kinds = int(getattr(described, "type_vocab_size", 0) or 0)
    pad = getattr(described, "pad_token_id", None) if folder.has_two_towers else folder.config.get("pad_token_id")
    pad = pad if isinstance(pad, int) else 0
    ports = [
        Port(name="input_ids", shape=length, dtype="int64", min=0, max=vocabulary - 1, varies=0, pad=pad),
        Port(name="attention_mask", shape=length, dtype="int64", min=1, max=1, varies=0, pad=0),
    ]
    if (kinds > 1 or folder.config.get("model_type") in _WITH_TYPES) and folder.has_types:
        ports.append(Port(name="token_type_ids", shape=length, dtype="int64", min=0, max=0, varies=0))
    return network, tuple(ports), _labels(spec, folder, outputs) if task in ("classify", "tokens") else None


def _check_one_length(spec: Spec, folder: ModelFolder) -> None:
    """Raises SourceError unless all texts are padded to the length that they had in the training."""
    if spec.encoding.buckets != (folder.longest,) or spec.encoding.max_tokens != folder.longest:
        text = f"got {spec.encoding.buckets or 'none'}, but its texts were padded to {folder.longest} tokens"
        hint = f"encoding: {{max_tokens: {folder.longest}, buckets: [{folder.longest}]}}"
        raise SourceError(f"{spec.file}: `model.encoding.buckets`: {text}", hint=hint)


def _labels(spec: Spec, folder: ModelFolder, outputs: int) -> tuple[str, ...] | None:
    """The names of the classes, as the folder's configuration has them; None if it has none."""
    named = folder.config.get("id2label")
    if not isinstance(named, dict):
        return None
    if missing := [str(index) for index in range(outputs) if str(index) not in named]:
        raise SourceError(
            f"{spec.file}: `model.source`: `{CONFIG}`: `id2label` has no `{missing[0]}`, "
            f"allowed: a label for each number from 0 to {outputs - 1}"
        )
    return tuple(str(named[str(index)]) for index in range(outputs))


def stage_encoding(spec: Spec, staged: Path) -> EncoderSetup | None:
    """Copies the tokenizer's file into the staged folder, and returns the record's `encoding`; None without a task."""
    if not isinstance(spec.model, Encoder):
        return None
    folder = _read(spec)
    shutil.copy(folder.path / TOKENIZER, staged / TOKENIZER)
    return EncoderSetup(
        task=spec.model.task,
        max_tokens=spec.encoding.max_tokens,
        truncate=spec.encoding.truncate,
        tokenizer=TOKENIZER,
        prompts=folder.prompts if spec.model.task == "embed" else {},
        default_prompt=folder.default_prompt if spec.model.task == "embed" else None,
        is_normalised=spec.model.task == "embed" and folder.read_embedding().is_normalised,
        mask=folder.mask if spec.model.task == "fill" else None,
    )


def sample_body(spec: Spec) -> bytes:
    """The body of a sample request for the spec's task."""
    if spec.model.task == "rerank":
        return json.dumps({"query": "Hello?", "documents": [SAMPLE_TEXT]}).encode()
    if spec.model.task == "answer":
        return json.dumps({"question": "Hello?", "context": SAMPLE_TEXT}).encode()
    mask = f" {_read(spec).mask}" if spec.model.task == "fill" else ""
    return json.dumps({"text": SAMPLE_TEXT + mask}).encode()


def read_texts(spec: Spec, file: Path, ports: tuple[Port, ...]) -> list[tuple[np.ndarray, ...]]:
    """The rows of a file with one text per line; for `rerank`, a line is a query, a tab and a document,
    and for `answer` a question, a tab and a context."""
    folder = _read(spec)
    how = EncodingSpec(
        task=str(spec.model.task),
        max_tokens=spec.encoding.max_tokens,
        truncate="right" if spec.encoding.truncate == "error" else spec.encoding.truncate,
        tokenizer=TOKENIZER,
    )
    highest = next((port.max for port in ports), None)
    reader = TextReader(str(folder.path / TOKENIZER), how, [port.name for port in ports], highest)
    pairs = spec.model.task in ("answer", "rerank")
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        read = reader.read([(line.partition("\t")[0], line.partition("\t")[2]) if pairs else line for line in lines])
    except (OSError, UnicodeDecodeError, RequestError) as err:
        raise SourceError(f"{spec.file}: `model.calibration`: `{file}`: {err}") from err
    return [tuple(map(_padded, row, ports)) for row, _ in read]


def _padded(values: np.ndarray, port: Port) -> np.ndarray:
    """A text's tokens, padded to the largest length; rows are only cut to a shorter one when that is needed."""
    row = np.full(port.shape, port.pad or 0, values.dtype)
    row[: len(values)] = values
    return row


def _read(spec: Spec) -> ModelFolder:
    try:
        return read_model_folder(spec.path(spec.model.folder or ""), pickled=True)
    except FolderRefused as err:
        raise SourceError(f"{spec.file}: `model.source`: {err}", hint=err.hint) from err


def load_network(spec: Spec, folder: ModelFolder, kind: str) -> Any:
    """The network of a folder in fp32, by this class of `transformers`. Raises SourceError if a weight is missing."""
    encoders = import_transformers().models.auto.modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    if spec.model.task == "embed" and encoders.get(str(folder.config.get("model_type")), "").endswith("EncoderModel"):
        # Folders of T5's encoder alone have no weights for the decoder of `AutoModel`.
        kind = "AutoModelForTextEncoding"
    network, loaded = load_pretrained(spec, folder.path, kind)
    if mismatched := sorted(name for name, *_ in loaded["mismatched_keys"]):
        raise SourceError(
            f"{spec.file}: `model.source`: `{mismatched[0]}` in the weights of `{spec.model.source}` has another size "
            f"than its `{CONFIG}` says"
        )
    if missing := sorted(name for name in loaded["missing_keys"] if "pooler" not in name or spec.model.task != "embed"):
        raise SourceError(
            f"{spec.file}: `model.task`: `{spec.model.source}` has no weights for `{missing[0]}`, "
            f"which `task: {spec.model.task}` needs",
            hint="task: embed" if spec.model.task != "embed" else None,
        )
    return network.eval()
