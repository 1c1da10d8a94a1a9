"""Small runs to draw: no training, a few images."""

import pytest
import torch

import flashcaps
from flashcaps.analysis import Run
from flashcaps.training.batches import Batch


def small_run(count: int = 24, **overrides) -> Run:
    """An untrained network on blobs of noise; labels are its own answers but for every fourth."""
    torch.manual_seed(0)
    overrides = {"image": (1, 20, 20), "classes": 4, **overrides}
    model = flashcaps.create_model("capsnet_tiny", **overrides).eval()
    images = torch.rand(count, *overrides["image"])
    with torch.no_grad():
        labels = model(images).scores.argmax(1)
    labels[::4] = (labels[::4] + 1) % overrides["classes"]
    return Run(model, Batch(images, labels, labels, images), name="small", class_names=tuple("abcd"))


@pytest.fixture(scope="module")
def run() -> Run:
    return small_run()
