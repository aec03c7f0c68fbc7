"""The program around vLLM, in a Python of its own: it imports nothing but vLLM and the standard library.

Commands come on its standard input and answers leave on what was its standard output, both as JSON with its length in
four bytes before it. Whatever vLLM prints goes to standard error. Written against vLLM 0.32.

    first command   {"model": …, more arguments of EngineArgs}       answer  {"ready": {"version", "cache_tokens"}}
    add             {"add": ID, "prompt": [tokens], "sampling": {arguments of SamplingParams}}
    cancel          {"cancel": ID}
    after a step    {"tokens": [[ID, token, logprob, [[token, logprob], …]], …], "reused": tokens, "ended": [ID, …]}
    not understood  {"refused": ID, "reason": …}                     fatal   {"failed": …}
"""

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
    """Sends a message whole."""
    body = json.dumps(message, separators=(",", ":")).encode()
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


class Runner:
    """vLLM's engine between two pipes: commands are taken in between its steps."""

    def __init__(self, engine: Any, sampling: Callable[..., Any], send: Callable[[Message], None]) -> None:
        self._engine, self._sampling, self._send = engine, sampling, send
        # Whose first tokens were sent, so that what was found in the cache is told once.
        self._told: set[str] = set()

    def run(self, commands: "queue.SimpleQueue[Message]") -> NoReturn:
        """For ever: who reads the commands ends this process with them."""
        while True:
            is_idle = not self._engine.has_unfinished_requests()
            while is_idle or not commands.empty():
                self._obey(commands.get())
                is_idle = False
            if self._engine.has_unfinished_requests():
                self._send(self._message(self._engine.step()))

    def _obey(self, command: Message) -> None:
        if "cancel" in command:
            self._told.discard(command["cancel"])
            self._engine.abort_request([command["cancel"]])
            return
        prompt = {"prompt_token_ids": command["prompt"]}
        try:
            self._engine.add_request(command["add"], prompt, self._sampling(command["sampling"]))
        except Exception as err:  # vLLM raises nothing narrower for a request that it does not take
            if type(err).__name__ == "EngineDeadError":
                raise
            self._send({"refused": command["add"], "reason": str(err)[:500]})

    def _message(self, outputs: list[Any]) -> Message:
        """What a step gave each sequence."""
        tokens: list[list[Any]] = []
        ended = [output.request_id for output in outputs if output.finished]
        reused = 0
        for output in outputs:
            if output.request_id not in self._told:
                self._told.add(output.request_id)
                reused += output.num_cached_tokens or 0
            answer = output.outputs[0]
            for place, token in enumerate(answer.token_ids):
                chances = answer.logprobs[place] if answer.logprobs else {}
                own = chances[token].logprob if token in chances else None
                # The token itself is told, too, where it is none of the likeliest: then it is the last.
                ranked = sorted(chances.items(), key=lambda item: (item[1].rank, item[0]))
                tokens.append([output.request_id, token, own, [[at, chance.logprob] for at, chance in ranked]])
        self._told.difference_update(ended)
        return {"tokens": tokens, "reused": reused, "ended": ended}


def start(arguments: Message) -> tuple[Any, Callable[..., Any], Message]:
    """vLLM's engine, what makes its sampling parameters, and what is told when it can be used."""
    import vllm
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    def sampling(given: Message) -> Any:
        schema = given.pop("json", None)
        if schema is not None:
            given["structured_outputs"] = StructuredOutputsParams(json=schema)
        return vllm.SamplingParams(output_kind=RequestOutputKind.DELTA, detokenize=False, **given)

    settings = vllm.EngineArgs(**arguments)
    # The library by which a schema was tried before it comes here.
    settings.structured_outputs_config.backend = "guidance"
    engine = vllm.LLMEngine.from_engine_args(settings)
    cache = engine.vllm_config.cache_config
    room = (cache.num_gpu_blocks or 0) * cache.block_size
    return engine, sampling, {"version": vllm.__version__, "cache_tokens": room}


def read_commands(stream: IO[bytes], into: "queue.SimpleQueue[Message]") -> None:
    """Always reads, so that who sends never waits. The commands end with the process that sends them, however that
    ends: then vLLM's own processes, which hold the GPU's memory, must end as well, in a step or not."""
    while (message := read_message(stream)) is not None:
        into.put(message)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    # Ours alone; those that everything else here knows are an empty input and standard error.
    commands_from, answers_to = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(commands_from, commands), daemon=True).start()
    try:
        engine, sampling, ready = start(commands.get())
        write_message(answers_to, {"ready": ready})
        Runner(engine, sampling, lambda message: write_message(answers_to, message)).run(commands)
    except Exception as err:  # whatever vLLM raises is told, and the end of this process
        print(f"vLLM failed: {type(err).__name__}: {err}", file=sys.stderr, flush=True)
        write_message(answers_to, {"failed": f"{type(err).__name__}: {err}"[:2000]})
        sys.exit(1)


if __name__ == "__main__":
    main()
