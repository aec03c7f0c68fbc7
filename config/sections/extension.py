"""The sections of a spec for everything that it has no field for: additions to the pods, and patches of any object."""

from typing import Any

from pydantic import Field

from marina.config.sections.section import AbsolutePath, EnvSource, Mount, Section, Variable, VolumeName

# Data as Kubernetes has it; `marina verify` checks the result against its schemas.
Raw = dict[str, Any]


class Pod(Section):
    """Variables and volumes that you add to the pods: to the server, and to the container that loads the model, if
    there is one."""

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


class Patch(Section):
    """A change to rendered objects, applied before `verify` and `deploy` read them."""

    kind: str
    """The kind of the objects: `Deployment`. There must be an object of that kind."""
    name: str | None = None
    """The name of one object; default: all objects of that kind."""
    merge: Raw
    """A strategic merge patch, as `kubectl patch` takes it: `{spec: {template: {metadata: {annotations: {a: b}}}}}`.
    null deletes a field, `$patch: delete` an item of a list; the items of a PrometheusRule are found by their names."""
