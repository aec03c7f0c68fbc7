"""Whether a MAR is signed: in-toto statements in sigstore's bundles, as `cosign` writes them, checked against public
keys without a network. `marina sign` makes them; a pod refuses a MAR without them if the spec has `serving.verify`."""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from marina.config.errors import ArchiveError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from marina.config.spec import Spec

FOLDER, SUFFIX = "signatures", ".sigstore.json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATES = {
    "package": "urn:marina:package:v1",
    "verdict": "https://in-toto.io/attestation/test-result/v0.1",
    "bill": "https://cyclonedx.org/bom",
}
"""What is signed, and the type of each predicate; a file is named after the first."""
PASSED = "PASSED"
_END = "-----END PUBLIC KEY-----\n"
PEM = "-----BEGIN "
MAKE_KEY = (
    "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.key"
    " && openssl pkey -in release.key -pubout -out release.pub"
)
_MALFORMED = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
_ALLOWED = "a public key or certificate in PEM, of ECDSA P-256 or Ed25519"


class _RefusedError(Exception):
    """Why a bundle does not count."""


@dataclass(frozen=True)
class PublicKey:
    """A key that may sign."""

    name: str
    """The file, or the place in the spec."""
    pem: str
    key: "EllipticCurvePublicKey | Ed25519PublicKey"
    until: datetime | None = None
    """When its certificate ends; None for a bare key."""
    since: datetime | None = None

    @property
    def hint(self) -> str:
        """By which a bundle names its key: the base64 of the sha256 of its DER."""
        return base64.b64encode(hashlib.sha256(_der(self.key)).digest()).decode()

    @property
    def public_pem(self) -> str:
        """The bare key, without its certificate."""
        return "\n".join(["-----BEGIN PUBLIC KEY-----", *wrap(base64.b64encode(_der(self.key)).decode(), 64), _END])

    def verifies(self, signature: bytes, signed: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if isinstance(self.key, ec.EllipticCurvePublicKey):
                self.key.verify(signature, signed, ec.ECDSA(SHA256()))
            else:
                self.key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    def dated_out(self, now: datetime) -> str | None:
        """Why it does not count now; None if it does."""
        if self.until and now > self.until:
            return f"its certificate ended on {self.until:%Y-%m-%d}"
        if self.since and now < self.since:
            return f"its certificate begins on {self.since:%Y-%m-%d}"
        return None


def verify_keys(spec: "Spec") -> list[PublicKey]:
    """The keys of `serving.verify`."""
    assert spec.serving.verify
    place = spec.place("serving", "verify", "keys")
    found = []
    for number, text in enumerate(spec.serving.verify.keys):
        if text.startswith(PEM):
            found.append(parse_key(f"key {number + 1}", text, place))
            continue
        file = spec.path(text)
        try:
            found.append(parse_key(text, file.read_text(encoding="utf-8"), place))
        except (OSError, UnicodeDecodeError) as err:
            reason = err.strerror if isinstance(err, OSError) else "it is not text"
            raise InputError(f"{place}: {file}: {reason}", hint=f"allowed: {_ALLOWED}") from err
    return found


def parse_key(name: str, pem: str, place: str) -> PublicKey:
    """The key in a text. InputError if it is none that `marina sign` and `cosign` make."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    until = since = None
    try:
        if "BEGIN CERTIFICATE-----" in pem:
            certificate = x509.load_pem_x509_certificate(pem.encode())
            since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            key: Any = certificate.public_key()
        else:
            key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as err:
        what = "a private key, which belongs to nobody but the signer" if "PRIVATE KEY" in pem else "something else"
        raise InputError(f"{place}: `{name}`: got {what}, allowed: {_ALLOWED}", hint=MAKE_KEY) from err
    is_p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if not is_p256 and not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError(f"{place}: `{name}`: got a key of another kind, allowed: {_ALLOWED}", hint=MAKE_KEY)
    return PublicKey(name, pem, key, until, since)


def check_signatures(spec: "Spec", folder: Path, sha256: str) -> None:
    """Returns if the bundles in the folder are what `serving.verify` demands of the MAR with this hash. Raises
    ArchiveError if a statement is missing, was signed by none of the keys, or is about something else."""
    wanted = spec.serving.verify
    assert wanted
    keys, hint = verify_keys(spec), f"marina sign {spec.file} --key release.key"
    held: dict[str, dict[str, Any]] = {}
    refused = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            statement = read_statement(file.read_bytes(), keys)
            _check_subject(statement, sha256)
            held[statement["predicateType"]] = statement["predicate"]
        except (OSError, _RefusedError, *_MALFORMED) as err:
            refused.append(f"{file}: {err}")
    for kind in ("package", "verdict") if wanted.verdict else ("package",):
        if PREDICATES[kind] not in held:
            text = f"{folder}: no signed {kind}, which `serving.verify` demands"
            raise ArchiveError("\n  ".join([text, *refused]), hint=hint)
    result = held.get(PREDICATES["verdict"], {}).get("result")
    if wanted.verdict and result != PASSED:
        text = f"{folder}: the signed verdict is {result}, `serving.verify` allows {PASSED}"
        raise ArchiveError(text, hint=f"marina loadtest {spec.file} && {hint}")


def read_statement(data: bytes, keys: Sequence[PublicKey]) -> dict[str, Any]:
    """The in-toto statement in a bundle, if one of these keys signed it."""
    try:
        bundle = json.loads(data)
        envelope = bundle["dsseEnvelope"]
        payload, signatures = _decoded(envelope["payload"]), [_decoded(each["sig"]) for each in envelope["signatures"]]
        forms = bundle["mediaType"], envelope["payloadType"]
    except _MALFORMED as err:
        raise _RefusedError(f"not a bundle: {err}") from err
    if forms != (BUNDLE_TYPE, PAYLOAD_TYPE):
        raise _RefusedError(f"a bundle of {' and '.join(map(str, forms))}, allowed: {BUNDLE_TYPE} and {PAYLOAD_TYPE}")
    signed = pre_authentication(PAYLOAD_TYPE, payload)
    signer = next((key for key in keys for each in signatures if key.verifies(each, signed)), None)
    if signer is None:
        raise _RefusedError(f"signed by none of {', '.join(f'`{key.name}`' for key in keys)}")
    if why := signer.dated_out(datetime.now(UTC)):
        raise _RefusedError(f"signed by `{signer.name}`, but {why}")
    statement: dict[str, Any] = json.loads(payload)
    if statement.get("_type") != STATEMENT_TYPE:
        raise _RefusedError(f"a statement of {statement.get('_type')}, allowed: {STATEMENT_TYPE}")
    return statement


def pre_authentication(kind: str, payload: bytes) -> bytes:
    """What DSSE signs: the type and the payload, each after its length."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def _check_subject(statement: dict[str, Any], sha256: str) -> None:
    hashes = {subject["name"]: subject["digest"].get("sha256", "") for subject in statement["subject"]}
    if sha256 not in hashes.values():
        listed = ", ".join(f"`{name}` {digest[:12]}…" for name, digest in hashes.items())
        raise _RefusedError(f"about {listed}, but the MAR is {sha256[:12]}…")


def _decoded(text: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise binascii.Error("base64 in another form than it is written")
    return data


def _der(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return der
