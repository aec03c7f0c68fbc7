"""`init` for archives that were made for TorchServe: a spec for each, with what TorchServe was told about it."""

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marina.config.errors import ArchiveError, InputError, listed
from marina.config.progress import Progress
from marina.config.remote import parse_remote

if TYPE_CHECKING:
    from marina.archiver.adopting import ForeignArchive, Properties, Registration

_ENDINGS = (".mar", ".tar.gz", ".tgz", ".war")
_COMMENTS_FROM = 40
_LEAST_CORES = 2
_MIB = 2**20
# TorchServe's default.
_DELAY_MS = 100
# Of TorchServe's own, those that answer any picture, and the side of the one that they are sent.
_PICTURE_HANDLERS = ("image_classifier", "image_segmenter", "object_detector")
_SIDE = 224


def adopts(source: str | None) -> bool:
    """Whether `--source` is an archive for TorchServe, or a folder of some."""
    if remote := parse_remote(source):
        return (remote.one_file or "").lower().endswith(_ENDINGS)
    if source is None or re.match(r"\w[\w+-]+:", source):
        return False
    path = Path(source)
    if path.is_dir():
        return (path / "MAR-INF" / "MANIFEST.json").is_file() or bool(_in_store(path))
    return path.name.lower().endswith(_ENDINGS)


def archive_files(name: str, options: argparse.Namespace) -> tuple[dict[Path, bytes], list[str]]:
    """The files to write, and what the user should know."""
    from marina.archiver.adopting import Properties, read_foreign

    source, folder = Path(options.source), Path(name)
    if remote := parse_remote(options.source):
        from marina.archiver.fetching import fetch_remote

        source = fetch_remote(remote, Progress(quiet=options.quiet)).path
    properties = Properties.read(options.properties)
    if not source.exists():
        raise InputError(f"`--source`: no such file: `{source}`")
    if source.is_file() or (source / "MAR-INF").is_dir():
        return _one(name, folder, read_foreign(source, "`--source`"), properties, options)
    archives, notes = _read_store(source, properties)
    names = _spec_names(archives)
    if len(archives) == 1:
        made, said = _one(name, folder, archives[0], properties, options)
        return made, [*notes, *said]
    files: dict[Path, bytes] = {}
    notes += [
        f"{len(archives)} models, each with a spec, pods and a rollout of its own; a route joins them at one address: "
        "one in each spec, such as `kubernetes: {route: {gateway: infra/web, hostnames: [models.example.org]}}`"
    ]
    for spec_name, foreign in zip(names, archives, strict=True):
        made, said = _one(spec_name, folder / spec_name, foreign, properties, options)
        files |= made
        notes += [f"{spec_name}: {note}" for note in said]
    return files, notes


def _read_store(folder: Path, properties: "Properties") -> "tuple[list[ForeignArchive], list[str]]":
    """The archives that the store's server loaded, and why others of them are not for Marina."""
    from marina.archiver.adopting import read_foreign

    archives, notes = [], []
    paths = [path for path in _in_store(folder) if properties.stores(path.name)]
    for path in paths:
        try:
            archives.append(read_foreign(path, "`--source`"))
        except ArchiveError as err:
            if len(paths) == 1:
                raise
            said = err.message.removeprefix("`--source`: ")
            notes.append(f"left out: {said}{f'; {err.hint}' if err.hint else ''}")
    if not archives:
        loaded = listed(path.name for path in _in_store(folder))
        raise InputError(f"`--source`: none of `{folder}` can be taken: {' '.join(notes) or f'found: {loaded}'}")
    return archives, notes


def _in_store(folder: Path) -> list[Path]:
    """The archives of a model store, by name."""
    return sorted(
        path
        for path in folder.iterdir()
        if (path.is_file() and path.name.lower().endswith(_ENDINGS)) or (path / "MAR-INF" / "MANIFEST.json").is_file()
    )


def _spec_names(archives: "list[ForeignArchive]") -> list[str]:
    """A name for each spec; with its version where a model has several."""
    plain = [_label(foreign.name) for foreign in archives]
    with_version = [_label(f"{foreign.name}-{foreign.version}") for foreign in archives]
    return [name if plain.count(name) == 1 else longer for name, longer in zip(plain, with_version, strict=True)]


def _label(name: str) -> str:
    """A name that Kubernetes takes for its objects."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (label if label[:1].isalpha() else f"model-{label}")[:40].strip("-")


def _one(
    name: str, folder: Path, foreign: "ForeignArchive", properties: "Properties", options: argparse.Namespace
) -> tuple[dict[Path, bytes], list[str]]:
    from marina.archiver.adopting import find_registration
    from marina.config.schema import render_schema
    from marina.starting.init_sample import picture_png

    settings = find_registration(foreign, properties)
    takes_picture = foreign.handler in _PICTURE_HANDLERS
    sample = f"samples/{options.sample.name if options.sample else 'sample.png' if takes_picture else 'request.json'}"
    metrics, notes = _metrics(properties, folder)
    requirements, asked = _requirements(foreign, folder)
    told = [*_told(foreign, properties, metrics, options)]
    if requirements:
        told.append(("  requirements: ./requirements.txt", "what its modules import and a pod lacks"))
    files = {
        folder / "spec.yaml": _spec(name, folder, foreign, settings, told, sample, options).encode(),
        folder / "spec.schema.json": render_schema().encode(),
        **requirements,
    }
    if options.sample:
        try:
            files[folder / sample] = options.sample.read_bytes()
        except OSError as err:
            raise InputError(f"`--sample`: `{options.sample}` cannot be read: {err.strerror}") from err
    elif takes_picture:
        files[folder / sample] = picture_png((3, _SIDE, _SIDE))
    else:
        notes.append(f"put the body of a request at {folder / sample}: a server is ready once it has answered it")
    if foreign.handler is None and properties.text("default_service_handler") is None:
        notes.append(
            "the archive names no handler: write the `default_service_handler` of its server's config.properties as "
            "`default_handler` under `model`, or give the file with `--properties`"
        )
    if settings.workers is None:
        notes.append("how many workers it had was said at registration only: correct `workers` under `serving`")
    if settings.max_batch is None:
        notes.append(
            "a batch size, too: if it had one, correct `max_batch` under `serving`, and add its `maxBatchDelay`, such "
            f"as `max_batch_delay_ms: {_DELAY_MS}`"
        )
    return files, [*notes, *asked, *properties.left_out()]


def _requirements(foreign: "ForeignArchive", folder: Path) -> tuple[dict[Path, bytes], list[str]]:
    """A requirements file with the libraries that the archive's modules import and a pod lacks, as far as their names
    are known, and what the user should know."""
    from marina.archiver.adopting import missing_in_pod
    from marina.archiver.requirements import known_library

    missing = missing_in_pod(foreign)
    if not missing:
        return {}, []
    names = ", ".join(f"`{module}`" for module in missing)
    note = f"its modules import {names}, which a pod lacks"
    if foreign.requirements:
        return {}, [f"{note}: they are installed from its `{foreign.requirements}`, if that names them"]
    libraries = {module: known_library(module) for module in missing}
    known = sorted(filter(None, libraries.values()))
    unknown = ", ".join(f"`{module}`" for module, library in libraries.items() if library is None)
    file, said = folder / "requirements.txt", []
    if known:
        named = ", ".join(f"`{name}`" for name in known)
        said.append(f"{file} asks for {named}, the newest that fit; write the versions that its server had")
    if unknown:
        lines = f"add the libraries that have {unknown} to {file}"
        if not known:
            lines = (
                f"write the libraries that have {unknown} into {file}, and `requirements: ./{file.name}` under `model`"
            )
        said.append(lines)
    return {file: "".join(f"{name}\n" for name in known).encode()} if known else {}, [f"{note}: {'; '.join(said)}"]


def _metrics(properties: "Properties", folder: Path) -> tuple[str | None, list[str]]:
    """The file of `metrics_config`, from the spec's folder."""
    named = properties.text("metrics_config")
    if named is None or properties.file is None:
        return None, []
    file = properties.file.parent / named
    if not file.is_file():
        return None, [f"`metrics_config`: no such file here: {file}; without it, the handler's metrics are detected"]
    return _relative(file, folder), []


def _relative(path: Path, folder: Path) -> str:
    text = Path(os.path.relpath(path, folder)).as_posix()
    return text if text.startswith(".") else f"./{text}"


def _spec(
    name: str,
    folder: Path,
    foreign: "ForeignArchive",
    settings: "Registration",
    told: list[tuple[str, str]],
    sample: str,
    options: argparse.Namespace,
) -> str:
    written = options.source if parse_remote(options.source) else _relative(foreign.path, folder)
    version = foreign.version if re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,30}[A-Za-z0-9])?", foreign.version) else "1.0"
    cores = max(_LEAST_CORES, settings.workers or 0)
    lines: list[tuple[str, str]] = [
        ("# yaml-language-server: $schema=spec.schema.json", ""),
        (f"# {name}: what is served, and how well. `marina check --fields` explains every field.", ""),
        (f"name: {name}", "names the image and every object"),
        (f"version: {_quoted(version)}", ""),
        ("model:", ""),
        (f"  source: {_quoted(written)}", "a .mar, a .tar.gz or a folder"),
        ("  handler: archive", "the archive's own handler answers, as it stands"),
        *_named(name, version, foreign),
        *told,
        ("serving:", ""),
        (f"  device: {'cuda' if settings.gpu else 'cpu'}", "cpu | cuda"),
        (f"  workers: {settings.workers or 'auto'}", "processes; auto: one for each core of `cpu` below"),
        (f"  max_batch: {settings.max_batch or 1}", "requests that the handler gets at once, at most"),
        *_given("max_batch_delay_ms", settings.max_batch_delay_ms, "how long a request waits for others"),
        *_given("queue", settings.queue, "requests that may wait"),
        (f"  response_timeout_s: {settings.response_timeout_s}", "a worker that takes longer is killed"),
        (f"  startup_timeout_s: {settings.startup_timeout_s}", "how long the handler may load"),
        *_given("max_request_mb", settings.max_request_mb, "the largest body"),
        *_given("java_heap_mb", _heap_mb(settings), "six times the largest body or answer"),
        ("slo:", "what the load test judges and the alerts watch: write what your clients need"),
        ("  p99_ms: 1000", "99 of 100 requests are answered within this time"),
        ("  error_rate: 0.001", ""),
        ("  throughput_rps: 1", "the rate that one pod must hold"),
        ("load:", ""),
        (f"  sample: {_quoted(f'./{sample}')}", "what the load test and the readiness inference send"),
        ("kubernetes:", ""),
        ("  namespace: marina", ""),
        ("  registry: registry.local/marina", "where the image is pushed"),
        (f'  resources: {{cpu: "{cores}"{", gpu: 1" if settings.gpu else ""}}}', "of one pod"),
    ]
    return "".join(f"{text:<{_COMMENTS_FROM}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)


def _named(name: str, version: str, foreign: "ForeignArchive") -> list[tuple[str, str]]:
    given = [(f"  name: {_quoted(foreign.name)}", "in the URLs of its clients")] if foreign.name != name else []
    if foreign.version != version:
        given.append((f"  version: {_quoted(foreign.version)}", "in the URLs of its clients"))
    return given


def _told(
    foreign: "ForeignArchive", properties: "Properties", metrics: str | None, options: argparse.Namespace
) -> list[tuple[str, str]]:
    """What config.properties said about every model."""
    told = []
    if foreign.handler is None and (handler := properties.text("default_service_handler")):
        told.append((f"  default_handler: {_quoted(handler)}", "`default_service_handler`: the archive names none"))
    envelope = properties.text("service_envelope")
    if envelope and envelope != "base":
        told.append((f"  envelope: {envelope}", "`service_envelope`"))
    if properties.flag("decode_input_request") is False:
        told.append(("  decode_requests: false", "the handler gets bytes, as with `decode_input_request=false`"))
    if hidden := properties.text("blacklist_env_vars"):
        told.append((f"  hidden_env: {_quoted(hidden)}", "`blacklist_env_vars`"))
    if metrics:
        told.append((f"  metrics: {_quoted(metrics)}", "`metrics_config`"))
    if options.trust_pickle:
        told.append(("  trust_pickle: true", "unpickles files of the archive, which runs whatever code is in them"))
    return told


def _heap_mb(settings: "Registration") -> int | None:
    """The heap that the largest body or answer needs; None if the usual one is enough."""
    largest = max((settings.max_request_mb or 0) * 1_000_000, settings.max_response_bytes or 0)
    needed = -(-6 * int(largest) // _MIB)
    return needed if needed > 512 else None


def _given(field: str, value: Any, comment: str) -> list[tuple[str, str]]:
    return [] if value is None else [(f"  {field}: {value:g}", comment)]


def _quoted(text: str) -> str:
    from marina.starting.init_spec import flow_yaml

    return flow_yaml(text)
