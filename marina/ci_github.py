"""Comments on a pull request, and adds a check to its commit: the only place where a job can end neutrally."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_CONCLUSIONS = {"PASS": "success", "FAIL": "failure", "INVALID": "neutral"}
_TIMEOUT_S = 20


def publish(name: str, status: str, text: str) -> str | None:
    """Adds or replaces the comment and the check. Returns a note if there is nowhere to write, or no right to."""
    token, repository = os.environ.get("GITHUB_TOKEN"), os.environ.get("GITHUB_REPOSITORY")
    event = _event()
    pull = event.get("pull_request")
    if not (token and repository and pull):
        return "no comment: this job is not of a pull request, or has no GITHUB_TOKEN"
    api = f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{repository}"
    check = {
        "name": f"marina: {name}",
        "head_sha": pull["head"]["sha"],
        "status": "completed",
        "conclusion": _CONCLUSIONS[status],
        "output": {"title": status, "summary": text[:65_000]},
    }
    try:
        _ask("POST", f"{api}/check-runs", token, check)
        # By this the next run finds it again.
        mark = f"<!-- marina: {name} -->"
        body = {"body": f"{mark}\n{text}"[:65_000]}
        comments = _ask("GET", f"{api}/issues/{pull['number']}/comments?per_page=100", token)
        mine = next((comment["url"] for comment in comments if comment["body"].startswith(mark)), None)
        if mine:
            _ask("PATCH", mine, token, body)
        else:
            _ask("POST", f"{api}/issues/{pull['number']}/comments", token, body)
    except urllib.error.HTTPError as err:
        if err.code in (401, 403, 404):
            return f"no comment: this token may not write ({err.code}), as for a pull request of a fork"
        return f"no comment: GitHub answered {err.code}"
    except OSError as err:
        return f"no comment: GitHub was not reached: {err}"
    return None


def _event() -> dict[str, Any]:
    """What started the job."""
    try:
        event: dict[str, Any] = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}
    return event


def _ask(method: str, url: str, token: str, data: dict[str, Any] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.loads(answer.read() or b"null")
