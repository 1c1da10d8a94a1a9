"""Drawings and photographs the way MNIST was made."""

import base64
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from flashcaps.demo.facts import place
from tests.demo.page_server import IMAGES, Asked, image
from tests.demo.test_answers import drawn, pixels
from tests.own_pictures import gigapixels

pytestmark = pytest.mark.browser

UPLOAD = """async ([bytes, type]) => {
  const { api } = await import("./page/api.js");
  const { fromBase64 } = await import("./page/codec.js");
  return api.upload(new Blob([fromBase64(bytes)], { type }));
}"""
UNREADABLE = "That file is not a picture this page can read; PNG and JPEG work."


@pytest.fixture
def center(ask: Asked) -> Callable[[Tensor], Tensor | None]:
    def inner(sheet: Tensor) -> Tensor | None:
        answer = ask("center", image(sheet))
        return None if answer["empty"] else pixels(answer["image"], (28, 28))

    return inner


@pytest.fixture
def upload(ask: Asked) -> Callable[..., dict[str, Any]]:
    return lambda content, kind="": ask.page.evaluate(UPLOAD, [base64.b64encode(content).decode(), kind])


def plain_center(picture: list[list[int]]) -> list[list[int]]:
    """The same from the description of MNIST, in loops: box, mean of each part of it, whole-pixel shift."""
    rows = [y for y, row in enumerate(picture) if any(row)]
    columns = [x for x in range(len(picture[0])) if any(row[x] for row in picture)]
    box = [row[columns[0] : columns[-1] + 1] for row in picture[rows[0] : rows[-1] + 1]]
    tall, wide = len(box), len(box[0])
    h, w = max(1, round(tall * 20 / max(tall, wide))), max(1, round(wide * 20 / max(tall, wide)))

    def share(pixel: int, part: int, n: int, m: int) -> float:
        return max(0.0, min(pixel + 1, (part + 1) * n / m) - max(pixel, part * n / m)) * m / n

    ink = [[sum(box[y][x] * share(y, i, tall, h) * share(x, j, wide, w) for y in range(tall) for x in range(wide))
            for j in range(w)] for i in range(h)]  # fmt: skip
    top = max(map(max, ink))
    if top < 200:
        ink = [[v * 255 / top for v in row] for row in ink]
    mass = sum(map(sum, ink))
    cy = sum(i * sum(row) for i, row in enumerate(ink)) / mass
    cx = sum(j * v for row in ink for j, v in enumerate(row)) / mass
    top_row, left = (min(max(math.ceil(13.5 - c), 0), 28 - n) for c, n in ((cy, h), (cx, w)))
    out = [[0] * 28 for _ in range(28)]
    for i in range(h):
        for j in range(w):
            out[top_row + i][left + j] = round(ink[i][j])
    return out


def test_it_is_what_an_independent_computation_gives(center: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    for height, width in ((61, 40), (47, 70), (30, 33)):
        sheet = (torch.rand(height, width, generator=generator) > 0.9).byte() * 230
        sheet[: height // 5] = sheet[:, : width // 3] = 0
        ours, plain = center(sheet), torch.tensor(plain_center(sheet.tolist()))
        assert (ours.int() - plain).abs().max() <= 1  # where a half is rounded the other way


def test_mnist_digits_come_out_as_they_went_in(center: Callable[..., Any]) -> None:
    for digit in IMAGES[::4]:
        assert torch.equal(center(digit), digit)
        large = digit.repeat_interleave(4, 0).repeat_interleave(4, 1)
        assert torch.equal(center(F.pad(large, (9, 3, 20, 0))), digit)


def test_dots_lines_and_empty_sheets(center: Callable[..., Any]) -> None:
    small = torch.zeros(50, 50, dtype=torch.uint8)
    small[10:20, 30:34] = 255
    out = center(small)
    assert [len(out.any(axis).nonzero()) for axis in (1, 0)] == [20, 8]
    for shape in ((1, 1), (3, 400), (400, 3)):
        assert center(torch.full(shape, 255, dtype=torch.uint8)).max() == 255
    thin = torch.zeros(400, 400, dtype=torch.uint8)
    thin[10:390, 200] = 255
    assert center(thin).max() == 255  # stretched
    assert center(torch.zeros(30, 30, dtype=torch.uint8)) is None


def test_digits_are_put_in_the_middle_of_another_image() -> None:
    assert torch.equal(place(IMAGES[0], 36, 40)[4:32, 6:34], IMAGES[0])
    assert place(IMAGES[0], 36, 40).sum() == IMAGES[0].sum()
    assert torch.equal(place(IMAGES[0], 24, 24), IMAGES[0][2:26, 2:26])


def saved(sheet: Tensor, kind: str, mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.fromarray(sheet.numpy()).convert(mode).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(("kind", "mode"), [
    ("PNG", "L"), ("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("GIF", "P"), ("BMP", "RGB"),
])  # fmt: skip
def test_pictures_of_many_kinds_are_read(
    upload: Callable[..., Any], center: Callable[..., Any], kind: str, mode: str
) -> None:
    """Dark ink on light paper, and light on dark."""
    sheet = drawn(IMAGES[16], torch.Generator().manual_seed(2))
    expected = center(sheet).int()
    for picture in (255 - sheet, sheet):
        found = pixels(upload(saved(picture, kind, mode))["image"], (28, 28)).int()
        assert (found - expected).abs().float().mean() < 6
    assert upload(saved(torch.full((40, 40), 130, dtype=torch.uint8), kind, mode))["empty"]


def test_transparent_is_paper_and_large_photographs_are_shrunk(upload: Callable[..., Any]) -> None:
    glass = Image.new("RGBA", (30, 30), (0, 0, 0, 0))
    glass.paste((0, 0, 0, 255), (10, 5, 14, 25))
    out = io.BytesIO()
    glass.save(out, "PNG")
    assert pixels(upload(out.getvalue())["image"], (28, 28)).sum() == 20 * 4 * 255
    noise = torch.randint(150, 256, (2000, 3000), dtype=torch.uint8)
    noise[300:1700, 1400:1600] = 20
    photograph = saved(noise, "BMP")
    assert len(photograph) > 4 << 20
    found = pixels(upload(photograph)["image"], (28, 28))
    assert [len((found > 100).any(axis).nonzero()) for axis in (1, 0)] == [20, 3]


def test_what_is_no_picture_is_told_plainly(ask: Asked, upload: Callable[..., Any]) -> None:
    for content in (b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"<svg xmlns='...'/>", b"%PDF-1.7", gigapixels()):
        with pytest.raises(Exception, match=UNREADABLE):
            upload(content, "image/png")
    assert ask("center", image(IMAGES[0]))["empty"] is False  # and the page still works
