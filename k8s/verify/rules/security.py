"""Rules about what somebody who gets into a pod finds there: files, tokens, secrets; and what the image is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.errors import listed
from k8s.verify.application import Application
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Security")

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_KEY|CREDENTIALS?|PASSWD|PASSWORD|PRIVATE_KEY|SECRET|TOKEN)(_|$)", re.IGNORECASE
)
# Names of variables that hold where a secret lies, not the secret.
_NAMES_A_FILE = re.compile(r"(_DIR|_FILE|_PATH)$|^GOOGLE_APPLICATION_CREDENTIALS$")
_TEMPORARY = ("/tmp", "/var/tmp")


@TOPIC.rule(
    "read-only-root",
    "warning",
    what="A container may change its own files.",
    why="Who gets in can stay: a process replaces the code that the next one runs.",
    fix="securityContext: {readOnlyRootFilesystem: true}, and an emptyDir where it has to write",
)
def _read_only(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.serving:
        for container in workload.all_containers:
            node = container.at("securityContext", "readOnlyRootFilesystem")
            if node.value is not True:
                yield Remark(node, "got `false`" if node.given else "missing")


@TOPIC.rule(
    "nowhere-to-write",
    "error",
    what="TorchServe has a read-only root filesystem and no writable `/tmp`.",
    why="The MAR is unpacked there: the server ends at its start.",
    fix="an emptyDir with a sizeLimit, mounted at `/tmp`",
)
def _writable(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.torchserves:
        for container in workload.containers:
            locked = container.at("securityContext", "readOnlyRootFilesystem").value is True
            writable = [
                mount.at("mountPath").text
                for mount in container.at("volumeMounts").items()
                if mount.at("readOnly").value is not True
            ]
            moved = any(variable.at("name").text in ("TEMP", "TMPDIR") for variable in container.at("env").items())
            if locked and not moved and not set(writable) & set(_TEMPORARY):
                yield Remark(container.at("volumeMounts"), f"writable: {listed(writable) or 'nothing'}")


@TOPIC.rule(
    "token-mounted",
    "warning",
    what="A pod gets a token for the API server.",
    why="A model server has nothing to ask it; who takes over the server has the token.",
    fix="automountServiceAccountToken: false",
)
def _token(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.serving:
        account = application.find("ServiceAccount", workload.pod.at("serviceAccountName").text, workload.document)
        of_pod = workload.pod.at("automountServiceAccountToken")
        of_account = account.root.at("automountServiceAccountToken").value if account else None
        if of_pod.value is not False and (of_pod.given or of_account is not False):
            yield Remark(of_pod, "got `true`" if of_pod.given else "missing")


@TOPIC.rule(
    "account-shared",
    "warning",
    what="A pod runs as the namespace's default account.",
    why="Whatever anybody grants to that account is granted to the model server too.",
    fix="`serviceAccountName` with an account of its own",
)
def _account(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.serving:
        name = workload.pod.at("serviceAccountName")
        if name.value in (None, "", "default"):
            yield Remark(name, "got `default`" if name.given else "missing, so it is `default`")


@TOPIC.rule(
    "secret-in-env",
    "error",
    what="A secret is written into a variable.",
    why="It is in the file, in the repository, and in `kubectl get -o yaml` of everybody who may read pods.",
    fix="a Secret, mounted as a file",
)
def _secret(application: Application, _: Scope) -> Iterator[Remark]:
    for variable in (item for container in application.containers for item in container.at("env").items()):
        name = variable.at("name").text
        if _SECRET_NAME.search(name) and not _NAMES_A_FILE.search(name) and _is_secret(variable.at("value").text):
            yield Remark(variable.at("value"), f"`{variable.at('name').text}` has its value here")


def _is_secret(value: str) -> bool:
    """A switch such as TS_DISABLE_TOKEN_AUTHORIZATION is none."""
    return bool(value) and value.lower() not in ("true", "false")


@TOPIC.rule(
    "secret-as-env",
    "warning",
    what="A Secret becomes a variable.",
    why="Every child process inherits it, TorchServe's workers too, and a new value needs new pods.",
    fix="mount the Secret as a file",
)
def _secret_env(application: Application, _: Scope) -> Iterator[Remark]:
    for container in application.containers:
        for path in ("env[].valueFrom.secretKeyRef", "envFrom[].secretRef"):
            for node in container.all(path):
                yield Remark(node, f"Secret `{node.at('name').value}`")


@TOPIC.rule(
    "image-latest",
    "error",
    what="An image has no tag, or `latest`.",
    why="Two pods of one Deployment may run different code, and a rollback brings nothing back.",
    fix="registry/name:VERSION@sha256:DIGEST",
)
def _latest(application: Application, _: Scope) -> Iterator[Remark]:
    for container in application.containers:
        name, digest, _hash = container.at("image").text.partition("@")
        _repository, colon, tag = name.rpartition("/")[2].partition(":")
        if name and not digest and (not colon or tag == "latest" or tag.startswith("latest-")):
            yield Remark(container.at("image"), f"got `{name}`")


@TOPIC.rule(
    "image-digest",
    "warning",
    what="An image is named by a tag alone.",
    why="Whoever may push to the registry may exchange what runs, and nobody sees it.",
    fix="registry/name:VERSION@sha256:DIGEST; `marina image SPEC --push` records the digest",
)
def _digest(application: Application, _: Scope) -> Iterator[Remark]:
    for container in application.containers:
        name, digest, _hash = container.at("image").text.partition("@")
        tag = name.rpartition("/")[2].partition(":")[2]
        if name and not digest and tag and tag != "latest" and not tag.startswith("latest-"):
            yield Remark(container.at("image"), f"got `{name}`")
