"""The sections of a spec for everything that it has no field for: additions to the pods, and patches of any object."""

from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from marina.config.sections.section import (
    BAD_KEY,
    AbsolutePath,
    Annotations,
    EnvSource,
    Labels,
    Mount,
    Section,
    Variable,
    VolumeName,
)

# Data as Kubernetes has it; `marina verify` checks the result against its schemas.
Raw = dict[str, Any]
OWN_LABELS, OWN_ANNOTATIONS = "app.kubernetes.io/", "marina/"


def _address(text: str) -> str:
    try:
        ip_address(text)
    except ValueError:
        raise ValueError("allowed: an address such as `10.0.0.10`") from None
    return text


Address = Annotated[str, AfterValidator(_address)]


class Dns(Section):
    """How the pods resolve names."""

    policy: Literal["ClusterFirst", "Default", "None"] = "ClusterFirst"
    """ClusterFirst: the cluster's name servers; Default: those of the node; None: only those given here. Lands in the
    Deployment."""
    nameservers: tuple[Address, ...] = ()
    """Addresses of name servers. Land in the Deployment."""
    searches: tuple[str, ...] = ()
    """Domains in which short names are looked up. Land in the Deployment."""
    options: dict[str, str] = Field(default={})
    """Options of the resolver: `{ndots: "1"}`; an empty text for an option without a value. Land in the Deployment."""

    @model_validator(mode="after")
    def _has_a_server(self) -> "Dns":
        if self.policy == "None" and not self.nameservers:
            raise ValueError("allowed: `nameservers` with `policy: None`, because no other server is used")
        return self


class Pod(Section):
    """What you add to the pods. Variables and mounts are added to the server, and to the container that loads the
    model, if there is one."""

    annotations: Annotations = Field(default={})
    """Annotations of the pods. Land in the Deployment."""
    labels: Labels = Field(default={})
    """Labels of the pods. Land in the Deployment."""
    env: dict[Variable, str] = Field(default={})
    """Environment variables; for a secret, use `env_from`. Land in the Deployment."""
    env_from: tuple[EnvSource, ...] = ()
    """Secrets and ConfigMaps whose keys become environment variables, as `secret/NAME` or `configmap/NAME`. Land in the
    Deployment."""
    volumes: dict[VolumeName, Raw] = Field(default={})
    """Volumes by name, each as Kubernetes writes it: `{ca: {configMap: {name: company-ca}}}`. Land in the
    Deployment."""
    mounts: dict[AbsolutePath, Mount] = Field(default={})
    """The volume that is mounted at each path: `VOLUME` or `VOLUME/FOLDER`; with `:ro` it is read-only:
    `{/etc/ssl/company: ca:ro}`. Lands in the Deployment."""
    affinity: Raw = Field(default={})
    """Where pods may and should run, as Kubernetes writes it; what the package needs of a node is added to each of your
    required terms. Lands in the Deployment."""
    service_account_annotations: Annotations = Field(default={})
    """Annotations that give the pods an identity in a cloud: `eks.amazonaws.com/role-arn`,
    `iam.gke.io/gcp-service-account`. Land in the ServiceAccount."""
    host_aliases: dict[Address, tuple[str, ...]] = Field(default={})
    """Host names by address: `{10.0.0.5: [store.local]}`. Land in the Deployment."""
    dns: Dns | None = None
    """How the pods resolve names; default: as the cluster does."""

    @field_validator("annotations", "labels", "service_account_annotations")
    @classmethod
    def _without_own(cls, entries: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        own = OWN_LABELS if info.field_name == "labels" else OWN_ANNOTATIONS
        for key in entries:
            if key.startswith(own):
                raise ValueError(f"{key}|{BAD_KEY}others than `{own}…`, which are Marina's own")
        return entries


class Patch(Section):
    """A change to rendered objects, applied before `verify` and `deploy` read them; needs exactly one of `file`,
    `merge` and `operations`."""

    kind: str
    """The kind of the objects: `Deployment`. There must be an object of that kind."""
    name: str | None = None
    """The name of one object; default: all objects of that kind."""
    merge: Raw | None = None
    """A strategic merge patch, as `kubectl patch` takes it; in custom resources, whole lists are replaced."""
    operations: tuple[Raw, ...] | None = None
    """A JSON patch (RFC 6902): `[{op: remove, path: /spec/revisionHistoryLimit}]`."""
    file: str | None = None
    """A YAML or JSON file with one of the two: a mapping to merge, or a list of operations."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Patch":
        if sum(given is not None for given in (self.file, self.merge, self.operations)) != 1:
            raise ValueError("allowed: exactly one of `file`, `merge`, `operations`")
        return self
