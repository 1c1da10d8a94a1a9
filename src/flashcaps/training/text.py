"""Text as the hidden states of all layers of a frozen transformer, which heinsen's text models read."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Split
from ..data.augment import mix
from ..nn.losses import multi_hot
from ..routing.checks import import_extra
from .batches import Batch, Held, Share, ShuffledStream
from .memory import SPARE, in_bytes, memory_free, release
from .recipe import Augment

KEPT = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOKENS = 1 << 14  # that the transformer reads at once, padding included


class Transformer:
    """A pretrained transformer, its weights frozen, found offline.

    name: a folder, an installed package with a folder `model`, or a name that transformers finds on this machine.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        if not name:
            raise ValueError("data.transformer: expected a folder or name of a transformer, got none; "
                             "data.transformer=DIR")  # fmt: skip
        folder = Path(name).expanduser()
        package = find_spec(name) if name.isidentifier() else None
        if package is not None and package.submodule_search_locations:
            folder = Path(package.submodule_search_locations[0]) / "model"
        name = str(folder) if folder.is_dir() else name
        transformers = import_extra("transformers", "text", "text")
        logging = import_extra("transformers.utils.logging", "text", "text")
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name, local_files_only=True)
            self.model: Any = transformers.AutoModel.from_pretrained(name, local_files_only=True)
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"data.transformer: {name!r} is not a transformer on this machine ({str(error).splitlines()[0]}); "
                "give the folder of one you have, or get one: huggingface_hub.snapshot_download(NAME)"
            ) from None
        finally:
            if bars:
                logging.enable_progress_bar()
        self.model.float().to(device).eval().requires_grad_(False)  # stored in fp32 or half precision
        self.tokenizer.padding_side = "right"  # texts begin at column 0, as batches are cut on the right
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


class Phrases:
    """A split's tokens on the device; the transformer runs for every batch of them."""

    def __init__(self, split: Split, transformer: Transformer, tokens: int) -> None:
        self.transformer = transformer
        self.ids, self.mask = transformer.encode(split.text or (), tokens)
        self.labels = split.labels.to(transformer.device)

    def batch(self, index: Tensor) -> Batch:
        """States (B, n, layers, width), zero where the mask (B, n) is."""
        ids, mask = self.ids[index], self.mask[index]
        if ids.device.type == "cpu":  # on a GPU this would wait for the device, and shapes would vary
            longest = max(1, int(mask.sum(1).max()))
            ids, mask = ids[:, :longest], mask[:, :longest]
        states = self.transformer.states(ids, mask).masked_fill(~mask[..., None, None], 0)
        return Batch(states, self.labels[index], mask=mask.float())


class KeptPhrases(Phrases):
    """The same batches, gathered from states that are computed once and stay on the device without padding. On a GPU
    all have one shape and nothing waits, so that a captured step can gather them.

    rows (1 + T, layers, width): row 0 is zero, for padding, then come the T tokens of all different texts. first,
    length (N,): each example's first row and its number of tokens.
    """

    def __init__(self, split: Split, transformer: Transformer, tokens: int, keep: str) -> None:
        texts = split.text or ()
        number = {text: k for k, text in enumerate(dict.fromkeys(texts))}
        ids, mask = transformer.encode(list(number), tokens)
        length = mask.sum(1)
        first = 1 + length.cumsum(0) - length
        shape = 1 + int(length.sum()), transformer.layers, transformer.width
        check_room(shape, keep, transformer.device)
        self.rows = torch.zeros(shape, dtype=KEPT[keep], device=transformer.device)
        finite = torch.ones((), dtype=torch.bool, device=transformer.device)
        half = transformer.device.type == "cuda" and keep != "fp32"
        for part, n in parts_of_like_length(length):
            there = mask[part, :n]
            with torch.autocast(transformer.device.type, KEPT[keep] if half else None, enabled=half):
                states = transformer.states(ids[part, :n], there)[there].to(self.rows.dtype)
            self.rows[(first[part, None] + torch.arange(n, device=part.device))[there]] = states
            finite &= states.isfinite().all()
        if not finite:
            raise ValueError(f"data.keep: the hidden states of {transformer.name} hold numbers that {keep} cannot; use "
                             f"data.keep={'bf16' if keep == 'fp16' else 'no'}")
        mine = torch.tensor([number[text] for text in texts], device=transformer.device)
        self.first, self.length, self.ids = first[mine], length[mine], ids[mine]
        self.longest = max(1, int(length.max()))
        self.transformer, self.labels = transformer, split.labels.to(transformer.device)

    def batch(self, index: Tensor) -> Batch:
        length = self.length[index]
        n = self.longest if length.device.type != "cpu" else max(1, int(length.max()))
        token = torch.arange(n, device=length.device)
        mask = token < length[:, None]
        rows = (self.first[index, None] + token) * mask  # (B, n); row 0 is padding's
        return Batch(self.rows[rows].float(), self.labels[index], mask=mask.float())


def open_phrases(split: Split, transformer: Transformer, tokens: int, keep: str = "no") -> Phrases:
    """The phrases of a split. keep: "no", or the precision of states that are computed once."""
    if keep == "no":
        return Phrases(split, transformer, tokens)
    return KeptPhrases(split, transformer, tokens, keep)


class TextStream(ShuffledStream):
    """Phrases in a new order every epoch; mixup mixes states, masks and labels."""

    def __init__(self, phrases: Phrases, augment: Augment, share: Share, classes: int, seed: int) -> None:
        if augment != Augment(mixup=augment.mixup):
            raise ValueError(f"augment: text takes mixup and nothing else, got {augment}")
        super().__init__(phrases.labels, augment, share, classes, seed)
        self.phrases = phrases

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        batch = self.phrases.batch(index)
        if not self.augment.spec.mixup:
            return batch
        assert batch.mask is not None
        weight, partner = self.augment.mixing(noise)
        targets = mix(multi_hot(batch.targets, self.classes), weight, partner)
        return batch._replace(inputs=mix(batch.inputs, weight, partner), targets=targets,
                              mask=mix(batch.mask, weight, partner))


class HeldText(Held):
    """Sentences to evaluate on, each of one class or of several."""

    def __init__(self, phrases: Phrases, classes: int) -> None:
        labels = phrases.labels
        rule = "top1" if labels.ndim == 1 else "threshold"
        super().__init__(phrases.batch, len(labels), classes, rule, labels.device)
        self.phrases = phrases

    def batches(self, size: int) -> Iterator[Batch]:
        return super().batches(min(size, 100))


def parts_of_like_length(length: Tensor) -> Iterator[tuple[Tensor, int]]:
    """(indices of texts, their longest length), the longest texts first, so that a lack of memory shows immediately."""
    order = length.argsort(descending=True, stable=True)[: int(length.count_nonzero())]
    lengths, at = length[order].tolist(), 0
    while at < len(lengths):
        part = order[at : at + max(1, TOKENS // lengths[at])]
        yield part, lengths[at]
        at += len(part)


def check_room(shape: tuple[int, int, int], keep: str, device: torch.device) -> None:
    """Raises where the states would not fit, before any is computed."""
    tokens, layers, width = shape
    release(device)  # a finished run may still hold memory
    needed, free = tokens * layers * width * KEPT[keep].itemsize, memory_free(device)
    if free is not None and needed > SPARE * free:
        raise ValueError(
            f"data.keep: {tokens:,} tokens x {layers} layers x {width} in {keep} need {in_bytes(needed)}, "
            f"{in_bytes(free)} are free on {device}; data.keep=no computes them batch by batch, data.phrases=false "
            "trains on whole sentences alone"
        )
