"""The engine in Chromium against PyTorch, with the same weights in half precision."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flashcaps
from flashcaps.analysis.inside import iterated
from flashcaps.data import load_data
from flashcaps.demo.build import DEMO
from flashcaps.demo.facts import batch_of
from tests.conftest import assert_near
from tests.demo.served import Asked, image

pytestmark = pytest.mark.browser

DIGITS = 100
RUN = """async ([file, images, iterations]) => {
  const { Network, readFile } = await import("./page/engine/network.js");
  const { toBase64, fromBase64 } = await import("./page/codec.js");
  const network = new Network(readFile(await (await fetch(file)).arrayBuffer(), file));
  const bytes = (x) => toBase64(new Uint8Array(Float64Array.from(x).buffer));
  return images.map((pixels) => {
    const { steps } = network.route(network.children(fromBase64(pixels)), iterations);
    const plain = ({ coupling, pose }) => ({ coupling: bytes(coupling), pose: bytes(pose) });
    return { scores: network.scores(steps.at(-1)), steps: steps.map(plain) };
  });
}"""


@pytest.fixture
def run(ask: Asked) -> Callable[..., Any]:
    """The engine on images: scores (N, K), and of every step couplings and poses (N, ...)."""

    def inner(file: str, images: Tensor, iterations: int | None = None) -> tuple[Tensor, list[dict[str, Tensor]]]:
        pixels = [image((x[0] * 255).round().byte())["pixels"] for x in images]
        found = ask.page.evaluate(RUN, [file, pixels, iterations])
        numbers = lambda text: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float64)  # noqa: E731
        steps = [{key: torch.stack([numbers(x["steps"][t][key]) for x in found]) for key in step}
                 for t, step in enumerate(found[0]["steps"])]  # fmt: skip
        return torch.tensor([x["scores"] for x in found], dtype=torch.float64), steps

    return inner


@torch.no_grad()
def compare(run: Callable[..., Any], file: str, model: Any, images: Tensor, iterations: int | None = None) -> None:
    model = model.double().eval()
    with iterated(model.capsules, iterations):
        routed = model.route(images.double(), coupling=True, record=True)
    scores, steps = run(file, images, iterations)
    assert_near(scores, model.head(routed), 1e-4, "scores")
    assert len(steps) == len(routed.history)
    for t, (found, step) in enumerate(zip(steps, routed.history, strict=True)):
        for key, x in found.items():
            assert_near(x, getattr(step, key).flatten(1), 1e-4, f"{key} of step {t}")


@pytest.mark.parametrize("name", DEMO)
def test_the_page_computes_what_pytorch_computes(run: Callable[..., Any], name: str) -> None:
    model: Any = flashcaps.load(name)
    images = batch_of(model, load_data("digits").test.images[:DIGITS, 0]).inputs
    compare(run, f"models/{name}.caps", model, images)
    compare(run, f"models/{name}.caps", model, images[:2], 1)
    compare(run, f"models/{name}.caps", model, images[:2], 10)
