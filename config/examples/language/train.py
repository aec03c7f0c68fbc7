"""Trains the example's model, a BERT of two layers that says which of six languages a sentence is in.

`python train.py` takes a minute or two, writes the folder `model`, and prints the accuracy on held-out sentences, which
it is not trained on. The texts were written for Marina.
"""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification

HERE = Path(__file__).parent
LANGUAGES = ("de", "en", "es", "fr", "it", "nl")
LENGTH, STEPS, BATCH = 64, 250, 32


def texts(file: str) -> list[tuple[int, str]]:
    """The language, as its position in LANGUAGES, and the text of each line."""
    lines = (HERE / "texts" / file).read_text(encoding="utf-8").splitlines()
    return [(LANGUAGES.index(line.partition("\t")[0]), line.partition("\t")[2]) for line in lines]


def make_tokenizer(corpus: list[str]) -> Tokenizer:
    """Splits words into pieces of bytes, so that no letter is unknown; short ones, because there is little text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=640, special_tokens=["[PAD]", "[CLS]", "[SEP]"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def varied(text: str, draw: random.Random) -> str:
    """A part of the sentence, sometimes in lower case, so that the model learns the language, not subject or length."""
    words = text.split()
    count = draw.randint(2, len(words))
    start = draw.randrange(len(words) - count + 1)
    piece = " ".join(words[start : start + count])
    return piece.lower() if draw.random() < 0.3 else piece


def rows(tokenizer: Tokenizer, given: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids and the mask of all texts, padded to the same length."""
    tokenizer.enable_padding(length=LENGTH)
    tokenizer.enable_truncation(LENGTH)
    encodings = tokenizer.encode_batch(given)
    return torch.tensor([encoding.ids for encoding in encodings]), torch.tensor(
        [encoding.attention_mask for encoding in encodings]
    )


def accuracy(model: BertForSequenceClassification, tokenizer: Tokenizer, examples: list[tuple[int, str]]) -> float:
    ids, mask = rows(tokenizer, [text for _, text in examples])
    with torch.no_grad():
        chosen = model(input_ids=ids, attention_mask=mask).logits.argmax(-1)
    return float((chosen == torch.tensor([language for language, _ in examples])).double().mean())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw = random.Random(0)
    training = texts("train.tsv")
    tokenizer = make_tokenizer([text for _, text in training])
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
        type_vocab_size=1,
        hidden_dropout_prob=0.2,
        id2label=dict(enumerate(LANGUAGES)),
        label2id={name: index for index, name in enumerate(LANGUAGES)},
    )
    model = BertForSequenceClassification(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=STEPS)
    for step in range(STEPS):
        chosen = [draw.choice(training) for _ in range(BATCH)]
        ids, mask = rows(tokenizer, [varied(text, draw) for _, text in chosen])
        wanted = torch.tensor([language for language, _ in chosen])
        loss = model(input_ids=ids, attention_mask=mask, labels=wanted).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}", flush=True)
    model.eval()
    print(f"held out: {accuracy(model, tokenizer, texts('held_out.tsv')):.4f}")
    model.save_pretrained(HERE / "model")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(HERE / "model" / "tokenizer.json"))
    lines = "".join(f"{text}\n" for _, text in training)
    (HERE / "calibration" / "texts.txt").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
