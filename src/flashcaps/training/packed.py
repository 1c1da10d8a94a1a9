"""Hidden states of texts, computed once and kept on the device without their padding.

    states = pack(texts, transformer, tokens=64, keep="fp16")
    states.rows                     # (1 + tokens of all texts, layers, width)

A captured training step gathers its batch from them: no transformer runs in it, and nothing waits for the device.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import Tensor

from .memory import SPARE, in_bytes, memory_free

if TYPE_CHECKING:
    from .text import Transformer

KEPT = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOKENS = 1 << 14  # that the transformer reads at a time, padding included
_alive: WeakSet[PackedStates] = WeakSet()


class PackedStates:
    """rows (1 + T, layers, width): row 0 is zero, for padding; then the T tokens of all texts, one after the other.

    number: of each text. first, length (N,): its row in `rows` and its tokens. ids (N, n): they, padded.
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
            raise ValueError(f"data.keep: the hidden states of {transformer.name} hold numbers that {keep} does not; "
                             f"data.keep={'bf16' if keep == 'fp16' else 'no'}")  # fmt: skip


def pack(texts: Sequence[str], transformer: Transformer, tokens: int, keep: str) -> PackedStates:
    """The states of these texts: those another run in this process holds, where they have all of them, or new ones."""
    made_of = _made_of(transformer, tokens, keep)
    for states in _alive:
        if states.made_of == made_of and all(text in states.number for text in texts):
            return states
    states = PackedStates(texts, transformer, tokens, keep)
    _alive.add(states)
    return states


def _made_of(transformer: Transformer, tokens: int, keep: str) -> tuple[str, torch.device, int, str]:
    place = torch.empty(0, device=transformer.device).device  # "cuda" and "cuda:0" are one
    return transformer.name, place, tokens, keep


def parts_of_like_length(length: Tensor) -> Iterator[tuple[Tensor, int]]:
    """(which texts, their longest): the longest first, so that what does not fit is known at once; none of no token."""
    order = length.argsort(descending=True, stable=True)[: int(length.count_nonzero())]
    lengths, at = length[order].tolist(), 0
    while at < len(lengths):
        part = order[at : at + max(1, TOKENS // lengths[at])]
        yield part, lengths[at]
        at += len(part)


def check_room(shape: tuple[int, int, int], keep: str, device: torch.device) -> None:
    """Raise where the states would not fit, before any is computed."""
    gc.collect()  # a run that is over may still hold its own
    if device.type == "cuda":
        torch.cuda.empty_cache()
    tokens, layers, width = shape
    needed, free = tokens * layers * width * KEPT[keep].itemsize, memory_free(device)
    if free is not None and needed > SPARE * free:
        raise ValueError(
            f"data.keep: {tokens:,} tokens x {layers} layers x {width} in {keep} need {in_bytes(needed)}, "
            f"{in_bytes(free)} are free on {device}; data.keep=no computes them batch by batch, data.phrases=false "
            "trains on whole sentences alone"
        )
