"""Connects to a cluster, by a kubeconfig or from inside a pod."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes import config as kubeconfigs
from kubernetes.config.config_exception import ConfigException

from config.errors import InputError, listed
from k8s.cluster.cluster import Cluster
from k8s.cluster.transport import Transport

# This part of the client library has no types.
_CONFIG: Any = kubeconfigs


def connect(context: str | None = None, kubeconfig: Path | None = None) -> Cluster:
    """Connects to the cluster of a kubeconfig's context; inside a pod without a kubeconfig, to the pod's cluster."""
    settings = client.Configuration()
    try:
        contexts, active = _CONFIG.list_kube_config_contexts(str(kubeconfig) if kubeconfig else None)
    except ConfigException as err:
        return _from_inside(settings, context, kubeconfig, err)
    names = [entry["name"] for entry in contexts]
    if context is not None and context not in names:
        raise InputError(f"`--context`: got `{context}`, allowed: {listed(names)}")
    try:
        _CONFIG.load_kube_config(
            str(kubeconfig) if kubeconfig else None, context, client_configuration=settings, persist_config=False
        )
    except ConfigException as err:
        raise InputError(f"the kubeconfig cannot be used: {err}", hint="kubectl config view") from err
    name = context or active["name"]
    if not settings.verify_ssl:
        print(
            f"warning: context `{name}` does not check the server's certificate, so anybody on the network path can "
            "read and change everything; set `certificate-authority-data` instead of `insecure-skip-tls-verify`",
            file=sys.stderr,
            flush=True,
        )
    return Cluster(Transport(settings, name))


def _from_inside(settings: Any, context: str | None, kubeconfig: Path | None, reason: Exception) -> Cluster:
    if context is None and kubeconfig is None:
        try:
            _CONFIG.load_incluster_config(client_configuration=settings)
            return Cluster(Transport(settings, "in-cluster"))
        except ConfigException:
            pass
    raise InputError(
        f"no cluster to talk to: {str(reason).rstrip('.')}",
        hint="name a kubeconfig with `--kubeconfig FILE` or $KUBECONFIG",
    ) from reason
