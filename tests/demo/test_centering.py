"""Drawings the way MNIST was made."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flashcaps.demo.centering import BOX, center, fit, ink_box, to_ink
from flashcaps.demo.samples import read_samples

DIGITS = read_samples()[0]


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


def strokes(seed: int, height: int, width: int) -> Tensor:
    """A few thick lines somewhere on a sheet."""
    generator = torch.Generator().manual_seed(seed)
    sheet = torch.zeros(height, width, dtype=torch.uint8)
    for _ in range(3):
        y0, x0, y1, x1 = (torch.rand(4, generator=generator) * 0.8 + 0.05).tolist()
        for t in torch.linspace(0, 1, 60).tolist():
            y, x = int((y0 + t * (y1 - y0)) * height), int((x0 + t * (x1 - x0)) * width)
            sheet[y : y + 4, x : x + 4] = 230
    return sheet


@pytest.mark.parametrize(("seed", "height", "width"), [(0, 61, 40), (1, 47, 90), (2, 112, 112)])
def test_it_is_what_an_independent_computation_gives(seed: int, height: int, width: int) -> None:
    sheet = strokes(seed, height, width)
    ours, plain = center(sheet), torch.tensor(plain_center(sheet.tolist()))
    assert ours is not None
    assert (ours.int() - plain).abs().max() <= 1  # where a half is rounded the other way


def test_mnist_digits_come_out_as_they_went_in() -> None:
    for digit in DIGITS:
        assert torch.equal(center(digit), digit)


def test_they_do_from_anywhere_on_a_larger_sheet_too() -> None:
    generator = torch.Generator().manual_seed(0)
    for digit in DIGITS:
        large = digit[ink_box(digit)].repeat_interleave(4, 0).repeat_interleave(4, 1)
        sheet = torch.zeros(112, 112, dtype=torch.uint8)
        y, x = (int(torch.randint(0, 112 - n + 1, (), generator=generator)) for n in large.shape)
        sheet[y : y + large.shape[0], x : x + large.shape[1]] = large
        assert torch.equal(center(sheet), digit)


def test_small_drawings_are_enlarged() -> None:
    sheet = torch.zeros(50, 50, dtype=torch.uint8)
    sheet[10:20, 30:34] = 255
    out = center(sheet)
    assert out is not None
    rows, columns = ink_box(out) or (slice(0), slice(0))
    assert (rows.stop - rows.start, columns.stop - columns.start) == (BOX, 8)


@pytest.mark.parametrize("shape", [(1, 1), (3, 400), (400, 3)])
def test_a_dot_and_thin_lines_stay_inside(shape: tuple[int, int]) -> None:
    out = center(torch.full(shape, 255, dtype=torch.uint8))
    assert out is not None
    assert out.max() == 255
    assert out.shape == (28, 28)


def test_thin_ink_is_stretched_and_an_empty_sheet_is_none() -> None:
    line = torch.zeros(400, 400, dtype=torch.uint8)
    line[10:390, 200] = 255
    out = center(line)
    assert out is not None
    assert out.max() == 255
    assert center(torch.zeros(30, 30, dtype=torch.uint8)) is None


def test_photographs_become_ink_either_way_round() -> None:
    dark_on_light = torch.full((60, 60), 220, dtype=torch.uint8)
    dark_on_light[20:40, 28:32] = 30
    dark_on_light[5:8, 5:8] = 200  # a shadow on the paper
    ink = to_ink(dark_on_light)
    assert torch.equal(ink > 0, dark_on_light == 30)
    assert torch.equal(to_ink(255 - dark_on_light) > 0, ink > 0)
    assert to_ink(torch.full((9, 9), 130, dtype=torch.uint8)).max() == 0


def test_digits_are_put_in_the_middle_of_a_larger_image() -> None:
    digit = DIGITS[0]
    assert torch.equal(fit(digit, 28, 28), digit)
    assert torch.equal(fit(digit, 36, 40)[4:32, 6:34], digit)
    assert fit(digit, 36, 40).sum() == digit.sum()
    assert fit(digit, 96, 96).shape == (96, 96)
    assert fit(digit, 24, 24).shape == (24, 24)
