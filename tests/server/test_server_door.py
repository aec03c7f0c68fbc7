import shutil
import socket
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import marina_jar
import pytest
from tools import skip_unless_required

from marina.server.java import door as door_module
from marina.server.java.door import Door, NoDoorError, OpenCounts
from marina.server.system.sockets import read_sockets


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", 0)
    yield made
    made.close()


def java(door: Door, *answers: str) -> None:
    """Answers orders in a thread, as Java does; `{}` stands for the order's number."""
    theirs = socket.socket(fileno=socket.dup(door.orders))
    door.close_java_end()

    def answer() -> None:
        with theirs, theirs.makefile("rw", encoding="ascii") as lines:
            for text in answers:
                number = lines.readline().split()[0]
                lines.write(text.format(number) + "\n")
                lines.flush()

    threading.Thread(target=answer, daemon=True).start()


def listening(door: Door) -> tuple[socket.socket, int]:
    """Java's handle of the listener, with its port."""
    theirs = socket.socket(fileno=socket.dup(door.listener))
    theirs.listen()
    return theirs, theirs.getsockname()[1]


def test_counts_are_what_java_answers(door: Door) -> None:
    java(door, "{} 1 2 3 4 5 6")
    assert door.count() == OpenCounts(1, 2, 3, connections=4, refused=5, logged=6)


def test_answer_that_came_too_late_is_not_taken_for_another(door: Door) -> None:
    java(door, "0 9 9 9 9 9 9\n{} 0 1 0 0 0 0")
    assert door.count() == OpenCounts(requests=1)


def test_busy_java_and_one_that_has_ended_are_no_counts(door: Door) -> None:
    java(door, "{} busy")
    with pytest.raises(NoDoorError, match="busy"):
        door.count()
    with pytest.raises(NoDoorError):
        door.count()


def test_silent_java_is_not_waited_for_and_may_answer_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_ANSWER_S", 0.01)
    slow = Door("127.0.0.1", 0)
    theirs = socket.socket(fileno=socket.dup(slow.orders))
    with pytest.raises(NoDoorError):
        slow.count()
    theirs.sendall(b"1 9 9 9 9 9 9\n2 0 1 0 0 0 0\n")
    assert slow.count() == OpenCounts(requests=1)
    theirs.close()
    slow.close()


@pytest.mark.slow
def test_the_orders_after_an_unanswered_one_wait_only_if_java_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_ANSWER_S", 0.2)
    monkeypatch.setattr(door_module, "_HASTE_S", 0.01)
    slow = Door("127.0.0.1", 0)
    theirs = socket.socket(fileno=socket.dup(slow.orders))
    began = time.monotonic()
    for _ in range(5):
        with pytest.raises(NoDoorError):
            slow.count()
    assert time.monotonic() - began < 0.8
    theirs.sendall(b"1 9 9 9 9 9 9\n")
    timer = threading.Timer(0.05, lambda: theirs.sendall(b"6 0 1 0 0 0 0\n"))
    timer.start()
    assert slow.count() == OpenCounts(requests=1)
    timer.join()
    theirs.close()
    slow.close()


def test_what_waits_is_accepted_and_whoever_comes_later_is_refused_at_once(door: Door) -> None:
    if door.why_cannot_refuse:
        skip_unless_required(door.why_cannot_refuse)
    theirs, port = listening(door)
    with theirs, socket.create_connection(("127.0.0.1", port)) as early:
        assert door.refuse_new_connections()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert (read_sockets(port).waiting, read_sockets(port).listening) == (1, True)
        early.sendall(b"early")
        accepted, _ = theirs.accept()
        with accepted:
            accepted.setblocking(True)
            assert accepted.recv(10) == b"early"
        assert read_sockets(port).waiting == 0


def test_closed_listener_is_the_supervisors_too(door: Door) -> None:
    theirs, port = listening(door)
    theirs.close()
    java(door, "{} closed")
    door.close_listener()
    assert not read_sockets(port).listening


def test_a_taken_port_is_an_error_at_once(door: Door) -> None:
    theirs, port = listening(door)
    with theirs, pytest.raises(OSError, match="Address already in use"):
        Door("127.0.0.1", port)


def test_kernel_that_cannot_turn_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_SO_BINDTOIFINDEX", 9999)
    old = Door("127.0.0.1", 0)
    assert old.why_cannot_refuse == "the kernel cannot bind a listener to a device: Protocol not available"
    assert not old.refuse_new_connections()
    old.close()


def test_the_jar_is_of_its_sources() -> None:
    with zipfile.ZipFile(marina_jar.JAR) as jar:
        manifest = jar.read("META-INF/MANIFEST.MF").decode()
    assert f"Sources: {marina_jar.digest()}\n" in manifest, "make jar"


@pytest.mark.slow
def test_the_jar_is_what_its_compiler_makes_of_them(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("there is no javac")
    version = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True).stdout.split()[1]
    if int(version.partition(".")[0]) != marina_jar.COMPILER:
        pytest.skip(f"javac is {version}, the jar is made by {marina_jar.COMPILER}")
    marina_jar.build(tmp_path / "marina.jar")
    with zipfile.ZipFile(marina_jar.JAR) as kept, zipfile.ZipFile(tmp_path / "marina.jar") as made:
        assert kept.namelist() == made.namelist()
        assert [name for name in kept.namelist() if kept.read(name) != made.read(name)] == []
