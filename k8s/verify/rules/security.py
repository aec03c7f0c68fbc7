"""Rules about what an intruder finds in a pod (writable files, tokens, secrets), and about the image's identity."""

import re
from collections.abc import Iterator

from marina.config.errors import listed
from marina.k8s.verify.application import Application
from marina.k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Security")

_SECRET_NAME = re.compile(
    # At the end of the name: others say where the secret is, or something about it, such as TOKEN_FILE.
    r"(^|_)(API_?KEY|ACCESS_KEY(_ID)?|CREDENTIALS?|PASSWD|PASSWORD|PRIVATE_KEY|SECRET(_KEY)?|TOKEN)$",
    re.IGNORECASE,
)
# Values that are no secret: switches, numbers, paths, references to other variables or into a store of secrets, what
# servers without a password are given, and a language model's `</s>` or `[PAD]`.
_NO_SECRET = re.compile(
    r"|true|false|yes|no|on|off|none|null|empty|\d+|/.*|\$\(.*\)|<.*>|\[.*\]|(arn|op|vault):.*", re.IGNORECASE
)
# An address with a password in it, unless that comes from elsewhere: `postgres://app:$(PASSWORD)@db`.
_WITH_PASSWORD = re.compile(r"://[^/\s:@]*:(?![$<{])[^/\s?#;,@]+@")
_DIGEST = re.compile(r"@\w+:[0-9a-f]{64,}$")
_TEMPORARY = ("/tmp", "/var/tmp")


@TOPIC.rule(
    "nowhere-to-write",
    "error",
    what="TorchServe has a read-only root filesystem and no writable `/tmp`.",
    why="kube-linter asks for a read-only root filesystem, but TorchServe unpacks the MAR in `/tmp`, and exits if it "
    "cannot.",
    fix="an emptyDir with a sizeLimit, mounted at `/tmp`",
)
def _writable(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.torchserves:
        for container in workload.torchserves:
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
    why="It is mounted unless it is switched off. A model server does not need it, and an intruder gets it.",
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
    "secret-in-env",
    "error",
    what="The value of a secret is written into an environment variable.",
    why="Anybody who can read the repository or `kubectl get pods -o yaml` can read it; kube-linter only notices "
    "variables with `secret` in their names.",
    fix="a Secret, mounted as a file",
)
def _secret(application: Application, _: Scope) -> Iterator[Remark]:
    # A controller may be told the name of a Secret.
    names = {secret.name for secret in application.of("Secret")}
    for variable in (item for container in application.containers for item in container.at("env").items()):
        name, value = variable.at("name").text, variable.at("value").text
        named = _SECRET_NAME.search(name) and not _NO_SECRET.fullmatch(value) and value not in names
        if named or _WITH_PASSWORD.search(value):
            yield Remark(variable.at("value"), f"the value of `{variable.at('name').text}` is written here")


@TOPIC.rule(
    "image-digest",
    "warning",
    what="An image has no digest.",
    why="Any tag, not only `latest`, can be pushed again; then what runs is not what was measured.",
    fix="registry/name:VERSION@sha256:DIGEST; `marina image SPEC --push` records the digest",
)
def _digest(application: Application, _: Scope) -> Iterator[Remark]:
    for container in application.containers:
        image = container.at("image")
        if image.text and not _DIGEST.search(image.text):
            yield Remark(image, f"got `{image.text}`")
