"""The sections of a spec for everything that it has no field for: additions to the pods, and patches of any object."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from config.sections.section import BAD_KEY, LABEL, Labels, Section, is_valid

# Data as Kubernetes has it; `marina verify` checks the result against its schemas.
Raw = dict[str, Any]
OWN_LABELS, OWN_ANNOTATIONS = "app.kubernetes.io/", "marina/"
_VARIABLE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_SOURCE = re.compile(r"(configmap|secret)/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MOUNT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/\w[\w.-]*(/\w[\w.-]*)*)?(:ro)?")
_PATH = re.compile(r"(/\.?[\w-][\w.-]*)+")


class Dns(Section):
    """How the pods resolve names."""

    policy: Literal["ClusterFirst", "Default", "None"] = "ClusterFirst"
    """ClusterFirst: the cluster's name servers; Default: those of the node; None: only those given here. Lands in the
    Deployment."""
    nameservers: tuple[str, ...] = ()
    """Addresses of name servers. Land in the Deployment."""
    searches: tuple[str, ...] = ()
    """Domains in which short names are looked up. Land in the Deployment."""
    options: dict[str, str] = Field(default={})
    """Options of the resolver: `{ndots: "1"}`; an empty text for an option without a value. Land in the Deployment."""

    @field_validator("nameservers")
    @classmethod
    def _addresses(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for place, entry in enumerate(entries):
            if not is_valid(entry, ip_address):
                raise ValueError(f"{place}|allowed: an address such as `10.0.0.10`")
        return entries

    @model_validator(mode="after")
    def _has_a_server(self) -> "Dns":
        if self.policy == "None" and not self.nameservers:
            raise ValueError("allowed: `nameservers` with `policy: None`, because no other server is used")
        return self


class Pod(Section):
    """What you add to the pods. Variables and mounts are added to the server, and to the container that loads the
    model, if there is one."""

    annotations: dict[str, str] = Field(default={})
    """Annotations of the pods. Land in the Deployment."""
    labels: Labels = Field(default={})
    """Labels of the pods. Land in the Deployment."""
    env: dict[str, str] = Field(default={})
    """Environment variables; for a secret, use `env_from`. Land in the Deployment."""
    env_from: tuple[str, ...] = ()
    """Secrets and ConfigMaps whose keys become environment variables, as `secret/NAME` or `configmap/NAME`. Land in the
    Deployment."""
    volumes: dict[str, Raw] = Field(default={})
    """Volumes by name, each as Kubernetes writes it: `{ca: {configMap: {name: company-ca}}}`. Land in the
    Deployment."""
    mounts: dict[str, str] = Field(default={})
    """The volume that is mounted at each path: `VOLUME` or `VOLUME/FOLDER`; with `:ro` it is read-only:
    `{/etc/ssl/company: ca:ro}`. Lands in the Deployment."""
    affinity: Raw = Field(default={})
    """Where pods may and should run, as Kubernetes writes it; what the package needs of a node is added to each of your
    required terms. Lands in the Deployment."""
    service_account_annotations: dict[str, str] = Field(default={})
    """Annotations that give the pods an identity in a cloud: `eks.amazonaws.com/role-arn`,
    `iam.gke.io/gcp-service-account`. Land in the ServiceAccount."""
    host_aliases: dict[str, tuple[str, ...]] = Field(default={})
    """Host names by address: `{10.0.0.5: [store.local]}`. Land in the Deployment."""
    dns: Dns | None = None
    """How the pods resolve names; default: as the cluster does."""

    @field_validator("annotations", "service_account_annotations")
    @classmethod
    def _free_annotations(cls, annotations: dict[str, str]) -> dict[str, str]:
        return _without_own(annotations, OWN_ANNOTATIONS)

    @field_validator("labels")
    @classmethod
    def _free_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        return _without_own(labels, OWN_LABELS)

    @field_validator("env")
    @classmethod
    def _variables(cls, variables: dict[str, str]) -> dict[str, str]:
        _check_keys(variables, _VARIABLE, "letters, digits, `_`, `.` and `-`, the first not a digit")
        return variables

    @field_validator("env_from")
    @classmethod
    def _sources(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for place, entry in enumerate(entries):
            if not _SOURCE.fullmatch(entry):
                raise ValueError(f"{place}|allowed: `secret/NAME` or `configmap/NAME`")
        return entries

    @field_validator("volumes")
    @classmethod
    def _named_volumes(cls, volumes: dict[str, Raw]) -> dict[str, Raw]:
        _check_keys(volumes, _VOLUME, "lower-case letters, digits and `-`")
        return volumes

    @field_validator("mounts")
    @classmethod
    def _mounted(cls, mounts: dict[str, str]) -> dict[str, str]:
        _check_keys(mounts, _PATH, "a path such as `/etc/ssl/company`")
        for path, volume in mounts.items():
            if not _MOUNT.fullmatch(volume):
                raise ValueError(f"{path}|allowed: `VOLUME` or `VOLUME/FOLDER`, with or without `:ro`")
        return mounts

    @field_validator("host_aliases")
    @classmethod
    def _hosts(cls, aliases: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for address in aliases:
            if not is_valid(address, ip_address):
                raise ValueError(f"{address}|{BAD_KEY}an address with names, such as `{{10.0.0.5: [store.local]}}`")
        return aliases


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


def _without_own(entries: dict[str, str], own: str) -> dict[str, str]:
    """The entries; ValueError if a key is one of Marina's own, or not one that Kubernetes takes."""
    for key in entries:
        if key.startswith(own):
            raise ValueError(f"{key}|{BAD_KEY}others than `{own}…`, which are Marina's own")
    _check_keys(entries, LABEL, "what Kubernetes takes, such as `team` or `example.org/team`")
    return entries


def _check_keys(entries: Iterable[str], pattern: re.Pattern[str], allowed: str) -> None:
    for name in entries:
        if not pattern.fullmatch(name):
            raise ValueError(f"{name}|{BAD_KEY}{allowed}")
