"""The Job of pods that send a load, which `loadtest --dry-run` prints without a cluster."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

from config.errors import InputError
from config.spec import Spec
from k8s.manifests import LoadJob, Plan, load_objects, read_load_image, to_yaml
from loadtest.judging import client_timeout_s, objective_of
from loadtest.running import RunOptions
from loadtest.sending import LoadPlan, packaged_request, with_samples


def image_of(spec: Spec, folder: Path) -> str:
    """The image of the sending pods: by digest, if `marina image --target loadtest --push` recorded one."""
    built = read_load_image(folder, spec)
    return built.reference if built else f"{spec.kubernetes.registry}/marina-loadtest:{version('marina')}"


def job_of(image: str, load: LoadPlan, name: str) -> LoadJob:
    """The Job of one load."""
    seconds = load.schedule.total_s + load.timeout_s
    return LoadJob(name=name, image=image, text=load.model_dump_json(), parts=load.parts, seconds=seconds)


def dry_run_text(spec: Spec, plan: Plan, image: str, how: RunOptions, options: argparse.Namespace) -> str:
    """The objects of a run as YAML, or as JSON with `--json`, as `kubectl create -f -` takes them."""
    if plan.package is None:
        raise InputError("nothing was packaged yet, so there is no sample to send", hint=f"marina package {spec.file}")
    objective = objective_of(spec)
    schedule = how.schedule(spec, objective)
    url = f"http://{plan.name}.{plan.namespace}.svc:{plan.ports.inference}"
    request = packaged_request(plan.package, options.out / spec.name, url)
    load = LoadPlan(
        request=with_samples(request, spec, plan.package.record, schedule.trace),
        schedule=schedule,
        parts=how.processes,
        timeout_s=client_timeout_s(objective, how.timeout_s),
        **objective.limits,
    )
    objects = load_objects(plan, job_of(image, load, f"{plan.name}-load"))
    if options.json:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n"
    return to_yaml(objects)
