"""The program that runs vLLM, in vLLM's own Python: it imports nothing but vLLM and the standard library.

It reads commands from its standard input and writes answers to what was its standard output, both as JSON after four
bytes with its length. Whatever vLLM prints goes to standard error. Written for vLLM 0.32.

    first command   {"model": …, more arguments of EngineArgs}       answer  {"ready": {"version", "cache_tokens"}}
    add             {"add": ID, "prompt": [tokens], "sampling": {arguments of SamplingParams}}
    cancel          {"cancel": ID}
    after a step    {"tokens": [[ID, token, logprob, [[token, logprob], …]], …], "reused": tokens, "ended": [ID, …]}
    not understood  {"refused": ID, "reason": …}                     fatal   {"failed": …}"""

import json
import os
import queue
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, NoReturn

LENGTH = struct.Struct(">I")
Message = dict[str, Any]


def read_message(stream: IO[bytes]) -> Message | None:
    """The next message; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    message: Message | None = json.loads(body) if len(body) == length else None
    return message


def write_message(stream: IO[bytes], message: Message) -> None:
    """Writes one message and flushes the stream."""
    body = json.dumps(message, separators=(",", ":")).encode()
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


class Runner:
    """Runs vLLM's steps, and the commands that have come between two of them."""

    def __init__(self, engine: Any, sampling: Callable[..., Any], send: Callable[[Message], None]) -> None:
        self._engine, self._sampling, self._send = engine, sampling, send
        # The requests whose first tokens were sent: the tokens that they reused are reported only once.
        self._reported: set[str] = set()

    def run(self, commands: "queue.SimpleQueue[Message]") -> NoReturn:
        """Runs until `read_commands` ends the process."""
        while True:
            is_idle = not self._engine.has_unfinished_requests()
            while is_idle or not commands.empty():
                self._execute(commands.get())
                is_idle = False
            if self._engine.has_unfinished_requests():
                self._send(self._message(self._engine.step()))

    def _execute(self, command: Message) -> None:
        if "cancel" in command:
            self._reported.discard(command["cancel"])
            self._engine.abort_request([command["cancel"]])
            return
        prompt = {"prompt_token_ids": command["prompt"]}
        try:
            self._engine.add_request(command["add"], prompt, self._sampling(command["sampling"]))
        except Exception as err:  # vLLM has no narrower error for a request that it refuses
            if type(err).__name__ == "EngineDeadError":
                raise
            self._send({"refused": command["add"], "reason": str(err)[:500]})

    def _message(self, outputs: list[Any]) -> Message:
        """The message about a step: its tokens, and which sequences ended."""
        tokens: list[list[Any]] = []
        ended = [output.request_id for output in outputs if output.finished]
        reused = 0
        for output in outputs:
            if output.request_id not in self._reported:
                self._reported.add(output.request_id)
                reused += output.num_cached_tokens or 0
            answer = output.outputs[0]
            for place, token in enumerate(answer.token_ids):
                chances = answer.logprobs[place] if answer.logprobs else {}
                own = chances[token].logprob if token in chances else None
                # vLLM adds the token itself if it is not one of the likeliest; then it has the last rank.
                ranked = sorted(chances.items(), key=lambda item: (item[1].rank, item[0]))
                tokens.append([output.request_id, token, own, [[at, chance.logprob] for at, chance in ranked]])
        self._reported.difference_update(ended)
        return {"tokens": tokens, "reused": reused, "ended": ended}


def start(arguments: Message) -> tuple[Any, Callable[..., Any], Message]:
    """Starts vLLM; returns its engine, a function that makes sampling parameters, and the content of `ready`."""
    import vllm
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    def sampling(given: Message) -> Any:
        schema = given.pop("json", None)
        if schema is not None:
            kind = "json" if schema.startswith("{") else "grammar"
            given["structured_outputs"] = StructuredOutputsParams(**{kind: schema})
        if bias := given.get("logit_bias"):
            # As JSON, the names of its tokens came as text.
            given["logit_bias"] = {int(token): value for token, value in bias.items()}
        return vllm.SamplingParams(output_kind=RequestOutputKind.DELTA, detokenize=False, **given)

    settings = vllm.EngineArgs(**arguments)
    # The library with which the worker has tried the schema.
    settings.structured_outputs_config.backend = "guidance"
    engine = vllm.LLMEngine.from_engine_args(settings)
    cache = engine.vllm_config.cache_config
    room = (cache.num_gpu_blocks or 0) * cache.block_size
    return engine, sampling, {"version": vllm.__version__, "cache_tokens": room}


def read_commands(stream: IO[bytes], into: "queue.SimpleQueue[Message]") -> None:
    """Reads all the time, so that the worker never blocks when it sends a command.

    The stream ends when the worker has ended, however that happened. Then this process and vLLM's other processes,
    which hold the GPU's memory, are killed, even in the middle of a step."""
    while (message := read_message(stream)) is not None:
        into.put(message)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    # Keeps the two pipes for this module. All other code gets an empty input, and writes to standard error.
    commands_from, answers_to = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(commands_from, commands), daemon=True).start()
    try:
        engine, sampling, ready = start(commands.get())
        write_message(answers_to, {"ready": ready})
        Runner(engine, sampling, lambda message: write_message(answers_to, message)).run(commands)
    except Exception as err:  # any error of vLLM is reported and ends this process
        print(f"vLLM failed: {type(err).__name__}: {err}", file=sys.stderr, flush=True)
        write_message(answers_to, {"failed": f"{type(err).__name__}: {err}"[:2000]})
        sys.exit(1)


if __name__ == "__main__":
    main()
