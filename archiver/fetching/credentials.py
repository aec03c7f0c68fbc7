"""Credentials of registries, from where `docker login` and `oras login` leave them."""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

_TIMEOUT_S = 20


def registry_credentials(host: str) -> str | None:
    """`user:password` for a registry, as base64; None if nobody logged in."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = ["https://index.docker.io/v1/"] if host.endswith("docker.io") else [host, f"https://{host}"]
    for name in names:
        helper = config.get("credHelpers", {}).get(name) or config.get("credsStore")
        if helper and (got := _ask_helper(helper, name)):
            return got
        if auth := config.get("auths", {}).get(name, {}).get("auth"):
            return str(auth)
    return None


def _ask_helper(helper: str, name: str) -> str | None:
    command = [f"docker-credential-{helper}", "get"]
    try:
        done = subprocess.run(command, input=name, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        got: dict[str, Any] = json.loads(done.stdout)
        return base64.b64encode(f"{got['Username']}:{got['Secret']}".encode()).decode()
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
