"""`sign` and `release`: what is known of a package, signed for machines, and on one page for people."""

import argparse
from pathlib import Path
from typing import Any

from marina.arguments import add_out_option, add_verb, print_json, print_result, read_spec
from marina.config.errors import InputError, listed
from marina.config.progress import Progress
from marina.terminal import localised


def add_verbs(verbs: Any) -> None:
    added = add_verb(
        verbs,
        sign,
        "sign the package, its verdict and its bill of materials",
        "marina sign my/spec.yaml --key release.key",
        "marina sign my/spec.yaml --key release.key --push",
        "marina sign my/spec.yaml --keyless --push",
        as_json="what was signed",
    )
    add = add_out_option(added).add_argument
    text = "private key in PEM, ECDSA P-256 or Ed25519; the password of an encrypted one is in MARINA_KEY_PASSWORD"
    add("--key", metavar="FILE", type=Path, help=text)
    text = "sign by sigstore, with the identity of this CI job or of your login; needs a network"
    add("--keyless", action="store_true", help=text)
    add("--push", action="store_true", help="attach the signatures to the image in its registry")

    added = add_verb(
        verbs,
        release,
        "put all that is known of a release on one page, with what changed since the one before",
        "marina release my/spec.yaml",
        "marina release my/spec.yaml --json",
        progress=False,
    )
    add_out_option(added)


def release(options: argparse.Namespace) -> int:
    from marina.archiver.releasing import describe_release
    from marina.config.units import utc_now

    spec = read_spec(options)
    folder = options.out / spec.name
    described = describe_release(spec, folder, utc_now())
    verdict = described.status or "not tested"
    since = f"{len(described.changed)} changes since {described.before[:12]}" if described.before else "the first one"
    lines = [f"{described.name} {described.version}  {verdict}  sha256 {described.package}  {since}"]
    lines += [f"missing: {gap.text}\n  hint: {localised(gap.hint, options)}" for gap in described.missing]
    print_result(options, described.to_data(), *lines, f"page {folder / 'release.html'}")
    return described.exit_code


def sign(options: argparse.Namespace) -> int:
    from marina.archiver.signing import attach, key_signer, keyless_signer, read_subjects, statements, write_admission
    from marina.archiver.signing import sign as write_bundles
    from marina.config.signatures import verify_keys

    if options.keyless == (options.key is not None):
        what = "not together with `--keyless`" if options.keyless else "missing, unless `--keyless` is given"
        raise InputError(f"`--key`: {what}", hint=f"marina sign {options.spec} --key release.key")
    spec, progress = read_spec(options), Progress(quiet=options.quiet)
    folder = options.out / spec.name
    subjects = read_subjects(spec, folder)
    if options.push and subjects.image is None:
        raise InputError("`--push`: no image of this package was pushed", hint=f"marina image {spec.file} --push")
    trusted = verify_keys(spec) if spec.serving.verify else []
    if options.keyless:
        signer, public = keyless_signer(), None
    else:
        signer, public = key_signer(options.key)
        if trusted and public.hint not in [key.hint for key in trusted]:
            names = listed(f"`{key.name}`" for key in trusted)
            text = f"`--key`: {options.key} is none of the keys in `serving.verify`, {names}, so pods would refuse it"
            raise InputError(text, hint=f"openssl pkey -in {options.key} -pubout -out release.pub, and add it there")
    signed = write_bundles(statements(subjects, folder), signer, folder)
    keys = trusted or ([public] if public else [])
    written = write_admission(spec, subjects, keys, options.out) if keys and subjects.image else []
    pushed: list[str] = []
    if options.push and subjects.image:
        with progress.step("push the signatures"):
            pushed = attach(subjects.image, signed.files)
    verdict = subjects.verdict.verdict.status if subjects.verdict else None
    record = {
        "subjects": subjects.to_data(),
        "signatures": {kind: str(file) for kind, file in signed.files.items()},
        "verdict": verdict,
        "admission": [str(file) for file in written],
        "pushed": pushed,
    }
    if options.json:
        print_json(record)
        return 0
    for subject in subjects.to_data():
        print(f"signed {subject['name']}  sha256 {subject['digest']['sha256']}")
    for file in (*signed.files.values(), *written):
        print(f"  {file}")
    for digest in pushed:
        print(f"  {subjects.image.ref if subjects.image else ''}@{digest}")
    if verdict != "PASS":
        said = f"the verdict is {verdict}" if verdict else "there is no verdict"
        print(f"note: {said}: a pod that demands a PASS refuses this package; marina loadtest {spec.file}")
    if subjects.image is None:
        print(f"note: only the MAR is signed: no image of it was pushed; marina image {spec.file} --push")
    return 0
