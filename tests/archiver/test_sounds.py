"""Models of sound from folders of `transformers`, packaged and started: their answers are those of `transformers`."""

import base64
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, ask, ask_rows
from sounds import RATE, noise, save_classifier, save_ctc, save_whisper, sound_file
from specs import make_spec

from marina.archiver.package import package
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.handlers.sound.handler import SoundHandler

WAV = {"content-type": "audio/wav"}
CHANGES = {"model.weights": None, "model.handler": "audio", "model.max_seconds": 4}


def started(folder: Path, save: Callable[[Path], Path], task: str, how: str) -> SoundHandler:
    """A worker with the packaged model of a folder, whose agreement with `transformers` is complete."""
    save(folder / "model")
    changes = CHANGES | {"model.source": "hf:./model", "model.task": task, "model.compile": how}
    made = package(make_spec(changes, folder / "spec.yaml"), folder / "build", progress=Progress(quiet=True))
    assert made.record.agreement.agreement == 1
    with zipfile.ZipFile(folder / "build/model.mar") as archive:
        archive.extractall(folder / "unpacked")
    handler = SoundHandler()
    handler.initialize(FakeContext(folder / "unpacked"))
    return handler


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> SoundHandler:
    return started(tmp_path_factory.mktemp("whisper"), save_whisper, "transcribe", "eager")


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> SoundHandler:
    return started(tmp_path_factory.mktemp("ctc"), save_ctc, "transcribe", "export")


def folder_of(handler: SoundHandler) -> Path:
    return handler.directory.parent / "model"


@pytest.mark.parametrize("language", [None, "de"])
def test_whisper_writes_what_transformers_generates(whisper: SoundHandler, language: str | None) -> None:
    from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder = folder_of(whisper)
    network = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor, tokenizer = WhisperFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = set()
    for seed in range(3):
        samples = noise(1 + seed, seed=seed)
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        written = network.generate(features, task="transcribe", language=language)[0]
        fields = {} if language is None else {"language": language.encode()}
        form = {"file": sound_file(samples), "model": b"whisper-1", **fields}
        (reply,) = ask_rows(whisper, [form], [{"content-type": "multipart/form-data"}])
        assert reply.json() == {"text": tokenizer.decode(written, skip_special_tokens=True).strip()}
        texts.add(reply.body)
    assert len(texts) > 1


def test_an_answer_of_whisper_may_be_plain_text_or_say_more(whisper: SoundHandler) -> None:
    body = sound_file(noise(1.5))
    headers = [{"content-type": "multipart/form-data"}] * 2
    forms = [{"file": body, "model": b"w", "response_format": form} for form in (b"text", b"verbose_json")]
    plain, verbose = ask_rows(whisper, forms, headers)
    told = verbose.json()
    assert plain.content_type.startswith("text/plain")
    assert plain.body.decode() == f"{told['text']}\n"
    assert (told["task"], told["duration"], told["language"] in ("de", "en", "fr")) == ("transcribe", 1.5, True)


def test_wav2vec2_hears_any_length_as_transformers_does(ctc: SoundHandler) -> None:
    from transformers import AutoTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    folder = folder_of(ctc)
    network, extractor = Wav2Vec2ForCTC.from_pretrained(folder).eval(), Wav2Vec2FeatureExtractor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sounds = [noise(seconds, seed=place) for place, seconds in enumerate((0.1, 1.234, 4))]
    replies = ask(ctc, *map(sound_file, sounds), headers=WAV)
    for samples, reply in zip(sounds, replies, strict=True):
        with torch.no_grad():
            logits = network(extractor(samples, sampling_rate=RATE, return_tensors="pt").input_values).logits
        assert reply.json() == {"text": tokenizer.batch_decode(logits.argmax(-1))[0]}


def test_a_sound_is_classified_by_the_labels_of_the_folder(tmp_path: Path) -> None:
    handler = started(tmp_path, save_classifier, "classify", "export")
    (reply,) = ask(handler, sound_file(noise(1)), headers=WAV)
    answer = reply.json()
    assert sorted(answer["top_labels"]) == ["no", "stop", "yes"]
    assert sum(answer["top_probs"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("form", "subtype"), [("WAV", "PCM_16"), ("FLAC", None), ("MP3", None), ("OGG", None)])
def test_a_sound_may_come_in_any_of_four_forms(ctc: SoundHandler, form: str, subtype: str | None) -> None:
    # A tone is the same in stereo and at another rate; lossy forms only come close, so lengths are compared.
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)
    body = sound_file(np.stack([tone, tone], axis=1), 44_100, form=form, subtype=subtype)
    row, seconds = ctc._row({"body": body})
    assert seconds == pytest.approx(1, abs=0.1)
    expected = 0.3 * np.sin(2 * np.pi * 440 * np.arange(4000, 8000) / RATE)
    heard = row[0][4000:8000] if form in ("WAV", "FLAC") else expected
    assert np.abs(heard - expected).max() < 1e-3


def test_a_sound_may_come_as_json(ctc: SoundHandler) -> None:
    body = sound_file(noise(1))
    text = json.dumps({"audio": base64.b64encode(body).decode()})
    (direct,), (encoded,) = ask(ctc, body, headers=WAV), ask(ctc, text, headers={"content-type": "application/json"})
    assert direct.json() == encoded.json()


MP4 = b"\0\0\0\x20ftypM4A " + bytes(32)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        pytest.param(sound_file(noise(4.5)), 413, "at most 4 s: cut it where nobody speaks", id="too long"),
        pytest.param(sound_file(noise(0.01)), 422, "too short", id="too short"),
        pytest.param(sound_file(noise(0)), 422, "empty", id="empty"),
        pytest.param(sound_file(np.full(RATE, np.nan, np.float32)), 422, "no numbers", id="no numbers"),
        pytest.param(sound_file(np.zeros((900, 9), np.float32)), 422, "9 channels", id="channels"),
        pytest.param(sound_file(noise(1))[:30], 400, "cannot be decoded", id="cut off"),
        pytest.param(b"hello", 400, "WAV, FLAC, MP3 or Ogg", id="no sound"),
        pytest.param(MP4, 415, "MP4", id="another kind"),
    ],
)
def test_a_sound_that_is_not_taken_says_why(ctc: SoundHandler, body: bytes, status: int, told: str) -> None:
    good, refused = ask(ctc, sound_file(noise(1)), body, headers=WAV)
    assert (good.status, refused.status) == (200, status)
    assert told in refused.body.decode()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"language": b"xx"}, "two letters such as de, en, fr"),
        ({"response_format": b"srt"}, "verbose_json"),
        ({"temperature": b"0.7"}, "allowed: 0"),
        ({"prompt": b"hello"}, "the field is not supported"),
    ],
)
def test_a_field_that_is_not_supported_is_refused_as_openai_does(
    whisper: SoundHandler, fields: dict[str, bytes], told: str
) -> None:
    form = {"file": sound_file(noise(1)), "model": b"w", **fields}
    (reply,) = ask_rows(whisper, [form], [{"content-type": "multipart/form-data"}])
    error: Any = reply.json()["error"]
    assert reply.status == 422
    assert (told in error["message"], error["param"]) == (True, next(iter(fields)))


def test_a_model_that_hears_in_another_way_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"architectures": ["ASTForAudioClassification"], "model_type": "audio-spectrogram-transformer"}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    changes = CHANGES | {"model.source": "hf:./model", "model.task": "classify"}
    with pytest.raises(SourceError, match="holds a `ASTForAudioClassification`, allowed for `handler: audio`: Whisper"):
        package(make_spec(changes, tmp_path / "spec.yaml"), tmp_path / "build", progress=Progress(quiet=True))
