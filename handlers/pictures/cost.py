"""The cost of decoding a picture, estimated from its header, and the limits on it."""

from dataclasses import dataclass

from marina.handlers import memory
from marina.handlers.pictures.resize import place
from marina.handlers.record import ImageSpec
from marina.handlers.validation import TooLarge

# The largest ratio of the sides. So the resized picture has at most this many times the square of the resize target.
MAX_RATIO = 64
# The most samples that all scans of one JPEG may visit together, about a second of work. Encoders write ten scans,
# which visit each sample four to eight times.
MAX_VISITS = 400_000_000
# Memory for the strip that is being converted, and for what libraries allocate besides.
SLACK_BYTES = 12_000_000
# The most memory for decoding: this, or so much for each of `max_pixels` if that is more.
DECODED_BYTES, PIXEL_BYTES = 160_000_000, 4


@dataclass(frozen=True)
class DecodingCost:
    """The estimated cost of decoding one picture."""

    memory_bytes: int
    """At the peak."""
    visits: int = 0
    """How many samples the scans of a JPEG visit."""


def check_cost(cost: DecodingCost, body: bytes | bytearray, spec: ImageSpec) -> None:
    """Refuses a picture that would take more memory or time than a request may; records the memory that others will
    take."""
    # Libraries copy what they read, up to three times.
    memory_bytes = cost.memory_bytes + 3 * len(body) + SLACK_BYTES
    limit_bytes = max(DECODED_BYTES, PIXEL_BYTES * spec.max_pixels)
    if memory_bytes > limit_bytes:
        raise TooLarge(
            "decoding the image takes too much memory",
            field="image",
            got=f"{memory_bytes / 1e6:.0f} MB",
            allowed=f"at most {limit_bytes / 1e6:g} MB; a baseline JPEG takes the least",
        )
    if cost.visits > MAX_VISITS:
        raise TooLarge(
            "the scans of the JPEG take too long to decode",
            field="image",
            got=f"{cost.visits / 1e6:.0f} million samples in all scans",
            allowed=f"at most {MAX_VISITS // 1_000_000} million",
        )
    memory.note_estimate(memory_bytes)


def resized_bytes(height: int, width: int, spec: ImageSpec) -> int:
    """Memory for the scaled picture and for torch's intermediate one, which is scaled in one direction only."""
    at = place(height, width, spec)
    scaled = at.scaled_height * at.scaled_width
    return spec.channels * (scaled + max(height, at.scaled_height) * at.scaled_width)
