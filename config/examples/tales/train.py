"""Makes up tales, trains the model of this example on them, and saves it as `transformers` would.

python config/examples/tales/train.py     takes a few minutes on one core
"""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

HERE = Path(__file__).parent
MODEL = HERE / "model"
TALES, HELD_OUT, STEPS, BATCH, LENGTH = 6000, 40, 400, 12, 128
VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, INNER, LONGEST = 512, 128, 3, 4, 2, 384, 512
THETA, EPS, END = 10_000.0, 1e-5, "<end>"
TEMPLATE = """{% for message in messages %}{% if message.role == 'user' %}\
{% if not message.content.startswith('Once') %}{{ raise_exception('a tale begins with Once') }}{% endif %}\
{{ message.content }}{% else %} {{ message.content }} {% endif %}{% endfor %}"""

WHO = [
    "a fisher",
    "a baker",
    "an old captain",
    "a young pilot",
    "a lamplighter",
    "a small gull",
    "a grey seal",
    "a clever otter",
]
NAMES = [
    "Ada",
    "Bruno",
    "Clara",
    "Dario",
    "Elin",
    "Falk",
    "Greta",
    "Hanno",
    "Ida",
    "Jon",
    "Karla",
    "Leo",
    "Mira",
    "Nils",
]
PLACES = ["by the harbour", "on a green island", "under the lighthouse", "behind the dunes", "near the old bridge"]
THINGS = [
    "a silver key",
    "a paper boat",
    "a broken compass",
    "a blue lantern",
    "a letter without a name",
    "a tiny bell",
]
FOUND = ["in the sand", "under a stone", "in an empty net", "behind a door", "at the bottom of a barrel"]
ASKED = ["the moon", "the wind", "a passing whale", "the oldest tree", "the harbour master"]
WEATHER = ["The sea was calm.", "It rained all day.", "A storm came up.", "The fog was thick.", "The sun was warm."]
ENDS = [
    "and never felt alone again",
    "and the boats came home",
    "and everybody danced until the morning",
    "and the lantern burns to this day",
    "and that was the end of the storm",
]


def tale(chance: random.Random) -> str:
    """One tale: a few sentences about the same person and thing."""
    who, name, place, treasure = (chance.choice(words) for words in (WHO, NAMES, PLACES, THINGS))
    asked, short = chance.choice(ASKED), treasure.split(" ", 1)[1]
    lines = [
        f"Once upon a time there was {who} called {name}, who lived {place}.",
        chance.choice(WEATHER),
        f"One {chance.choice(('morning', 'evening', 'night'))} {name} found {treasure} {chance.choice(FOUND)}.",
        f'"Whose is the {short}?" {name} asked {asked}.',
        f'"It belongs to {chance.choice(("nobody", "you", "the sea"))}," said {asked}.',
        f"So {name} {chance.choice(('kept', 'hid', 'gave away'))} the {short}, {chance.choice(ENDS)}.",
    ]
    return " ".join(lines)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KV_HEADS * size, bias=False) for _ in range(2))
        rates = 1.0 / THETA ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(LENGTH).float(), rates).repeat(1, 2)
        self.turns = angles.cos(), angles.sin()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = [
            project(hidden).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        ]
        query, key = (self.turned(vectors) for vectors in heads[:2])
        attended = functional.scaled_dot_product_attention(query, key, heads[2], is_causal=True, enable_gqa=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def turned(self, vectors: torch.Tensor) -> torch.Tensor:
        cosine, sine = (table[: vectors.shape[2]] for table in self.turns)
        left, right = vectors.chunk(2, -1)
        return vectors * cosine + torch.cat((-right, left), -1) * sine


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Inner()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH, EPS), nn.RMSNorm(WIDTH, EPS)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Network(nn.Module):
    """A Llama, whose parts have the names that `transformers` uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, EPS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed_tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.linear(self.norm(hidden), self.embed_tokens.weight)


def train_tokenizer(tales: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(tales, trainer)
    return tokenizer


def batches(tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=chance)
        yield torch.stack([tokens[start : start + LENGTH + 1] for start in starts.tolist()])


def train(tokens: torch.Tensor) -> Network:
    torch.manual_seed(0)
    network = Network()
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    for step, batch in zip(range(STEPS), batches(tokens), strict=False):
        rate = 3e-3 * min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = functional.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return network


def save_settings(tokenizer: Tokenizer) -> None:
    MODEL.mkdir(exist_ok=True)
    end = tokenizer.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": "bfloat16",
    }
    (MODEL / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (MODEL / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}, indent=2) + "\n")
    (MODEL / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer.save(str(MODEL / "tokenizer.json"))


def save_weights(network: Network) -> None:
    weights = {f"model.{name}": value.detach().bfloat16() for name, value in network.state_dict().items()}
    save_file(weights, MODEL / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    torch.set_num_threads(1)
    chance = random.Random(0)
    tales = [tale(chance) for _ in range(TALES)]
    (HERE / "held-out").mkdir(exist_ok=True)
    (HERE / "held-out/tales.txt").write_text("".join(f"{tale(chance)}\n" for _ in range(HELD_OUT)))
    tokenizer = train_tokenizer(tales)
    end = tokenizer.token_to_id(END)
    tokens = torch.tensor([token for text in tales for token in [*tokenizer.encode(text).ids, end]])
    print(f"{len(tokens)} tokens")
    save_settings(tokenizer)
    save_weights(train(tokens))


if __name__ == "__main__":
    main()
