from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import FILE_SOURCE, changed

from marina.config.errors import SpecError
from marina.config.load import parse_spec

IMAGE = {"height": 8, "width": 8}

# Every error of a spec: a change that causes it, and its whole text.
ERRORS: list[Any] = [
    pytest.param({"serving.max_batch_delay": 5}, "spec.yaml:6: `serving.max_batch_delay`: unknown field, did you mean "
                 "`max_batch_delay_ms`?", id="a misspelt field"),
    pytest.param({"slo.p99_ms": 9, "slo.zebra": 1}, "spec.yaml:7: `slo.zebra`: unknown field, allowed: `error_rate`, "
                 "`goodput`, `itl_p99_ms`, `p99_ms`, `regression`, `throughput_rps`, `ttft_p99_ms`", id="a field like "
                 "no other"),
    pytest.param({"name": None}, "spec.yaml:1: `name`: missing\n\n"
                 "hint: add `name` to the spec; `marina check --fields` says what it means", id="a missing field"),
    pytest.param({"model": None}, "spec.yaml:1: `model`: missing\n\n"
                 "hint: add `model` to the spec; `marina check --fields` says what it means", id="a missing section"),
    pytest.param({"tracing": {"sample": 0.1}}, "spec.yaml:5: `tracing.endpoint`: missing\n\nhint: add "
                 "`endpoint` to the spec; `marina check --fields` says what it means", id="traces that go nowhere"),
    pytest.param({"tracing": {"endpoint": "collector:4317"}}, "spec.yaml:6: `tracing.endpoint`: got `collector:4317`, "
                 "allowed: an address that begins with `http://` or `https://`, without a password", id="a gRPC address"),
    pytest.param({"tracing": {"endpoint": "http://me:key@c"}}, "spec.yaml:6: `tracing.endpoint`: got `http://…c`, "
                 "allowed: an address that begins with `http://` or `https://`, without a password", id="a key in the collector's address"),
    pytest.param({"tracing": {"endpoint": "http://c", "sample": 5}}, "spec.yaml:7: `tracing.sample`: got `5`, allowed: "
                 "1 or less", id="a share above one"),
    pytest.param({"name": "Shells"}, "spec.yaml:1: `name`: got `Shells`, allowed: at most 40 "
                 "lower-case letters, digits and `-`, the first a letter", id="a name that is no DNS label"),
    pytest.param({"version": 1.0}, "spec.yaml:5: `version`: got `1.0`, allowed: text\n\n"
                 'hint: put it in quotes: version: "…"', id="a number where text is meant"),
    pytest.param({"version": "a b"}, "spec.yaml:5: `version`: got `a b`, allowed: letters, digits, `.`, `_` and `-`, "
                 "at most 32", id="a version with a space"),
    pytest.param({"model.precision": "fp8"}, "spec.yaml:5: `model.precision`: got `fp8`, allowed: `bf16`, `fp16`, "
                 "`fp32`, `int4`, `int8`", id="a word that is not one of the choices"),
    pytest.param({"serving.workers": "3"}, 'spec.yaml:6: `serving.workers`: got `"3"`, allowed: `auto` or a number '
                 "above 0", id="a number in quotes"),
    pytest.param({"serving.queue": "many"}, "spec.yaml:6: `serving.queue`: got `many`, allowed: a whole number",
                 id="text where a number is meant"),
    pytest.param({"serving.queue": 2.5}, "spec.yaml:6: `serving.queue`: got `2.5`, allowed: a whole number",
                 id="half a number"),
    pytest.param({"serving.max_request_mb": "big"}, "spec.yaml:6: `serving.max_request_mb`: got `big`, allowed: "
                 "a number", id="text where a float is meant"),
    pytest.param({"serving.queue": 0}, "spec.yaml:6: `serving.queue`: got `0`, allowed: 1 or more", id="too small"),
    pytest.param({"slo.p99_ms": 9, "slo.regression": 0}, "spec.yaml:7: `slo.regression`: got `0`, allowed: more than 0",
                 id="nothing may be worse"),
    pytest.param({"slo.p99_ms": 0}, "spec.yaml:6: `slo.p99_ms`: got `0`, allowed: more than 0", id="zero"),
    pytest.param({"scaling.max_replicas": 2**31}, "spec.yaml:6: `scaling.max_replicas`: got `2147483648`, allowed: 2147483647 or less",
                 id="too large"),
    pytest.param({"load": 5}, "spec.yaml:5: `load`: got `5`, allowed: a mapping", id="a value for a section"),
    pytest.param({"model.batch_sizes": 4}, "spec.yaml:5: `model.batch_sizes`: got `4`, allowed: a list",
                 id="a value for a list"),
    pytest.param({"model.batch_sizes": []}, "spec.yaml:5: `model.batch_sizes`: got `[]`, allowed: 1 or more items",
                 id="an empty list"),
    pytest.param({"model.batch_sizes": [4, 1]}, "spec.yaml:5: `model.batch_sizes`: got `[4, 1]`, allowed: different "
                 "sizes in ascending order", id="unordered batch sizes"),
    pytest.param({"model.batch_sizes": [1, "4"]}, 'spec.yaml:7: `model.batch_sizes.1`: got `"4"`, allowed: a whole '
                 "number", id="a wrong item, on its line"),
    pytest.param({"model.image": IMAGE | {"mean": [1, 2]}}, "spec.yaml:8: `model.image.mean`: got `[1, 2]`, allowed: "
                 "1 number or 3, one for each channel", id="means for half the channels"),
    pytest.param({"model.image": IMAGE | {"channels": 2}}, "spec.yaml:8: `model.image.channels`: got `2`, allowed: "
                 "`1`, `3`", id="two channels"),
    pytest.param({"model.source": ""}, "spec.yaml:3: `model.source`: got ``, allowed: text that is not empty",
                 id="an empty source"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"1x": {"shape": [3]}}}, 'spec.yaml:7: `model.inputs.1x`: got '
                 "`1x` as a name, allowed: a name of letters, digits and `_`", id="an input that is no name"),
    pytest.param({"kubernetes.resources.memory": "lots"}, "spec.yaml:7: `kubernetes.resources.memory`: got `lots`, "
                 "allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`", id="no quantity"),
    pytest.param({"kubernetes.resources.memory": "0"}, 'spec.yaml:7: `kubernetes.resources.memory`: got `"0"`, '
                 "allowed: more than 0", id="no memory"),
    pytest.param({"kubernetes.resources.cpu": "0.0001"}, 'spec.yaml:7: `kubernetes.resources.cpu`: got `"0.0001"`, '
                 "allowed: thousandths of a core, `500m`", id="less than a thousandth of a core"),
    pytest.param({"kubernetes.resources.memory": "500m"}, "spec.yaml:7: `kubernetes.resources.memory`: got `500m`, "
                 "allowed: at least `1Mi`; `m` is a thousandth of a byte", id="half a byte"),
    # Combinations.
    pytest.param({"model.source": "resnet50"}, "spec.yaml:3: `model.source`: got `resnet50`, allowed: "
                 "`torchvision:NAME`, `./file.py:factory`, `./program.pt2`, `hf:./folder` or `hf:OWNER/NAME`", id="a source of no "
                 "known form"),
    pytest.param({"model.weights": None}, "spec.yaml:2: `model.weights`: missing: `torchvision:resnet18` needs "
                 "weights, "
                 "allowed: `random`, a weights name such as `IMAGENET1K_V2`, or a file\n\n"
                 "hint: add `weights` under `model`", id="no weights"),
    pytest.param(FILE_SOURCE | {"model.weights": "w.onnx"}, "spec.yaml:4: `model.weights`: `w.onnx` is ONNX, a graph "
                 "that was exported, and Marina compiles PyTorch's own code\n\nhint: --source ./model.py:Net --weights "
                 "net.pt, with the model's own code and the checkpoint of its training", id="an exported graph"),
    pytest.param(FILE_SOURCE | {"model.source": "./whole.pt"}, "spec.yaml:4: `model.weights`: got `random`, but "
                 "`./whole.pt` contains its weights\n\nhint: delete `weights`", id="weights beside a whole module"),
    pytest.param(FILE_SOURCE | {"model.weights": "m-00001-of-00002.safetensors"}, "spec.yaml:4: `model.weights`: got "
                 "`m-00001-of-00002.safetensors`, which is a part of the weights, allowed: their index, or one file with "
                 "all of them\n\nhint: weights: m.safetensors.index.json", id="one of two files of weights"),
    pytest.param(FILE_SOURCE | {"model.source": "p.pt2"}, "spec.yaml:4: `model.weights`: got `random`, but `p.pt2` "
                 "contains its weights\n\nhint: delete `weights`", id="weights beside a program"),
    pytest.param({"model": {"source": "./old.mar", "handler": "archive", "hidden_env": "("}}, "spec.yaml:5: "
                 "`model.hidden_env`: got `(`, allowed: a regular expression", id="no regular expression"),
    pytest.param({"model.handler": "imgae"}, "spec.yaml:5: `model.handler`: got `imgae`, allowed: `archive`, `audio`, `image`, "
                 "`tensor`, `text` or `./file.py:Class`\n\nhint: did you mean `image`?", id="an unknown handler"),
    pytest.param({"model.handler": "./my-handler.py:Mine", "model.inputs": {"x": {"shape": [3]}}}, "spec.yaml:5: "
                 "`model.handler`: got `./my-handler.py:Mine`, allowed: a file name that Python can import",
                 id="a handler file that cannot be imported"),
    pytest.param({"model.handler": "./async.py:Mine", "model.inputs": {"x": {"shape": [3]}}}, "spec.yaml:5: "
                 "`model.handler`: got `./async.py:Mine`, allowed: a file name that Python can import",
                 id="a handler file with the name of a keyword"),
    pytest.param({"model.handler": "./mine.py:class"}, "spec.yaml:5: `model.handler`: got `./mine.py:class`, allowed: "
                 "`archive`, `audio`, `image`, `tensor`, `text` or `./file.py:Class`", id="a handler with the name of a keyword"),
    pytest.param({"model.source": "./m.py:build"}, "spec.yaml:2: `model.image`: missing: `./m.py:build` does not say "
                 "what size its pictures have\n\nhint: add `image: {height: 224, width: 224}` under `model`",
                 id="images of unknown size"),
    pytest.param({"model.inputs": {"x": {"shape": [3]}}}, "spec.yaml:5: `model.inputs`: not for `handler: image`, only "
                 "for: `handler: tensor`, a handler of your own\n\nhint: delete `inputs`", id="inputs of an image model"),
    pytest.param({"model.handler": "tensor"}, "spec.yaml:2: `model.inputs`: missing: the handler `tensor` needs the "
                 "inputs of `torchvision:resnet18`\n\n"
                 "hint: add `inputs: {x: {shape: [3, 4], dtype: float32}}` under `model`", id="unknown inputs"),
    pytest.param(FILE_SOURCE | {"model.image": IMAGE}, "spec.yaml:10: `model.image`: not for `handler: tensor`, "
                 "only for: `handler: image`, a handler of your own\n\nhint: delete `image`", id="an image of a tensor model"),
    pytest.param(FILE_SOURCE | {"model.labels": "l.txt"}, "spec.yaml:10: `model.labels`: not for `handler: tensor`, "
                 "only for: `handler: image`, a handler of your own, `handler: text` with a `task`\n\n"
                 "hint: delete `labels`", id="labels of a tensor model"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [3], "dtype": "uint8", "min": -1}}}, "spec.yaml:11: "
                 "`model.inputs.x.min`: got -1, allowed for `uint8`: 0 or more", id="a limit that the type lacks"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [3], "min": 2, "max": 1}}}, "spec.yaml:10: "
                 "`model.inputs.x.min`: got 2, but `max` is 1", id="an empty range"),
    pytest.param({"model.image": IMAGE | {"top_k": 0}}, "spec.yaml:8: `model.image.top_k`: got 0, but answers of the "
                 "`image` handler name classes\n\nhint: top_k: 5", id="no classes"),
    pytest.param({"model.image": IMAGE | {"resize": 4}}, "spec.yaml:8: `model.image.resize`: got 4, but 8×8 is cut out "
                 "of it\n\nhint: resize: 8", id="a cut larger than the picture"),
    pytest.param({"model.precision": "fp16"}, "spec.yaml:5: `model.precision`: got `fp16` on `cpu`, allowed: `bf16`, "
                 "`fp32`, `int8`", id="fp16 on cpu"),
    pytest.param({"serving.device": "cuda", "kubernetes.resources.gpu": 1, "model.precision": "int8",
                  "model.calibration": "c"}, "spec.yaml:5: `model.precision`: got `int8` on `cuda`, allowed: `bf16`, "
                 "`fp16`, `fp32`", id="int8 on cuda"),
    pytest.param({"model.precision": "int4"}, "spec.yaml:5: `model.precision`: got `int4` on `cpu`, allowed: `bf16`, "
                 "`fp32`, `int8`", id="int4 of a classifier"),
    pytest.param({"model.precision": "int8"}, "spec.yaml:2: `model.calibration`: missing: `precision: int8` is "
                 "calibrated on real inputs\n\nhint: add `calibration: ./calibration`, a folder of pictures or `.npy` "
                 "inputs", id="int8 without calibration"),
    pytest.param({"model.cpu_target": "amx", "model.compile": "jit"}, "spec.yaml:5: `model.cpu_target`: got `amx`, "
                 "but with `compile: jit` nothing is compiled for a CPU target\n\nhint: delete `cpu_target`", id="a "
                 "target of nothing"),
    pytest.param({"model.cpu_target": "x86-64-v3", "model.precision": "bf16"}, "spec.yaml:5: `model.cpu_target`: got "
                 "`x86-64-v3`, but bf16 needs AVX-512\n\nhint: cpu_target: x86-64-v4, or another `precision`",
                 id="bf16 without AVX-512"),
    pytest.param({"model.compile": "eager"}, "spec.yaml:5: `model.compile`: got `eager`, which runs the source of "
                 "`./file.py:factory`, but `model.source` is `torchvision:resnet18`\n\nhint: compile: export",
                 id="eager without source"),
    pytest.param(FILE_SOURCE | {"model.compile": "eager", "model.precision": "int8", "model.calibration": "c"},
                 "spec.yaml:11: `model.precision`: got `int8`, but `compile: eager` runs the source, and only an "
                 "exported "
                 "program is quantised\n\nhint: compile: aot, or another `precision`", id="int8 of source"),
    pytest.param({"serving.max_batch": 8}, "spec.yaml:6: `serving.max_batch`: got 8, but the largest of "
                 "`model.batch_sizes` is 4\n\nhint: add 8 to `model.batch_sizes`, or use `max_batch: 4`",
                 id="a batch that is not compiled"),
    pytest.param({"serving.queue": 3}, "spec.yaml:6: `serving.queue`: got 3, but a batch of 4 must fit in it",
                 id="a queue shorter than a batch"),
    pytest.param({"serving.workers": 2, "serving.threads": 2}, "spec.yaml:6: `serving.workers`: got 2 workers × 2 "
                 'threads = 4, but `kubernetes.resources.cpu` is 2\n\nhint: use fewer, or `cpu: "4"`',
                 id="more threads than cores"),
    pytest.param({"serving.device": "cuda"}, "spec.yaml:6: `kubernetes.resources.gpu`: got 0, but `serving.device` is "
                 "`cuda`\n\nhint: gpu: 1", id="cuda without a GPU"),
    pytest.param({"kubernetes.resources.gpu": 1}, "spec.yaml:7: `kubernetes.resources.gpu`: got 1, but "
                 "`serving.device` "
                 "is `cpu`\n\nhint: gpu: 0, or `device: cuda`", id="a GPU without cuda"),
    pytest.param({"serving.device": "cuda", "kubernetes.resources": {"gpu": 2, "cpu": 3}, "serving.workers": 3},
                 "spec.yaml:10: `kubernetes.resources.gpu`: got 2, but `serving.workers` is 3: workers must be a "
                 "multiple "
                 "of GPUs", id="workers that do not share GPUs evenly"),
    pytest.param({"serving.java_heap_mb": 1500, "kubernetes.resources.memory": "2Gi"},
                 "spec.yaml:6: `serving.java_heap_mb`: got 1500, but "
                 "`kubernetes.resources.memory` is 2Gi, and at least half of it must be left for the workers", id="Java takes it all"),
    pytest.param({"kubernetes.resources.memory": "800Mi"},
                 "spec.yaml:6: `serving.java_heap_mb`: got 512, but `kubernetes.resources.memory` is 800Mi, and at least half of it "
                 "must be left for the workers", id="a default that what is written contradicts"),
    pytest.param({"serving.max_request_mb": 200},
                 "spec.yaml:6: `serving.max_request_mb`: got 200, allowed: at most a sixth of `serving.java_heap_mb`, "
                 "89 MB\n\nhint: java_heap_mb: 1145", id="a body that ends Java"),
    pytest.param({"serving.max_request_mb": 85, "kubernetes.resources.memory": "1500Mi"},
                 "spec.yaml:9: `kubernetes.resources.memory`: the largest allowed batches take 1340 MB on 2 workers, "
                 "on top of Java and models\n\nhint: less `max_request_mb` or `max_batch`, or `memory: auto`",
                 id="requests that the memory does not hold"),
    pytest.param({"slo.p99_ms": 40000}, "spec.yaml:6: `slo.p99_ms`: got 40000, but workers are killed after 30 s\n\n"
                 "hint: raise `serving.response_timeout_s`, or lower `slo.p99_ms`", id="an objective past the timeout"),
    pytest.param({"slo.p99_ms": 2}, "spec.yaml:6: `slo.p99_ms`: got 2, but a single request waits 2 ms for its "
                 "batch\n\n"
                 "hint: lower `serving.max_batch_delay_ms`", id="an objective within the batch delay"),
    pytest.param({"scaling.min_replicas": 11}, "spec.yaml:6: `scaling.min_replicas`: got 11, but `max_replicas` is 10",
                 id="more at rest than at most"),
    pytest.param({"load.samples": {"cat.png": 0}}, "spec.yaml:7: `load.samples.cat.png`: got `0`, allowed: more than 0",
                 id="a sample that is never sent"),
    pytest.param({"load.sample": "cat.avif"}, "spec.yaml:6: `load.sample`: got `cat.avif`, allowed: a file that ends in "
                 "`.bmp`, `.flac`, `.gif`, `.jpeg`, `.jpg`, `.json`, `.mp3`, `.npy`, `.ogg`, `.png`, `.tif`, `.tiff`, `.wav`, `.webp`", id="a sample of an unknown kind"),
    pytest.param({"scaling.metric": "gpu"}, "spec.yaml:6: `scaling.metric`: got `gpu`, but `kubernetes.resources.gpu` "
                 "is 0\n\nhint: metric: requests",
                 id="a metric of GPUs that are not there"),
    pytest.param({"scaling.metric": "cpu"}, "spec.yaml:6: `scaling.metric`: got `cpu`, allowed: `gpu`, `queue_time`, "
                 "`requests`, "
                 "`waiting`",
                 id="a metric that is none"),
    pytest.param({"scaling.prometheus": "http://prometheus:99999"}, "spec.yaml:6: `scaling.prometheus`: got "
                 "`http://prometheus:99999`, allowed: an address with a host and a port from 1 to 65535", id="no port"),
    pytest.param({"serving.cache": {"redis": "redis://cache:70000"}}, "spec.yaml:7: "
                 "`serving.cache.redis`: got `redis://cache:70000`, allowed: an address with a host and a port from "
                 "1 to 65535", id="no port of Redis"),
    pytest.param({"kubernetes.model": {"url": "https://[store/a.mar"}}, "spec.yaml:7: `kubernetes.model.url`: got "
                 "`https://[store/a.mar`, allowed: an address with a host and a port from 1 to 65535", id="no host"),
    pytest.param({"scaling.prometheus": "prometheus:9090"}, "spec.yaml:6: `scaling.prometheus`: got "
                 "`prometheus:9090`, allowed: an address that begins with `http://` or `https://`, without a password",
                 id="an address without its scheme"),
    pytest.param({"scaling.prometheus": "http://me:key@prometheus:9090"}, "spec.yaml:6: `scaling.prometheus`: got "
                 "`http://…prometheus:9090`, allowed: an address that begins with `http://` or `https://`, without a "
                 "password", id="an address with a password"),
    pytest.param({"kubernetes.namespace": "kube-system"}, "spec.yaml:6: `kubernetes.namespace`: got `kube-system`, which "
                 "others use, and the rendered Namespace makes it `restricted` for all its pods\n\nhint: "
                 "create_namespace: false, or a namespace of its own", id="a namespace of the cluster"),
    pytest.param({"kubernetes.network": {"policy": False, "clients": ["shop"]}}, "spec.yaml:8: "
                 "`kubernetes.network.clients`: given, but `policy` is `false`, so it would have no effect\n\nhint: "
                 "delete `clients`",
                 id="clients without a policy"),
    pytest.param({"kubernetes.network.egress": ["10.0.0.0/8"]}, 'spec.yaml:8: `kubernetes.network.egress.0`: got `10.0.0.0/8`, allowed: `CIDR:PORT` such as `10.0.0.0/8:443` or `10.0.0.5/32:443`',
                 id="egress without a port"),
    pytest.param({"kubernetes.model": {"url": "https://s/m", "claim": "x"}}, 'spec.yaml:6: `kubernetes.model`: got `{"url": "https://s/m", "claim": "x"}`, allowed: exactly one of `claim`, `image`, `url`, or `secret` alone with `MODEL_URL` in it',
                 id="a MAR from two places"),
    pytest.param({"kubernetes.model": {}}, "spec.yaml:6: `kubernetes.model`: got `{}`, allowed: exactly one of "
                 "`claim`, `image`, `url`, or `secret` alone with `MODEL_URL` in it",
                 id="a MAR from nowhere"),
    pytest.param({"kubernetes.model": {"claim": "x/../y"}}, "spec.yaml:7: `kubernetes.model.claim`: got `x/../y`, "
                 "allowed: the name of a claim, or `NAME/PATH` such as `models/digits.mar`",
                 id="a path out of the volume"),
    pytest.param({"kubernetes.tolerations": ["a=b=c:Sometimes"]}, "spec.yaml:7: `kubernetes.tolerations.0`: got "
                 "`a=b=c:Sometimes`, allowed: a taint such as `gpu=yes:NoSchedule`",
                 id="a taint with another effect"),
    pytest.param({"kubernetes.node_selector": {"pool": "a b"}}, 'spec.yaml:7: `kubernetes.node_selector.pool`: got `a b`, allowed: letters, digits, `-`, `_` and `.`, at most 63, the first and the last a letter or digit',
                 id="a label with a space"),
    pytest.param({"kubernetes.node_selector": {"pool": 1}}, 'spec.yaml:7: `kubernetes.node_selector.pool`: got `1`, allowed: text\n\nhint: put it in quotes: pool: "…"',
                 id="a label that is a number"),
    pytest.param({"kubernetes.spot": {"provider": "eks", "on_demand": "33%"}}, "spec.yaml:8: `kubernetes.spot.on_demand`: got "
                 "`33%`, allowed: `0%`, `10%`, `20%`, `25%`, `30%` and so on to `90%`", id="on_demand"),
    pytest.param({"kubernetes.registry": "https://registry.local/"}, "spec.yaml:6: `kubernetes.registry`: got "
                 "`https://registry.local/`, allowed: a registry and a path such as `registry.local/team`",
                 id="a registry with a scheme"),
    pytest.param({"kubernetes.route": {"gateway": "public"}}, "spec.yaml:7: `kubernetes.route.gateway`: got `public`, "
                 "allowed: `NAMESPACE/NAME`",
                 id="a gateway without its namespace"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "auth": {}}},
                 "spec.yaml:8: `kubernetes.route.auth`: got neither `api_keys` nor `jwt`, allowed: one of "
                 "them\n\nhint: auth: {api_keys: digits-keys}", id="a gateway that knows nobody"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "auth": {"api_keys": "k", "jwt": {"issuer": "i", "jwks": "https://i/k"}}}},
                 "spec.yaml:8: `kubernetes.route.auth`: got both `api_keys` and `jwt`, allowed: one of "
                 "them\n\nhint: auth: {api_keys: digits-keys}", id="two ways to know a client"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "auth": {"jwt": {"issuer": "i", "jwks": "i/k"}}}},
                 "spec.yaml:11: `kubernetes.route.auth.jwt.jwks`: got `i/k`, allowed: an address that begins "
                 "with `http://` or `https://`, without a password", id="keys of tokens without an address"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "auth": {"api_keys": "k"}, "limit_rps": "auto", "limit_by": "client"}},
                 "spec.yaml:10: `kubernetes.route.limit_rps`: got `auto`, but `limit_by` is `client`: nothing "
                 "measured says what one client may send\n\nhint: limit_rps: 10", id="a measured limit for each client"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "limit_rps": 5, "limit_by": "client"}},
                 "spec.yaml:9: `kubernetes.route.limit_by`: got `client`, but without `auth` the gateway knows "
                 "none\n\nhint: limit_by: all", id="a limit for clients that nobody knows"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "max_parallel": 5}},
                 "spec.yaml:8: `kubernetes.route.max_parallel`: got 5, but without `auth` or `limit_rps` no "
                 "policy is rendered\n\nhint: limit_rps: auto", id="parallel requests without a policy"),
    pytest.param({"kubernetes.resources.gpu_resource": "gpu"}, "spec.yaml:7: `kubernetes.resources.gpu_resource`: got "
                 "`gpu`, allowed: a resource such as `nvidia.com/gpu`",
                 id="a resource without its vendor"),
    pytest.param({"serving.queue": 2**31}, "spec.yaml:6: `serving.queue`: got `2147483648`, allowed: 2147483647 or less",
                 id="more than Java counts to"),
    pytest.param({"serving.queue": "1e3"}, "spec.yaml:6: `serving.queue`: got `1e3`, allowed: a whole number\n\n"
                 "hint: queue: 1000", id="a number that YAML reads as text"),
    pytest.param({"serving.drain_timeout_s": float("inf")}, "spec.yaml:6: `serving.drain_timeout_s`: got `Infinity`, "
                 "allowed: a finite number", id="no end"),
    pytest.param({"slo.p99_ms": 9, "slo.error_rate": float("nan")}, "spec.yaml:7: `slo.error_rate`: got `NaN`, "
                 "allowed: a finite number", id="not a number"),
    pytest.param({"slo.p99_ms": 9, "slo.goodput": 1.0}, "spec.yaml:7: `slo.goodput`: got `1.0`, allowed: less than 1",
                 id="every request"),
    pytest.param({"version": "1.0\n"}, 'spec.yaml:5: `version`: got `"1.0\\n"`, allowed: letters, digits, `.`, `_` '
                 "and `-`, at most 32", id="a line end"),
    pytest.param({"model.labels": ""}, "spec.yaml:5: `model.labels`: got ``, allowed: text that is not empty",
                 id="an empty path"),
    pytest.param(FILE_SOURCE | {"model.inputs": {}}, "spec.yaml:6: `model.inputs`: got `{}`, allowed: 1 or more items",
                 id="a model without inputs"),
    pytest.param(FILE_SOURCE | {"model.outputs": ["a", "a"]}, 'spec.yaml:10: `model.outputs`: got `["a", "a"]`, '
                 "allowed: a different name for each output", id="two outputs of one name"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [3, {"max": 4, "mix": 1}]}}}, "spec.yaml:11: "
                 "`model.inputs.x.shape.1.mix`: unknown field, did you mean `max`?", id="a misspelt field of a length"),
    pytest.param({"kubernetes.resources.cpu": 1e-5}, "spec.yaml:7: `kubernetes.resources.cpu`: got `1e-05`, allowed: "
                 "thousandths of a core, `500m`", id="cores with an exponent"),
    pytest.param({"kubernetes.resources.cpu": "1" * 4000}, f'spec.yaml:7: `kubernetes.resources.cpu`: got `"{"1" * 56}'
                 "...`, allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`", id="cores without end"),
    pytest.param({"kubernetes.resources.memory": "9e99"}, "spec.yaml:7: `kubernetes.resources.memory`: got `9e99`, "
                 "allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`", id="more than Kubernetes keeps"),
    pytest.param({"kubernetes.resources.memory": "٣Gi"}, "spec.yaml:7: `kubernetes.resources.memory`: got `٣Gi`, "
                 "allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`", id="other digits"),
    pytest.param({"kubernetes.node_selector": {"pool": "größe"}}, "spec.yaml:7: `kubernetes.node_selector.pool`: got "
                 "`größe`, allowed: letters, digits, `-`, `_` and `.`, at most 63, the first and the last a letter or "
                 "digit", id="other letters"),
    pytest.param({"kubernetes.registry": "https://registry.local/team"}, "spec.yaml:6: `kubernetes.registry`: got "
                 "`https://registry.local/team`, allowed: a registry and a path such as `registry.local/team`",
                 id="a registry with a scheme and a path"),
    pytest.param({"kubernetes.route": {"gateway": "a/b", "path": "digits"}}, "spec.yaml:8: `kubernetes.route.path`: got "
                 "`digits`, allowed: a path that begins with `/`, without a query", id="a path without a slash"),
    pytest.param({"kubernetes.network.egress": ["10.0.0.1:443"]}, "spec.yaml:8: `kubernetes.network.egress.0`: got "
                 "`10.0.0.1:443`, allowed: `CIDR:PORT` such as `10.0.0.0/8:443` or `10.0.0.5/32:443`",
                 id="egress to an address"),
    pytest.param({"kubernetes.network.dns": ["a:53", "10.0.0.0/255.0.0.0:53"]}, "spec.yaml:9: `kubernetes.network.dns.1`: "
                 "got `10.0.0.0/255.0.0.0:53`, allowed: `NAMESPACE:PORT` or `CIDR:PORT` such as `openshift-dns:5353`",
                 id="a netmask"),
    pytest.param({"kubernetes.network": {"policy": False, "dns": ["a:53"]}}, "spec.yaml:8: `kubernetes.network.dns`: "
                 "given, but `policy` is `false`, so it would have no effect\n\nhint: delete `dns`",
                 id="name servers without a policy"),
    pytest.param({"kubernetes.pod.mounts": {"/a/../b": "v"}}, "spec.yaml:8: `kubernetes.pod.mounts./a/../b`: got "
                 "`/a/../b` as a name, allowed: a path that begins with `/`, without `..`", id="a mount that goes up"),
    pytest.param({"kubernetes.pod.env_from": ["configmap/a", "b"]}, "spec.yaml:9: `kubernetes.pod.env_from.1`: got `b`, "
                 "allowed: `secret/NAME` or `configmap/NAME`", id="variables from nowhere"),
    pytest.param({"kubernetes.monitoring.labels": {"a b": "c"}}, "spec.yaml:8: `kubernetes.monitoring.labels.a b`: got `a b` as a name, "
                 "allowed: letters, digits, `-`, `_` and `.`, at most 63, the first and the last a letter or digit, with "
                 "or without `example.org/` before them", id="a label with a space"),
]  # fmt: skip


def error_of(data: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as raised:
        parse_spec(yaml.safe_dump(data, sort_keys=False), Path("spec.yaml"), files=False)
    return raised.value


@pytest.mark.parametrize(("changes", "text"), ERRORS)
def test_an_error_says_file_line_field_value_and_what_is_allowed(changes: dict[str, Any], text: str) -> None:
    assert str(error_of(changed(changes))) == text


def test_all_errors_of_fields_come_at_once_in_the_order_of_the_lines_and_combinations_after_them() -> None:
    combinations = {"serving.max_batch": 8, "scaling.min_replicas": 99}
    wrong = {"name": "X Y", "model.precision": "int9", "ls": 1}
    fields = [problem.field for problem in error_of(changed(wrong | combinations)).problems]
    assert fields == ["name", "model.precision", "ls"]
    fields = [problem.field for problem in error_of(changed(combinations)).problems]
    assert fields == ["serving.max_batch", "scaling.min_replicas"]


def test_a_wrong_item_is_one_error_of_its_list() -> None:
    error = error_of(changed({"model.batch_sizes": [0], "serving.max_batch": 8}))
    assert [problem.field for problem in error.problems] == ["model.batch_sizes.0"]


def test_a_bare_off_is_not_taken_for_false() -> None:
    text = "text: {context: 600}\nserving: {access_log: off}\n"
    text += (
        'name: tales\nversion: "1"\nmodel: {source: hf:./m, handler: text, compile: aot}\nload: {sample: ./s.json}\n'
    )
    spec = parse_spec(text, Path("spec.yaml"), files=False)
    assert spec.serving.access_log == "off"
