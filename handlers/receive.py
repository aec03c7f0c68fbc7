"""Receives batches from TorchServe's connection, with the same results as
`ts.protocol.otf_message_handler.retrieve_msg`.

That function makes a system call for every length and every header, forty per request, and logs a line per batch. This
module reads whatever has arrived and parses it in memory."""

import logging
import os
import socket
import struct
import sys
from typing import Any

_PREDICT, _END = b"I", -1
# How much is read ahead; longer bodies bypass the buffer.
_AHEAD_BYTES = 1 << 15
_INT = struct.Struct("!i")


def install_receiver() -> None:
    """Replaces TorchServe's reader in this worker. Does nothing unless TorchServe is configured to leave JSON
    undecoded: otherwise its own reader has to decode it."""
    main: Any = sys.modules["__main__"]
    if os.environ.get("TS_DECODE_INPUT_REQUEST") != "false" or not hasattr(main, "retrieve_msg"):
        return
    main.retrieve_msg = Receiver().receive


class Receiver:
    """Reads from a worker's only connection. The buffer is empty between two batches, because TorchServe waits for the
    answers before it sends more."""

    def __init__(self) -> None:
        self._data = bytearray(2 * _AHEAD_BYTES)
        self._view = memoryview(self._data)
        self._at = self._end = 0

    def receive(self, connection: socket.socket) -> tuple[bytearray, list[dict[str, Any]]]:
        """Waits for the next batch and returns its command and its requests. Exits if TorchServe has gone."""
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
        """Takes more bytes than the buffer holds. Most are read straight into the result; only the last ones go through
        the buffer, which also reads ahead."""
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
