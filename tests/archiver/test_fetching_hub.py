"""Models of Hugging Face's hub: its own client asks a hub on loopback."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import Hub, files_in, serving_hub
from running import running
from specs import TALES, make_spec

import marina
from marina.archiver.fetching import fetch_remote, fetch_sources, moved_sources
from marina.archiver.package import package
from marina.config.errors import SourceError, SpecError
from marina.config.load import load_spec
from marina.config.progress import Progress
from marina.config.record import Pin
from marina.config.remote import parse_remote
from marina.config.spec import Fetched

MODEL = files_in(TALES.parent / "model")
QUIET = Progress(quiet=True)
TEXT = {"model": {"source": "hf:me/tales", "handler": "text"}, "text": {"engine": "fake"}}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a model `me/tales`, and empty caches."""
    with serving_hub() as hub:
        hub.push("me/tales", MODEL)
        # The client reads these when it is imported.
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        address = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        slept = "marina.archiver.fetching.found.sleep"
        monkeypatch.setattr(slept, lambda seconds: hub.asked.append(f"slept {seconds:.0f}"))
        yield hub


def fetch(text: str) -> Fetched:
    remote = parse_remote(text)
    assert remote
    return fetch_remote(remote, QUIET)


def batched(values: list[int]) -> Iterator[list[int]]:
    return (values[start : start + 3] for start in range(0, len(values), 3))


@pytest.mark.slow
@pytest.mark.e2e
def test_a_model_is_packaged_from_its_id_is_the_same_everywhere_and_serves_without_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(TEXT, tmp_path / "spec.yaml")
    (tmp_path / "spec.yaml").write_text(spec.model_dump_json(exclude_unset=True), encoding="utf-8")
    first = package(spec, tmp_path / "build/shells", progress=QUIET)
    pin = first.record.pins["hf:me/tales"]
    assert pin.version == hub.branches["me/tales"]["main"]
    assert pin.files == {name: hashlib.sha256(data).hexdigest() for name, data in MODEL.items()}
    # Another machine, without a cache.
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "hub")
    assert package(spec, tmp_path / "second", progress=QUIET).sha256 == first.sha256
    hub.push("me/tales", MODEL | {"chat_template.jinja": b"{{ messages }}"})
    assert package(spec, tmp_path / "moved", progress=QUIET).sha256 != first.sha256
    monkeypatch.chdir(tmp_path)
    assert marina.main(["manifests", "spec.yaml"]) == 0
    assert marina.main(["manifests", "spec.yaml", "--check", "build/shells/manifests"]) == 0
    assert "warning: `hf:me/tales` has moved since it was packaged: " in capsys.readouterr().err
    hub.stop()
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "hub")
    hub.asked.clear()
    with running(spec, mar=tmp_path / "build/shells/model.mar", environment={"HF_ENDPOINT": hub.url}) as server:
        assert server.readiness()[0]
    assert hub.asked == []


def test_only_what_a_model_is_loaded_from_is_fetched(hub: Hub) -> None:
    copies = ("pytorch_model.bin", "tf_model.h5", "model.fp16.safetensors", "onnx/model.onnx", "original/params.json")
    folders = {"1_Pooling/config.json": b"{}", "README.md": b"", "vocab.txt": b"a"}
    hub.push("me/tales", MODEL | dict.fromkeys(copies, b"copy") | folders)
    files = files_in(fetch("hf:me/tales").path)
    assert files == MODEL | {"1_Pooling/config.json": b"{}", "vocab.txt": b"a"}
    assert fetch("hf:me/tales#onnx/model.onnx").path.read_bytes() == b"copy"
    # The one file did not become a part of the folder.
    assert files_in(fetch("hf:me/tales").path) == files


def test_fifty_resolutions_survive_a_hub_that_counts_requests(hub: Hub) -> None:
    fetch("hf:me/tales")
    hub.asked.clear()
    for _ in range(50):
        hub.refusals = [(429, {"Retry-After": "7"}), (503, {}), (429, {"RateLimit": '"api";r=0;t=41'})]
        fetch("hf:me/tales")
    waits = [round(float(line.removeprefix("slept "))) for line in hub.asked if line.startswith("slept ")]
    # As long as it asks, and then a little, or else twice as long each time.
    assert all(7 <= asked <= 8 and 2 <= doubled <= 3 and 41 <= reset <= 46 for asked, doubled, reset in batched(waits))
    assert sum("GET api/models/me/tales" in line for line in hub.asked) == 200


def test_a_download_that_is_cut_off_is_tried_again(hub: Hub) -> None:
    hub.cut = 500_000
    assert files_in(fetch("hf:me/tales").path) == MODEL


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("hf:me/none", "the hub has no `me/none`, or shows it only to those who may read it", "`hf auth login`"),
        ("hf:me/closed", "its owner has to grant access, and this token has none", "ask for it at"),
        ("hf:me/tales@old", "the hub has no revision `old` of it", "/me/tales/tree"),
        (
            "hf:me/tales#model.safetensor",
            "it has no file `model.safetensor`, allowed:",
            "hf:me/tales#model.safetensors",
        ),
    ],
)
def test_what_the_hub_refuses_says_what_to_type(hub: Hub, text: str, said: str, hint: str) -> None:
    hub.push("me/closed", MODEL)
    hub.gated.add("me/closed")
    with pytest.raises(SourceError) as caught:
        fetch(text)
    assert caught.value.message.startswith(f"`{text}`: {said}")
    assert hint in str(caught.value.hint)
    assert not any(line.startswith("slept") for line in hub.asked)


def test_without_the_hub_a_commit_comes_from_the_cache_and_a_branch_says_so(hub: Hub) -> None:
    commit = fetch("hf:me/tales").version
    hub.stop()
    assert files_in(fetch(f"hf:me/tales@{commit}").path) == MODEL
    with pytest.raises(SourceError, match="is not reachable") as caught:
        fetch("hf:me/tales")
    assert caught.value.hint == f"to use what the cache has, write `hf:me/tales@{commit}`"
    with pytest.raises(SourceError, match="is not reachable"):
        fetch("hf:me/other")


def test_a_branch_that_moved_is_named(hub: Hub) -> None:
    commit = fetch("hf:me/tales").version
    pins = {text: Pin(version=commit, files={}) for text in ("hf:me/tales", f"hf:me/tales@{commit}")}
    assert list(moved_sources(pins)) == []
    moved = hub.push("me/tales", MODEL | {"config.json": b"{}"})
    assert list(moved_sources(pins)) == [
        f"`hf:me/tales` has moved since it was packaged: it was {commit}, and now it is {moved}"
    ]
    hub.stop()
    (unknown,) = moved_sources(pins)
    assert unknown.startswith("whether `hf:me/tales` has moved since it was packaged is not known: ")


def test_a_model_of_timm_is_its_repository_of_the_hub(hub: Hub) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"pickle"}
    hub.push("timm/tiny.in1k", files)
    assert files_in(fetch("timm:tiny.in1k").path).keys() == {"config.json", "model.safetensors"}


def test_a_base_and_its_adapter_are_both_fetched(hub: Hub, tmp_path: Path) -> None:
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"low rank"}
    hub.push("me/lora", adapter | {"README.md": b""})
    changes = {"model": {**TEXT["model"], "adapter": "hf:me/lora"}}
    spec = fetch_sources(make_spec(TEXT | changes, tmp_path / "spec.yaml", files=True), QUIET)
    assert files_in(spec.path("hf:me/lora")) == adapter
    assert list(spec.fetched) == ["hf:me/tales", "hf:me/lora"]


@pytest.mark.usefixtures("hub")
def test_init_writes_the_id_and_its_errors_name_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "hf:me/tales"]) == 0
    spec = load_spec(tmp_path / "mine/spec.yaml")
    assert (spec.model.source, spec.text.context) == ("hf:me/tales", 512)
    assert marina.main(["check", "mine/spec.yaml"]) == 0
    for source in ("me/tales", "hf-hub:me/tales", "https://huggingface.co/me/tales/tree/main"):
        assert marina.main(["init", "other", "--quiet", "--source", source]) == 2
        assert "hint: --source hf:me/tales" in capsys.readouterr().err


@pytest.mark.usefixtures("hub")
def test_a_model_that_does_not_fit_the_spec_is_refused_by_its_rules_once_it_is_here(tmp_path: Path) -> None:
    spec = make_spec(TEXT | {"model.task": "classify", "text": None}, tmp_path / "spec.yaml")
    with pytest.raises(SpecError, match=r"`model.task`: got `classify`, but the folder holds a `LlamaForCausalLM`"):
        fetch_sources(spec, QUIET)


def test_a_folder_with_the_name_of_an_id_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "me/tales").mkdir(parents=True)
    with pytest.raises(SpecError) as caught:
        make_spec(TEXT, tmp_path / "spec.yaml", files=True)
    assert "source: hf:./me/tales" in str(caught.value.hint)
