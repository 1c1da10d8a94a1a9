"""Chooses the digits of the demo from MNIST's test set: python -m tools.demo_samples [DATA]."""

import io
import sys
from pathlib import Path

import numpy as np
import torch

from flashcaps.analysis.drawings import measure
from flashcaps.data import load_data
from flashcaps.demo.build import SAMPLES
from flashcaps.training.checkpoint import write_atomic


def make_samples(root: str | None, file: Path = SAMPLES) -> Path:
    """Writes three images of each digit, of thin, medium and thick strokes."""
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
