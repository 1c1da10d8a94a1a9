"""Pictures on disk for tests of own data: three shapes, any size."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from flashcaps.models import create_model
from flashcaps.training.autosize import own_recipe
from flashcaps.training.checkpoint import save_weights

SHAPES = ("bar", "disc", "ring")


def picture(shape: str, height: int, width: int, generator: np.random.Generator) -> np.ndarray:
    """uint8 (H, W, 3): one shape, bright, somewhere, in its own colour, on dark noise."""
    y, x = np.mgrid[:height, :width]
    cy, cx = (generator.uniform(0.35, 0.65) * n for n in (height, width))
    r = 0.22 * min(height, width)
    distance = np.hypot(y - cy, x - cx)
    mask = {
        "bar": (abs(y - cy) < 0.25 * r) & (abs(x - cx) < 1.4 * r),
        "disc": distance < r,
        "ring": abs(distance - r) < 0.25 * r,
    }[shape]
    pixels = generator.integers(0, 60, (height, width, 3))
    pixels[mask] = generator.integers(150, 255, 3)
    return pixels.astype(np.uint8)


def write_pictures(folder: Path, count: int, height: int = 50, width: int = 70, seed: int = 0) -> Path:
    """`count` .png files in a folder per shape."""
    generator = np.random.default_rng(seed)
    for k in range(count):
        shape = SHAPES[k % len(SHAPES)]
        path = folder / shape / f"{k:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(shape, height, width, generator)).save(path)
    return folder


def save_own(path: Path, folder: Path) -> Path:
    """A file with the weights of an untrained network for the pictures of a folder."""
    recipe, _ = own_recipe("images", str(folder), ["model.decoder=false"])
    save_weights(path, create_model(recipe.model.name, **recipe.model.overrides), {"recipe": recipe.to_dict()})
    return path


def gigapixels() -> bytes:
    """A .png of a few bytes whose header says 60,000 x 60,000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")
