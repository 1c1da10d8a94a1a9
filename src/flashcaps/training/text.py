"""Text as the hidden states of a frozen transformer, all layers: what heinsen's text models read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Split
from ..data.augment import mix
from ..nn.losses import multi_hot
from .batches import Augmentation, Batch, Plan, Share, check_enough, shuffle, spread
from .packed import PackedStates, pack
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
        self.model.float().to(device).eval().requires_grad_(False)  # its file may hold halves
        self.tokenizer.padding_side = "right"  # a batch is cut, and mixup adds, where texts begin together
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        config = self.model.config
        self.name, self.device = name, torch.device(device)
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
    """A split's tokens on the device, and the batches made of them: the transformer runs for every one."""

    def __init__(self, split: Split, transformer: Transformer, tokens: int) -> None:
        self.transformer = transformer
        self.ids, self.mask = transformer.encode(texts_of(split), tokens)
        self.labels = split.labels.to(transformer.device)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> Batch:
        """States (B, n, layers, width), zero where the mask (B, n) is."""
        ids, mask = self.ids[index], self.mask[index]
        if ids.device.type == "cpu":  # to ask for the longest would make a GPU wait, and its shapes vary
            longest = max(1, int(mask.sum(1).max()))
            ids, mask = ids[:, :longest], mask[:, :longest]
        states = self.transformer.states(ids, mask).masked_fill(~mask[..., None, None], 0)
        return Batch(states, self.labels[index], mask=mask.float())


class KeptPhrases(Phrases):
    """The same batches, gathered from states that are kept; on a GPU all have one shape and none waits for it."""

    def __init__(self, split: Split, transformer: Transformer, packed: PackedStates) -> None:
        number = torch.tensor([packed.number[text] for text in texts_of(split)], device=transformer.device)
        self.transformer, self.packed = transformer, packed
        self.first, self.length, self.ids = packed.first[number], packed.length[number], packed.ids[number]
        self.longest = max(1, int(self.length.max()))
        self.labels = split.labels.to(transformer.device)

    def batch(self, index: Tensor) -> Batch:
        length = self.length[index]
        n = self.longest if length.device.type != "cpu" else max(1, int(length.max()))
        token = torch.arange(n, device=length.device)
        mask = token < length[:, None]
        rows = (self.first[index, None] + token) * mask  # (B, n); row 0 is padding's
        return Batch(self.packed.rows[rows].float(), self.labels[index], mask=mask.float())


def texts_of(split: Split) -> tuple[str, ...]:
    if split.text is None:
        raise ValueError("data: expected text, got images; a transformer reads sst5, sst2 and your own, --text")
    return split.text


def open_phrases(split: Split, transformer: Transformer, tokens: int, keep: str = "no") -> Phrases:
    """keep: "no", or in which precision states are computed once for all."""
    if keep == "no":
        return Phrases(split, transformer, tokens)
    return KeptPhrases(split, transformer, pack(texts_of(split), transformer, tokens, keep))


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
