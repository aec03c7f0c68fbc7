"""Runs the handler of an archive that was made for TorchServe, as it stands: TorchServe's own loader loads it from a
folder in which the archive's files are unchanged, and TorchServe's own service calls it.

What is added is around it: the worker can be renewed, and its batches, its errors and its memory are counted."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from marina.handlers import receive, renewal, starting, torchvision_import
from marina.handlers.metrics import BatchReport, Metrics
from marina.handlers.record import PackedArchive, RecordError, load_record
from marina.handlers.tracing import Step, TraceReports, open_reports
from marina.handlers.validation import AnswerError, RequestError

# With it, torch unpickles whatever is in a file, and not only tensors.
UNPICKLE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class ArchiveHandler:
    """What TorchServe takes for the handler: it loads the archive's own, and hands every batch to it."""

    def initialize(self, context: Any) -> None:
        """TorchServe calls this once."""
        from ts.model_loader import ModelLoaderFactory

        starting.reached("imports")
        properties = context.system_properties
        outer = Path(properties["model_dir"])
        record = load_record(outer)
        if (archive := record.archive) is None:
            raise RecordError("`archive`: missing")
        if record.trust_pickle:
            os.environ[UNPICKLE] = "1"
        torchvision_import.install()
        receive.install_receiver()
        renewal.arm(context)
        folder = outer / archive.folder
        _enter(folder, outer, archive)
        service = ModelLoaderFactory.get_model_loader().load(
            archive.name,
            str(folder),
            archive.handler,
            properties["gpu_id"],
            properties["batch_size"],
            archive.envelope,
            properties["limit_max_image_pixels"],
            context.metrics,
        )
        self._answer, self._context = service._entry_point, service.context
        # A handler may keep the context that it was loaded with, and ask it about any later request. So the two share
        # everything: what TorchServe writes into one is in the other.
        context.__dict__ = service.context.__dict__
        gpu = properties["gpu_id"]
        device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self._metrics, self._traces = Metrics(record, record.compile, device), open_reports()
        starting.reached("load")

    def handle(self, data: Sequence[Mapping[str, Any]], _context: Any) -> Any:
        """TorchServe calls this for each batch. Returns or raises what the archive's handler does."""
        errors, begun = [AnswerError.kind] * len(data), perf_counter()
        try:
            answers = self._answer(data, self._context)
            if isinstance(answers, list) and len(answers) == len(data):
                statuses = [self._context.get_response_status(place)[0] or 200 for place in range(len(data))]
                errors = [_kind(status) for status in statuses if status >= 400]
            return answers
        finally:
            self._metrics.record(BatchReport(len(data), errors=errors))
            if self._traces:
                self._report(self._traces, begun, len(data))

    def _report(self, traces: TraceReports, begun: float, rows: int) -> None:
        """All that is known of a handler of others is how long it took for the batch."""
        headers = [self._context.get_all_request_header(place) for place in range(rows)]
        if traced := traces.traced(headers):
            step = Step("infer", begun, perf_counter())
            traces.batch(begun, {parent: [step] for parent in traced.values()}, rows=rows)


def _enter(folder: Path, outer: Path, archive: PackedArchive) -> None:
    """Makes the archive's folder what it is under TorchServe: the working directory, and the first place to import
    from, after the handler's own folder if its manifest names one; also for processes that the handler starts."""
    os.chdir(folder)
    file, colon, _ = archive.handler.partition(":")
    own = [file.rpartition("/")[0]] if colon and "/" in file else []
    at = next((place for place, entry in enumerate(sys.path) if Path(entry) == outer), 0)
    places = [*own, str(folder)]
    sys.path[at:at] = places
    given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place not in places]
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *given])


def _kind(status: int) -> str:
    """The kind of error in the metrics."""
    known = {refusal.status: refusal.kind for refusal in RequestError.__subclasses__()}
    return known.get(status, RequestError.kind if status < 500 else AnswerError.kind)
