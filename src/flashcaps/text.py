"""Text as the hidden states of a frozen transformer, all layers: what heinsen's text models read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .batches import Augmentation, Batch, Plan, Share, check_enough, shuffle, spread
from .data import Split
from .data.augment import mix
from .losses import multi_hot
from .recipe import Augment


class Transformer:
    """A pretrained transformer by folder or name, found offline; layers and width are its own. Its weights stay."""

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ImportError(f"text needs transformers ({error}): pip install 'flashcaps[text]'") from None
        try:
            with _quiet():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(name, local_files_only=True)
                self.model: Any = AutoModel.from_pretrained(name, local_files_only=True)
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"data.transformer: {name!r} is not a transformer on this machine ({str(error).splitlines()[0]}); "
                "give the folder of one you have, or get one: huggingface_hub.snapshot_download(NAME)"
            ) from None
        self.model.to(device).eval().requires_grad_(False)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        config = self.model.config
        self.device = torch.device(device)
        self.layers, self.width = config.num_hidden_layers + 1, config.hidden_size

    def encode(self, texts: Sequence[str], tokens: int) -> tuple[Tensor, Tensor]:
        """ids (N, n) int64 and mask (N, n) bool, n at most `tokens`."""
        out = self.tokenizer(list(texts), padding=True, truncation=True, max_length=tokens, return_tensors="pt")
        return out["input_ids"].to(self.device), out["attention_mask"].bool().to(self.device)

    @torch.no_grad()
    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids, mask (B, n) -> (B, n, layers, width), the embeddings first."""
        hidden = self.model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        return torch.stack(hidden, dim=2)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars of transformers: a small one is there at once."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class Phrases:
    """A split's tokens on the device, and the batches made of them."""

    def __init__(self, split: Split, transformer: Transformer, tokens: int) -> None:
        if split.text is None:
            raise ValueError("data: expected text, got images; a transformer reads sst5, sst2 and your own, --text")
        self.transformer = transformer
        self.ids, self.mask = transformer.encode(split.text, tokens)
        self.labels = split.labels.to(transformer.device)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> Batch:
        ids, mask = self.ids[index], self.mask[index]
        if ids.device.type == "cpu":  # to ask for the longest would make a GPU wait, and its shapes vary
            longest = max(1, int(mask.sum(1).max()))
            ids, mask = ids[:, :longest], mask[:, :longest]
        return Batch(self.transformer.states(ids, mask), self.labels[index], mask=mask.float())


class TextStream:
    """Phrases in a new order every epoch; mixup mixes states, masks and labels alike."""

    def __init__(self, phrases: Phrases, augment: Augment, share: Share, classes: int, seed: int) -> None:
        if augment != Augment(mixup=augment.mixup):
            raise ValueError(f"augment: text takes mixup and nothing else, got {augment}")
        self.phrases, self.share, self.classes, self.seed = phrases, share, classes, seed
        self.steps = check_enough(len(phrases), share)
        self.augment = Augmentation(augment, phrases.labels.device, seed)

    def plan(self, epoch: int) -> Plan:
        device = self.phrases.labels.device
        return shuffle(len(self.phrases), self.augment.columns, self.share, epoch, self.seed, device)

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        batch = self.phrases.batch(index)
        if not self.augment.spec.mixup:
            return batch
        assert batch.mask is not None
        weight, partner = self.augment.mixing(noise)
        targets = mix(multi_hot(batch.targets, self.classes), weight, partner)
        return batch._replace(inputs=mix(batch.inputs, weight, partner), targets=targets,
                              mask=mix(batch.mask, weight, partner))


class HeldText:
    """Sentences to evaluate on, of one class each or of several."""

    def __init__(self, phrases: Phrases, classes: int) -> None:
        self.phrases, self.classes = phrases, classes
        self.rule = "top1" if phrases.labels.ndim == 1 else "threshold"

    def __len__(self) -> int:
        return len(self.phrases)

    def batches(self, size: int) -> Iterator[Batch]:
        for index in torch.arange(len(self), device=self.phrases.labels.device).split(min(size, 100)):
            yield self.phrases.batch(index)

    def some(self, count: int) -> Batch:
        return self.phrases.batch(spread(len(self), count).to(self.phrases.labels.device))


def load_transformer(name: str, device: torch.device | str) -> Transformer:
    """`name` is a folder, an installed package with a folder `model`, or a name transformers finds on this machine."""
    if not name:
        raise ValueError("data.transformer: expected a folder or name of a transformer, got none; data.transformer=DIR")
    folder = Path(name).expanduser()
    package = find_spec(name) if name.isidentifier() else None
    if package is not None and package.submodule_search_locations:
        folder = Path(package.submodule_search_locations[0]) / "model"
    return Transformer(str(folder) if folder.is_dir() else name, device)
