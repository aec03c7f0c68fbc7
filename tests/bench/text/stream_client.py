"""The client of `bench_text_http.py`, in a process of its own, with nothing in it: each line of its input has a `port`,
a `path` and `bodies`, which it sends at once; when all streams have ended, it writes what it saw as one line.

What arrived is read as events only when everything is over, so that reading delays nothing.
"""

import asyncio
import gc
import json
import sys
import time
from typing import Any

# A stream that takes longer hangs.
LONGEST_S = 900.0


async def ask(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """When the request was sent, when its first text came and when it ended; its tokens and its first text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    sent = time.monotonic()
    writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    arrived: list[tuple[float, bytes]] = []
    async with asyncio.timeout(LONGEST_S):
        while data := await reader.read(65536):
            arrived.append((time.monotonic(), data))
    writer.close()
    return {"sent": sent, "ended": arrived[-1][0] if arrived else sent, **read(arrived)}


def read(arrived: list[tuple[float, bytes]]) -> dict[str, Any]:
    """What the events say; an error where the answer is none, or ends without saying how many tokens it has."""
    whole = b"".join(data for _, data in arrived)
    if whole[9:12] != b"200":
        return {"error": whole[-500:].decode(errors="replace")}
    first, word, tokens, so_far = None, "", 0, b""
    for moment, data in arrived:
        *lines, so_far = (so_far + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if first is None and text.strip():
                first, word = moment, text.split()[0]
    if first is None or not tokens:
        return {"error": f"an answer without text or without usage: {whole[-500:].decode(errors='replace')}"}
    return {"first": first, "word": word, "tokens": tokens}


async def ask_all(wish: dict[str, Any]) -> list[dict[str, Any]]:
    return await asyncio.gather(*(ask(wish["port"], wish["path"], body) for body in wish["bodies"]))


def main() -> None:
    gc.disable()
    for line in sys.stdin:
        try:
            seen = asyncio.run(ask_all(json.loads(line)))
        except (OSError, TimeoutError, ValueError) as err:
            seen = [{"error": repr(err)}]
        print(json.dumps(seen), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
