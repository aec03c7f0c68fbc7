"""Requirements: what is read, what pip makes of them beside a worker's own libraries, and what is refused."""

import io
import re
from importlib import metadata
from pathlib import Path

import pytest
from specs import make_spec
from wheels import make_wheel, serving_index

from marina.archiver.requirements import Resolved, check_loaded, hint_for_library, importable, resolve
from marina.archiver.requirements.reading import read_requirements
from marina.config.errors import ArchiveError, MarinaError, SourceError
from marina.config.progress import Progress
from marina.config.requirements import Requirements, install

NUMPY = metadata.version("numpy")
SPEC = "spec.yaml: `model.requirements`"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `wheels` are all that pip knows, and an empty cache."""
    for name in ("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("MARINA_CACHE", str(tmp_path / "cache"))
    return tmp_path


def resolved(folder: Path, *lines: str, said: io.StringIO | None = None) -> Resolved | None:
    """What the lines of a requirements file resolve to."""
    file = folder / "requirements.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    (folder / "scratch").mkdir(exist_ok=True)
    progress = Progress(stream=said) if said else Progress(quiet=True)
    return resolve(file, SPEC, folder / "scratch", progress)


def refusal(folder: Path, *lines: str) -> str:
    """The error about the lines of a requirements file, without the folder."""
    with pytest.raises(MarinaError) as caught:
        resolved(folder, *lines)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.slow
def test_what_a_library_needs_is_replaced_by_another(folder: Path) -> None:
    make_wheel(folder / "wheels", "boxes", requires=["Sea_GL>=2"])
    make_wheel(folder / "wheels", "sea_gl", "2.5")
    make_wheel(folder / "wheels", "sea_headless", "2.4", requires=["tide"])
    make_wheel(folder / "wheels", "tide")
    given = ("--no-index", "--find-links ./wheels", "boxes")
    found = resolved(folder, *given)
    assert found
    assert [wheel.name for wheel in found.requirements.wheels] == ["boxes", "sea_gl"]
    found = resolved(folder, *given, "# Marina: sea-headless instead of sea_gl")
    assert found
    assert [wheel.name for wheel in found.requirements.wheels] == ["boxes", "sea_headless", "tide"]
    make_wheel(folder / "wheels", "sea_headless", "1.0")
    said = refusal(folder, *given, "# marina: sea-headless<2 instead of sea-gl")
    assert said.startswith(f"{SPEC}: something needs another version of `sea-gl` than")


@pytest.mark.parametrize("line", ["# marina: sea-headless for sea-gl", "# marina: ??? instead of x", "# marina"])
def test_a_line_for_marina_that_it_does_not_understand_is_refused(line: str, folder: Path) -> None:
    assert "requirements.txt:1: got `# marina: " in refusal(folder, line)


@pytest.mark.slow
def test_what_a_worker_lacks_is_pinned_once_from_an_index_with_a_password(folder: Path) -> None:
    make_wheel(folder / "wheels", "shells", requires=["numpy>=2", "torch", "Sand_Castle[big]; python_version > '3'"])
    make_wheel(folder / "wheels", "Sand_Castle", "2.0", requires=["tide; extra == 'big'"])
    make_wheel(folder / "wheels", "tide")
    with serving_index(folder / "wheels") as index:
        first = resolved(folder, f"--index-url {index}", "shells  # and more")
    assert first is not None
    pins = [(wheel.name, wheel.version) for wheel in first.requirements.wheels]
    assert pins == [("Sand_Castle", "2.0"), ("shells", "1.0"), ("tide", "1.0")]
    first.hand_over(folder / "out")
    lock = (folder / "out/requirements.lock").read_text(encoding="utf-8")
    assert re.findall(r"^(\S+)==\S+ --hash=sha256:\w{64}$", lock, re.MULTILINE) == ["Sand_Castle", "shells", "tide"]
    assert "secret" not in lock + first.requirements.model_dump_json()
    assert sorted(file.name for file in (folder / "out/wheels").iterdir()) == [
        w.file for w in first.requirements.wheels
    ]
    said = io.StringIO()
    second = resolved(folder, f"--index-url {index}", "shells  # and more", said=said)
    assert second == first
    assert "requirements.txt as it was resolved on 20" in said.getvalue()


@pytest.mark.slow
def test_the_lock_of_a_package_resolves_to_the_same_wheels(folder: Path) -> None:
    make_wheel(folder / "wheels", "shells", requires=["numpy"])
    first = resolved(folder, "--no-index", "--find-links wheels", "shells")
    assert first is not None
    second = resolved(folder, "--no-index", "--find-links wheels", *first.requirements.lock().splitlines())
    assert second == first
    other = first.requirements.lock().replace(first.requirements.wheels[0].sha256, "0" * 64)
    assert refusal(folder, "--no-index", "--find-links wheels", other) == (
        f"{SPEC}: a wheel is not the one whose hash is written: got {first.requirements.wheels[0].sha256}, "
        f"allowed: {'0' * 64}"
    )


@pytest.mark.slow
def test_wheels_on_this_machine_are_pinned_by_their_content(folder: Path) -> None:
    make_wheel(folder / "own", "shells")
    first = resolved(folder, "--no-index", "./own/shells-1.0-py3-none-any.whl")
    make_wheel(folder / "own", "shells", files={"shells.py": "VERSION = 'changed'\n"})
    second = resolved(folder, "--no-index", "./own/shells-1.0-py3-none-any.whl")
    assert first is not None
    assert second is not None
    assert first.requirements.digest != second.requirements.digest
    with importable(second, folder):
        import shells  # type: ignore[import-not-found]
    assert shells.VERSION == "changed"


@pytest.mark.slow
def test_a_library_that_contradicts_a_worker_is_refused_with_both_names(folder: Path) -> None:
    make_wheel(folder / "wheels", "old", requires=["numpy<2"])
    assert refusal(folder, "--no-index", "--find-links wheels", "old") == (
        f"{SPEC}: no versions fit together:\n  old 1.0 depends on numpy<2\n"
        f"  a worker has `numpy` {NUMPY}, which `simplejpeg` needs\n\n"
        "hint: in requirements.txt: other versions, or a library that works with a worker's"
    )


@pytest.mark.slow
def test_an_index_that_cannot_be_reached_is_named(folder: Path) -> None:
    assert refusal(folder, "--index-url http://me:secret@127.0.0.1:1/simple", "shells") == (
        f"{SPEC}: `127.0.0.1` cannot be reached, and these requirements were not resolved here before\n\n"
        "hint: package once with a network, or write into the file: --no-index --find-links ./wheels"
    )


@pytest.mark.slow
def test_source_code_is_refused_with_how_to_make_a_wheel(folder: Path) -> None:
    (folder / "wheels").mkdir()
    (folder / "wheels/shells-1.0.tar.gz").write_bytes(b"")
    assert refusal(folder, "--no-index", "--find-links wheels", "shells").endswith(
        "in the index\n\nhint: correct its name or version; if there is only source code: "
        "pip wheel --no-deps --wheel-dir wheels 'shells', then write ./wheels/NAME.whl instead"
    )


@pytest.mark.parametrize(
    ("line", "error"),
    [
        pytest.param(
            "numpy<2", f"requirements.txt:2: got `numpy<2`, but a worker has `numpy` {NUMPY}, which", id="numpy"
        ),
        pytest.param("torch==2.1", "got `torch==2.1`, but a worker has `torch` 2.", id="torch"),
        pytest.param("-e .", "pip wheel --no-deps --wheel-dir wheels '.', then", id="editable"),
        pytest.param("x @ git+https://e.org/x@main", "--wheel-dir wheels 'git+https://e.org/x@main', then", id="git"),
        pytest.param("./thing", "got `./thing`, allowed: a wheel", id="folder"),
        pytest.param("https://e.org/x-1.0.tar.gz", "got `https://e.org/x-1.0.tar.gz`, allowed: a wheel", id="archive"),
        pytest.param("./x-1.0-py3-none-any.whl", "no such wheel: `x-1.0-py3-none-any.whl`", id="missing wheel"),
        pytest.param("--no-binary :all:", "got `--no-binary`, allowed: options that say where wheels", id="option"),
        pytest.param("-r more.txt", "requirements.txt:2: no such file: `more.txt`", id="missing file"),
        pytest.param("-c https://e.org/c.txt", "got `https://e.org/c.txt`, allowed: a file", id="file by URL"),
        pytest.param("shells 1.0", "got `shells 1.0`, allowed: a requirement as pip takes it", id="nonsense"),
    ],
)
def test_what_no_wheel_can_be_pinned_for_is_refused(folder: Path, line: str, error: str) -> None:
    assert error in refusal(folder, "# comment", line)


def test_files_that_a_file_names_are_read_and_lines_are_joined(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "requirements.txt").write_text("-r more/a.txt\nshells \\\n  >=1 # why\n", encoding="utf-8")
    (folder / "more/a.txt").write_text("-c b.txt\nsand; python_version < '3'\n", encoding="utf-8")
    (folder / "more/b.txt").write_text("tide==1\n-r a.txt\n", encoding="utf-8")
    lines = read_requirements(folder / "requirements.txt", "requirements.txt")
    assert [(line.file.name, line.number, line.text) for line in lines] == [
        ("requirements.txt", 1, "-r more/a.txt"),
        ("a.txt", 1, "-c b.txt"),
        ("b.txt", 1, "tide==1"),
        ("b.txt", 2, "-r a.txt"),
        ("a.txt", 2, "sand; python_version < '3'"),
        ("requirements.txt", 2, "shells    >=1"),
    ]


@pytest.mark.slow
def test_a_marker_that_does_not_hold_is_no_contradiction(folder: Path) -> None:
    with pytest.raises(SourceError, match="a>=9"):
        resolved(folder, "numpy<2; python_version < '3'", "a>=9", "--no-index")


def test_a_wheel_that_is_missing_or_changed_is_not_installed(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "shells")
    pinned = {"name": "shells", "version": "1.0", "file": wheel.name, "sha256": "0" * 64}
    requirements = Requirements.model_validate({"python": "3.11", "wheels": [pinned]})
    with pytest.raises(ArchiveError, match="not the wheel that was recorded"):
        install(requirements, tmp_path, tmp_path / "site", hint="")
    wheel.unlink()
    with pytest.raises(ArchiveError, match=r"no such wheel; the handler needs `shells` 1\.0"):
        install(requirements, tmp_path, tmp_path / "site", hint="")
    assert not (tmp_path / "site").exists()


def test_a_library_that_an_image_lacks_is_named_with_the_wheel_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opencv_python-5.0.dist-info").mkdir()
    (tmp_path / "opencv_python-5.0.dist-info/METADATA").write_text("Name: opencv-python\nVersion: 5.0\n")
    monkeypatch.setenv("MARINA_REQUIREMENTS", str(tmp_path))
    check_loaded(
        make_spec(),
        ["/usr/lib/libc.so.6", "/usr/lib/libstdc++.so.6.0.30", "/usr/lib/libcuda.so.550.1", "/usr/lib/libfribidi.so.0"],
    )
    with pytest.raises(SourceError) as refused:
        check_loaded(make_spec(), ["/usr/lib/libm.so.6", "/usr/lib/libGL.so.1.7.0"])
    assert str(refused.value) == (
        "spec.yaml: `model.requirements`: a worker loads `libGL.so.1` of this machine, which an image lacks: "
        "/usr/lib/libGL.so.1.7.0\n\n"
        "hint: write this line into the requirements file: # marina: opencv-python-headless instead of opencv-python"
    )
    said = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
    assert str(hint_for_library(said)).endswith("# marina: opencv-python-headless instead of opencv-python")
