"""A transformer of a few thousand weights, made from a config, and texts it can tell apart: nothing is downloaded."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

GOOD = ("warm", "bright", "lovely", "clever")
BAD = ("dull", "slow", "empty", "noisy")
PLAIN = ("the", "film", "is", "a", "story", "of", "two", "friends", "and", "one", "city")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Letters:
    """In place of a transformer, where none is installed: a token is a letter, its states depend on it and its place.

    Like a transformer's, they are numbers for padding, too.
    """

    layers, width = 3, 6

    def __init__(self, name: str = "letters", device: Any = "cpu") -> None:
        self.name, self.device = name, torch.device(device)

    def encode(self, texts: Any, tokens: int) -> tuple[Tensor, Tensor]:
        rows = [[ord(letter) for letter in text[:tokens]] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return ids.to(self.device), (ids > 0).to(self.device)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        place = torch.arange(1, 1 + ids.shape[1], device=ids.device)
        scale = torch.arange(1, 1 + self.layers * self.width, device=ids.device).view(self.layers, self.width)
        return torch.sin((ids * place)[..., None, None] * scale / 7.0) + 0.5


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


def write_gpt2(folder: Path, layers: int = 2, width: int = 16) -> Path:
    """A GPT-2 with random weights; every byte is a token, and there is none for padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    made = Tokenizer(models.BPE(vocab={letter: k for k, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = letters[-1]
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token=end, eos_token=end).save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(letters), n_embd=width, n_layer=layers, n_head=2, n_positions=64,
                        bos_token_id=len(letters) - 1, eos_token_id=len(letters) - 1)  # fmt: skip
    GPT2Model(config).save_pretrained(folder)
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
