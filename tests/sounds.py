"""Tiny models of sound with random weights, as `transformers` saves them, and sounds as clients send them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marina.handlers.torchvision_import import prepare_torchvision

LANGUAGES = ("de", "en", "fr")
RATE = 16_000


def noise(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """A seeded sound, float32."""
    return np.random.default_rng(seed).normal(0, 0.1, round(seconds * rate)).astype(np.float32)


def sound_file(samples: np.ndarray, rate: int = RATE, *, form: str = "WAV", subtype: str | None = "FLOAT") -> bytes:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form, subtype=subtype)
    return buffer.getvalue()


def save_ctc(folder: Path) -> Path:
    prepare_torchvision()
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    Wav2Vec2ForCTC(_wav2vec2(vocab_size=32)).save_pretrained(folder)
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
    file = folder / "letters.json"
    file.write_text(json.dumps({letter: place for place, letter in enumerate(letters)}))
    Wav2Vec2CTCTokenizer(str(file)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def save_classifier(folder: Path) -> Path:
    prepare_torchvision()
    from transformers import Wav2Vec2FeatureExtractor, Wav2Vec2ForSequenceClassification

    torch.manual_seed(0)
    labels = {0: "yes", 1: "no", 2: "stop"}
    Wav2Vec2ForSequenceClassification(_wav2vec2(num_labels=3, id2label=labels)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def _wav2vec2(**fields: Any) -> Any:
    from transformers import Wav2Vec2Config

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    convolutions = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return Wav2Vec2Config(**sizes, **convolutions, pad_token_id=0, **fields)


def save_whisper(folder: Path) -> Path:
    prepare_torchvision()
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    marks = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "notimestamps"]
    tokenizer.add_special_tokens([AddedToken(f"<|{mark}|>", special=True) for mark in marks])
    ids = {mark: tokenizer.token_to_id(f"<|{mark}|>") for mark in marks}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    ends = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), ids["endoftext"])
    begins = {"decoder_start_token_id": ids["startoftranscript"]}
    parts = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in parts.items()}
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=32,
        max_target_positions=40,
        # Larger than usual, so that the text depends on the sound.
        init_std=0.6,
        **ends,
        **begins,
        **sizes,
    )
    network = WhisperForConditionalGeneration(config)
    suppressed = {"suppress_tokens": [1, 2, 3], "begin_suppress_tokens": [10, ids["endoftext"]]}
    generation = GenerationConfig(max_length=40, **ends, **begins, **suppressed)
    generation.lang_to_id = {f"<|{language}|>": ids[language] for language in LANGUAGES}
    generation.task_to_id = {task: ids[task] for task in ("translate", "transcribe")}
    generation.no_timestamps_token_id, generation.is_multilingual = ids["notimestamps"], True
    network.generation_config = generation
    network.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder
