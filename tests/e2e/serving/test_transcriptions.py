"""OpenAI's own client has a sound written down by a served Whisper."""

from collections.abc import Iterator

import openai
import pytest
from running import Running, running
from sounds import RATE, noise, save_whisper, sound_file
from specs import make_spec

from marina.archiver.package import package
from marina.config.progress import Progress

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("whisper")
    save_whisper(folder / "model")
    changes = {
        "model.source": "hf:./model",
        "model.handler": "audio",
        "model.task": "transcribe",
        "model.compile": "eager",
        "model.max_seconds": 4,
        "model.weights": None,
        "serving.drain_propagation_s": 0,
    }
    spec = make_spec(changes, folder / "spec.yaml")
    packaged = package(spec, folder / "build", progress=Progress(quiet=True))
    with running(spec, mar=folder / "build" / packaged.mar, log=folder / "server.log") as started:
        yield started


def test_openais_client_gets_a_sound_as_text(server: Running) -> None:
    from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder = server.log.parent / "model"
    network, tokenizer = (
        WhisperForConditionalGeneration.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    samples = noise(2)
    features = WhisperFeatureExtractor.from_pretrained(folder)(samples, sampling_rate=RATE, return_tensors="pt")
    written = network.generate(features.input_features, task="transcribe", language="de")[0]
    expected = tokenizer.decode(written, skip_special_tokens=True).strip()
    assert expected
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        wav = ("sound.wav", sound_file(samples))
        transcriptions = client.audio.transcriptions
        assert transcriptions.create(model="whisper-1", file=wav, language="de").text == expected
        told = transcriptions.create(model="whisper-1", file=wav, language="de", response_format="verbose_json")
        assert (told.text, told.duration) == (expected, 2)
        with pytest.raises(openai.BadRequestError, match="WAV, FLAC, MP3 or Ogg"):
            transcriptions.create(model="whisper-1", file=("sound.wav", b"hello"))
