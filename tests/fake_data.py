"""Small data sets in memory and on disk, and a recipe small enough to train in a test."""

import tomllib
from pathlib import Path
from typing import Any

import torch

from flashcaps.data import Dataset, DiverseMultiMNIST, MultiMNIST, Split
from flashcaps.models import create_model
from flashcaps.training.batches import ImageStream, Plan, Share
from flashcaps.training.checkpoint import save_weights
from flashcaps.training.distributed import Workers
from flashcaps.training.recipe import Recipe, make_recipe
from flashcaps.training.step import TrainStep
from tests.data.files import write_mnist

CPU = torch.device("cpu")
SHAPES = {
    "cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "svhn": (3, 32, 32), "smallnorb": (2, 96, 96),
    "synthetic_norb": (2, 96, 96), "affnist": (1, 40, 40), "affnist_style": (1, 40, 40),
}  # fmt: skip
CLASSES = {"cifar100": 100, "smallnorb": 5, "synthetic_norb": 5, "sst5": 5, "sst2": 2}
COMPOSE = {"multimnist": MultiMNIST, "diverse_multimnist": DiverseMultiMNIST}


def fake_split(count: int, classes: int, shape: tuple[int, int, int], seed: int = 0) -> Split:
    """Example n has class n % classes and a bright bar whose place tells the class, in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    images = torch.randint(0, 60, (count, *shape), generator=generator, dtype=torch.uint8)
    rows = (labels % 10) * (shape[1] - 3) // 9
    for n, row in enumerate(rows.tolist()):
        images[n, :, row : row + 3] = 255
    return Split(images, labels)


def fake_dataset(name: str = "fake", count: int = 80, **options: Any) -> Dataset:
    """The shape and classes of the data set `name`."""
    classes = CLASSES.get(name, 10)
    if name in ("sst5", "sst2"):
        text = tuple(f"phrase {n}" for n in range(count))
        split = Split(torch.zeros(count, 0, 0, 0, dtype=torch.uint8), torch.arange(count) % classes, {}, text)
        return Dataset(name, split, split, classes, (0, 0, 0), validation=split)
    shape = SHAPES.get(name, (1, 28, 28))
    train, test = (fake_split(n, classes, shape, seed) for seed, n in enumerate((max(count, 2 * classes), 40)))
    compose = COMPOSE.get(name)
    seen = (1, 36, 36) if compose else shape
    return Dataset(name, train, test, classes, seen, multilabel=compose is not None, compose=compose)


def fake_load_data(name: str, root: Any = None, **options: Any) -> Dataset:
    return fake_dataset(name)


SMALL_TOML = """
about = "a network of a few thousand weights"
model = { name = "capsnet_tiny", backbone = { channels = 4 }, primary = { types = 2 }, decoder = [16] }
data = { name = "mnist", validation = 16 }
augment = { shift = 1 }
loss = { kind = "margin", reconstruction = 0.0005 }
optimiser = { kind = "adamw", lr = 0.005, weight_decay = 0.01 }
schedule = { kind = "cosine", warmup = 0.1 }
train = { epochs = 3, batch = 8, ema = 0.9, precision = "fp32", log_every = 1 }
"""
SMALL: dict[str, Any] = {"name": "small"} | tomllib.loads(SMALL_TOML)


def small_recipe(*overrides: str) -> Recipe:
    return make_recipe(SMALL, overrides)


def save_small(file: Path, **options: Any) -> Path:
    """A file with the weights of the small recipe's network, on data with these options."""
    recipe = small_recipe()
    fields = recipe.to_dict()
    fields["data"]["options"] = options
    save_weights(file, create_model(recipe.model.name, **recipe.model.overrides), {"recipe": fields})
    return file


def small_step(
    *overrides: str, stream: type[ImageStream] = ImageStream, device: str = "cpu"
) -> tuple[TrainStep, Plan]:
    """A training step of the small recipe, and the order of its first epoch."""
    recipe = small_recipe(*overrides)
    images = stream(fake_split(64, 10, (1, 28, 28)).to(device), recipe.augment, Share(8), 10, 0)
    torch.manual_seed(0)
    model = create_model(recipe.model.name, **recipe.model.overrides).to(device)
    return TrainStep(model, images, recipe, "top1", Workers(torch.device(device))), images.plan(0)


def write_idx(root: Path) -> Path:
    """The fake digits as MNIST's four files under root/mnist."""
    data = fake_dataset("mnist")
    for prefix, split in (("train", data.train), ("t10k", data.test)):
        images, labels = split.images[:, 0].numpy(), split.labels.numpy()
        write_mnist(root / "mnist", {f"{prefix}-images-idx3-ubyte": images, f"{prefix}-labels-idx1-ubyte": labels})
    return root
