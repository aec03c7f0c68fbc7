"""The text of a spec to start from: every line that is usually changed, with what it may say."""

from __future__ import annotations

from dataclasses import dataclass

_IMAGENET = "mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]"
_COMMENTS_FROM = 40


@dataclass(frozen=True)
class Start:
    """What is known of a model before anybody has written about it."""

    source: str
    """As the spec will say it."""
    handler: str
    """`image`, `tensor` or `own`."""
    shape: tuple[int, ...]
    """Of its first input, without the batch."""
    picture: bool
    """Whether that input is an image, channels first."""
    inputs: dict[str, tuple[tuple[int, ...], str]] | None = None
    """Shape and type of each input by name; None where the source says it itself."""
    only_batch: int | None = None
    """An exported program with a fixed batch takes no other."""
    top_k: int = 5


def spec_text(name: str, start: Start, sample: str) -> str:
    """`spec.yaml`."""
    lines = [
        (f"# {name}: what is served, and how well. docs/01-spec.md explains every field.", ""),
        (f"name: {name}", "names the MAR, the image and every object"),
        ('version: "1.0"', ""),
        ("model:", ""),
        (f"  source: {start.source}", "torchvision:NAME | ./file.py:factory | ./program.pt2"),
        *_weights(start),
        (f"  handler: {_handler(start)}", "image | tensor | ./handler.py:Class"),
        *_inputs(start),
        ("  precision: fp32", "cpu: fp32 | bf16 | int8; cuda: fp32 | fp16 | bf16"),
        ("  compile: aot", "aot: compiled now | jit: at the start | export, eager: not"),
        (f"  batch_sizes: [{start.only_batch or '1, 4'}]", "a batch is cut and padded to these"),
        ("  # calibration: ./calibration", "real inputs: int8 needs them, every artifact is checked on them"),
        ("serving:", ""),
        ("  device: cpu", "cpu | cuda"),
        ("  workers: auto", "processes; auto: as many as the cpu below has cores"),
        ("  max_batch_delay_ms: 2", "how long a request waits for others"),
        ("slo:", "what the load test judges and the alerts watch"),
        ("  p99_ms: 100", "99 of 100 requests are answered within it"),
        ("  error_rate: 0.001", ""),
        ("  throughput_rps: 20", "what one pod must hold"),
        ("load:", ""),
        (f"  sample: ./{sample}", "what the load test and the readiness inference send"),
        ("kubernetes:", ""),
        ("  namespace: marina", ""),
        ("  registry: registry.local/marina", "where the image is pushed"),
        ('  resources: {cpu: "2"}', "of one pod"),
    ]
    return "".join(f"{text:<{_COMMENTS_FROM}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)


def _handler(start: Start) -> str:
    return "./handler.py:OwnHandler" if start.handler == "own" else start.handler


def _weights(start: Start) -> list[tuple[str, str]]:
    if start.source.endswith(".pt2"):
        return []
    names = "IMAGENET1K_V1 | " if start.source.startswith("torchvision:") else ""
    return [("  weights: random", f"{names}./weights.safetensors; random is seeded")]


def _inputs(start: Start) -> list[tuple[str, str]]:
    """What the model takes, where its source does not say so itself."""
    as_image = start.picture and start.handler != "tensor"
    labels = [("  # labels: ./labels.txt", "imagenet | a file with one label a line")] if as_image else []
    if start.source.startswith("torchvision:") and as_image:
        return labels
    if as_image:
        channels, height, width = start.shape
        size = f"height: {height}, width: {width}, channels: {channels}"
        top_k = f", top_k: {start.top_k}" if start.top_k < 5 else ""
        scale = f", {_IMAGENET}" if channels == 3 else ""
        return [(f"  image: {{{size}{scale}{top_k}}}", ""), *labels]
    if start.inputs is None:
        return []
    given = [
        (f"    {name}: {{shape: {list(shape)}, dtype: {dtype}}}", "without the batch; `min` and `max` limit it")
        for name, (shape, dtype) in start.inputs.items()
    ]
    return [("  inputs:", "by name, in the order of the model's arguments"), *given]
