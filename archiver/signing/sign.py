"""Signs statements with a key in a file, or without one by sigstore, and writes them as the bundles that `cosign`
reads."""

import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marina.config.errors import InputError, ToolMissing
from marina.config.record import write_text
from marina.config.signatures import (
    BUNDLE_TYPE,
    FOLDER,
    MAKE_KEY,
    PAYLOAD_TYPE,
    SUFFIX,
    PublicKey,
    parse_key,
    pre_authentication,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

Signer = Callable[[dict[str, Any]], str]
"""Makes a bundle, as JSON, of a statement."""
PASSWORD = "MARINA_KEY_PASSWORD"


@dataclass(frozen=True)
class Signed:
    """The bundles that were written, by what they say."""

    files: dict[str, Path]


def sign(statements: dict[str, dict[str, Any]], signer: Signer, folder: Path) -> Signed:
    """Writes a bundle for each statement into `signatures` of a build folder. Those of an earlier package go."""
    bundles = {kind: signer(statement) for kind, statement in statements.items()}
    files = {kind: folder / FOLDER / f"{kind}{SUFFIX}" for kind in bundles}
    for old in (folder / FOLDER).glob(f"*{SUFFIX}"):
        if old not in files.values():
            old.unlink()
    for kind, bundle in bundles.items():
        write_text(files[kind], bundle + "\n")
    return Signed(files)


def key_signer(file: Path) -> tuple[Signer, PublicKey]:
    """Signs with the private key in a file; its public half is returned, too. InputError if it is none."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private: Any = _private_key(file)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    public = parse_key(str(file), pem, "`--key`")

    def signer(statement: dict[str, Any]) -> str:
        # Not the same each time without the option, and then an equal package would start new pods.
        payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        signed = pre_authentication(PAYLOAD_TYPE, payload)
        by_curve = isinstance(private, ec.EllipticCurvePrivateKey)
        scheme = [ec.ECDSA(SHA256(), deterministic_signing=True)] if by_curve else []
        signature = private.sign(signed, *scheme)
        bundle = {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": public.hint}},
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode()}],
            },
        }
        return json.dumps(bundle)

    return signer, public


def _private_key(file: Path) -> "PrivateKeyTypes":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    allowed = "allowed: a private key in PEM, of ECDSA P-256 or Ed25519"
    try:
        pem = file.read_bytes()
    except OSError as err:
        raise InputError(f"`--key`: {file}: {err.strerror}", hint=MAKE_KEY) from err
    if b"ENCRYPTED SIGSTORE" in pem or b"ENCRYPTED COSIGN" in pem:
        text = f"`--key`: {file}: a key of `cosign generate-key-pair`, which only cosign can decrypt; {allowed}"
        raise InputError(text, hint=f"{MAKE_KEY}\n      cosign import-key-pair --key release.key gives cosign the same")
    try:
        try:
            return load_pem_private_key(pem, None)
        except TypeError:
            return load_pem_private_key(pem, _password(file))
    except (ValueError, UnsupportedAlgorithm) as err:
        encrypted = b"ENCRYPTED" in pem
        why = "the password is wrong" if encrypted else f"got something else, {allowed}"
        raise InputError(f"`--key`: {file}: {why}", hint=f"export {PASSWORD}" if encrypted else MAKE_KEY) from err


def _password(file: Path) -> bytes:
    if (given := os.environ.get(PASSWORD)) is not None:
        return given.encode()
    if not sys.stdin.isatty():
        raise InputError(f"`--key`: {file}: is encrypted, and `{PASSWORD}` is not set", hint=f"export {PASSWORD}")
    return getpass(f"password of {file}: ").encode()


def keyless_signer() -> Signer:
    """Signs by sigstore with the identity of this CI job, or of whoever logs in in the browser that it opens."""
    try:
        from sigstore.dsse import Statement
        from sigstore.errors import Error
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, Issuer, detect_credential
        from sigstore.sign import SigningContext
    except ModuleNotFoundError as err:
        raise ToolMissing("`--keyless` needs `sigstore`, which is not installed", hint="pip install sigstore") from err
    try:
        trust = ClientTrustConfig.production()
        ambient = detect_credential()
        token = IdentityToken(ambient) if ambient else Issuer(trust.signing_config.get_oidc_url()).identity_token()
        context = SigningContext.from_trust_config(trust)
    except (Error, OSError) as err:
        text = f"`--keyless`: sigstore's servers were not reached, or gave no identity: {err}"
        raise InputError(text, hint="--key FILE, which needs no network") from err

    def signer(statement: dict[str, Any]) -> str:
        with context.signer(token) as session:
            data = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            return str(session.sign_dsse(Statement(data.encode())).to_json())

    return signer
