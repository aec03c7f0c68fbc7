"""The names of fields and parameters in vLLM's sources, with which the stand-in and our arguments are compared. They
are read without running vLLM. `vllm_signatures.py PYTHON` writes those of the vLLM in that Python."""

import ast
import json
import subprocess
import sys
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "standin" / "vllm-0.32.json"
# The classes that we use, by their modules, and the methods that we call.
CLASSES = {
    "engine/arg_utils.py": {"EngineArgs": ()},
    "sampling_params.py": {"SamplingParams": (), "StructuredOutputsParams": (), "RequestOutputKind": ()},
    "config/structured_outputs.py": {"StructuredOutputsConfig": ()},
    "config/cache.py": {"CacheConfig": ()},
    "logprobs.py": {"Logprob": ()},
    "outputs.py": {"CompletionOutput": (), "RequestOutput": ("__init__",)},
    "v1/engine/llm_engine.py": {
        "LLMEngine": ("from_engine_args", "add_request", "abort_request", "has_unfinished_requests", "step")
    },
}


def signatures(package: Path) -> dict[str, list[str]]:
    """The fields of each class and the parameters of each method."""
    read: dict[str, list[str]] = {}
    for file, classes in CLASSES.items():
        body = ast.parse((package / file).read_text(encoding="utf-8")).body
        for node in (each for each in body if isinstance(each, ast.ClassDef) and each.name in classes):
            read[node.name] = sorted(_fields(node))
            for method in (each for each in node.body if isinstance(each, ast.FunctionDef)):
                if method.name in classes[node.name]:
                    parameters = [*method.args.args[1:], *method.args.kwonlyargs]
                    read[f"{node.name}.{method.name}"] = [each.arg for each in parameters]
    return read


def _fields(node: ast.ClassDef) -> set[str]:
    named = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    plain = {
        target.id
        for each in node.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    return named | plain


def recorded() -> dict[str, list[str]]:
    read: dict[str, list[str]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return read


if __name__ == "__main__":
    find = "from importlib.util import find_spec; print(find_spec('vllm').submodule_search_locations[0])"
    place = subprocess.run([sys.argv[1], "-I", "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    RECORDED.write_text(json.dumps(signatures(Path(place)), indent=1, sort_keys=True) + "\n", encoding="utf-8")
