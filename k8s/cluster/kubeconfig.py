"""Connects to a cluster, by a kubeconfig or from inside a pod."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes import config as kubeconfigs
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

from marina.config.errors import InputError, listed
from marina.k8s.cluster.client import Cluster

# This part of the client library has no types.
_CONFIG: Any = kubeconfigs


class _Settings(client.Configuration):
    def get_api_key_with_prefix(self, identifier: str, alias: str | None = None) -> str | None:
        # A file with a token usually ends with a line end.
        key: str | None = super().get_api_key_with_prefix(identifier, alias)
        return key and key.strip()


def connect(context: str | None = None, kubeconfig: Path | None = None) -> Cluster:
    """Connects to the cluster of a kubeconfig's context; inside a pod without a kubeconfig, to the pod's cluster."""
    settings = _Settings()
    listed_files = str(kubeconfig) if kubeconfig else KUBE_CONFIG_DEFAULT_LOCATION
    places = listed_files.split(os.pathsep)
    if not any(Path(place).expanduser().exists() for place in places if place):
        return _from_inside(settings, context, kubeconfig, places)
    with _errors_as_input():
        files = _CONFIG.kube_config.KubeConfigMerger(listed_files)
        names = [entry["name"] for entry in files.config.value["contexts"]]
        # Like kubectl, and unlike the client library, the first of several files that names one.
        current = [file["current-context"] for file in files.config_files.values() if file.get("current-context")]
    name = context or next(iter(current), "")
    if name not in names:
        got = "`--context`" if context else "the kubeconfig's `current-context`"
        raise InputError(f"{got}: got `{name}`, allowed: {listed(names) or 'none'}", hint="--context NAME")
    with _errors_as_input():
        _CONFIG.load_kube_config(listed_files, name, client_configuration=settings, persist_config=False)
        cluster = Cluster(settings, name)
    if not settings.verify_ssl:
        print(
            f"warning: context `{name}` does not check the server's certificate, so anybody on the network path can "
            "read and change everything; set `certificate-authority-data` instead of `insecure-skip-tls-verify`",
            file=sys.stderr,
            flush=True,
        )
    return cluster


@contextmanager
def _errors_as_input() -> Iterator[None]:
    """Turns every error of the client library about a kubeconfig into InputError. It raises whatever its code runs
    into, and only logs that a plugin gave no credentials: it would go on without any."""
    logged: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    except Exception as err:
        raise _unusable(f"{type(err).__name__}: {err}" if not isinstance(err, ConfigException) else str(err)) from err
    finally:
        root.removeHandler(handler)
    if logged:
        raise _unusable("; ".join(logged))


def _unusable(why: str) -> InputError:
    return InputError(f"the kubeconfig cannot be used: {why}", hint="kubectl config view --minify")


def _from_inside(settings: Any, context: str | None, kubeconfig: Path | None, places: list[str]) -> Cluster:
    if context is None and kubeconfig is None:
        with suppress(ConfigException):
            _CONFIG.load_incluster_config(client_configuration=settings)
            return Cluster(settings, "in-cluster")
    raise InputError(
        f"no cluster to talk to: there is no kubeconfig: {listed(places)}",
        hint="name a kubeconfig with `--kubeconfig FILE` or $KUBECONFIG",
    )
