"""Small networks made by `transformers`, to compare ours with."""

from pathlib import Path
from typing import Any

import torch

from marina.archiver.torchvision_import import import_torchvision

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 95,
    "bos_token_id": 94,
    "pad_token_id": 93,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Mistral": {"head_dim": 16, "sliding_window": None},
    "Qwen2": {"rope_theta": 50_000.0, "tie_word_embeddings": False},
    "Qwen3": {"head_dim": 24, "tie_word_embeddings": True},
}


def save_network(family: str, folder: Path, **changes: Any) -> Any:
    """Saves a small network of `transformers`, with weights so large that each of its parts changes the scores."""
    # `transformers` imports torchvision if it is installed, and PyPI's build needs help beside a CPU build of torch.
    import_torchvision()
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family] | changes)
    network = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.save_pretrained(folder, safe_serialization=True)
    return network
