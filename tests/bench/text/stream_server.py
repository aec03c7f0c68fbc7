"""The server of `bench_text_http.py` for engines that come without one that streams: OpenVINO GenAI's continuous
batching, and CTranslate2 and `transformers`, which write one batch after another.

    python stream_server.py SIDE FOLDER THREADS PORT

It is a favour to them: it takes tokens instead of texts, has no queue, no limits and no metrics, checks nothing, and
sends each token as soon as it is there. An engine of batches waits until no further request has come for 5 ms, so that
requests that come together are written together.
"""

import asyncio
import itertools
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import contestant

SETTLE_S = 0.005


class Answer:
    """A prompt, how many tokens are to be written, and who gets them."""

    def __init__(self, prompt: list[int], count: int, writer: asyncio.StreamWriter) -> None:
        self.prompt, self.count, self.writer, self.written = prompt, count, writer, 0

    def send(self, tokens: list[int]) -> None:
        """The next tokens, and after the last how many there were."""
        self.written += len(tokens)
        text = "".join(f" w{token}" for token in tokens)
        event: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
        self.writer.write(f"data: {json.dumps(event)}\n\n".encode())
        if self.written >= self.count:
            usage = {"prompt_tokens": len(self.prompt), "completion_tokens": self.written}
            event = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
            self.writer.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
            self.writer.close()


Waiting = queue.SimpleQueue[Answer]
# Next tokens of several answers: telling each by itself wakes the thread that sends more often than that has work.
Told = list[tuple[Answer, list[int]]]
Tell = Callable[[Told], None]
# Writes the answers that wait, for ever, in a thread of its own.
Writes = Callable[[Waiting, Tell], None]


def arrived(waiting: Waiting, first_s: float | None, next_s: float) -> Iterator[Answer]:
    """Those that wait; so long is waited for the first of them, and for each further one."""
    try:
        yield waiting.get(timeout=first_s)
        while True:
            yield waiting.get(timeout=next_s)
    except queue.Empty:
        return


def openvino(folder: Path, threads: int) -> Writes:
    pipeline = contestant.openvino_pipeline(folder, threads)

    def write(waiting: Waiting, tell: Tell) -> None:
        numbers = itertools.count()
        handles: dict[Answer, Any] = {}
        left: dict[Answer, int] = {}
        while True:
            for answer in arrived(waiting, 0 if handles else None, 0):
                [prompt] = contestant.openvino_tensors([answer.prompt])
                config = contestant.openvino_config(answer.count)
                handles[answer] = pipeline.add_request(next(numbers), prompt, config)
                left[answer] = answer.count
            pipeline.step()
            told: Told = []
            for answer, handle in list(handles.items()):
                if handle.can_read():
                    tokens = [token for output in handle.read().values() for token in output.generated_ids]
                    told.append((answer, tokens))
                    left[answer] -= len(tokens)
                    if left[answer] <= 0:
                        del handles[answer], left[answer]
            tell(told)

    return write


def in_batches(generate: Callable[[list[Answer], int, Tell], Any]) -> Writes:
    """Of an engine that can only write a whole batch."""

    def write(waiting: Waiting, tell: Tell) -> None:
        while True:
            batch = list(arrived(waiting, None, SETTLE_S))
            generate(batch, max(answer.count for answer in batch), tell)

    return write


def ctranslate2(folder: Path, threads: int) -> Writes:
    generator, names = contestant.ctranslate2_generator(folder, threads)

    def generate(batch: list[Answer], count: int, tell: Tell) -> None:
        texts = [[names[token] for token in answer.prompt] for answer in batch]
        options = contestant.ctranslate2_options(len(batch), count)
        told: Told = []

        def each_token(step: Any) -> None:
            told.append((batch[step.batch_id], [step.token_id]))
            if len(told) == len(batch):
                tell(told.copy())
                told.clear()

        generator.generate_batch(texts, callback=each_token, **options)

    return in_batches(generate)


def transformers(folder: Path, threads: int) -> Writes:
    model = contestant.transformers_model(folder, threads, "bfloat16")
    import torch

    def generate(batch: list[Answer], count: int, tell: Tell) -> None:
        def each_step(ids: Any, *_: object, **__: object) -> Any:
            tell([(answer, [token]) for answer, token in zip(batch, ids[:, -1].tolist(), strict=True)])
            return torch.zeros(len(batch), dtype=torch.bool)

        ids = torch.tensor([answer.prompt for answer in batch])
        options = contestant.transformers_options(count) | {"stopping_criteria": [each_step]}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return in_batches(generate)


async def serve(write: Writes, port: int) -> None:
    waiting: Waiting = queue.SimpleQueue()
    loop = asyncio.get_running_loop()

    def send(told: Told) -> None:
        for answer, tokens in told:
            answer.send(tokens)

    def tell(told: Told) -> None:
        loop.call_soon_threadsafe(send, told)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        wish = json.loads(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        waiting.put(Answer(wish["prompt"], wish["max_tokens"], writer))

    def run() -> None:
        try:
            write(waiting, tell)
        finally:
            # Without its engine it would let its clients wait.
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()
    server = await asyncio.start_server(take, "127.0.0.1", port, backlog=64)
    await server.serve_forever()


def main() -> None:
    side, folder, threads, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    makers: dict[str, Callable[[Path, int], Writes]]
    makers = {"openvino": openvino, "ctranslate2": ctranslate2, "transformers": transformers}
    asyncio.run(serve(makers[side](folder, threads), port))


if __name__ == "__main__":
    main()
