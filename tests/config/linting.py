"""Helpers for the tests of the linter: clean files to change, and `cases`, which reads the tables beside this file."""

import re
from pathlib import Path

import pytest

from marina.config.lint.finding import Finding
from marina.config.lint.linter import lint_file

CLEAN_PROPERTIES = """\
# what a careful user writes
inference_address=http://0.0.0.0:8080
management_address=http://127.0.0.1:8081
metrics_address=http://localhost:8082
model_store=/models
load_models=resnet50.mar
metrics_mode=prometheus
disable_token_authorization=true
allowed_urls=file:///models/.*
"""
CLEAN_MODEL_CONFIG = """\
minWorkers: 2
maxWorkers: 2
batchSize: 8
maxBatchDelay: 5
responseTimeout: 30
startupTimeout: 120
maxRetryTimeoutInSec: 300
deviceType: cpu
jobQueueSize: 200
handler:
  anything: 1
"""
IGNORED = "unknown key, TorchServe silently ignores it"
DEFAULT_WORKERS = "TorchServe starts the default number: one for each GPU, or for each processor if there is none"


def lint(folder: Path, text: str | bytes, name: str) -> list[Finding]:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return lint_file(file)


def changed(clean: str, lines: str, separator: str) -> tuple[str, int]:
    """The clean text with `lines` at its end instead of their keys, and the number of the first of these lines."""
    names = {re.split(r"[=: ]", line.strip())[0] for line in lines.splitlines()}
    kept = [line for line in clean.splitlines() if line.split(separator)[0] not in names]
    return "\n".join([*kept, lines]) + "\n", len(kept) + 1


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, "\n".join(f"{finding.rule}: {finding}" for finding in findings)
    return findings[0]


def cases(file: str) -> list[object]:
    """Each paragraph of a file beside this one: rule, level, lines of the linted file, text, hint."""
    paragraphs = (Path(__file__).parent / file).read_text(encoding="utf-8").strip().split("\n\n")[1:]
    cases: list[object] = []
    for paragraph in paragraphs:
        head, *lines, text, hint = paragraph.splitlines()
        assert all(line.startswith("    ") for line in lines)
        content = "\n".join(line[4:].replace("·", " ") for line in lines)
        cases.append(pytest.param(*head.split(), content, text, hint, id=f"{head.split()[0]}: {content}"))
    return cases
