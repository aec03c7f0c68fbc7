"""`handler: audio`: sound in; what was said, or the classes that it belongs to, out.

Takes WAV, FLAC, MP3 and Ogg bodies, `{"audio": "<base64>"}`, and the forms that OpenAI's clients send to
`/v1/audio/transcriptions`, with `language`, `response_format` (json, text, verbose_json) and `temperature` 0. A
transcription is `{"text": "..."}`, a classification `{"top_labels": [...], "top_probs": [...]}`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from marina.handlers.arrays import Array, to_json
from marina.handlers.artifact import LoadedArtifact
from marina.handlers.base import Handler
from marina.handlers.networks import DTYPES
from marina.handlers.program import RunBatch
from marina.handlers.protocols import Exchange, Row
from marina.handlers.record import RecordError, SoundSpec
from marina.handlers.request import Answer, Request
from marina.handlers.sound.features import log_mel
from marina.handlers.sound.reading import TAKES, read_sound
from marina.handlers.sound.whisper import Vocabulary, Whisper, WhisperConfig
from marina.handlers.validation import (
    NonFiniteOutput,
    RequestError,
    Unprocessable,
    Unsupported,
    decode_base64,
    describe_json,
)

# What stands in an output for no token.
NO_TOKEN = -1
_FORMATS = ("json", "text", "verbose_json")
_KNOWN = ("audio", "file", "language", "model", "response_format", "stream", "task", "temperature")
_SOUND = ("file", "audio", "body", "data")
# What OpenAI's clients send if nothing else is asked for.
_USUAL = {"stream": ("false",), "temperature": ("0", "0.0"), "timestamp_granularities[]": ("segment",)}


class SoundHandler(Handler):
    """Answers one sound in each request, uncut and never padded by others."""

    spec: SoundSpec
    settings: Mapping[str, Any]
    labels: list[str] | None = None

    def setup(self) -> None:
        self.labels = self._read_labels()
        self.tokenizer: Any = None
        if self.spec.family == "whisper":
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_str(json.dumps(self.settings["tokenizer"]))

    def load(self) -> LoadedArtifact:
        if self.record.sound is None:
            raise RecordError("`sound`: missing, but the handler is `audio`")
        self.spec = self.record.sound
        self.settings = json.loads((self.directory / self.spec.settings).read_text("utf-8"))
        if self.spec.family == "whisper":
            return LoadedArtifact("eager", (1,), self.device, self._whisper())
        loaded = super().load()
        return replace(loaded, run_batch=self._nothing_if_short(loaded.run_batch))

    def _nothing_if_short(self, run_batch: RunBatch) -> RunBatch:
        """Answers nothing to fewer samples than the network takes: no request has so few, but the warm-up."""

        def run(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            if inputs[0].shape[1] >= self.spec.least:
                return run_batch(inputs)
            return [torch.zeros(1, *port.shape, dtype=getattr(torch, port.dtype)) for port in self.record.outputs]

        return run

    def _whisper(self) -> Any:
        from safetensors.torch import load_file

        known = {field.name for field in fields(WhisperConfig)}
        config = WhisperConfig(**{name: value for name, value in self.settings["config"].items() if name in known})
        self.vocabulary = Vocabulary(**self.settings["vocabulary"])
        tensors = load_file(self.directory / str(self.spec.weights))
        filters = tensors.pop("mel_filters").to(self.device)
        with torch.device("meta"):
            network = Whisper(config, self.vocabulary)
        network.load_state_dict(tensors, assign=True)
        network = network.eval().to(self.device, DTYPES[self.record.precision])
        network.fill_masks()
        steps = self.settings["window"], self.settings["hop"], self.settings["samples"]

        def run(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            (samples,), (how,) = inputs
            window, hop, length = steps
            mel = log_mel(samples, filters, window=window, hop=hop, length=length)
            language, task = (None if token == NO_TOKEN else int(token) for token in how.tolist())
            language, tokens = network.transcribe(mel, language, task)
            answer = torch.full((1, 1 + config.max_target_positions), NO_TOKEN)
            answer[0, : 1 + len(tokens)] = torch.tensor([NO_TOKEN if language is None else language, *tokens])
            return (answer,)

        return run

    def exchange(self, request: Request) -> Exchange:
        given = _fields(request)
        try:
            row, seconds = self._row(given)
            form = self._form(given)
        except RequestError as err:
            # Clients of OpenAI's show only `error`, in that form.
            raise (err.for_openai() if "model" in given else err) from err
        return Exchange([row], lambda rows: self._respond(rows[0], seconds, form))

    def decode(self, request: Request) -> Row:
        row, request.kept = self._row(_fields(request))
        return row

    def encode(self, outputs: Row, request: Request) -> Answer:
        return self._respond(outputs, request.kept, "json")

    def _row(self, given: Mapping[str, Any]) -> tuple[Row, float]:
        """The inputs of the network, and how long the sound is, s."""
        body = next((given[name] for name in _SOUND if name in given), None)
        if body is None:
            raise Unprocessable("a sound is needed", field="file", got="no `file`", allowed=TAKES)
        samples = read_sound(body, self.spec.rate, self.spec.max_seconds)
        seconds = len(samples) / self.spec.rate
        if self.spec.family == "whisper":
            # Resampling may round up to a sample more.
            whole = np.zeros(self.record.inputs[0].shape, np.float32)
            count = min(len(samples), len(whole))
            whole[:count] = samples[:count]
            return [whole, np.array([self._language(given), self._task(given)], np.int64)], seconds
        if given.get("language") is not None:
            raise Unprocessable("the field is not supported", field="language", allowed="the model's only language")
        if len(samples) < self.spec.least:
            got, allowed = f"{len(samples)} samples", f"at least {self.spec.least}"
            raise Unprocessable("the sound is too short", field="file", got=got, allowed=allowed)
        return [samples[: self.record.inputs[0].shape[0]]], seconds

    def _language(self, given: Mapping[str, Any]) -> int:
        language, known = given.get("language"), self.vocabulary.languages
        if language is None:
            return NO_TOKEN
        code = str(language).lower()
        if not known and code in ("en", "english"):
            return NO_TOKEN
        if code not in known:
            allowed = f"two letters such as {', '.join(sorted(known)[:3])}" if known else "en, the only one it knows"
            raise Unprocessable("the language is unknown", field="language", got=language, allowed=allowed)
        return int(known[code])

    def _task(self, given: Mapping[str, Any]) -> int:
        tokens = {"transcribe": self.vocabulary.transcribe, "translate": self.vocabulary.translate}
        task = str(given.get("task", "transcribe"))
        if task not in tokens or (task == "translate" and tokens[task] is None):
            allowed = [name for name, token in tokens.items() if name == "transcribe" or token is not None]
            raise Unprocessable("the task is unknown", field="task", got=task, allowed=allowed)
        return NO_TOKEN if tokens[task] is None else int(tokens[task] or 0)

    def _form(self, given: Mapping[str, Any]) -> str:
        for name, value in given.items():
            usual = _USUAL.get(name)
            if usual is not None and str(value).lower() not in usual:
                raise Unprocessable("the value is not supported", field=name, got=str(value), allowed=usual[0])
            if usual is None and name not in (*_KNOWN, *_SOUND):
                raise Unprocessable("the field is not supported", field=name, allowed=_KNOWN)
        form = str(given.get("response_format", "json"))
        if form not in _FORMATS:
            raise Unprocessable("the format is unknown", field="response_format", got=form, allowed=_FORMATS)
        return form

    def _respond(self, outputs: Row, seconds: float, form: str) -> Answer:
        if self.spec.task == "classify":
            return Answer(to_json(self.name_outputs(outputs)))
        text, more = self._text(outputs[0])
        if form == "text":
            return Answer(f"{text}\n".encode(), "text/plain; charset=utf-8")
        if form == "json":
            return Answer(to_json({"text": text}))
        segments = [{"id": 0, "start": 0.0, "end": round(seconds, 3), "text": text}] if text else []
        told = {"task": "transcribe", "duration": round(seconds, 3), "text": text, "segments": segments, **more}
        return Answer(to_json(told))

    def name_outputs(self, outputs: Row) -> Mapping[str, Array | list[str]]:
        if self.spec.task != "classify":
            return {"text": [self._text(outputs[0])[0]]}
        probabilities, indices = outputs
        if not np.isfinite(probabilities).all():
            raise NonFiniteOutput
        named: dict[str, Array | list[str]] = {"top_indices": indices, "top_probs": probabilities}
        if self.labels is not None:
            named["top_labels"] = [self.labels[index] for index in indices.tolist()]
        return named

    def _text(self, tokens: Array) -> tuple[str, dict[str, str]]:
        """The text, and what else is known about it."""
        if self.spec.family == "ctc":
            return ctc_text([token for token in tokens.tolist() if token != NO_TOKEN], self.settings), {}
        language, *written = (token for token in tokens.tolist())
        code = next((code for code, token in self.vocabulary.languages.items() if token == language), "en")
        text = self.tokenizer.decode([token for token in written if token != NO_TOKEN], skip_special_tokens=True)
        return text.strip(), {"language": code}


def ctc_text(tokens: Sequence[int], settings: Mapping[str, Any]) -> str:
    """The text of the likeliest token at each moment: repeats count once, and the blank stands between two letters that
    are the same."""
    letters = []
    for place, token in enumerate(tokens):
        if token != settings["blank"] and (place == 0 or tokens[place - 1] != token):
            letters.append(settings["tokens"][token])
    text = "".join(" " if letter == settings["delimiter"] else letter for letter in letters).strip()
    return text.lower() if settings["lower"] else text


def _fields(request: Request) -> dict[str, Any]:
    """The fields of a form or of a JSON object, or the body as the only one. Of a form, all but the sound is text."""
    parts = {name: value for name, value in request.parts.items() if value is not None}
    if any(name in parts for name in ("file", "audio")) or len(parts) > 1:
        return {name: value if name in _SOUND else _as_text(value) for name, value in parts.items()}
    if request.is_decoded or request.content_type.endswith("json"):
        value = request.json()
        sound = value.get("audio", value.get("file")) if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(sound, str):
            got = describe_json(value if not isinstance(value, Mapping) else sound)
            raise Unprocessable("a sound is needed", field="audio", got=got, allowed='{"audio": base64 text}')
        given = {name: part for name, part in value.items() if part is not None and name not in ("audio", "file")}
        return given | {"audio": decode_base64(sound.rpartition(",")[2], "audio")}
    if request.content_type.startswith("image/"):
        raise Unsupported("the body is no sound", field="content-type", got=request.content_type, allowed=TAKES)
    return {"body": request.body}


def _as_text(value: object) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
