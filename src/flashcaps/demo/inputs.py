"""Pixels and uploaded files of a request, checked before anything large is allocated."""

from __future__ import annotations

import base64
import binascii
import io
import struct
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .centering import to_ink

MAX_BODY = 4 << 20  # bytes of a request
MAX_SIDE = 4096
MAX_PIXELS = 16_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


class Refused(Exception):
    """A request that cannot be answered: an HTTP status and the reason in one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, " ".join(message.split())


def read_pixels(width: int, height: int, pixels: str) -> Tensor:
    """base64 of rows of grey bytes -> uint8 (H, W)."""
    if width * height > MAX_PIXELS:
        raise Refused(413, f"image: expected at most {MAX_PIXELS:,} pixels, got {width} x {height}")
    try:
        content = base64.b64decode(pixels, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, "pixels: expected base64 of grey bytes") from None
    if len(content) != width * height:
        expected = f"{width} x {height} = {width * height} bytes"
        raise Refused(400, f"pixels: expected {expected}, got {len(content)}")
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy()).view(height, width)


def write_pixels(image: Tensor) -> str:
    """Floats in [0, 1] or bytes, (H, W) or (C, H, W) whose channels are averaged -> base64 of grey bytes."""
    grey = image.float() * (255 if image.is_floating_point() else 1)
    if grey.ndim == 3:
        grey = grey.mean(0)
    return base64.b64encode(grey.clamp(0, 255).round().byte().contiguous().numpy().tobytes()).decode("ascii")


def read_upload(content: bytes) -> Tensor:
    """A picture file as ink, uint8 (H, W). Its size is read from the header and checked before it is decoded."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise Refused(415, "uploads are read by Pillow: pip install 'flashcaps[demo]'") from None
    broken = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own about sizes, which are checked here
        try:
            picture = Image.open(io.BytesIO(content), formats=FORMATS)
        except Image.DecompressionBombError:
            raise Refused(413, f"picture: expected at most {MAX_PIXELS:,} pixels, got far more") from None
        except broken:
            raise Refused(415, f"picture: expected a file of {', '.join(FORMATS)}, got something else") from None
        check_size(*picture.size)
        try:
            picture.draft("L", (1024, 1024))  # a JPEG is decoded at a fraction of its size
            return to_ink(torch.from_numpy(np.array(to_grey(ImageOps.exif_transpose(picture), Image))))
        except broken as error:
            raise Refused(415, f"picture: not a whole {picture.format} file ({error})") from None


def check_size(width: int, height: int) -> None:
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        limit = f"at most {MAX_SIDE} pixels a side and {MAX_PIXELS:,} in all"
        raise Refused(413, f"picture: expected {limit}, got {width} x {height}")


def to_grey(picture: Any, image: Any) -> Any:
    """As 8-bit grey; what is transparent is paper."""
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        sheet = image.new("RGBA", picture.size, "white")
        picture = image.alpha_composite(sheet, picture)
    elif picture.mode.startswith("I"):
        picture = image.fromarray((np.asarray(picture) // 257).astype(np.uint8))
    return picture.convert("L")
