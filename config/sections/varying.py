"""The part of a spec about a dimension whose size varies from request to request."""

import math
from typing import Literal

from pydantic import model_validator

from marina.config.sections.section import Count, Section

Buckets = tuple[Count, ...] | Literal["dynamic"]


class Varying(Section):
    """A dimension whose size varies from request to request: the words of a text, the steps of a series."""

    max: Count
    """Longer requests get 422. Lands in the record."""
    buckets: Buckets = ()
    """The sizes that are compiled, ascending, the last one `max`; a request is padded to the next of them. Default: a
    quarter of `max`, half of it, and `max`. dynamic: one artifact for each batch size takes every length, and the rows
    of a batch are padded to the longest of them. Land in the record and the compiled graph."""

    @model_validator(mode="after")
    def _buckets_fit(self) -> "Varying":
        check_buckets(self.buckets, self.max, "max")
        return self

    @property
    def dynamic(self) -> bool:
        """Whether every length is taken as it is."""
        return self.buckets == "dynamic"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The buckets, with the default filled in; if `dynamic`, these sizes are timed and compared."""
        quarters = (math.ceil(self.max / 4), math.ceil(self.max / 2), self.max)
        return self.buckets if isinstance(self.buckets, tuple) and self.buckets else tuple(sorted(set(quarters)))


def check_buckets(buckets: tuple[int, ...] | Literal["dynamic"], largest: int, field: str) -> None:
    """Raises ValueError unless the buckets ascend to the largest size."""
    if buckets and buckets != "dynamic" and (list(buckets) != sorted(set(buckets)) or buckets[-1] != largest):
        raise ValueError(f"buckets|allowed: different sizes in ascending order up to `{field}`, {largest}")
