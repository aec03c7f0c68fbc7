"""A server that serves only what was signed."""

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from releases import public_pem, write_private
from running import Running
from specs import ROOT
from tiny import make_tiny
from waiting import ask, eventually

from marina.archiver.signing import key_signer
from marina.config.ports import free_port_base
from marina.config.record import file_sha256
from marina.config.render import Ports
from marina.config.signatures import PREDICATES, STATEMENT_TYPE, SUFFIX

pytestmark = pytest.mark.e2e


def sign(folder: Path, key: Path, mar: Path) -> None:
    signer, _ = key_signer(key)
    folder.mkdir(exist_ok=True)
    for kind, predicate in (("package", {}), ("verdict", {"result": "PASSED"})):
        statement = {"_type": STATEMENT_TYPE, "predicateType": PREDICATES[kind], "predicate": predicate}
        statement |= {"subject": [{"name": mar.name, "digest": {"sha256": file_sha256(mar)}}]}
        (folder / f"{kind}{SUFFIX}").write_text(signer(statement))


def test_a_server_refuses_a_package_that_was_not_signed_and_serves_one_that_was(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    key = write_private(tmp_path / "release.key", private)
    spec, mar = make_tiny(tmp_path, verify={"keys": [public_pem(private)]})
    ports, log = Ports(free_port_base()), tmp_path / "log"
    command = [sys.executable, "-m", "marina.server", str(spec.file), "--mar", str(mar)]
    command += ["--port-base", str(ports.base)]
    unsigned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert unsigned.returncode == 2
    assert unsigned.stderr.startswith(f"error: {mar.parent}/signatures: no signed package, which `serving.verify`")
    sign(mar.parent / "signatures", key, mar)
    with log.open("wb") as stderr:
        server = Running(subprocess.Popen(command, cwd=ROOT, stderr=stderr), spec, ports, log)
        try:
            eventually(lambda: server.readiness()[0], within_s=60)
            assert ask(server, b"{}") == 200
        finally:
            assert server.stop() == 0
