"""Batches from TorchServe's connection, as `ts.protocol.otf_message_handler.retrieve_msg` gives them.

That one asks the kernel for every length and every header by itself, forty times a request, and logs a line a batch.
This one reads what has arrived, and cuts it up in memory."""

import logging
import os
import socket
import struct
import sys
from typing import Any

_PREDICT, _END = b"I", -1
# What is read ahead of what is asked for; longer bodies go past the buffer.
_AHEAD_BYTES = 1 << 15
_INT = struct.Struct("!i")


def install_receiver() -> None:
    """Gives this worker the faster reader. Not where TorchServe was not told to leave JSON as it is: its own reader
    decodes it then."""
    main: Any = sys.modules["__main__"]
    if os.environ.get("TS_DECODE_INPUT_REQUEST") != "false" or not hasattr(main, "retrieve_msg"):
        return
    main.retrieve_msg = Receiver().receive


class Receiver:
    """Reads from a worker's only connection. Between two batches nothing is left of what was read, because TorchServe
    waits for the answers before it sends more."""

    def __init__(self) -> None:
        self._data = bytearray(2 * _AHEAD_BYTES)
        self._view = memoryview(self._data)
        self._at = self._end = 0

    def receive(self, connection: socket.socket) -> tuple[bytearray, list[dict[str, Any]]]:
        """The command and the requests of the next batch; ends the process when TorchServe is gone."""
        self._connection = connection
        self._at = self._end = 0
        command = self._take(1)
        if command != _PREDICT:
            raise ValueError(f"TorchServe sent the unknown command {command!r}")
        batch = []
        while (length := self._length()) != _END:
            batch.append(self._request(length))
        return command, batch

    def _request(self, id_length: int) -> dict[str, Any]:
        request: dict[str, Any] = {"requestId": self._take(id_length), "headers": [], "parameters": []}
        while (length := self._length()) != _END:
            name = self._take(length)
            request["headers"].append({"name": name, "value": self._take(self._length())})
        while (length := self._length()) != _END:
            field, kind = self._take(length).decode(), self._take(self._length()).decode()
            body = self._take(self._length())
            request["parameters"].append({"name": field, "contentType": kind, "value": body})
        return request

    def _length(self) -> int:
        at = self._at
        if self._end - at < _INT.size:
            return int.from_bytes(self._take_rest(_INT.size), signed=True)
        self._at = at + _INT.size
        (length,) = _INT.unpack_from(self._data, at)
        return int(length)

    def _take(self, count: int) -> bytearray:
        at = self._at
        if self._end - at < count:
            return self._take_rest(count)
        self._at = at + count
        return self._data[at : at + count]

    def _take_rest(self, count: int) -> bytearray:
        """What is more than has been read: straight to where it stays, and only then on into the buffer."""
        taken = bytearray(count)
        held = self._end - self._at
        taken[:held] = self._data[self._at : self._end]
        self._at = self._end = 0
        with memoryview(taken) as view:
            while count - held > _AHEAD_BYTES:
                held += self._read(view[held:])
        while count - held > self._end:
            self._end += self._read(self._view[self._end :])
        self._at = count - held
        taken[held:] = self._data[: self._at]
        return taken

    def _read(self, into: memoryview) -> int:
        received = self._connection.recv_into(into)
        if received == 0:
            logging.getLogger(__name__).info("TorchServe has closed the connection")
            sys.exit(0)
        return received
