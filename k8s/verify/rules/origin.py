"""Rules about what the objects are made from: schemas, edits of the folder, the package, its settings, its evidence."""

import re
from collections.abc import Iterator
from typing import Any

from marina.k8s.manifests import CONFIG_ANNOTATION, EVIDENCE_ANNOTATION, PACKAGE_ANNOTATION, config_sha256
from marina.k8s.verify.objects import LocatedDocument, Objects, Place
from marina.k8s.verify.rule import Remark, Rules
from marina.k8s.verify.schemas import SchemaMistake, mistakes, shown

RULES = Rules()
_DIGEST = re.compile(r"@\w+:[0-9a-f]{64,}$")


@RULES.rule(
    "schema",
    "error",
    what="A field is unknown, is missing or has the wrong type in at least one of the Kubernetes versions checked.",
    why="A server's dry run knows only its own version: the field fails, or is silently dropped, after an upgrade.",
    fix="`kubectl explain KIND.FIELD` lists the fields; `--kubernetes` limits the versions that are checked",
)
def _schema(objects: Objects) -> Iterator[Remark]:
    kinds = {document.kind for document in objects.rendered}
    for document in objects.documents:
        # Of another kind, `folder-edited` says that the spec does not render it.
        seen: dict[SchemaMistake, list[str]] = {}
        for version in objects.versions if document.kind in kinds else ():
            for mistake in mistakes(document.data, version):
                seen.setdefault(mistake, []).append(version)
        for mistake, versions in seen.items():
            where = "" if len(versions) == len(objects.versions) else f" in Kubernetes {', '.join(versions)}"
            yield Remark(document.root.at(*mistake.path), mistake.text + where, mistake.hint)


@RULES.rule(
    "folder-edited",
    "warning",
    what="The folder's objects are not those that the spec renders now: somebody edited it, or it is out of date.",
    why="Each may be valid, but `marina manifests` overwrites an edit, and `marina deploy` never reads the folder.",
    fix="`marina manifests SPEC` writes the folder again; a change to keep belongs into `kubernetes.patches`",
)
def _edited(objects: Objects) -> Iterator[Remark]:
    left = {_identity(document): document for document in objects.rendered}
    seen: set[tuple[str, ...]] = set()
    for document in objects.documents if objects.written else ():
        identity = _identity(document)
        wanted = left.pop(identity, None)
        if wanted is None:
            yield Remark(document.root, "is here twice" if identity in seen else "is not what the spec renders")
        elif differing := list(_differences(document.root, wanted.data)):
            more = f"; {len(differing) - 1} more fields differ" if len(differing) > 1 else ""
            yield Remark(differing[0][0], differing[0][1] + more)
        seen.add(identity)
    for document in left.values() if objects.written else ():
        yield Remark(document.root, "is missing in the folder")


def _identity(document: LocatedDocument) -> tuple[str, ...]:
    return document.kind, document.root.at("metadata", "namespace").text, document.name


def _differences(place: Place, wanted: Any) -> Iterator[tuple[Place, str]]:
    """The fields that differ from the rendered ones, each with a sentence."""
    got = place.value
    if isinstance(got, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*wanted, *got]):
            yield from _differences(place.at(key), wanted.get(key))
    elif isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        for index, item in enumerate(wanted):
            yield from _differences(place.at(index), item)
    elif got != wanted:
        has = f"got {shown(got)}" if place.given else "missing"
        yield place, f"{has}, the spec renders {'nothing' if wanted is None else shown(wanted)}"


@RULES.rule(
    "origin-differs",
    "error",
    what="An annotation names another package, configuration or evidence than the newest.",
    why="Only the annotation shows that what is deployed is not what was measured, or that pods keep old settings.",
    fix="`marina manifests SPEC` again, after `marina image SPEC`",
)
def _origin(objects: Objects) -> Iterator[Remark]:
    plan, annotated = objects.plan, [objects.deployment, *(scaler.root for scaler in objects.scalers)]
    if plan.package:
        yield from _unless_same(objects.annotations.at(PACKAGE_ANNOTATION), "built", plan.package.sha256)
    yield from _unless_same(objects.annotations.at(CONFIG_ANNOTATION), "in the spec", config_sha256(plan))
    measured = plan.evidence.sha256 if plan.evidence else None
    for place in annotated:
        yield from _unless_same(place.at("metadata", "annotations", EVIDENCE_ANNOTATION), "measured", measured)


def _unless_same(annotation: Place, how: str, wanted: str | None) -> Iterator[Remark]:
    if annotation.value != wanted:
        got = f"got `{str(annotation.value)[:12]}…`" if annotation.given else "missing"
        yield Remark(annotation, f"{got}, but {f'`{wanted[:12]}…`' if wanted else 'nothing'} was {how}")


@RULES.rule(
    "image-digest",
    "warning",
    what="An image has no digest.",
    why="Any tag, not only `latest`, can be pushed again; then what runs is not what was measured.",
    fix="registry/name:VERSION@sha256:DIGEST; `marina image SPEC --push` records the digest",
)
def _digest(objects: Objects) -> Iterator[Remark]:
    for image in (container.at("image") for container in objects.containers):
        if image.text and not _DIGEST.search(image.text):
            yield Remark(image, f"got `{image.text}`")
