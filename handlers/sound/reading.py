"""Turns the bytes of a WAV, FLAC, MP3 or Ogg file into the samples that a model takes: one channel, at its rate.

How long a sound is, is known from its head before its samples are decoded, and no more of them are than allowed."""

import io

import numpy as np

from marina.handlers.arrays import Array
from marina.handlers.validation import Malformed, TooLarge, Unprocessable, Unsupported

TAKES = "WAV, FLAC, MP3 or Ogg (Vorbis, Opus)"
# Studio recordings have up to 384,000 samples a second and eight channels; more would only fill the memory.
_MOST_RATE, _MOST_CHANNELS = 384_000, 8
# How other kinds of files begin that clients send as sound.
_OTHERS = ((b"\x1aE\xdf\xa3", "WebM"), (b"#!AMR", "AMR"), (b"\x30\x26\xb2\x75", "WMA"))


def read_sound(body: bytes | bytearray, rate: int, most_seconds: float) -> Array:
    """The samples as float32 from -1 to 1, the mean of all channels, resampled as librosa does by default."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(body)) as sound:
            _check_kind(sound.samplerate, sound.channels)
            most = round(most_seconds * sound.samplerate)
            # The head of an MP3 file need not say how long it is, and may lie.
            samples = sound.read(frames=most + 1, dtype="float32", always_2d=True) if sound.frames > 0 else None
            own_rate, seconds = sound.samplerate, max(sound.frames, len(samples) if samples is not None else 0)
    except soundfile.LibsndfileError as err:
        kind = next((name for begin, name in _OTHERS if body.startswith(begin)), None)
        kind = "MP4" if body[4:8] == b"ftyp" else kind
        if kind is not None:
            raise Unsupported("the sound is of another kind", field="file", got=kind, allowed=TAKES) from err
        raise Malformed("the sound cannot be decoded", field="file", allowed=TAKES) from err
    if samples is None or not len(samples):
        raise Unprocessable("the sound is empty", field="file", got="0 samples")
    if len(samples) > most:
        got, allowed = f"{seconds / own_rate:.1f} s", f"at most {most_seconds:g} s: cut it where nobody speaks"
        raise TooLarge("the sound is too long", field="file", got=got, allowed=allowed)
    mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)
    if not np.isfinite(mono).all():
        raise Unprocessable("the sound has samples that are no numbers", field="file", got="NaN or infinity")
    return _resampled(mono, own_rate, rate)


def _check_kind(rate: int, channels: int) -> None:
    if rate > _MOST_RATE:
        got, allowed = f"{rate} samples a second", f"at most {_MOST_RATE}"
        raise Unprocessable("the sound has too many samples", field="file", got=got, allowed=allowed)
    if channels > _MOST_CHANNELS:
        got, allowed = f"{channels} channels", f"at most {_MOST_CHANNELS}"
        raise Unprocessable("the sound has too many channels", field="file", got=got, allowed=allowed)


def _resampled(mono: Array, own_rate: int, rate: int) -> Array:
    if own_rate == rate:
        return np.ascontiguousarray(mono)
    import soxr

    resampled: Array = soxr.resample(mono, own_rate, rate)
    if not len(resampled):
        raise Unprocessable("the sound is empty", field="file", got=f"{len(mono)} samples, at {own_rate} a second")
    return resampled
