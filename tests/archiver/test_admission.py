"""The files by which a cluster refuses images that nobody signed."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from k8s_plans import IMAGE
from releases import SHA256_OF_MAR, Release, public_pem
from specs import digits_spec

from marina.archiver.signing import key_signer, read_subjects, write_admission


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def admission(release: Release) -> dict[str, list[dict[str, Any]]]:
    """The written policies, by file."""
    _, public = key_signer(release.key)
    subjects = read_subjects(digits_spec(), release.build)
    files = write_admission(digits_spec(), subjects, [public], release.out)
    return {file.name: list(yaml.safe_load_all(file.read_text())) for file in files}


@pytest.mark.parametrize(
    ("file", "schema"),
    [("kyverno.yaml", "image-validating-policy"), ("policy-controller.yaml", "cluster-image-policy")],
)
def test_the_policies_of_others_match_their_published_schemas(release: Release, file: str, schema: str) -> None:
    (policy,) = admission(release)[file]
    text = (Path(__file__).parent / "admission_schemas" / f"{schema}.json").read_text()
    jsonschema.validate(policy, json.loads(text))
    assert json.dumps(public_pem(release.private)) in json.dumps(policy)


class ListPolicy:
    """The policy of Kubernetes itself, evaluated by the library that its language comes from."""

    def __init__(self, release: Release) -> None:
        files = admission(release)
        namespace, policy, binding = files["list-policy.yaml"]
        self.spec, (self.params,) = policy["spec"], files["signed-images.yaml"]
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        reference = binding["spec"]["paramRef"]
        assert (reference["name"], reference["namespace"]) == (
            self.params["metadata"]["name"],
            self.params["metadata"]["namespace"],
        )
        assert reference["namespace"] == namespace["metadata"]["name"]

    def judge(self, pod: dict[str, Any], old: dict[str, Any] | None = None) -> str | None:
        """The message of a refusal; None if the pod is admitted."""
        data = {"object": pod, "oldObject": old, "params": self.params}
        (condition,) = self.spec["matchConditions"]
        if not self._value(condition["expression"], data):
            return None
        found: dict[str, Any] = {}
        for variable in self.spec["variables"]:
            found[variable["name"]] = self._value(variable["expression"], data | {"variables": found})
        (validation,) = self.spec["validations"]
        if self._value(validation["expression"], data | {"variables": found}):
            return None
        return str(self._value(validation["messageExpression"], data | {"variables": found}))

    def _value(self, expression: str, data: dict[str, Any]) -> Any:
        variables = dict.fromkeys(data, cel.Type.DYN)
        env = cel.NewEnv(variables=variables, extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()])
        value = env.compile(expression).eval(data=data).value()
        return [str(each.value()) for each in value] if isinstance(value, list) else value


def pod(*images: str, **more: list[str]) -> dict[str, Any]:
    kinds = {"containers": list(images), **more}
    return {"spec": {kind: [{"name": "c", "image": image} for image in named] for kind, named in kinds.items()}}


SIGNED = f"registry.local/marina/digits:1.0@{IMAGE['digest']}"


def test_the_list_admits_signed_images_only(release: Release) -> None:
    load = IMAGE | {
        "ref": "registry.local/marina/marina-loadtest",
        "digest": f"sha256:{'d' * 64}",
        "target": "loadtest",
    }
    release.write("image-loadtest.json", load)
    first = ListPolicy(release)
    foreign = f"registry.local/marina/digits:1.0@sha256:{'e' * 64}"
    assert first.judge(pod(SIGNED)) is None
    assert first.judge(pod(SIGNED, initContainers=[SIGNED])) is None
    assert first.judge(pod(f"{load['ref']}:0.1@{load['digest']}")) is None
    for refused in ("registry.local/marina/digits:1.0", foreign, f"x@sha256:{'e' * 64}"):
        assert first.judge(pod(refused)) == f"not in the list marina-admission/marina-signed-images: {refused}"
        assert first.judge(pod(SIGNED, initContainers=[refused])) is not None
        assert first.judge(pod(SIGNED, ephemeralContainers=[refused])) is not None
        assert first.judge(pod(SIGNED, refused)) is not None
    # What runs may get other labels.
    assert first.judge(pod(foreign), old=pod(foreign)) is None
    assert first.judge(pod(foreign), old=pod(SIGNED)) is not None


def test_the_list_keeps_revisions_and_what_an_administrator_wrote(release: Release) -> None:
    admission(release)
    listed = release.out / "signed-images.yaml"
    listed.write_text(listed.read_text().replace("others: ''", "others: |-\n    sidecar.local/proxy:1\n    b:2"))
    release.write("image.json", IMAGE | {"digest": f"sha256:{'f' * 64}", "package_sha256": SHA256_OF_MAR})
    policy = ListPolicy(release)
    assert policy.judge(pod(SIGNED, "sidecar.local/proxy:1")) is None
    assert policy.judge(pod(f"registry.local/marina/digits:2@sha256:{'f' * 64}", "b:2")) is None
    assert policy.judge(pod(SIGNED, "c:3")) is not None
