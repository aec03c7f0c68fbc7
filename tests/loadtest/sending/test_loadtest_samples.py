"""Several bodies: read from a folder or by weight, chosen alike for any number of processes, and really sent."""

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from loadtest_rig import SPEC, running_server, sizes_seen, write_package

from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.config.measured import ServingSettings
from marina.config.record import read_package
from marina.config.spec import Spec
from marina.loadtest.calibrating.calibration import settings_of
from marina.loadtest.calibrating.tuning import tuned_spec
from marina.loadtest.comparing.answer_comparison import inputs_of
from marina.loadtest.comparing.sides import Contender, _request, find_contender
from marina.loadtest.running import RunOptions, TargetOptions, run_load_test
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, LoadRequest, packaged_request, with_samples


def spec_with(folder: Path, samples: object) -> Spec:
    return parse_spec(SPEC + f"load: {{samples: {json.dumps(samples)}}}\n", folder / "spec.yaml", files=False)


def request_of(folder: Path, samples: object) -> LoadRequest:
    write_package(folder / "build")
    package = read_package(folder / "build")
    request = packaged_request(package, folder / "build", "http://x:1")
    return with_samples(request, spec_with(folder, samples), package.record)


def which(request: LoadRequest, count: int, seed: int) -> list[int]:
    schedule = Schedule(arrivals="poisson", rate=count, warmup_s=0, duration_s=1, seed=seed)
    return schedule.choose_bodies([body.weight for body in request.all_bodies])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "samples").mkdir()
    for name, size in (("a.png", 10), ("b.jpg", 20), ("c.json", 30)):
        (tmp_path / "samples" / name).write_bytes(b"x" * size)
    (tmp_path / "samples/notes.txt").write_text("no body")
    return tmp_path


def test_all_bodies_of_a_folder_are_sent_as_often(folder: Path) -> None:
    request = request_of(folder, {"samples": 3})
    assert [(len(body.body), body.content_type, body.weight) for body in request.all_bodies] == [
        (10, "image/png", 1),
        (20, "image/jpeg", 1),
        (30, "application/json", 1),
    ]
    assert b"Content-Type: image/jpeg" in request.wire_bytes(request.all_bodies[1])
    assert request.wire_bytes(request.all_bodies[1]).endswith(b"\r\n\r\n" + b"x" * 20)


def test_bodies_are_sent_as_often_as_their_weights_say(folder: Path) -> None:
    request = request_of(folder, {"samples/a.png": 3, "samples/b.jpg": 1})
    counted = Counter(which(request, 10_000, seed=1))
    assert 7300 < counted[0] < 7700
    assert which(request, 50, seed=1) == which(request, 50, seed=1) != which(request, 50, seed=2)


def test_the_hash_of_the_bodies_tells_any_other_body_type_or_weight(folder: Path) -> None:
    (folder / "samples/d.png").write_bytes(b"y" * 10)
    (folder / "samples/e.jpg").write_bytes(b"x" * 10)
    asked = [{"samples/a.png": 1}, {"samples/d.png": 1}, {"samples/e.jpg": 1}, {"samples/a.png": 1, "samples/d.png": 3}]
    asked += [{"samples/a.png": 3, "samples/d.png": 1}]
    assert len({request_of(folder, samples).bodies_sha256 for samples in asked}) == len(asked)
    assert request_of(folder, asked[0]).bodies_sha256 == request_of(folder, asked[0]).bodies_sha256


def test_a_plan_that_went_through_json_has_the_same_bodies(folder: Path) -> None:
    schedule = Schedule(arrivals="poisson", rate=10, warmup_s=0, duration_s=1)
    plan = LoadPlan(request=request_of(folder, {"samples": 3}), schedule=schedule, timeout_s=10, limit_ms=50)
    again = LoadPlan.model_validate_json(plan.model_dump_json())
    assert [body.body for body in again.request.all_bodies] == [body.body for body in plan.request.all_bodies]


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ({"nowhere": 1}, "`load.samples`: got `nowhere`, allowed: files that end in "),
        ({"empty": 1}, "empty holds no file that ends in "),
        ({"samples/notes.txt": 1}, "`load.samples`: got `notes.txt`, allowed: files that end in "),
        ({"gone.png": 1}, "gone.png cannot be read: No such file or directory"),
    ],
)
def test_samples_that_cannot_be_sent_are_refused(folder: Path, samples: object, text: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InputError) as raised:
        request_of(folder, samples)
    assert text in raised.value.message


WRITER = """
name: tales
model: {source: hf:./model, handler: text, compile: eager}
slo: {ttft_p99_ms: 300, itl_p99_ms: 50, goodput: 0.9}
text: {slots: 4}
"""


def test_the_old_package_of_a_language_model_has_slots_of_its_own(tmp_path: Path) -> None:
    writing = {"folder": "m", "engine": "torch", "context": 9, "slots": 3, "waiting": 2, "prefill_chunk": 1}
    writing |= {"max_tokens": 9, "flush_ms": 1, "step_ms": 1, "speculation": "off", "ends": []}
    write_package(tmp_path / "old", spec_text=WRITER, handler="text", compile="eager", batch_sizes=[], text=writing)
    new = Contender("new", parse_spec(WRITER, tmp_path / "spec.yaml", files=False))
    old = find_contender(str(tmp_path / "old/model.mar"), new, tmp_path)
    assert (old.spec.writing.slots, old.spec.waiting) == (3, 2)


def test_answers_of_language_models_are_compared_whole_and_without_chance(tmp_path: Path) -> None:
    body = json.dumps({"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}).encode()
    request = LoadRequest(url="http://x:1", body=base64.b64encode(body), content_type="application/json")
    ((_, sent),) = inputs_of(request, parse_spec(WRITER, tmp_path / "spec.yaml", files=False))
    assert json.loads(sent.body) == {"prompt": "a", "stream": False, "temperature": 0}


@pytest.mark.parametrize(
    ("example", "more", "field"),
    [("language", {}, "source"), ("custom", {"files": ["train.py"]}, "files"), ("custom", {}, "handler")],
)
def test_a_tuned_spec_still_means_the_same_model(tmp_path: Path, example: str, more: Any, field: str) -> None:
    file = Path(f"config/examples/{example}/spec.yaml")
    data = yaml.safe_load(file.read_text())
    spec = parse_spec(yaml.safe_dump(data | {"model": data["model"] | more}), file)
    tuned = tuned_spec(spec, settings_of(spec), tmp_path / "tuned")
    was, now = (str(getattr(model, field)).replace("./", "") for model in (spec.model, tuned.model))
    assert now != was
    assert now.replace(f"{file.parent.resolve()}/", "") == was


def test_words_are_no_paths_whatever_lies_beside_the_spec(tmp_path: Path) -> None:
    for name in ("imagenet", "image", "torchvision", "torchvision:resnet18", "IMAGENET1K_V1"):
        (tmp_path / name).mkdir()
    model = {"source": "torchvision:resnet18", "weights": "IMAGENET1K_V1", "handler": "image", "labels": "imagenet"}
    spec = parse_spec(yaml.safe_dump({"name": "shells", "model": model}), tmp_path / "spec.yaml", files=False)
    tuned = tuned_spec(spec, settings_of(spec), tmp_path / "tuned").model
    assert {field: getattr(tuned, field) for field in model} == model


@pytest.mark.parametrize("samples", [{"samples": 1.0}, {"samples/a.png": 2.0}])
def test_a_tuned_spec_means_the_same_samples(folder: Path, samples: dict[str, float]) -> None:
    settings = ServingSettings(workers=1, threads=1, max_batch=1, max_batch_delay_ms=1)
    tuned = tuned_spec(spec_with(folder, samples), settings, folder / "tuned").load.samples
    assert tuned
    assert all(Path(name).is_absolute() and Path(name).exists() for name in tuned)


@pytest.mark.slow
def test_a_load_of_several_processes_sends_every_sample(folder: Path) -> None:
    out = folder / "build"
    write_package(out)
    with running_server(folder / "server") as url:
        options = RunOptions(rate=100, duration_s=2, max_duration_s=2, warmup_s=0, processes=2)
        outcome = run_load_test(spec_with(folder, {"samples": 1}), options, TargetOptions(out=out, url=url), quiet=True)
        sizes = sizes_seen(url)
    assert outcome.load.samples == 3
    assert set(sizes) == {"10", "20", "30"}
    assert sum(sizes.values()) == 200
    assert min(sizes.values()) > 40


def test_both_sides_of_a_comparison_get_the_samples_of_the_new_spec(folder: Path) -> None:
    write_package(folder / "build")
    package = read_package(folder / "build")
    new = Contender("new", spec_with(folder, {"samples": 1}), package, folder / "build")
    old = Contender("old", parse_spec(SPEC, folder / "old.yaml", files=False), package, folder / "build")
    requests = [_request(side, new, "http://x:1") for side in (new, old)]
    assert [len(request.bodies) for request in requests] == [3, 3]
    assert which(requests[0], 20, seed=1) == which(requests[1], 20, seed=1)
