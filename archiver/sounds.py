"""Models of sound from a folder that `transformers` saved: Whisper, and networks that hear samples of any length.

`transformers` is needed on the packaging machine only: a pod has Marina's own Whisper, or the exported network."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import pad

from marina.archiver import compiling
from marina.archiver.encoders import load_network
from marina.archiver.staging import extend_draft, start_draft
from marina.archiver.wav import sample_wav
from marina.config.errors import SourceError
from marina.config.hf_folder import CONFIG, TOKENIZER, FolderRefused, ModelFolder, read_sound_folder
from marina.config.progress import Progress
from marina.config.record import Agreement, Draft, Lengths, Port, Sound
from marina.config.spec import Spec
from marina.handlers.artifact import pick_device
from marina.handlers.record import parse_record
from marina.handlers.sound.handler import NO_TOKEN, SoundHandler
from marina.handlers.sound.reading import read_sound
from marina.handlers.sound.whisper import whisper_state

SETTINGS, WEIGHTS, PROGRAM = "sound.json", "sound.safetensors", "program.pt2"
MOST_CLASSES = 5
_CLASSES = {
    "classes": "AutoModelForAudioClassification",
    "ctc": "AutoModelForCTC",
    "whisper": "WhisperForConditionalGeneration",
}
_SUFFIXES = (".flac", ".mp3", ".ogg", ".wav")
_GENERATED = 4


@dataclass(frozen=True)
class _Loaded:
    """A network as `transformers` loads it, with what turns samples into its input."""

    network: Any
    extractor: Any
    family: str
    folder: ModelFolder


class SamplesGraph(nn.Module):
    """Samples [1, N] in; the likeliest token of each moment out, filled up to a fixed number, or the likeliest
    classes."""

    def __init__(self, network: Any, family: str, *, normalise: bool, moments: int) -> None:
        super().__init__()
        self.network, self.family, self.normalise, self.moments = network, family, normalise, moments

    def forward(self, samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.normalise:
            mean, variance = samples.mean(-1, keepdim=True), samples.var(-1, correction=0, keepdim=True)
            samples = (samples - mean) / torch.sqrt(variance + 1e-7)
        logits = self.network(samples).logits.to(torch.float32)
        if self.family == "ctc":
            tokens = logits.argmax(-1)
            return (pad(tokens, (0, self.moments - tokens.shape[1]), value=NO_TOKEN),)
        return tuple(torch.topk(torch.softmax(logits, -1), min(MOST_CLASSES, logits.shape[-1])))


def stage_sound(spec: Spec, staged: Path, progress: Progress) -> tuple[Draft, Callable[[], Agreement]]:
    """Stages a model of sound; returns its record, and what compares its answers with those of `transformers`."""
    with progress.step(f"load {spec.model.source}"):
        loaded = _load(spec)
        draft = start_draft(spec, None, staged)
    if loaded.family == "whisper":
        return _stage_whisper(spec, loaded, draft, staged)
    return _stage_samples(spec, loaded, draft, staged, progress)


def _load(spec: Spec) -> _Loaded:
    where, source = f"{spec.file}: `model.source`", spec.model.source
    try:
        folder = read_sound_folder(spec.path(spec.model.folder or ""))
    except FolderRefused as err:
        raise SourceError(f"{where}: {err}", hint=err.hint) from err
    family = str(folder.hears)
    does = "classify" if family == "classes" else "transcribe"
    if spec.model.task != does:
        text = f"got `{spec.model.task}`, but the folder holds a `{folder.architecture}`"
        raise SourceError(f"{spec.file}: `model.task`: {text}", hint=f"task: {does}")
    if (family == "whisper") != (spec.model.compile == "eager"):
        allowed = "`eager`, Marina's own Whisper" if family == "whisper" else "`aot` or `export`"
        text = f"got `{spec.model.compile}`, allowed for `{folder.architecture}`: {allowed}"
        raise SourceError(
            f"{spec.file}: `model.compile`: {text}", hint="compile: eager" if family == "whisper" else None
        )
    network = load_network(spec, folder, _CLASSES[family])
    from transformers import AutoFeatureExtractor

    try:
        extractor = AutoFeatureExtractor.from_pretrained(folder.path, local_files_only=True)  # type: ignore[no-untyped-call]
    except Exception as err:
        first = str(err).partition("\n")[0]
        raise SourceError(
            f"{where}: how `{source}` reads sound cannot be loaded: {first}",
            hint=f"processor.save_pretrained('{folder.path}'), which writes `preprocessor_config.json`",
        ) from err
    return _Loaded(network, extractor, family, folder)


def _stage_whisper(spec: Spec, loaded: _Loaded, draft: Draft, staged: Path) -> tuple[Draft, Callable[[], Agreement]]:
    network, extractor, config = loaded.network, loaded.extractor, loaded.network.config
    if config.activation_function != "gelu" or config.scale_embedding:
        text = f"`{CONFIG}`: `activation_function` and `scale_embedding` are not those of Whisper: `gelu` and false"
        raise SourceError(f"{spec.file}: `model.source`: {text}")
    state = {name: value.contiguous().clone() for name, value in whisper_state(network.state_dict()).items()}
    filters = torch.from_numpy(np.asarray(extractor.mel_filters, np.float32))
    save_file(state | {"mel_filters": filters}, staged / WEIGHTS)
    settings = {
        "config": json.loads((loaded.folder.path / CONFIG).read_text("utf-8")) | _sizes(config),
        "vocabulary": _vocabulary(network.generation_config),
        "tokenizer": json.loads((loaded.folder.path / TOKENIZER).read_text("utf-8")),
        "window": extractor.n_fft,
        "hop": extractor.hop_length,
        "samples": extractor.n_samples,
    }
    (staged / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    most = extractor.n_samples / extractor.sampling_rate
    sound = _sound(loaded, least=1, max_seconds=min(spec.model.max_seconds, most), weights=WEIGHTS)
    draft = extend_draft(
        draft,
        sound=sound,
        batch_sizes=(1,),
        inputs=(
            Port(name="audio", shape=(extractor.n_samples,), dtype="float32"),
            Port(name="how", shape=(2,), dtype="int64"),
        ),
        outputs=(Port(name="tokens", shape=(1 + config.max_target_positions,), dtype="int64"),),
    )

    def expected(samples: np.ndarray) -> list[int]:
        features = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features
        most = config.max_target_positions
        written = network.generate(features, task=_task_of(settings), max_length=most, num_beams=1, do_sample=False)
        return [int(token) for token in written[0].tolist() if token not in _marks(settings)]

    def got(handler: SoundHandler, samples: np.ndarray) -> list[int]:
        whole = torch.zeros(1, extractor.n_samples)
        whole[0, : len(samples)] = torch.from_numpy(samples)
        task = settings["vocabulary"]["transcribe"]
        how = torch.tensor([[NO_TOKEN, NO_TOKEN if task is None else task]])
        (tokens,) = handler.artifact.run([whole, how])
        return [int(token) for token in tokens[0, 1:].tolist() if token != NO_TOKEN and token not in _marks(settings)]

    return draft, lambda: _compare(spec, draft, staged, expected, got)


def _sizes(config: Any) -> dict[str, Any]:
    names = ("d_model", "num_mel_bins", "vocab_size", "max_source_positions", "max_target_positions")
    parts = [f"{part}_{name}" for part in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")]
    return {name: getattr(config, name) for name in (*names, *parts)}


def _vocabulary(generation: Any) -> dict[str, Any]:
    """What tokens mean, as `generation_config.json` says it."""
    tasks = getattr(generation, "task_to_id", None) or {}
    languages = getattr(generation, "lang_to_id", None) or {}
    end = generation.eos_token_id
    return {
        "start": generation.decoder_start_token_id,
        "end": end[0] if isinstance(end, list) else end,
        "transcribe": tasks.get("transcribe"),
        "translate": tasks.get("translate"),
        "no_timestamps": getattr(generation, "no_timestamps_token_id", None),
        "languages": {name.strip("<|>"): token for name, token in languages.items()},
        "suppressed": list(getattr(generation, "suppress_tokens", None) or ()),
        "suppressed_first": list(getattr(generation, "begin_suppress_tokens", None) or ()),
    }


def _task_of(settings: Mapping[str, Any]) -> str | None:
    return None if settings["vocabulary"]["transcribe"] is None else "transcribe"


def _marks(settings: Mapping[str, Any]) -> set[int]:
    """The tokens that begin and end a text."""
    known = settings["vocabulary"]
    named = (known[name] for name in ("start", "end", "transcribe", "translate", "no_timestamps"))
    return {*named, *known["languages"].values()}


def _stage_samples(
    spec: Spec, loaded: _Loaded, draft: Draft, staged: Path, progress: Progress
) -> tuple[Draft, Callable[[], Agreement]]:
    network, extractor = loaded.network, loaded.extractor
    if not hasattr(network, "_get_feat_extract_output_lengths"):
        raise SourceError(
            f"{spec.file}: `model.source`: `{loaded.folder.architecture}` hears spectrograms, allowed: Whisper, and "
            "networks that hear samples, such as Wav2Vec2 and Hubert",
            hint="source: ./model.py:build, with `handler: tensor` and spectrograms as requests",
        )
    rate, most = extractor.sampling_rate, round(spec.model.max_seconds * extractor.sampling_rate)
    least = _least(network)
    moments = int(network._get_feat_extract_output_lengths(most))
    graph = SamplesGraph(network, loaded.family, normalise=bool(extractor.do_normalize), moments=moments).eval()
    example = torch.rand(1, min(most, max(2 * least, rate)), generator=torch.Generator().manual_seed(0)) - 0.5
    with progress.step("export"), torch.no_grad(), compiling.quiet():
        try:
            samples = torch.export.Dim("samples", min=least, max=most)
            # What torch asks of lengths in attention holds for all of them, but it cannot prove that.
            program = torch.export.export(
                graph,
                (example,),
                dynamic_shapes=({1: samples},),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        except Exception as err:
            first = str(err).strip().partition("\n")[0]
            raise SourceError(
                f"{spec.file}: `model.source`: `{spec.model.source}` cannot be exported for any length: {first}"
            ) from err
    tokens = Port(name="tokens", shape=(moments,), dtype="int64")
    count = min(MOST_CLASSES, int(getattr(network.config, "num_labels", 0)))
    classes = (
        Port(name="top_probs", shape=(count,), dtype="float32"),
        Port(name="top_indices", shape=(count,), dtype="int64"),
    )
    (staged / SETTINGS).write_text(json.dumps(_ctc_settings(spec, loaded)), encoding="utf-8")
    draft = extend_draft(
        draft,
        sound=_sound(loaded, least=least, max_seconds=spec.model.max_seconds),
        batch_sizes=(1,),
        inputs=(Port(name="audio", shape=(most,), dtype="float32", varies=0),),
        outputs=(tokens,) if loaded.family == "ctc" else classes,
        lengths=Lengths(buckets=(most,), dynamic=True),
    )
    if loaded.family == "classes":
        draft = extend_draft(draft, labels=_stage_labels(network, staged))
    if spec.model.compile == "aot":
        task = compiling.task_for(spec, program, 1, None)
        compiling.compile_all([task], staged, progress, f"compile {spec.model.precision}")
        draft = extend_draft(draft, artifacts=(task.artifact,))
    else:
        compiling.save_program(program, staged / PROGRAM)
        draft = extend_draft(draft, program=PROGRAM)

    def expected(samples: np.ndarray) -> list[int]:
        features = extractor(samples, sampling_rate=rate, return_tensors="pt").input_values
        with torch.no_grad():
            logits = network(features).logits[0]
        return [int(token) for token in (logits.argmax(-1) if loaded.family == "ctc" else logits.argmax()[None])]

    def got(handler: SoundHandler, samples: np.ndarray) -> list[int]:
        answer = handler.artifact.run([torch.from_numpy(samples)[None]])
        answered = answer[0][0].tolist() if loaded.family == "ctc" else answer[1][0, :1].tolist()
        return [int(token) for token in answered if token != NO_TOKEN]

    return draft, lambda: _compare(spec, draft, staged, expected, got)


def _least(network: Any) -> int:
    """The fewest samples of which the network makes at least one moment, and a class two."""
    low, high = 1, 1 << 16
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if int(network._get_feat_extract_output_lengths(middle)) >= 2 else (middle + 1, high)
    return low


def _ctc_settings(spec: Spec, loaded: _Loaded) -> dict[str, Any]:
    if loaded.family != "ctc":
        return {}
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(loaded.folder.path, local_files_only=True)
        tokens = tokenizer.convert_ids_to_tokens(list(range(loaded.network.config.vocab_size)))
    except Exception as err:
        first = str(err).partition("\n")[0]
        raise SourceError(
            f"{spec.file}: `model.source`: the letters of `{spec.model.source}` cannot be loaded: {first}",
            hint=f"processor.save_pretrained('{loaded.folder.path}'), which writes `vocab.json` and its settings",
        ) from err
    return {
        "tokens": tokens,
        "blank": tokenizer.pad_token_id,
        "delimiter": getattr(tokenizer, "word_delimiter_token", "|"),
        "lower": bool(getattr(tokenizer, "do_lower_case", False)),
    }


def _stage_labels(network: Any, staged: Path) -> str:
    named = network.config.id2label
    (staged / "labels.txt").write_text("".join(f"{named[index]}\n" for index in range(len(named))), encoding="utf-8")
    return "labels.txt"


def _sound(loaded: _Loaded, *, least: int, max_seconds: float, weights: str | None = None) -> Sound:
    return Sound(
        task="classify" if loaded.family == "classes" else "transcribe",
        family=loaded.family,
        rate=loaded.extractor.sampling_rate,
        max_seconds=max_seconds,
        least=least,
        settings=SETTINGS,
        weights=weights,
    )


def _compare(
    spec: Spec,
    draft: Draft,
    staged: Path,
    expected: Callable[[np.ndarray], list[int]],
    got: Callable[[SoundHandler, np.ndarray], list[int]],
) -> Agreement:
    """Compares the tokens or the class of the package with those of `transformers`, for the calibration's sounds or for
    generated ones."""
    handler = SoundHandler()
    handler.record, handler.directory = parse_record(draft.to_data()), staged
    handler.device = pick_device(handler.record, 0 if spec.serving.device == "cuda" else None)
    handler.artifact = handler.load()
    sounds = _sounds(spec, handler)
    same = [expected(samples) == got(handler, samples) for samples in sounds]
    return Agreement(
        inputs="generated" if spec.model.calibration is None else "calibration",
        count=len(same),
        measure="top-1",
        agreement=sum(same) / len(same),
        max_abs_difference=0,
        cosine=1,
    )


def _sounds(spec: Spec, handler: SoundHandler) -> list[np.ndarray]:
    rate, most = handler.spec.rate, handler.spec.max_seconds
    if spec.model.calibration is not None:
        folder = spec.path(spec.model.calibration)
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
        if not files:
            text = f"nothing to hear in `{folder}`, allowed: files that end in {', '.join(_SUFFIXES)}"
            raise SourceError(f"{spec.file}: `model.calibration`: {text}")
        return [read_sound(file.read_bytes(), rate, most) for file in files]
    generator = np.random.default_rng(0)
    noise = [generator.normal(0, 0.1, rate * (1 + at % 3)).astype(np.float32) for at in range(_GENERATED - 1)]
    return [read_sound(sample_wav(min(2.0, most)), rate, most), *(sound[: int(most * rate)] for sound in noise)]
