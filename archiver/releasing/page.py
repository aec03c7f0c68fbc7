"""`release.html`: one page, in one file that needs no network and no script."""

from pathlib import Path
from typing import TYPE_CHECKING

from marina.config.measured import VerdictHead
from marina.config.pages import render_template

if TYPE_CHECKING:
    from marina.archiver.releasing.release import Release

_WIDTH = 32
_MEANING = {
    "PASS": "It met its objective in a load test that can be trusted.",
    "FAIL": "It missed its objective in the load test.",
    "INVALID": "Its load test cannot be trusted, so it says nothing about the service.",
    None: "It was not tested under load.",
}


def release_html(release: "Release", verdict: VerdictHead | None) -> str:
    checks = verdict.verdict.checks if verdict else ()
    return render_template(
        Path(__file__).with_name("release.html"),
        title=f"Release {release.name} {release.version}",
        heading=f"{release.name} {release.version}",
        status=release.status or "INVALID",
        badge_text=release.status or "UNTESTED",
        meaning=_MEANING[release.status] + (" But something is missing." if release.missing else ""),
        release=release,
        changes=[(change.what, _short(change.before), _short(change.now)) for change in release.changed],
        checks=[
            (check.objective, _value(check.measured, check.unit), _value(check.limit, check.unit), check.status)
            for check in checks
        ],
        tested_at=verdict.at if verdict else None,
    )


def _short(text: str | None) -> str:
    """A value as it fits into a column; the record has the whole."""
    return "-" if text is None else text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:.4g} {unit}"
