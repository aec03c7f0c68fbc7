"""The section `load` of a spec: the load that shows whether the objective is met."""

from typing import Annotated

from pydantic import Field

from marina.config.sections.section import ContentType, Filled, Positive, Section


class Load(Section):
    """What the load test and the readiness inference send."""

    sample: Filled | None = None
    """A picture, a `.json` or a `.npy` file, or for an archive any body that its handler answers; default: one
    generated from the model's inputs. Lands in the MAR."""
    content_type: ContentType | None = None
    """The content type of `sample`; default: by the ending of its name, and for an archive
    `application/octet-stream` if that says nothing. Lands in the record."""
    samples: Annotated[dict[Filled, Positive], Field(min_length=1)] | None = None
    """What the load test sends instead of `sample`: files or folders of files, each with its weight. With `{cat.jpg: 3,
    pages/: 1}`, three of four requests send the cat. Each line of a `.jsonl` file is a body. Default: `sample` alone.
    Read by `marina loadtest`, `calibrate` and `compare`."""
    replay: Filled | None = None
    """A trace of real traffic that is replayed instead of a constant rate: CSV or JSON lines with the `time` of each
    request (seconds, or ISO 8601) and optionally the file of its `sample`; default: none. Read by `marina loadtest`."""
