"""Releases for tests: a build folder with everything that can be signed."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID
from k8s_plans import IMAGE, fill
from specs import digits_spec

from marina.archiver.signing import key_signer, read_subjects, sign, statements
from marina.config.record import file_sha256
from marina.config.signatures import FOLDER, check_signatures
from marina.config.spec import Spec

MAR = b"a packed model"
SHA256_OF_MAR = hashlib.sha256(MAR).hexdigest()
CHECK = {"objective": "p99", "limit": 50.0, "measured": 20.0, "unit": "ms", "reasons": []}


def write_private(file: Path, private: Any, password: bytes | None = None) -> Path:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return file


def public_pem(private: Any) -> str:
    pem: bytes = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def certificate(private: Any, begins: timedelta, ends: timedelta) -> str:
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "release")]), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    builder = builder.public_key(private.public_key()).not_valid_before(now + begins).not_valid_after(now + ends)
    return builder.sign(private, SHA256()).public_bytes(Encoding.PEM).decode()


def verdict(status: str = "PASS", package: str = SHA256_OF_MAR) -> dict[str, Any]:
    tested = {"name": "digits", "version": "1.0", "spec": "spec.yaml", "url": "http://localhost", "started": True}
    tested |= {"package": package, "served": package, "cold_start_s": 2.0}
    judged = {"status": status, "reasons": [], "checks": [CHECK | {"status": status}]}
    return {"schema": "marina.verdict/1", "verdict": judged, "tested": tested, "at": "2026-11-28T10:00:00Z"}


class Release:
    """A build folder with everything that can be signed, and a spec that demands it."""

    def __init__(self, folder: Path) -> None:
        self.out = folder
        self.build = folder / "digits"
        self.build.mkdir()
        self.private: Any = ec.generate_private_key(ec.SECP256R1())
        self.key = write_private(folder / "release.key", self.private)
        (self.build / "model.mar").write_bytes(MAR)
        fill(self.build, digits_spec())
        package = json.loads((self.build / "package.json").read_text())
        self.write("package.json", package | {"sha256": SHA256_OF_MAR, "bytes": len(MAR)})
        self.write("verdict.json", verdict())
        self.write("image.json", IMAGE | {"package_sha256": SHA256_OF_MAR})
        self.write("bom.json", {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": []})

    def write(self, name: str, data: dict[str, Any]) -> None:
        (self.build / name).write_text(json.dumps(data))

    @property
    def public(self) -> str:
        return public_pem(self.private)

    def spec(self, *keys: str, verdict: bool = True, **kubernetes: Any) -> Spec:
        changes = {f"kubernetes.{name}": value for name, value in kubernetes.items()}
        return digits_spec({"serving.verify": {"keys": list(keys or (self.public,)), "verdict": verdict}, **changes})

    def sign(self, key: Path | None = None) -> dict[str, Path]:
        signer, _ = key_signer(key or self.key)
        return sign(statements(read_subjects(digits_spec(), self.build), self.build), signer, self.build).files

    def check(self, spec: Spec | None = None) -> None:
        check_signatures(spec or self.spec(), self.build / FOLDER, file_sha256(self.build / "model.mar"))
