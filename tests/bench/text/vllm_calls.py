"""Writes down how vLLM's own parsers take answers apart, for the test that compares ours with them. It reads
the texts in `calls_of_vllm.json`, and writes that file anew. Written for vLLM 0.32, without torchvision.

PYTHON_WITH_VLLM tests/bench/text/vllm_calls.py"""

import json
import logging
from pathlib import Path
from typing import Any

CALLS = Path(__file__).parents[2] / "handlers/generation/calls_of_vllm.json"
PARSERS = {
    "hermes": "hermes",
    "llama": "llama3_json",
    "mistral": "mistral",
    "granite": "granite",
    "pythonic": "pythonic",
}
MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>", "<think>", "</think>")


class StandInTokenizer:
    """What the parsers ask of a tokenizer: tokens for their marks, and for each letter."""

    def get_vocab(self) -> dict[str, int]:
        return {mark: number for number, mark in enumerate(MARKS)}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [1000 + ord(letter) for letter in text]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def main() -> None:
    logging.disable(logging.CRITICAL)
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", tools=tools)
    families = []
    for family, known in json.loads(CALLS.read_text()).items():
        kind, lines = ToolParserManager.get_tool_parser(PARSERS[family]), []
        for text, *_ in known:
            parsed = kind(StandInTokenizer(), request.tools).extract_tool_calls(text, request)
            calls = [[call.function.name, json.loads(call.function.arguments)] for call in parsed.tool_calls]
            lines.append("  " + json.dumps([text, parsed.content or "", calls], ensure_ascii=False))
        families.append(f' "{family}": [\n' + ",\n".join(lines) + "\n ]")
    CALLS.write_text("{\n" + ",\n".join(families) + "\n}\n")


if __name__ == "__main__":
    main()
