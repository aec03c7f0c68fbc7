"""The knee that a calibration of the same package has left in the build folder."""

from __future__ import annotations

import json
from pathlib import Path

from config.record import Package


def known_knee(folder: Path, package: Package | None) -> float | None:
    """Requests/s; None where no calibration of this package can be trusted."""
    try:
        evidence = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
        if package is None or evidence["package"] != package.sha256 or evidence["status"] != "PASS":
            return None
        return float(evidence["knee"]["rps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
