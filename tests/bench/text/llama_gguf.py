"""llama.cpp, compiled from what PyPI has of it for this machine, and the model as it reads it: weights of int8 with a
scale for every 32."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

SOURCE = "llama-cpp-python==0.3.36"
_VENDORED = Path("source", "vendor", "llama.cpp")
# Nothing but the server, without pages for browsers, which it would download.
_OPTIONS = ("CMAKE_BUILD_TYPE=Release", "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF")
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama_server(home: Path, python: Path) -> Path:
    """Its server, which the first call compiles below `home`; `python` gets what that needs."""
    server = home / "build" / "bin" / "llama-server"
    if server.exists():
        return server
    pip: list[str | Path] = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not (home / _VENDORED).exists():
        shutil.rmtree(home, ignore_errors=True)
        packed = home / "packed"
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", packed, SOURCE], check=True)
        [file] = packed.glob("*.tar.gz")
        shutil.unpack_archive(file, packed, filter="data")
        file.unlink()
        [folder] = packed.iterdir()
        folder.rename(home / "source")
    # diskcache is what its Python package needs, which looks for what is compiled in `lib`.
    subprocess.run([*pip, "install", "--only-binary", ":all:", "cmake", "ninja", "diskcache"], check=True)
    build, lib = home / "build", home / "source" / "llama_cpp" / "lib"
    lib.unlink(missing_ok=True)
    lib.symlink_to(build / "bin")
    print("llama.cpp: is compiled, which takes ten minutes of a core", file=sys.stderr, flush=True)
    options = [f"-D{option}" for option in _OPTIONS]
    _run(home, python, "cmake", "-S", home / _VENDORED, "-B", build, "-G", "Ninja", *options)
    _run(home, python, "cmake", "--build", build, "--target", "llama-server")
    return server


def _run(home: Path, python: Path, program: str, *arguments: str | Path) -> None:
    """A program of the virtual environment; RuntimeError with its last words where it fails."""
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    log = home / "compile.log"
    with log.open("ab") as stream:
        words = [python.with_name(program), *arguments]
        done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}: {log.read_text(errors='replace')[-300:]}")


def write_gguf(model: Path, home: Path) -> Path:
    """A folder with `model.gguf` beside the model that `transformers` saved; `home` is llama.cpp's."""
    file = model.with_name(f"{model.name}-llama.cpp") / "model.gguf"
    if file.exists():
        return file.parent
    sys.path.insert(0, str(home / _VENDORED / "gguf-py"))
    import gguf

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    file.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(file.with_suffix(".new"), "llama")
    _describe(writer, config)
    eight = gguf.GGMLQuantizationType.Q8_0
    for name, weight in load_file(model / "model.safetensors").items():
        values = _turned(name, weight.float(), config).numpy()
        if values.ndim == 1:
            writer.add_tensor(_name(name), values)
        else:
            writer.add_tensor(_name(name), gguf.quants.quantize(values, eight), raw_dtype=eight)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    file.with_suffix(".new").rename(file)
    return file.parent


def _describe(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    # The same words as those of `tokenizer.json`, each a token; prompts are sent as tokens.
    names = ["<unk>", "<s>", "</s>", *(f"▁w{token}" for token in range(3, config["vocab_size"]))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * len(names))
    # Unknown, two that only control, and ordinary ones.
    writer.add_token_types([2, 3, 3] + [1] * (len(names) - 3))
    writer.add_add_bos_token(False)


def _name(name: str) -> str:
    """As llama.cpp calls it."""
    words = name.removeprefix("model.").removesuffix(".weight")
    if not words.startswith("layers."):
        return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[words]
    _, layer, part = words.split(".", 2)
    return f"blk.{layer}.{_LAYER[part]}.weight"


def _turned(name: str, weight: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """llama.cpp turns neighbouring numbers of a head by one angle; `transformers` those half a head apart."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, count in heads.items():
        if part in name:
            halves = weight.reshape(count, 2, -1, weight.shape[1])
            return halves.transpose(1, 2).reshape(weight.shape).contiguous()
    return weight
