"""The rules about the addresses that TorchServe listens on: their form, who can reach them, and shared ports."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from marina.config.lint.finding import Finding
from marina.config.lint.torchserve_keys import PROPERTIES

# ConfigManager.ADDRESS_PATTERN of the jar: no IPv6, no path, no spaces.
_ADDRESS = re.compile(r"(https?)://([^:^/]+)(?::([0-9]+))?|unix:/.*", re.IGNORECASE)
_FORMS = "`http://HOST:PORT`, `https://HOST:PORT`, `unix:/PATH`"
# The ports that TorchServe takes for an address without one: for http and for https.
_PORTS = {
    "inference_address": (80, 443),
    "management_address": (8081, 8444),
    "metrics_address": (8082, 8445),
}
_GRPC = {"grpc_inference_address": "grpc_inference_port", "grpc_management_address": "grpc_management_port"}
_PUBLIC = "inference_address"  # the only one that other machines should reach


@dataclass(frozen=True)
class _Listener:
    key: str
    host: str
    port: int

    def clashes_with(self, other: "_Listener") -> bool:
        return self.port == other.port != 0 and (self.host == other.host or "0.0.0.0" in (self.host, other.host))


def check_addresses(values: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that is wrong with the addresses in a config.properties, given its values by key."""
    listeners = []
    for key in (*_PORTS, *_GRPC):
        findings = list(_check_form(key, values))
        yield from findings
        if any(finding.level == "error" for finding in findings):
            continue
        listener = _listener(key, values)
        if listener is not None:
            listeners.append(listener)
            if key in values:
                yield from _check_reach(listener)
    if values.get("enable_metrics_api", "").lower() == "false":
        listeners = [listener for listener in listeners if listener.key != "metrics_address"]
    yield from _check_ports(listeners, values)


def _check_form(key: str, values: Mapping[str, str]) -> Iterator[Finding]:
    value = values.get(key, "")
    if key not in values or "$$" in value:  # TorchServe replaces `$$NAME$$`
        return
    if key in _GRPC:
        if not value or re.search(r"[/\s]|^[^:]*:\d+$", value):
            text = f"got `{value}`, allowed: a host or an IP address, without scheme and port"
            yield Finding(key, "error", "address-format", text, f"{key}={PROPERTIES[key].default}")
        return
    match = _ADDRESS.fullmatch(value)
    if match is None:
        text = f"got `{value}`, allowed: {_FORMS}; TorchServe stops at its start"
        yield Finding(key, "error", "address-format", text, f"{key}={PROPERTIES[key].default}")
    elif match[3] and (len(match[3]) > 5 or int(match[3]) >= 65535):
        yield Finding(
            key,
            "error",
            "address-format",
            f"got port `{match[3]}`, allowed: 0 to 65534",
            f"{key}={PROPERTIES[key].default}",
        )
    elif match[2] and not match[3] and key == _PUBLIC:
        port = _PORTS[key][match[1].lower() == "https"]
        yield Finding(key, "warning", "address-port", f"no port, so TorchServe takes {port}", f"{key}={value}:8080")
    if match and match[1] and match[1].lower() == "https" and not _has_certificate(values):
        text = "no keystore and no certificate, so TorchServe makes a self-signed one"
        yield Finding(key, "warning", "tls-files", text, "certificate_file=<PEM file> and private_key_file=<PEM file>")


def _has_certificate(values: Mapping[str, str]) -> bool:
    return bool(values.get("keystore") or (values.get("certificate_file") and values.get("private_key_file")))


def _listener(key: str, values: Mapping[str, str]) -> _Listener | None:
    value = values.get(key, PROPERTIES[key].default)
    if key in _GRPC:
        port = values.get(_GRPC[key], PROPERTIES[_GRPC[key]].default)
        return _Listener(key, value, int(port)) if re.fullmatch("[0-9]{1,5}", port) else None
    match = _ADDRESS.fullmatch(value)
    if match is None or not match[2] or "$$" in value:
        return None  # a Unix socket, or known only when TorchServe has replaced `$$NAME$$`
    return _Listener(key, match[2], int(match[3] or _PORTS[key][match[1].lower() == "https"]))


def _check_reach(listener: _Listener) -> Iterator[Finding]:
    key, hint = listener.key, f"{listener.key}={PROPERTIES[listener.key].default}"
    if key == _PUBLIC or _is_loopback(listener.host):
        return
    if "management" in key:
        text = f"`{listener.host}` is not loopback: anyone who can reach it may scale models and register workflows"
        yield Finding(key, "warning", "management-exposed", text, hint)
    else:
        text = f"`{listener.host}` is not loopback: it is open to the network"
        yield Finding(key, "warning", "open-address", text, hint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_ports(listeners: list[_Listener], values: Mapping[str, str]) -> Iterator[Finding]:
    tokens_off = values.get("disable_token_authorization", "").lower() == "true"
    for first, second in combinations(listeners, 2):
        shared = {first.key, second.key} == {"inference_address", "management_address"}
        if not first.clashes_with(second) or (shared and tokens_off):
            continue
        for listener, other in ((second, first), (first, second)):
            key = next((key for key in (_GRPC.get(listener.key, ""), listener.key) if key in values), None)
            if key is not None:
                text = f"port {listener.port} is also that of `{other.key}`"
                yield Finding(key, "error", "port-clash", text, f"{key}={PROPERTIES[key].default}")
                break
