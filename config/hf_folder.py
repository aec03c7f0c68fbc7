"""A model's folder as `transformers` saves it: read without torch, and refused if it needs code or pickles."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
# The files that are packed: settings, the tokenizer, the chat template, the weights.
_PACKED = ("*.json", "*.jinja", "*.safetensors")
# Written by `sentence-transformers`: the steps that make an embedding, each a class with a folder of its own.
_MODULES = "modules.json"
# Written by it, too: how its first step reads texts, in older folders named after the model's kind, and prompts to put
# before them.
_TRANSFORMER, _PROMPTS = "sentence_*_config.json", "config_sentence_transformers.json"
# An older name of the function that it applies to the scores of pairs.
_ACTIVATION = "sbert_ce_default_activation_function"
# The heads that `transformers` puts on an encoder, and the tasks that they are made for.
_MADE_FOR = {
    "ForMaskedLM": "fill",
    "ForQuestionAnswering": "answer",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tokens",
}
# The functions that may follow a linear layer, by the names that torch gives them.
ACTIVATIONS = ("GELU", "Identity", "ReLU", "Tanh")
# Written by `setfit`: a classifier of embeddings.
_HEAD = "model_head.pkl"
_OWN_END = "source: ./model.py:build, a network that ends with this module"
# Written for models that take pictures or sound.
_PROCESSOR = "preprocessor_config.json"
# The kinds of models with a part for pictures and one for texts, each of which makes an embedding.
TWO_TOWERS = ("altclip", "chinese_clip", "clip", "metaclip_2", "siglip")
# The kinds of models that hear samples, without a spectrogram.
_HEARS_SAMPLES = ("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2", "wavlm")
_HEARS = "Whisper, and Wav2Vec2, Hubert, WavLM and their like for CTC or classification"
# Written by `peft`: what a training changed, without the model that it changed.
_ADAPTER = "adapter_config.json"
_POINTER = b"version https://git-lfs.github.com/spec/"
_SPECIAL_TOKENS = "special_tokens_map.json"
# The weights of older folders, or the index of several files: of a pickle, `transformers` reads only the tensors.
_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_PICKLED = (".bin", ".ckpt", ".h5", ".msgpack", ".pickle", ".pkl", ".pt", ".pth")


class FolderRefused(Exception):
    """Raised when the folder does not hold a model that can be packed; `hint` says what to do."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True)
class Embedding:
    """How `sentence-transformers` makes an embedding with a folder's model."""

    pooling: str | None
    """What it is made of: `cls`, `last` or `mean`; None if the folder does not say."""
    is_normalised: bool
    """Whether it is scaled to length 1."""
    dense: tuple[Path, ...] = ()
    """The folders of linear layers that follow the pooling, in order."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder: its `config.json`, and the files that are packed."""

    path: Path
    config: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def longest(self) -> int | None:
        """The most tokens that the model was made for; None if its configuration does not say."""
        # Models that also see pictures describe how they read texts in a part of it.
        part = self.config.get("text_config")
        described = part if isinstance(part, dict) else self.config
        # What GPT-2 and its kind call it. T5 has a field of that name too, which is no limit.
        other = "n_positions" if str(self._kind).startswith(("gpt", "openai-gpt", "codegen", "ctrl")) else ""
        length = described.get("max_position_embeddings", described.get(other))
        if length is None and self.has_two_towers:
            # Saved without the fields that have their defaults.
            length = {"siglip": 64}.get(str(self._kind), 77)
        if not isinstance(length, int):
            return None
        if str(self._kind).endswith(("roberta", "camembert", "mpnet", "longformer")):
            # These count positions from the one after the number of the padding token.
            padding = self.config.get("pad_token_id")
            return length - 1 - (padding if isinstance(padding, int) else 1)
        return length

    @property
    def window(self) -> int | None:
        """How many tokens back the attention of each token reaches; None if it reaches all of them."""
        # What `transformers` assumes without the fields.
        window = self.config.get("sliding_window", 4096 if self._kind == "mistral" else None)
        is_used = self.config.get("use_sliding_window", self._kind not in ("qwen2", "qwen3"))
        return window if isinstance(window, int) and is_used else None

    @property
    def _kind(self) -> object:
        return self.config.get("model_type")

    @property
    def architecture(self) -> str:
        """The class of `transformers` that the folder was saved from; empty if its configuration does not say."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def has_two_towers(self) -> bool:
        """Whether it has a part for pictures and one for texts, each of which makes an embedding."""
        return self._kind in TWO_TOWERS

    @property
    def hears(self) -> str | None:
        """What a model that takes sound answers: `whisper`, `ctc` or `classes`; None for any other model."""
        if self.architecture == "WhisperForConditionalGeneration":
            return "whisper"
        samples = self._kind in _HEARS_SAMPLES
        ends = {"ForCTC": "ctc", "ForSequenceClassification": "classes"}
        return next((what for end, what in ends.items() if samples and self.architecture.endswith(end)), None)

    @property
    def made_for(self) -> str:
        """The task that the architecture's head is made for; `embed` for any other head and for none."""
        return next((task for end, task in _MADE_FOR.items() if self.architecture.endswith(end)), "embed")

    def read_embedding(self) -> Embedding:
        """How the folder says that an embedding is made. Raises FolderRefused if Marina does not compute that."""
        if not (self.path / _MODULES).is_file():
            return Embedding(None, True)
        pooling, is_normalised, dense = None, False, list[Path]()
        for module in _read_modules(self.path / _MODULES):
            kind = module["type"].rpartition(".")[2]
            if kind == "Pooling":
                file = self.path / module["path"] / CONFIG
                pooling = _pooling(_read_json(file)) or None
                if pooling not in (None, "cls", "last", "mean"):
                    raise FolderRefused(f"`{file}`: got `{pooling}`, allowed: `cls`, `lasttoken`, `mean`", _OWN_END)
                if _read_json(file).get("include_prompt") is False and self.prompts:
                    raise FolderRefused(f"`{file}`: `include_prompt` is false, allowed: true", _OWN_END)
            elif kind == "Normalize":
                is_normalised = True
            elif kind == "Dense" and not is_normalised:
                dense.append(self._dense(module["path"]))
            elif kind != "Transformer":
                allowed = "`Transformer`, `Pooling`, `Dense`, `Normalize`, in this order"
                raise FolderRefused(f"`{self.path / _MODULES}`: got `{kind}`, allowed: {allowed}", _OWN_END)
        return Embedding(pooling, is_normalised, tuple(dense))

    def _dense(self, name: str) -> Path:
        """The folder of a linear layer; FolderRefused if what follows it is not computed."""
        folder = self.path / name
        activation = str(_read_json(folder / CONFIG).get("activation_function", "")).rpartition(".")[2]
        if activation not in ACTIVATIONS:
            allowed = ", ".join(f"`{known}`" for known in ACTIVATIONS)
            text = f"`{folder / CONFIG}`: `activation_function`: got `{activation}`, allowed: {allowed}"
            raise FolderRefused(text, _OWN_END)
        if not (folder / "model.safetensors").is_file():
            raise FolderRefused(f"`{folder}` has no `model.safetensors`", _saved_anew(self.path))
        return folder

    @property
    def prompts(self) -> dict[str, str]:
        """What `sentence-transformers` puts before texts, by name."""
        texts = self._said(_PROMPTS).get("prompts")
        named = texts.items() if isinstance(texts, dict) else ()
        return {str(name): text for name, text in named if isinstance(text, str) and text}

    @property
    def default_prompt(self) -> str | None:
        """The name of the prompt that is put before texts if none is asked for."""
        name = self._said(_PROMPTS).get("default_prompt_name")
        return name if isinstance(name, str) and name in self.prompts else None

    def left_out(self, task: str) -> tuple[str, ...]:
        """Sentences on what the library that saved the folder does for a task, and Marina does not."""
        if task == "rerank":
            return self._other_scores()
        if task != "embed":
            return ()
        more = ", and Marina does not: clients have to"
        head = [f"`setfit` classifies embeddings by `{_HEAD}`{more}"] if (self.path / _HEAD).is_file() else []
        return (*(f"`sentence-transformers` {change}{more}" for change in self._text_changes()), *head)

    def _other_scores(self) -> tuple[str, ...]:
        newer = self.config.get("sentence_transformers")
        named = newer.get("activation_fn") if isinstance(newer, dict) else self.config.get(_ACTIVATION)
        kind = str(named or "Sigmoid").rpartition(".")[2]
        text = f"`sentence-transformers` makes scores by `{kind}`, and Marina by `Sigmoid`: their order is the same"
        return () if kind == "Sigmoid" else (text,)

    @property
    def mask(self) -> str | None:
        """What its tokenizer takes for a token that is to be filled in; None if it does not say."""
        token = self._said(TOKENIZER_CONFIG).get("mask_token") or self._said(_SPECIAL_TOKENS).get("mask_token")
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) else None

    @property
    def cut(self) -> int | None:
        """After how many tokens `sentence-transformers` cuts a text; None if it does not say."""
        length = self._said(_TRANSFORMER).get("max_seq_length")
        return length if isinstance(length, int) else None

    @property
    def has_types(self) -> bool:
        """Whether its tokenizer gives each token the number of its text, which models of pairs may take."""
        tokenizer = self._said(TOKENIZER_CONFIG)
        # The class of tokenizers that `transformers` has no other class for: they make none unless they say so.
        usual = ["token_type_ids"] * (tokenizer.get("tokenizer_class") != "TokenizersBackend")
        return "token_type_ids" in (tokenizer.get("model_input_names") or usual)

    def _said(self, name: str) -> dict[str, Any]:
        file = next(iter(sorted(self.path.glob(name))), None)
        return _read_json(file) if file is not None and file.is_file() else {}

    def _text_changes(self) -> list[str]:
        return ["writes texts in lower case"] if self._said(_TRANSFORMER).get("do_lower_case") is True else []


def _saved_anew(path: Path) -> str:
    return f"SentenceTransformer('{path}').save('{path}-new'), with a newer `sentence-transformers`"


def _read_modules(file: Path) -> list[dict[str, str]]:
    modules = _parse_json(file)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in modules
    ):
        raise FolderRefused(f"`{file}` is not a list of modules, each with `type` and `path`")
    return modules


def _pooling(config: dict[str, Any]) -> str:
    """The kinds of pooling that are on: newer files name them, older ones have a flag for each."""
    flag, short = "pooling_mode_", {"cls_token": "cls", "lasttoken": "last", "mean_tokens": "mean"}
    on = [name.removeprefix(flag) for name, value in config.items() if name.startswith(flag) and value is True]
    names = config.get("pooling_mode", on)
    return " and ".join(short.get(str(name), str(name)) for name in (names if isinstance(names, list) else [names]))


def pickled_weights(path: Path) -> str | None:
    """The file of weights in a folder that has no `.safetensors`, but what `transformers` wrote before."""
    if any(path.glob("*.safetensors")):
        return None
    return next((name for name in _PICKLED_WEIGHTS if (path / name).is_file()), None)


def read_model_folder(path: Path, *, weights: bool = True, pickled: bool = False) -> ModelFolder:
    """Reads a model's folder, or raises FolderRefused; without `weights` it needs neither weights nor `config.json`,
    and with `pickled` the weights may be a pickle, as `transformers` reads them."""
    if (path / _ADAPTER).is_file() and not (path / CONFIG).is_file():
        hint = f"source: hf:./base, the model that it was trained on, and `adapter: {path}`"
        raise FolderRefused(f"`{path}` holds an adapter, such as of LoRA, allowed: a whole model", hint)
    if (path / _MODULES).is_file() and not (path / CONFIG).is_file():
        raise FolderRefused(f"`{path}` has `{_MODULES}`, but no `{CONFIG}` beside it", _saved_anew(path))
    config = _read_json(path / CONFIG) if weights or (path / CONFIG).exists() else {}
    tokenizer = _read_json(path / TOKENIZER_CONFIG) if (path / TOKENIZER_CONFIG).exists() else {}
    for name, data in ((CONFIG, config), (TOKENIZER_CONFIG, tokenizer)):
        if "auto_map" in data:
            raise FolderRefused(f"`{path / name}`: `auto_map`: the model comes with its own code, which is not run")
    is_processed = (path / _PROCESSOR).is_file()
    # A field of models that take pictures.
    if (is_processed or "num_channels" in config) and not (path / TOKENIZER).is_file():
        hint = (
            f"in model.py: `def build(): return AutoModel….from_pretrained('{path}')`, then `source: ./model.py:build`"
        )
        raise FolderRefused(f"`{path}` holds a model of pictures or sound, allowed as a folder: a model of texts", hint)
    if "max_2d_position_embeddings" in config:
        text = f"`{path}` reads where words are on a page, allowed as a folder: a model of texts alone"
        raise FolderRefused(text, "source: ./model.py:build, with `handler: tensor` or a handler of your own")
    if not (path / TOKENIZER).is_file():
        hint = f"tokenizer.save_pretrained('{path}'), with the fast tokenizer that it was trained with"
        raise FolderRefused(f"`{path}` has no `{TOKENIZER}`", hint)
    # A link to a file that is gone is none of them.
    files = tuple(sorted(file for pattern in _PACKED for file in path.glob(pattern) if file.is_file()))
    if pointer := next(filter(is_pointer, files), None):
        raise FolderRefused(f"`{pointer}` is only Git LFS's pointer to the file", f"git -C {path} lfs pull")
    if weights and not any(file.suffix == ".safetensors" for file in files) and not (pickled and pickled_weights(path)):
        others = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLED)
        beside = f", and `{others[0]}` may hold code" if others else ""
        hint = f"model.save_pretrained('{path}')"
        raise FolderRefused(f"`{path}` has no `.safetensors`{beside}", hint)
    return ModelFolder(path, config, files)


def hears_sound(path: Path) -> bool:
    """Whether the folder holds a model that takes sound, of a kind that is served or not."""
    if not (path / CONFIG).is_file():
        return False
    folder = ModelFolder(path, _read_json(path / CONFIG), ())
    processor = _read_json(path / _PROCESSOR) if (path / _PROCESSOR).is_file() else {}
    return folder.hears is not None or "feature_extractor_type" in processor or "sampling_rate" in processor


def read_sound_folder(path: Path) -> ModelFolder:
    """Reads the folder of a model that takes sound, or raises FolderRefused."""
    config = _read_json(path / CONFIG)
    folder = ModelFolder(path, config, tuple(sorted(path.glob("*.safetensors"))))
    if "auto_map" in config:
        raise FolderRefused(f"`{path / CONFIG}`: `auto_map`: the model comes with its own code, which is not run")
    if folder.hears is None:
        text = f"`{path}` holds a `{folder.architecture}`, allowed for `handler: audio`: {_HEARS}"
        raise FolderRefused(text, "source: ./model.py:build, with `handler: tensor` or a handler of your own")
    if pointer := next(filter(is_pointer, folder.files), None):
        raise FolderRefused(f"`{pointer}` is only Git LFS's pointer to the file", f"git -C {path} lfs pull")
    if not folder.files and not pickled_weights(path):
        raise FolderRefused(f"`{path}` has no `.safetensors`", f"model.save_pretrained('{path}')")
    if folder.hears == "whisper" and not (path / TOKENIZER).is_file():
        hint = f"AutoTokenizer.from_pretrained('{path}').save_pretrained('{path}'), which writes the fast tokenizer"
        raise FolderRefused(f"`{path}` has no `{TOKENIZER}`", hint)
    return folder


def is_pointer(file: Path) -> bool:
    """Whether the file is what Git leaves instead of a large file that it did not download."""
    with file.open("rb") as stream:
        return stream.read(len(_POINTER)) == _POINTER


def _parse_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderRefused(f"`{file.parent}` has no `{file.name}`") from None
    except (OSError, ValueError, RecursionError) as err:
        raise FolderRefused(f"`{file}` cannot be read as JSON") from err


def _read_json(file: Path) -> dict[str, Any]:
    data = _parse_json(file)
    if not isinstance(data, dict):
        raise FolderRefused(f"`{file}` is not a JSON object")
    return data
