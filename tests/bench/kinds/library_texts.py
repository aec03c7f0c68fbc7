"""Models of texts as the users of several libraries have them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from library_pictures import Kind, of_classes, of_vector

_WORDS = ("the", "ship", "is", "in", "harbour", "where", "sea", "blue", "a", "cat", "small", "large", "?", ".")
_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
TEXT = "the small ship is in the harbour ."


def save_tokenizer(folder: Path, begin: str = "[CLS]", end: str = "[SEP]", pad: str = "[PAD]") -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    marks = [pad, "[UNK]", begin, end, "[MASK]"]
    known = {word: place for place, word in enumerate([*marks[:2], "[MASK]", *_WORDS, begin, end])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(begin, known[begin]), (end, known[end])],
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token="[UNK]",
        cls_token=begin,
        sep_token=end,
        mask_token="[MASK]",
    )
    made.save_pretrained(folder)
    return made


def save_text(folder: Path, name: str, *, task: str, more: dict[str, Any] | None = None) -> Kind:
    """An encoder of `transformers`, and the library's own answer to a text."""
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, name)
    tokenizer = save_tokenizer(folder / "model")
    fields = {**_SMALL, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **(more or {})}
    model = made(made.config_class(**fields)).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "classifier" in key:
                value.mul_(20)
    model.save_pretrained(folder / "model")
    arguments = ["--source", "hf:./model"]
    pair = ("where is the ship ?", TEXT)
    with torch.no_grad():
        if task == "rerank":
            logits = model(**tokenizer(*pair, return_tensors="pt")).logits
            asked = {"query": pair[0], "documents": [pair[1]]}
            expected = float(logits[0, 0].sigmoid())

            def difference(reply: Any) -> float:
                return abs(reply.json()["results"][0]["relevance_score"] - expected)

            return Kind(arguments, json.dumps(asked).encode(), "application/json", difference)
        output = model(**tokenizer(TEXT, return_tensors="pt"))
    body = json.dumps({"text": TEXT}).encode()
    if task == "embed":
        mean = torch.nn.functional.normalize(output.last_hidden_state[0].mean(0), dim=0)
        arguments += ["--pooling", "mean"]
        return Kind(arguments, body, "application/json", of_vector(mean), edited=True)
    return Kind(arguments, body, "application/json", of_classes(output.logits[0].softmax(-1)))


def save_sentences(folder: Path, *, pooling: str, normalised: bool, dense: bool) -> Kind:
    """An embedder as `sentence-transformers` saves it."""
    import sentence_transformers
    import transformers
    from sentence_transformers import models

    torch.manual_seed(0)
    tokenizer = save_tokenizer(folder / "plain")
    config = transformers.BertConfig(**_SMALL, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    transformers.BertModel(config).save_pretrained(folder / "plain")
    word = models.Transformer(str(folder / "plain"))
    parts: list[Any] = [word, models.Pooling(32, pooling_mode=pooling)]
    if dense:
        parts.append(models.Dense(32, 16))
    if normalised:
        parts.append(models.Normalize())
    made = sentence_transformers.SentenceTransformer(modules=parts, device="cpu")
    made.save(str(folder / "model"))
    expected = made.encode([TEXT], convert_to_tensor=True)[0]
    return Kind(
        ["--source", "hf:./model"], json.dumps({"text": TEXT}).encode(), "application/json", of_vector(expected)
    )


def save_towers(folder: Path, name: str) -> Kind:
    """The part for texts of a model with two."""
    import transformers

    torch.manual_seed(0)
    begin, end = "<s>", "</s>"
    tokenizer = save_tokenizer(folder / "model", begin, end)
    texts = {**_SMALL, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.sep_token_id, "bos_token_id": 1}
    texts |= {"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 16}
    seen = {key: value for key, value in _SMALL.items() if key != "max_position_embeddings"}
    made = getattr(transformers, name)
    fields = {"text_config": texts, "vision_config": {**seen, "image_size": 32, "patch_size": 16}}
    model = made(made.config_class(**fields)).eval()
    model.save_pretrained(folder / "model")
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(
        folder / "model"
    )
    how = {"padding": "max_length", "max_length": 16} if name.startswith("Siglip") else {}
    read = tokenizer(TEXT, return_tensors="pt", **how)
    with torch.no_grad():
        found = model.get_text_features(
            input_ids=read.input_ids, **({} if how else {"attention_mask": read.attention_mask})
        )
    vector = found if isinstance(found, torch.Tensor) else found.pooler_output
    expected = torch.nn.functional.normalize(vector[0], dim=0)
    body = json.dumps({"text": TEXT}).encode()
    arguments = ["--source", "hf:./model", "--handler", "text"]
    return Kind(arguments, body, "application/json", of_vector(expected))


_LABELS: dict[str, Any] = {"num_labels": 3}
KINDS: dict[str, Callable[[Path], Kind]] = {
    "hf CLIP texts": lambda folder: save_towers(folder, "CLIPModel"),
    "hf SigLIP texts": lambda folder: save_towers(folder, "SiglipModel"),
    "hf BERT classes": lambda folder: save_text(folder, "BertForSequenceClassification", task="classify", more=_LABELS),
    "hf ELECTRA classes": lambda folder: save_text(
        folder, "ElectraForSequenceClassification", task="classify", more=_LABELS
    ),
    "hf BERT rerank": lambda folder: save_text(
        folder, "BertForSequenceClassification", task="rerank", more={"num_labels": 1}
    ),
    "hf BERT plain": lambda folder: save_text(folder, "BertModel", task="embed"),
    "st mean": lambda folder: save_sentences(folder, pooling="mean", normalised=True, dense=False),
    "st cls": lambda folder: save_sentences(folder, pooling="cls", normalised=False, dense=False),
    "st dense": lambda folder: save_sentences(folder, pooling="mean", normalised=True, dense=True),
}
