"""What comes from outside is checked before anything large is made of it."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from flashcaps.demo.inputs import MAX_SIDE, Refused, read_pixels, read_upload, write_pixels


def picture(kind: str = "PNG", mode: str = "L", size: tuple[int, int] = (40, 50)) -> bytes:
    """A dark bar on light paper."""
    image = Image.new("L", size, 255)
    image.paste(10, (15, 10, 20, 40))
    out = io.BytesIO()
    image.convert(mode).save(out, kind)
    return out.getvalue()


def png_header(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that says it is that large."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def refusal(content: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        read_upload(content)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(("kind", "mode"), [
    ("PNG", "L"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "1"), ("JPEG", "RGB"), ("WEBP", "RGB"),
    ("GIF", "P"), ("BMP", "RGB"),
])  # fmt: skip
def test_pictures_of_many_kinds_become_ink(kind: str, mode: str) -> None:
    ink = read_upload(picture(kind, mode))
    assert ink.dtype == torch.uint8
    assert ink.shape == (50, 40)
    assert ink[15:35, 16:19].min() > 200
    assert ink[:, :8].max() == 0


def test_transparent_is_paper_and_sixteen_bits_are_read() -> None:
    image = Image.new("RGBA", (30, 30), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (10, 5, 14, 25))
    out = io.BytesIO()
    image.save(out, "PNG")
    ink = read_upload(out.getvalue())
    assert ink[10:20, 11].min() == 255
    assert ink[:, 0].max() == 0
    deep = np.full((20, 20), 60000, dtype=np.uint16)
    deep[5:15, 8:12] = 500
    out = io.BytesIO()
    Image.fromarray(deep).save(out, "PNG")
    assert read_upload(out.getvalue())[10, 9] == 255


def test_no_picture_and_a_truncated_one_are_415_and_a_bomb_is_413_by_its_header() -> None:
    others = (b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"<svg xmlns='...'/>", bytes(1000), b"%PDF-1.7",
              b"\xff\xd8\xff\xe0" + bytes(100))  # fmt: skip
    pictures = [picture(kind, "RGB", (200, 200)) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP")]
    for content in (*others, *(whole[: len(whole) * 2 // 3] for whole in pictures)):
        assert refusal(content).status == 415, content[:10]
    for size in ((MAX_SIDE + 1, 1), (1, 100_000), (4096, 4096), (60_000, 60_000)):
        assert refusal(png_header(*size, zlib.compress(bytes(10_000)))).status == 413, size


def test_a_picture_as_large_as_allowed_is_read() -> None:
    assert read_upload(picture("JPEG", "L", (4000, 3000))).max() == 255


def test_pixels_go_there_and_back() -> None:
    pixels = torch.arange(12, dtype=torch.uint8).view(3, 4)
    assert torch.equal(read_pixels(4, 3, write_pixels(pixels)), pixels)
    assert write_pixels(pixels.float() / 255) == write_pixels(pixels)
    assert torch.equal(read_pixels(4, 3, write_pixels(torch.stack([pixels] * 3))), pixels)
    assert base64.b64decode(write_pixels(torch.tensor([[-1.0, 2.0]]))) == b"\x00\xff"


@pytest.mark.parametrize(("width", "height", "pixels", "status"), [
    (2, 2, "AAAA", 400), (2, 2, "not base64!", 400), (2, 2, "AAAAAA==x", 400), (4096, 4096, "", 413), (1, 1, "é", 400),
])  # fmt: skip
def test_pixels_that_do_not_fit_are_refused(width: int, height: int, pixels: str, status: int) -> None:
    with pytest.raises(Refused) as caught:
        read_pixels(width, height, pixels)
    assert caught.value.status == status
