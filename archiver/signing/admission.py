"""Files with which an administrator of a cluster lets it refuse pods of images that nobody signed.

Kubernetes itself cannot verify a signature: its own policy compares the digests of images with a list, which `marina
sign` keeps. Kyverno's and sigstore's controllers read the signatures from the registry."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from marina.archiver.signing.statements import Subjects
from marina.config.errors import InputError
from marina.config.record import ImageRecord, read_document, write_text
from marina.config.signatures import PASSED, PREDICATES, PublicKey
from marina.config.spec import Spec

LIST, POLICY = "signed-images", "marina-signed-images"
NAMESPACE = "marina-admission"
# In the list, the images of others that may run beside ours, one on a line.
_OTHERS = "others"
_ORIGIN = "# Made by `marina sign`, for an administrator of the cluster. docs/how-to/sign.md says what it refuses.\n"


def write_admission(spec: Spec, subjects: Subjects, keys: list[PublicKey], out: Path) -> list[Path]:
    """Writes the policies into `admission` of the spec's build folder, and adds the image to the list in the folder
    above, which is one for all specs."""
    folder = out / spec.name / "admission"
    files = {
        folder / "list-policy.yaml": _list_policy(spec),
        folder / "kyverno.yaml": [_kyverno(spec, keys)],
        folder / "policy-controller.yaml": [_policy_controller(spec, keys)],
    }
    for file, documents in files.items():
        write_text(file, _as_yaml(documents))
    listed = out / f"{LIST}.yaml"
    write_text(listed, _as_yaml([_listed(listed, spec, subjects, out)]))
    return [*files, listed]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, such as keys, as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _as_yaml(documents: list[dict[str, Any]]) -> str:
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return _ORIGIN + text


def _listed(file: Path, spec: Spec, subjects: Subjects, out: Path) -> dict[str, Any]:
    """The ConfigMap with the digests that may run: those before, this image's, and the load generator's."""
    load = read_document(out / spec.name / "image-loadtest.json", ImageRecord, "marina image --target loadtest --push")
    try:
        old: Any = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        data = dict(old.get("data") or {}) if file.exists() else {_OTHERS: ""}
    except (AttributeError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise InputError(f"{file}: not a ConfigMap", hint=f"mv {file} {file}.old, and marina sign again") from err
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    for image in (subjects.image, load):
        if image and image.digest:
            # Those of earlier revisions stay, so that a rollback is admitted.
            data.setdefault(image.digest.removeprefix("sha256:"), f"{image.ref}:{image.tag} {now}")
    meta = {"name": POLICY, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def _list_policy(spec: Spec) -> list[dict[str, Any]]:
    every = [f"object.spec.?{kind}.orValue([]).map(c, c.image)" for kind in ("initContainers", "ephemeralContainers")]
    images = " + ".join(["object.spec.containers.map(c, c.image)", *every])
    allowed = f'image in params.data[?"{_OTHERS}"].orValue("").split("\\n")'
    digest = 'image.contains("@sha256:") && image.split("@sha256:")[1] in params.data'
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": spec.kubernetes.namespace}}
    kind = "admissionregistration.k8s.io/v1"
    policy = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["pods", "pods/ephemeralcontainers"],
                }
            ]
        },
        # A pod that runs already may get other labels, also when its image has left the list.
        "matchConditions": [{"name": "new-images", "expression": "oldObject == null || oldObject.spec != object.spec"}],
        "variables": [
            {"name": "images", "expression": images},
            {"name": "unsigned", "expression": f"variables.images.filter(image, !({digest}) && !({allowed}))"},
        ],
        "validations": [
            {
                "expression": "variables.unsigned.size() == 0",
                "messageExpression": f'"not in the list {NAMESPACE}/{POLICY}: " + variables.unsigned.join(", ")',
                "reason": "Forbidden",
            }
        ],
    }
    binding = {
        "policyName": POLICY,
        "paramRef": {"name": POLICY, "namespace": NAMESPACE, "parameterNotFoundAction": "Deny"},
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": namespace},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": kind, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": POLICY}, "spec": policy},
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": f"{POLICY}-{spec.kubernetes.namespace}"},
            "spec": binding,
        },
    ]


def _images(spec: Spec) -> list[dict[str, str]]:
    """The patterns of the images that the registry's policies look at."""
    return [{"glob": f"{spec.kubernetes.registry}/{spec.name}{more}"} for more in (":*", "@*")]


def _kyverno(spec: Spec, keys: list[PublicKey]) -> dict[str, Any]:
    signers = ", ".join(f"attestors.key{number}" for number in range(len(keys)))
    images = "images.containers.map(image, {})"
    signed = images.format(f"verifyAttestationSignatures(image, attestations.verdict, [{signers}])") + ".all(n, n > 0)"
    passed = images.format("extractPayload(image, attestations.verdict).predicate.result")
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ImageValidatingPolicy",
        "metadata": {"name": f"marina-{spec.name}"},
        "spec": {
            "validationActions": ["Deny"],
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "matchImageReferences": _images(spec),
            "attestors": [
                {
                    "name": f"key{number}",
                    "cosign": {"key": {"data": key.public_pem}, "ctlog": {"insecureIgnoreTlog": True}},
                }
                for number, key in enumerate(keys)
            ],
            "attestations": [{"name": "verdict", "intoto": {"type": PREDICATES["verdict"]}}],
            "validations": [
                {"expression": signed, "message": "no verdict of this image was signed by a known key"},
                {
                    "expression": f'{passed}.all(result, result == "{PASSED}")',
                    "message": "the signed verdict is not PASSED",
                },
            ],
        },
    }


def _policy_controller(spec: Spec, keys: list[PublicKey]) -> dict[str, Any]:
    attestation = {
        "name": "verdict",
        "predicateType": PREDICATES["verdict"],
        "policy": {"type": "cue", "data": f'predicate: result: "{PASSED}"\n'},
    }
    return {
        "apiVersion": "policy.sigstore.dev/v1beta1",
        "kind": "ClusterImagePolicy",
        "metadata": {"name": f"marina-{spec.name}"},
        "spec": {
            "images": _images(spec),
            "authorities": [
                {
                    "name": f"key{number}",
                    "key": {"data": key.public_pem, "hashAlgorithm": "sha256"},
                    "signatureFormat": "bundle",
                    "attestations": [attestation],
                }
                for number, key in enumerate(keys)
            ],
        },
    }
