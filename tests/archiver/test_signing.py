"""Signed packages: what `marina sign` writes, what a pod demands of it, and who else reads it."""

import base64
import contextlib
import hashlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from images import registry
from k8s_plans import IMAGE
from releases import MAR, SHA256_OF_MAR, Release, certificate, public_pem, verdict, write_private
from specs import ROOT
from tools import needs, skip_unless_required

from marina.archiver.signing import attach
from marina.config.errors import ArchiveError, InputError, Refused
from marina.config.record import ImageRecord, file_sha256
from marina.config.signatures import FOLDER, PREDICATES


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def payload_of(bundle: Path) -> dict[str, Any]:
    envelope = json.loads(bundle.read_text())["dsseEnvelope"]
    statement: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return statement


def test_each_statement_is_about_the_mar_and_the_image(release: Release) -> None:
    files = release.sign()
    release.check()
    subjects = [
        {"name": "model.mar", "digest": {"sha256": SHA256_OF_MAR}},
        {"name": "registry.local/marina/digits", "digest": {"sha256": "a" * 64}},
    ]
    said = {kind: payload_of(file) for kind, file in files.items()}
    assert {kind: statement["predicateType"] for kind, statement in said.items()} == PREDICATES
    assert all(statement["subject"] == subjects for statement in said.values())
    assert said["package"]["predicate"]["record"]["agreement"]["agreement"] == 1.0
    assert said["verdict"]["predicate"]["passedTests"] == ["p99"]
    assert said["bill"]["predicate"]["bomFormat"] == "CycloneDX"


def test_the_same_package_gives_the_same_bundles(release: Release) -> None:
    first = {kind: file.read_bytes() for kind, file in release.sign().items()}
    assert {kind: file.read_bytes() for kind, file in release.sign().items()} == first


@pytest.mark.parametrize(("status", "result"), [("FAIL", "FAILED"), ("INVALID", "WARNED")])
def test_a_verdict_that_is_no_pass_is_signed_as_what_it_is_and_refused(
    release: Release, status: str, result: str
) -> None:
    release.write("verdict.json", verdict(status))
    assert payload_of(release.sign()["verdict"])["predicate"]["result"] == result
    with pytest.raises(ArchiveError, match=f"the signed verdict is {result}, `serving.verify` allows PASSED"):
        release.check()
    release.check(release.spec(verdict=False))


def test_what_does_not_belong_together_is_not_signed(release: Release) -> None:
    release.write("verdict.json", verdict(package="b" * 64))
    with pytest.raises(InputError, match=r"verdict.json: is about bbbbbbbbbbbb…, but the package is"):
        release.sign()
    release.write("verdict.json", verdict())
    release.write("image.json", IMAGE | {"package_sha256": "c" * 64})
    with pytest.raises(InputError, match=r"image.json: contains package cccccccccccc…"):
        release.sign()
    (release.build / "model.mar").write_bytes(MAR + b".")
    with pytest.raises(InputError, match=r"model.mar: missing, or not the file"):
        release.sign()


def test_signatures_of_what_is_gone_are_removed(release: Release) -> None:
    release.sign()
    (release.build / "image.json").unlink()
    assert sorted(release.sign()) == ["package", "verdict"]
    assert sorted(file.name for file in (release.build / FOLDER).iterdir()) == [
        "package.sigstore.json",
        "verdict.sigstore.json",
    ]


def test_an_old_and_a_new_key_can_overlap(release: Release) -> None:
    new = ed25519.Ed25519PrivateKey.generate()
    both = release.spec(public_pem(release.private), public_pem(new))
    release.sign()
    release.check(both)
    release.sign(write_private(release.out / "new.key", new))
    release.check(both)
    with pytest.raises(ArchiveError, match="signed by none of `key 1`"):
        release.check()


def test_a_certificate_counts_while_it_is_valid(release: Release) -> None:
    release.sign()
    day = timedelta(days=1)
    release.check(release.spec(certificate(release.private, -day, day)))
    for begins, ends, why in ((-2 * day, -day, "its certificate ended on"), (day, 2 * day, "its certificate begins")):
        with pytest.raises(ArchiveError, match=why):
            release.check(release.spec(certificate(release.private, begins, ends)))


def changed_payload(bundle: Path, change: Any) -> None:
    data = json.loads(bundle.read_text())
    statement = payload_of(bundle)
    change(statement)
    data["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    bundle.write_text(json.dumps(data))


def other_byte(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def mutants(release: Release, chance: random.Random) -> list[Any]:
    """Ways to forge a release, each a function that does it."""
    bundle = {kind: release.build / FOLDER / f"{kind}.sigstore.json" for kind in ("package", "verdict")}

    def foreign_key() -> None:
        release.sign(write_private(release.out / "foreign.key", ec.generate_private_key(ec.SECP256R1())))

    def pass_of_another(statement: dict[str, Any]) -> None:
        statement["predicate"]["result"] = "PASSED"

    def digest(statement: dict[str, Any]) -> None:
        statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(b"evil").hexdigest()

    def signature_of_another() -> None:
        verdict, package = (json.loads(bundle[kind].read_text()) for kind in ("verdict", "package"))
        verdict["dsseEnvelope"]["signatures"] = package["dsseEnvelope"]["signatures"]
        bundle["verdict"].write_text(json.dumps(verdict))

    def in_payload(kind: str) -> None:
        data = json.loads(bundle[kind].read_text())
        payload = bytearray(base64.b64decode(data["dsseEnvelope"]["payload"]))
        payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
        data["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
        bundle[kind].write_text(json.dumps(data))

    def failed() -> None:
        release.write("verdict.json", verdict("FAIL"))
        release.sign()
        changed_payload(bundle["verdict"], pass_of_another)

    def no_signature() -> None:
        data = json.loads(bundle["package"].read_text())
        data["dsseEnvelope"]["signatures"] = []
        bundle["package"].write_text(json.dumps(data))

    return [
        lambda: other_byte(release.build / "model.mar", chance),
        lambda: (release.build / "model.mar").write_bytes(b"evil"),
        lambda: bundle["package"].unlink(),
        lambda: bundle["verdict"].unlink(),
        lambda: changed_payload(bundle["package"], digest),
        lambda: changed_payload(bundle["verdict"], digest),
        lambda: in_payload("package"),
        lambda: in_payload("verdict"),
        failed,
        foreign_key,
        signature_of_another,
        no_signature,
    ]


@pytest.mark.slow
def test_none_of_a_hundred_forged_releases_is_accepted(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(108):
        (folder := tmp_path / str(number)).mkdir()
        release = Release(folder)
        release.sign()
        release.check()
        ways = mutants(release, chance)
        ways[number % len(ways)]()
        with pytest.raises(ArchiveError):
            release.check()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("ec-p384", "got a key of another kind"),
        ("private", "got a private key"),
        ("words", "got something else"),
        (None, "no such file"),
    ],
)
def test_a_key_that_cannot_be_used_is_named(release: Release, content: str | None, why: str) -> None:
    texts = {
        "ec-p384": public_pem(ec.generate_private_key(ec.SECP384R1())),
        "private": release.key.read_text(),
        "words": "hello",
    }
    file = release.out / "key.pub"
    if content:
        file.write_text(texts[content])
    with pytest.raises(InputError, match=f"`serving.verify.keys`: .*{why}"):
        release.check(release.spec(str(file)))


def test_an_encrypted_key_wants_its_password(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    key = write_private(release.out / "encrypted.key", release.private, b"hush")
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    with pytest.raises(InputError, match="is encrypted, and `MARINA_KEY_PASSWORD` is not set"):
        release.sign(key)
    monkeypatch.setenv("MARINA_KEY_PASSWORD", "wrong")
    with pytest.raises(InputError, match="the password is wrong"):
        release.sign(key)
    monkeypatch.setenv("MARINA_KEY_PASSWORD", "hush")
    release.sign(key)
    release.check()


@contextlib.contextmanager
def pushed_image(folder: Path) -> Iterator[ImageRecord]:
    """An image in a registry, for whose manifest an empty one does."""
    program = needs("docker-registry", package="docker-registry")
    with registry(program, folder) as port:
        ref = f"127.0.0.1:{port}/digits"
        digest = push_empty(ref)
        yield ImageRecord.model_validate(IMAGE | {"ref": ref, "digest": digest, "package_sha256": SHA256_OF_MAR})


def push_empty(ref: str) -> str:
    from marina.archiver.signing.referrers import _EMPTY, _MANIFEST, _descriptor, _digest, _Pusher

    pusher = _Pusher(ref)
    pusher._push_blob(_EMPTY)
    config = _descriptor("application/vnd.oci.image.config.v1+json", _EMPTY)
    data = json.dumps({"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": []}).encode()
    pusher._send("PUT", f"{pusher.url}/manifests/{_digest(data)}", data, _MANIFEST)
    return _digest(data)


@pytest.mark.slow
def test_pushed_bundles_are_read_back_from_a_registry(release: Release, tmp_path: Path) -> None:
    files = release.sign()
    skopeo = needs("skopeo", package="skopeo")
    with pushed_image(tmp_path) as image:
        digests = attach(image, files)
        # Again, and nothing is listed twice.
        assert attach(image, files) == digests
        assert image.digest

        def read(what: str) -> dict[str, Any]:
            command = [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{image.ref}{what}"]
            shown: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            return shown

        listed = read(f":{image.digest.replace(':', '-')}")["manifests"]
        assert [entry["digest"] for entry in listed] == digests
        types = [entry["annotations"]["dev.sigstore.bundle.predicateType"] for entry in listed]
        assert types == list(PREDICATES.values())
        manifest = read(f"@{digests[0]}")
        assert manifest["subject"]["digest"] == image.digest
        layer = manifest["layers"][0]
        assert layer["digest"] == f"sha256:{file_sha256(files['package'])}"
    with pytest.raises(Refused, match=r"not reachable|refused"):
        attach(image, files)


VERIFY = """
const { bundleFromJSON } = require("@sigstore/bundle");
const { Verifier, toSignedEntity } = require("@sigstore/verify");
const fs = require("fs"), crypto = require("crypto");
const publicKey = crypto.createPublicKey(fs.readFileSync(process.argv[1]));
const material = { certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: [],
  publicKey: (hint) => ({ publicKey, validFor: () => true }) };
const none = { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0, tsaThreshold: 0 };
const bundle = bundleFromJSON(JSON.parse(fs.readFileSync(process.argv[2])));
new Verifier(material, none).verify(toSignedEntity(bundle));
"""


@pytest.mark.slow
def test_sigstores_own_library_verifies_a_bundle(release: Release) -> None:
    program, modules = needs("node", package="nodejs"), ROOT / "build/javascript/node_modules"
    if not (modules / "@sigstore/verify").is_dir():
        skip_unless_required(f"{modules} has no @sigstore/verify: `.ci/run` installs it")
    bundle, other = release.sign()["verdict"], ec.generate_private_key(ec.SECP256R1())
    for private, code in ((release.private, 0), (other, 1)):
        (release.out / "one.pub").write_text(public_pem(private))
        command = [program, "-e", VERIFY, str(release.out / "one.pub"), str(bundle)]
        done = subprocess.run(command, cwd=modules.parent, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
