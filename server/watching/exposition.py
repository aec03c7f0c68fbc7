"""Formats metrics as Prometheus text."""

from collections.abc import Iterable, Mapping

from marina.server.java import DurationHistogram

Labels = Mapping[str, object]


def family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    """The lines of a counter or a gauge."""
    return [*_head(name, kind, text), *(f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples)]


def histogram_family(
    name: str, text: str, edges_s: Iterable[float], series: Iterable[tuple[Labels, DurationHistogram]]
) -> list[str]:
    """The lines of a histogram, with one series per set of labels."""
    lines = _head(name, "histogram", text)
    edges = [_number(edge) for edge in edges_s] + ["+Inf"]
    for labels, histogram in series:
        below = 0
        for edge, count in zip(edges, histogram.buckets, strict=True):
            below += count
            lines.append(f"{name}_bucket{_labels({**labels, 'le': edge})} {below}")
        lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.total_s)}")
        lines.append(f"{name}_count{_labels(labels)} {below}")
    return lines


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(str(value))}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(value, 9))
