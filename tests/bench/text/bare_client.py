"""A client with nothing in it: it sends requests when they are due and notes when bytes arrive. The referee where two
load generators differ.

    python bare_client.py PORT REQUESTS.jsonl OUT.json

Each line of REQUESTS has `relative_timestamp`, `prompt` and `output_tokens_count`. All connections are open before the
first request is due. What arrived is read as events only when everything is over, so that reading delays nothing.
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

AHEAD_S = 1.0


def body_of(prompt: str, tokens: int) -> bytes:
    """What guidellm sends."""
    wish = {"model": "tales", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    wish |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return json.dumps(wish).encode()


async def ask(port: int, body: bytes, due: float) -> dict[str, float]:
    """Seconds from when a request was due to when it was sent, to its first text, its last, and its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    await asyncio.sleep(due - time.monotonic())
    sent = time.monotonic()
    writer.write(request)
    arrived: list[tuple[float, bytes]] = []
    while data := await reader.read(65536):
        arrived.append((time.monotonic(), data))
    ended = time.monotonic()
    writer.close()
    texts = when_texts(arrived)
    return {"sent": sent - due, "first": texts[0] - due, "last": texts[-1] - due, "ended": ended - due}


def when_texts(arrived: list[tuple[float, bytes]]) -> list[float]:
    """When each event with a part of the answer was complete."""
    times, so_far = [], b""
    for moment, data in arrived:
        so_far += data
        *lines, so_far = so_far.split(b"\n")
        for line in lines:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                times.append(moment)
    return times


async def ask_all(port: int, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    began = time.monotonic() + AHEAD_S
    asked = []
    for row in rows:
        body = body_of(row["prompt"], row["output_tokens_count"])
        asked.append(ask(port, body, began + row["relative_timestamp"]))
    return await asyncio.gather(*asked)


def main() -> None:
    port, requests, out = sys.argv[1:]
    rows = [json.loads(line) for line in Path(requests).read_text(encoding="utf-8").splitlines()]
    gc.disable()
    Path(out).write_text(json.dumps(asyncio.run(ask_all(int(port), rows))), encoding="utf-8")


if __name__ == "__main__":
    main()
