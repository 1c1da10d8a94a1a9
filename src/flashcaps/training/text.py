"""Text as the hidden states of a frozen transformer, all layers: what heinsen's text models read.

The transformer runs for every batch (`Phrases`), or once for all texts (`KeptPhrases`): its states are then kept on the
device without their padding, and a captured training step gathers its batch from them.

    states = pack(texts, transformer, tokens=64, keep="fp16")
    states.rows                     # (1 + tokens of all texts, layers, width)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from ..data import Split
from ..data.augment import mix
from ..nn.losses import multi_hot
from .batches import Augmentation, Batch, Plan, Share, check_enough, shuffle, spread
from .memory import SPARE, in_bytes, memory_free, release
from .recipe import Augment

KEPT = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOKENS = 1 << 14  # that the transformer reads at a time, padding included
_alive: WeakSet[PackedStates] = WeakSet()


class Transformer:
    """A pretrained transformer by folder or name, found offline, its weights frozen."""

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
        self.model.float().to(device).eval().requires_grad_(False)  # stored in fp32 or half precision
        self.tokenizer.padding_side = "right"  # all texts of a batch begin at column 0: batches are cut on the right
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
    """Hides the progress bars of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class Phrases:
    """A split's tokens on the device; the transformer runs for every batch of them."""

    def __init__(self, split: Split, transformer: Transformer, tokens: int) -> None:
        self.transformer = transformer
        self.ids, self.mask = transformer.encode(texts_of(split), tokens)
        self.labels = split.labels.to(transformer.device)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> Batch:
        """States (B, n, layers, width), zero where the mask (B, n) is."""
        ids, mask = self.ids[index], self.mask[index]
        if ids.device.type == "cpu":  # on a GPU this would wait for the device, and shapes would vary
            longest = max(1, int(mask.sum(1).max()))
            ids, mask = ids[:, :longest], mask[:, :longest]
        states = self.transformer.states(ids, mask).masked_fill(~mask[..., None, None], 0)
        return Batch(states, self.labels[index], mask=mask.float())


class KeptPhrases(Phrases):
    """The same batches, gathered from kept states; on a GPU all have one shape and none waits for the device."""

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
    """keep: "no", or the precision of states that are computed once."""
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


class PackedStates:
    """rows (1 + T, layers, width): row 0 is zero, for padding; then the T tokens of all texts, one after the other.

    number: text -> k. first, length (N,): text k's first row in `rows` and its count of tokens. ids (N, n): its tokens.
    """

    def __init__(self, texts: Sequence[str], transformer: Transformer, tokens: int, keep: str) -> None:
        self.made_of = _made_of(transformer, tokens, keep)
        self.number = {text: k for k, text in enumerate(dict.fromkeys(texts))}
        self.ids, mask = transformer.encode(list(self.number), tokens)
        self.length = mask.sum(1)
        self.first = 1 + self.length.cumsum(0) - self.length
        shape = 1 + int(self.length.sum()), transformer.layers, transformer.width
        check_room(shape, keep, transformer.device)
        self.rows = torch.empty(shape, dtype=KEPT[keep], device=transformer.device)
        self._fill(transformer, mask, keep)

    def _fill(self, transformer: Transformer, mask: Tensor, keep: str) -> None:
        half = transformer.device.type == "cuda" and keep != "fp32"
        finite = torch.ones((), dtype=torch.bool, device=self.rows.device)
        self.rows[0] = 0
        for part, n in parts_of_like_length(self.length):
            ids, there = self.ids[part, :n], mask[part, :n]
            with torch.autocast(transformer.device.type, KEPT[keep] if half else None, enabled=half):
                states = transformer.states(ids, there)[there].to(self.rows.dtype)
            self.rows[(self.first[part, None] + torch.arange(n, device=part.device))[there]] = states
            finite &= states.isfinite().all()
        if not finite:
            raise ValueError(f"data.keep: the hidden states of {transformer.name} hold numbers that {keep} cannot; use "
                             f"data.keep={'bf16' if keep == 'fp16' else 'no'}")


def pack(texts: Sequence[str], transformer: Transformer, tokens: int, keep: str) -> PackedStates:
    """The states of these texts: those that another run in this process keeps, or new ones."""
    made_of = _made_of(transformer, tokens, keep)
    for states in _alive:
        if states.made_of == made_of and all(text in states.number for text in texts):
            return states
    states = PackedStates(texts, transformer, tokens, keep)
    _alive.add(states)
    return states


def _made_of(transformer: Transformer, tokens: int, keep: str) -> tuple[str, torch.device, int, str]:
    device = torch.empty(0, device=transformer.device).device  # "cuda" and "cuda:0" are one
    return transformer.name, device, tokens, keep


def parts_of_like_length(length: Tensor) -> Iterator[tuple[Tensor, int]]:
    """(indices of texts, the longest length among them); the longest first, so that a lack of memory shows at once."""
    order = length.argsort(descending=True, stable=True)[: int(length.count_nonzero())]
    lengths, at = length[order].tolist(), 0
    while at < len(lengths):
        part = order[at : at + max(1, TOKENS // lengths[at])]
        yield part, lengths[at]
        at += len(part)


def check_room(shape: tuple[int, int, int], keep: str, device: torch.device) -> None:
    """Raises where the states would not fit, before any is computed."""
    tokens, layers, width = shape
    needed, free = tokens * layers * width * KEPT[keep].itemsize, memory_free(device)
    if free is not None and needed > SPARE * free:
        release(device)  # a finished run may still hold its own
        free = memory_free(device)
    if free is not None and needed > SPARE * free:
        raise ValueError(
            f"data.keep: {tokens:,} tokens x {layers} layers x {width} in {keep} need {in_bytes(needed)}, "
            f"{in_bytes(free)} are free on {device}; data.keep=no computes them batch by batch, data.phrases=false "
            "trains on whole sentences alone"
        )
