"""Specs that would exhaust the memory or the stack, or attack the readers of alerts, and misspelt keys."""

import inspect
from pathlib import Path

import pytest
import yaml
from specs import MINIMAL, changed, make_spec

from marina.config.errors import InputError, SpecError
from marina.config.load import load_spec, parse_spec
from marina.config.torchvision_models import OTHERS, TORCHVISION_MODELS, WITH_BACKBONES

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)


def errors_of(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, Path("spec.yaml"), files=False)
    return [str(problem) for problem in caught.value.problems]


def test_aliases_of_aliases_are_one_error() -> None:
    assert errors_of(BOMB) == [
        "spec.yaml:1: `a4.0.6`: more than 20,000 values, where aliases count each time they are used"
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("name: &a [*a]\n", id="a list"),
        pytest.param("name: &a {b: *a}\n", id="a mapping"),
        pytest.param("name: &a {<<: *a}\n", id="a merge"),
        pytest.param("name: " + "[1, " * 70 + "]" * 70 + "\n", id="seventy lists"),
    ],
)
def test_an_alias_that_contains_itself_is_one_error(text: str) -> None:
    (error,) = errors_of(text)
    assert error.endswith("nested more than 60 deep, or an alias that contains itself")


@pytest.mark.slow
def test_merges_of_thousands_of_entries_are_one_error() -> None:
    entries = ", ".join(f"k{number}: 1" for number in range(18_000))
    (error,) = errors_of(f"serving: &a {{{entries}}}\nload: {{<<: [{', '.join(['*a'] * 90_000)}]}}\n")
    assert "more than 20,000 values" in error


TOP = "name: a\nmodel: {source: 'torchvision:resnet18', weights: random}\n"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("version: {{ tag }}", "`version`: got a list or a mapping as a name, allowed: text"),
        ("? [a, b]\n: 1", "got a list or a mapping as a name, allowed: text"),
        ("serving: {<<: 5}", "`serving.<<`: allowed: a mapping, or a list of mappings"),
        ("serving: !mine {queue: 5}", "`serving`: not readable as YAML: unknown tag `!mine`"),
        ("version: !mine a", "`version`: not readable as YAML: `a` is not a valid `!mine`"),
        ("kubernetes: {create_namespace: !!bool x}",
         "`kubernetes.create_namespace`: not readable as YAML: `x` is not a valid `!!bool`"),
        ("serving: {queue: !!int ''}", "`serving.queue`: not readable as YAML: `` is not a valid `!!int`"),
        ("serving: {queue: 0x" + "f" * 6000 + "}",
         f"`serving.queue`: not readable as YAML: `0x{'f' * 58}` is not a valid `!!int`"),
        ('version: "\\ud800"', r"`version`: not readable as YAML: `\ud800` is not a valid `!!str`"),
        ("serving: {queue: 3:20}", "`serving.queue`: got `3:20`, allowed: a whole number"),
        ("serving: {queue: 0200}",
         "`serving.queue`: got `0200`, which YAML reads as octal, allowed: a number without leading zeros"),
        ("version: 010",
         "`version`: got `010`, which YAML reads as octal, allowed: a number without leading zeros"),
    ],
)  # fmt: skip
def test_a_value_that_yaml_cannot_hold_is_one_error_with_its_line(line: str, error: str) -> None:
    assert errors_of(f"{TOP}{line}\n") == [f"spec.yaml:3: {error}"]


def test_dates_and_times_stay_as_they_are_written() -> None:
    written = {"a": "2026-01-01T10:00:00Z", "b": "2026-13-45", "c": "12:30", "d": "😀"}
    text = "".join(f"      {key}: {value}\n" for key, value in (written | {"d": '"\\ud83d\\ude00"'}).items())
    spec = parse_spec(f"{TOP}kubernetes:\n  pod:\n    env:\n{text}", Path("spec.yaml"), files=False)
    assert spec.kubernetes.pod.env == written


def test_octal_numbers_mean_what_they_mean_to_kubectl_in_parts_of_its_objects() -> None:
    patch = "{kind: Deployment, merge: {spec: {template: {spec: {volumes: [{secret: {defaultMode: 0440}}]}}}}}"
    spec = parse_spec(
        f"{TOP}serving: {{queue: 07}}\nkubernetes: {{patches: [{patch}]}}\n", Path("spec.yaml"), files=False
    )
    assert spec.serving.queue == 7
    assert "'defaultMode': 288" in str(spec.kubernetes.patches[0].merge)


def test_merges_inside_of_merges_are_read_and_the_nearest_counts() -> None:
    text = f"{TOP}serving: {{<<: [{{<<: {{queue: 7, workers: 2}}, queue: 8}}, {{queue: 9, threads: 1}}]}}\n"
    serving = parse_spec(text, Path("spec.yaml"), files=False).serving
    assert (serving.queue, serving.workers, serving.threads) == (8, 2, 1)


def test_thousands_of_brackets_are_one_error() -> None:
    with pytest.raises(InputError, match="nested too deep"):
        parse_spec("name: " + "[" * 20_000, Path("spec.yaml"))


def test_an_endless_file_is_not_read_whole() -> None:
    with pytest.raises(InputError, match="more than 1,000,000 characters"):
        load_spec(Path("/dev/zero"))


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "https://a/'onmouseover=1",
        "//a",
        "https://a/<b>",
        "file:///etc/passwd",
    ],
)
def test_a_runbook_is_an_address_or_a_path(address: str) -> None:
    with pytest.raises(SpecError, match=r"allowed: an address \(`https://…`\) or a path"):
        make_spec({"kubernetes.monitoring.runbook_url": address})


@pytest.mark.parametrize("address", ["docs/runbook.md", "https://example.org/runbook?page=1", "http://wiki:8080/a"])
def test_addresses_and_paths_of_runbooks_stay_as_they_are(address: str) -> None:
    assert make_spec({"kubernetes.monitoring.runbook_url": address}).kubernetes.monitoring.runbook_url == address


def misspelt(key: str, wrong: str) -> list[str]:
    text = yaml.safe_dump(changed({"slo.p99_ms": 9, "serving.workers": 2}, MINIMAL), sort_keys=False)
    assert f"{key}:" in text
    return errors_of(text.replace(f"{key}:", f"{wrong}:"))


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("name", "nmae"), ("model", "modle"), ("source", "sorce"), ("weights", "wieghts"), ("p99_ms", "p99ms")],
)
def test_a_misspelt_key_is_one_error(key: str, wrong: str) -> None:
    (error,) = misspelt(key, wrong)
    assert f"unknown field, did you mean `{key}`?" in error


def test_a_misspelt_section_is_not_missing_too() -> None:
    text = "name: a\nmodle:\n  source: torchvision:resnet18\n  weights: random\n  precision: fp8\n"
    assert errors_of(text) == ["spec.yaml:2: `modle`: unknown field, did you mean `model`?"]


def test_a_misspelt_key_beside_the_right_one_suggests_nothing() -> None:
    text = "name: a\nmodel: {source: 'torchvision:resnet18', weights: random}\nmodle: {sorce: 1}\n"
    assert errors_of(text) == ["spec.yaml:3: `modle`: unknown field, did you mean `model`?"]
    text = yaml.safe_dump(changed({"kubernetes": {"resources": {"cpu": 0}, "resorces": {"gpu": "x"}}}), sort_keys=False)
    fields = [error.split("`")[1] for error in errors_of(text)]
    assert fields == ["kubernetes.resources.cpu", "kubernetes.resorces"]


@pytest.mark.parametrize("key", ["models", "ensemble"])
def test_a_spec_with_several_models_names_the_page_about_them(key: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({key: [{"source": "torchvision:resnet18"}], "model": None})
    first = caught.value.problems[-1]
    assert (first.field, first.text) == (key, "unknown field: a spec describes one model")
    assert first.hint
    assert first.hint.endswith("(`kubernetes.route`); see docs/how-to/several-models.md")


def test_an_unknown_torchvision_model_is_named_with_the_nearest_one() -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({"model.source": "torchvision:resnet81"}, files=True)
    assert str(caught.value) == (
        "spec.yaml:3: `model.source`: torchvision has no model `resnet81`\n\nhint: source: torchvision:resnet18"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("r3d_18", "torchvision's `r3d_18` does not classify pictures"),
        ("fasterrcnn_resnet50_fpn", "get_model('fasterrcnn_resnet50_fpn', weights=None, weights_backbone=None)`"),
        ("quantized_resnet18", "hint: source: torchvision:resnet18 with `precision: int8`"),
    ],
)
def test_a_torchvision_model_that_is_no_classifier_is_not_called_unknown(name: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({"model.source": f"torchvision:{name}"}, files=True)
    assert expected in str(caught.value)


def test_the_names_of_torchvision_models_are_those_of_the_installed_version() -> None:
    from marina.archiver.torchvision_import import import_torchvision

    import_torchvision()
    from torchvision import models

    others = [name for name in models.list_models() if not name.startswith("quantized_")]
    assert sorted(TORCHVISION_MODELS) == models.list_models(module=models)
    assert sorted(TORCHVISION_MODELS | OTHERS | WITH_BACKBONES) == others
    for name in OTHERS | WITH_BACKBONES:
        builder = models.get_model_builder(name)
        assert ("weights_backbone" in inspect.signature(builder).parameters) == (name in WITH_BACKBONES)
