"""Thirty digits to try the page with, three of each, from MNIST's test set (tools/demo_samples.py chooses them)."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).with_name("samples.npz")


def read_samples() -> tuple[Tensor, Tensor]:
    """images uint8 (30, 28, 28), labels (30,)."""
    with np.load(FILE, allow_pickle=False) as stored:
        return torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()


def describe_samples() -> list[dict[str, Any]]:
    """For the page: grey bytes row by row, as base64."""
    images, labels = read_samples()
    return [{"id": k, "label": int(label), "image": base64.b64encode(image.numpy().tobytes()).decode("ascii")}
            for k, (image, label) in enumerate(zip(images, labels, strict=True))]  # fmt: skip
