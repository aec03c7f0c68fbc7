"""The example's encoder as its user would run it: `transformers` in eager fp32, the folder's own tokenizer."""

import json
import os
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification


class Classifier:
    """Texts to their likeliest labels."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(64)
        self.network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        if threads := os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))

    def answers(self, texts):
        encodings = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([each.ids for each in encodings])
        mask = torch.tensor([each.attention_mask for each in encodings])
        with torch.no_grad():
            probs, indices = torch.topk(torch.softmax(self.network(ids, attention_mask=mask).logits, -1), 5)
        names = self.network.config.id2label
        return [
            {"top_labels": [names[at] for at in each.tolist()], "top_probs": most.tolist()}
            for each, most in zip(indices, probs, strict=True)
        ]


def body_text(body):
    """The text of a JSON body, parsed or not."""
    return (body if isinstance(body, dict) else json.loads(body))["text"]
