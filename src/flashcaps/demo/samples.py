"""Thirty digits to try the page with, three of each, from MNIST's test set: samples.npz, made by

    python -m flashcaps.demo.samples DATA
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..training.checkpoint import write_atomic
from .inputs import write_pixels

FILE = Path(__file__).with_name("samples.npz")


def read_samples() -> tuple[Tensor, Tensor]:
    """images uint8 (30, 28, 28), labels (30,)."""
    with np.load(FILE, allow_pickle=False) as stored:
        return torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()


def describe_samples() -> list[dict[str, Any]]:
    images, labels = read_samples()
    return [{"id": k, "label": int(label), "image": write_pixels(image)}
            for k, (image, label) in enumerate(zip(images, labels, strict=True))]  # fmt: skip


def make_samples(root: str | None, file: Path = FILE) -> Path:
    """Of each digit, those of the test set nearest to a thin, a middling and a bold hand."""
    from ..analysis.measures import measure
    from ..data import load_data

    split = load_data("mnist", root).test
    chosen = []
    for digit in range(10):
        rows = (split.labels == digit).nonzero()[:, 0]
        order = rows[measure(split.images[rows, 0].float() / 255)["thickness"].argsort()]
        chosen += [int(order[int(share * len(order))]) for share in (0.2, 0.5, 0.8)]
    out = io.BytesIO()
    labels = split.labels[chosen].to(torch.uint8)
    np.savez_compressed(out, images=split.images[chosen, 0].numpy(), labels=labels.numpy())
    write_atomic(file, out.getvalue())
    return file


if __name__ == "__main__":
    print(make_samples(sys.argv[1] if len(sys.argv) > 1 else None))
