"""Compares our reader with TorchServe's own: the same bytes must give the same requests, however they are split."""

import itertools
import random
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ts.protocol import otf_message_handler as stock

from marina.handlers import receive

SIZES = (0, 1, 100, 32_767, 32_768, 32_769, 65_536, 65_537, 300_000)


@pytest.fixture(autouse=True)
def _bodies_as_they_are(monkeypatch):
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")


def sized(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def message(bodies: list[bytes]) -> bytes:
    end = struct.pack("!i", -1)
    parts = [b"I"]
    for index, body in enumerate(bodies):
        headers = {b"host": b"127.0.0.1", b"x-empty": b"", b"content-type": b"application/json"}
        parts.append(sized(f"request-{index}".encode()))
        parts += [sized(name) + sized(value) for name, value in headers.items()]
        parts += [end, sized(b"body"), sized(b"application/json"), sized(body), end]
    return b"".join([*parts, end])


@contextmanager
def connection(data: bytes, cuts: Iterator[int]) -> Iterator[socket.socket]:
    """A socket that receives the data in pieces and is then closed."""

    def write(into: socket.socket) -> None:
        with into:
            rest = memoryview(data)
            while rest:
                size = next(cuts)
                into.sendall(rest[:size])
                rest = rest[size:]

    ours, theirs = socket.socketpair()
    writer = threading.Thread(target=write, args=(theirs,))
    writer.start()
    with ours:
        yield ours
    writer.join()


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 3, 1000, 70_000, None])
def test_batches_are_read_as_torchserve_reads_them(cut):
    chosen = random.Random(1)
    bodies = [chosen.randbytes(size if cut != 1 else min(size, 200)) for size in SIZES]
    data = message(bodies)
    with connection(data, itertools.repeat(cut or len(data))) as worker:
        expected = stock.retrieve_msg(worker)
    with connection(data, itertools.repeat(cut or len(data))) as worker:
        assert receive.Receiver().receive(worker) == expected


def test_a_second_batch_begins_where_the_first_ended():
    receiver = receive.Receiver()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for bodies in ([b"a" * 10], [b"b", b"c" * 70_000], [b""]):
            writer = threading.Thread(target=theirs.sendall, args=(message(bodies),))
            writer.start()
            _, batch = receiver.receive(ours)
            writer.join()
            assert [request["parameters"][0]["value"] for request in batch] == bodies


def test_an_unknown_command_is_an_error():
    with connection(b"X", itertools.repeat(1)) as worker, pytest.raises(ValueError, match="unknown command"):
        receive.Receiver().receive(worker)


@pytest.mark.parametrize("length", [0, 1, 40, 5_000])
def test_the_worker_ends_when_torchserve_closes_the_connection(length):
    with connection(message([b"x" * 10_000])[:length], itertools.repeat(512)) as worker, pytest.raises(SystemExit):
        receive.Receiver().receive(worker)


def test_it_is_installed_only_where_bodies_are_to_stay_as_they_are(monkeypatch):
    worker = sys.modules["__main__"]
    monkeypatch.setattr(worker, "retrieve_msg", stock.retrieve_msg, raising=False)
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "true")
    receive.install_receiver()
    assert worker.retrieve_msg is stock.retrieve_msg
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    receive.install_receiver()
    assert worker.retrieve_msg is not stock.retrieve_msg
