"""The rules about keys of model-config.yaml that are missing or do not fit together."""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from marina.config.lint.finding import Finding

_Values = Mapping[str, Any]
_Rule = Callable[[_Values, Set[str]], Iterator[Finding]]


def check_combinations(values: _Values, given: Set[str]) -> Iterator[Finding]:
    """Mistakes in combinations of `values`, the settings that are right by themselves; `given` has the names of all
    settings in the file, wrong ones included."""
    for rule in _RULES:
        yield from rule(values, given)


def _workers(values: _Values, given: Set[str]) -> Iterator[Finding]:
    low, high = values.get("minWorkers"), values.get("maxWorkers")
    default = "TorchServe starts the default number: one for each GPU, or for each processor if there is none"
    missing = [key for key in ("minWorkers", "maxWorkers") if key not in given]
    if len(missing) == 2:
        text = f"neither it nor `maxWorkers` is set: {default}"
        yield Finding("minWorkers", "warning", "workers", text, "minWorkers: 1 and maxWorkers: 1")
    elif missing:
        other = "minWorkers" if missing[0] == "maxWorkers" else "maxWorkers"
        text = f"`{missing[0]}` is not set, and without it `{other}` is ignored: {default}"
        yield Finding(other, "error", "workers", text, f"{missing[0]}: {values.get(other) or 1}")
    elif low is None or high is None:
        return
    elif high < low:
        text = f"got `{high}`, which is under `minWorkers` {low}, so both are ignored: {default}"
        yield Finding("maxWorkers", "error", "workers", text, f"maxWorkers: {low}")
    elif high > low:
        text = f"got `{high}`, but TorchServe never scales from `minWorkers` {low} up to it: {low} will run"
        yield Finding("maxWorkers", "warning", "workers-differ", text, f"minWorkers: {high}, or maxWorkers: {low}")


def _timeouts(values: _Values, given: Set[str]) -> Iterator[Finding]:
    for key in ("responseTimeout", "startupTimeout"):
        if key not in given:
            text = "not set, so it is 120 seconds, whatever config.properties and the register call say"
            yield Finding(key, "warning", "timeout-reset", text, f"{key}: 120")
    window, startup = values.get("maxRetryTimeoutInSec", 300), values.get("startupTimeout", 120)
    if window == 0:
        text = "a worker that dies once is given up"
        yield Finding("maxRetryTimeoutInSec", "warning", "retry-window", text, f"maxRetryTimeoutInSec: {startup + 60}")
    elif window < startup + 60:
        text = f"{window} seconds, less than `startupTimeout` {startup} + 60: a worker may be given up while it loads"
        yield Finding("maxRetryTimeoutInSec", "warning", "retry-window", text, f"maxRetryTimeoutInSec: {startup + 60}")
    if values.get("clientTimeoutInMills", 0) > 0:
        text = "a request that waits longer is dropped without an answer, and its client hangs"
        yield Finding("clientTimeoutInMills", "error", "client-timeout", text, "delete the line, set responseTimeout")


def _batching(values: _Values, given: Set[str]) -> Iterator[Finding]:
    one_by_one = {"asyncCommunication", "useJobTicket"} & {key for key, value in values.items() if value is True}
    size = values.get("batchSize", 1)
    if "batchSize" not in given and not one_by_one:
        yield Finding("batchSize", "warning", "batch-size", "not set, so it is 1: nothing is batched", "batchSize: 8")
    if values.get("maxBatchDelay") == 0:
        text = "0 does not mean no delay, it means the default of 100 ms"
        yield Finding("maxBatchDelay", "error", "batch-delay", text, "maxBatchDelay: 1")
    if values.get("useJobTicket") and size > 1:
        text = f"a worker takes one ticket for each batch, so `batchSize` {size} never fills"
        yield Finding("useJobTicket", "error", "job-ticket", text, "batchSize: 1, or useJobTicket: false")
    if values.get("asyncCommunication") and size > 1:
        text = f"fails with `batchSize` {size}: TorchServe changes a list while it iterates over it"
        yield Finding("asyncCommunication", "error", "async-batch", text, "batchSize: 1")


def _sequences(values: _Values, _given: Set[str]) -> Iterator[Finding]:
    if values.get("sequenceBatching") and not values.get("sequenceMaxIdleMSec"):
        text = "needs `sequenceMaxIdleMSec` above 0, without it no sequence is ever started"
        yield Finding("sequenceBatching", "error", "sequence-idle", text, "sequenceMaxIdleMSec: 1000")


def _devices(values: _Values, given: Set[str]) -> Iterator[Finding]:
    parallel, level = "parallelType" in values, values.get("parallelLevel", 0)
    if parallel and "torchrun" not in given and values["parallelType"].lower() != "custom":
        consequence = "TorchServe ignores it" if level == 0 else "each worker fails with a NullPointerException"
        text = f"needs a `torchrun` section, without it {consequence}"
        yield Finding("parallelType", "error", "parallel-torchrun", text, "torchrun: {nproc-per-node: 2}")
    elif parallel and "torchrun" not in given and level == 0:
        text = "needs `parallelLevel` above 0, without it TorchServe ignores it"
        yield Finding("parallelType", "error", "parallel-torchrun", text, "parallelLevel: 2")
    for key in ("parallelLevel", "torchrun"):
        if values.get(key) and "parallelType" not in given:
            text = "has no effect without `parallelType`"
            yield Finding(key, "error", "parallel-torchrun", text, "parallelType: tp")
    if values.get("deviceIds") and str(values.get("deviceType", "")).lower() == "cpu":
        yield Finding("deviceIds", "error", "device-ids", "has no effect with `deviceType` cpu", "delete the line")


def _environment(values: _Values, _given: Set[str]) -> Iterator[Finding]:
    if values.get("useVenv"):
        text = "packages are installed into it only with `install_py_dep_per_model=true` in config.properties"
        yield Finding("useVenv", "warning", "venv", text, "useVenv: false, and install the packages in the image")


_RULES: tuple[_Rule, ...] = (_workers, _timeouts, _batching, _sequences, _devices, _environment)
