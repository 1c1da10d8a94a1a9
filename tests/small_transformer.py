"""A transformer of a few thousand weights, made from a config, and texts it can tell apart: nothing is downloaded."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

GOOD = ("warm", "bright", "lovely", "clever")
BAD = ("dull", "slow", "empty", "noisy")
PLAIN = ("the", "film", "is", "a", "story", "of", "two", "friends", "and", "one", "city")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_transformer(folder: Path, layers: int = 2, width: int = 16) -> Path:
    """A BERT with random weights and a vocabulary of a few words, as `transformers` saves it."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    words = [*SPECIAL, *PLAIN, *GOOD, *BAD]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(words), hidden_size=width, num_hidden_layers=layers, num_attention_heads=2,
                        intermediate_size=2 * width, max_position_embeddings=64)  # fmt: skip
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab={word: k for k, word in enumerate(words)}).save_pretrained(folder)
    return folder


def text_of(kind: str, generator: np.random.Generator) -> str:
    """A few plain words with two that tell the class."""
    telling = {"good": GOOD, "bad": BAD}[kind]
    words = [*generator.choice(PLAIN, generator.integers(3, 9)), *generator.choice(telling, 2)]
    return " ".join(generator.permutation(words))


def write_texts(path: Path, count: int, seed: int = 0) -> Path:
    """A .csv of `count` texts, half of them good."""
    generator = np.random.default_rng(seed)
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["text", "label"])
        for k in range(count):
            kind = ("good", "bad")[k % 2]
            writer.writerow([text_of(kind, generator), kind])
    return path
