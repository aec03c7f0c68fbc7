"""A sound to try a model with, as a WAV file: a tone that rises, with silence around it."""

import io
import math
import struct
import wave

RATE = 16_000


def sample_wav(seconds: float = 2.0) -> bytes:
    count = round(seconds * RATE)
    quiet = count // 8
    levels = [0.0] * count
    for at in range(quiet, count - quiet):
        time = at / RATE
        levels[at] = 0.3 * math.sin(2 * math.pi * (200 + 400 * time) * time)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(struct.pack(f"<{count}h", *(round(32767 * level) for level in levels)))
    return buffer.getvalue()
