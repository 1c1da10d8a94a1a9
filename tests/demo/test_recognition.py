"""What the page promises: test digits through its own input path, by the models that come along."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from starlette.testclient import TestClient
from torch import Tensor

from flashcaps.data import MultiMNIST, load_data
from flashcaps.demo.centering import ink_box
from flashcaps.demo.inputs import read_pixels
from tests.demo.served import ALGORITHMS, client, image

pytestmark = pytest.mark.data

DIGITS, PAIRS = 200, 100
RASTER = 112  # side of what the page sends


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    with client() as opened:
        yield opened


def drawn(digit: Tensor, generator: torch.Generator) -> Tensor:
    """A digit as somebody draws it on the pad: of any size, anywhere."""
    ink = digit[ink_box(digit)]
    side = int(torch.randint(50, 100, (), generator=generator))
    h, w = (max(1, round(n * side / max(ink.shape))) for n in ink.shape)
    large = F.interpolate(ink[None, None].float(), (h, w), mode="bilinear")[0, 0].round().byte()
    y, x = (int(torch.randint(0, RASTER - n + 1, (), generator=generator)) for n in (h, w))
    return F.pad(large, (x, RASTER - w - x, y, RASTER - h - y))


@pytest.fixture(scope="module")
def digits(page: TestClient) -> list[tuple[Tensor, int]]:
    """Two hundred of the test set, drawn on the pad and centred by the server."""
    split = load_data("mnist").test
    generator = torch.Generator().manual_seed(0)
    found = []
    for row in torch.randperm(len(split), generator=generator)[:DIGITS].tolist():
        answer = page.post("/api/center", json=image(drawn(split.images[row, 0], generator))).json()
        assert not answer["empty"]
        found.append((read_pixels(28, 28, answer["image"]), int(split.labels[row])))
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_digits_are_recognised(page: TestClient, digits: list[tuple[Tensor, int]], algorithm: str) -> None:
    right = 0
    for digit, label in digits:
        answer = page.post("/api/route", json={"model": f"demo_{algorithm}", "image": image(digit)}).json()
        right += answer["predicted"] == [label]
    print(f"demo_{algorithm}: {right} of {DIGITS} digits")
    assert right >= 0.97 * DIGITS


def test_overlapped_pairs_are_recognised(page: TestClient, digits: list[tuple[Tensor, int]]) -> None:
    """Pairs of the same two hundred, shifted and laid over each other as the page does, classes different."""
    generator = torch.Generator().manual_seed(1)
    right = made = 0
    while made < PAIRS:
        (a, first), (b, second) = (digits[k] for k in torch.randint(0, DIGITS, (2,), generator=generator).tolist())
        if first == second:
            continue
        made += 1
        sheets = torch.zeros(2, 36, 36, dtype=torch.int32)
        for sheet, digit in zip(sheets, (a, b), strict=True):
            y, x = torch.randint(0, 9, (2,), generator=generator).tolist()
            sheet[y : y + 28, x : x + 28] = digit
        both = sheets.sum(0).clamp(max=255).byte()
        answer = page.post("/api/route", json={"model": "demo_pairs", "image": image(both)}).json()
        right += sorted(answer["predicted"]) == sorted((first, second))
    print(f"demo_pairs: both right in {right} of {PAIRS} pairs")
    assert right >= 0.85 * PAIRS


def test_overlapped_pairs_of_the_data_set_are_recognised(page: TestClient) -> None:
    batch = MultiMNIST(load_data("mnist").test).at(torch.arange(PAIRS))
    right = 0
    for picture, labels in zip(batch.inputs, batch.chosen, strict=True):
        request = {"model": "demo_pairs", "image": image((picture[0] * 255).round().byte())}
        right += sorted(page.post("/api/route", json=request).json()["predicted"]) == sorted(labels.tolist())
    assert right >= 0.85 * PAIRS
