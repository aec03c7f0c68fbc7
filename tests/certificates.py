"""A certificate that only those trust who are given it."""

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[str, str]:
    """The files of a certificate for 127.0.0.1 and of its key."""
    certificate, key = folder / "ca.pem", folder / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)
    return str(certificate), str(key)
