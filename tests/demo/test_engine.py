"""The engine in Chromium against PyTorch, with the same weights in half precision."""

import base64
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashcaps
from flashcaps.data import load_data
from flashcaps.demo.build import DEMO, MAGIC, network_file, pack
from flashcaps.demo.facts import batch_of
from flashcaps.models.network import Capsules
from flashcaps.models.specs import ConvCaps, Dense, Primary, Route
from flashcaps.nn.backbones import Chain, Conv, CoordinateConvs, ResNet
from flashcaps.nn.trace import iterated
from tests.conftest import assert_near
from tests.demo.page_server import IMAGES, Asked, image

pytestmark = pytest.mark.browser

DIGITS = 100
RUN = """async ([file, images, iterations]) => {
  const { Network, readFile } = await import("./page/engine/network.js");
  const { toBase64, fromBase64 } = await import("./page/codec.js");
  const network = new Network(readFile(await (await fetch(file)).arrayBuffer(), file));
  const bytes = (x) => toBase64(new Uint8Array(Float64Array.from(x).buffer));
  return images.map((pixels) => {
    const { steps } = network.route(network.children(fromBase64(pixels)), iterations);
    const plain = ({ coupling, pose, activation }) =>
      ({ coupling: bytes(coupling), pose: bytes(pose), ...(activation && { activation: bytes(activation) }) });
    return { scores: network.scores(steps.at(-1)), steps: steps.map(plain) };
  });
}"""


@pytest.fixture
def run(ask: Asked) -> Callable[..., Any]:
    """The engine on images: scores (N, K), and of every step couplings, poses and activations (N, ...)."""

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
            if getattr(step, key) is not None:
                assert_near(x, getattr(step, key).flatten(1), 1e-4, f"{key} of step {t}")


@pytest.mark.parametrize("name", DEMO)
def test_the_page_computes_what_pytorch_computes(run: Callable[..., Any], name: str) -> None:
    model: Any = flashcaps.load(name)
    images = batch_of(model, load_data("digits").test.images[:DIGITS, 0]).inputs
    compare(run, f"models/{name}.caps", model, images)
    compare(run, f"models/{name}.caps", model, images[:2], 1)
    compare(run, f"models/{name}.caps", model, images[:2], 10)


def conv(**options: Any) -> Conv:
    return Conv(8, kernel=3, stride=2, **options)


def small(route: Route, layers: Any = (Dense(dim=4),), backbone: Any = None, image: Any = (1, 20, 20),
          **primary: Any) -> Capsules:  # fmt: skip
    given = {"types": 3, "dim": 4, "kernel": 3, "stride": 2} | primary
    return Capsules(image, 5, route, backbone or conv(), Primary(**given), layers, (12,))


TYPE = (ConvCaps(4, 4, kernel=3, stride=2, padding=1), Dense(dim=4, children="type"))
DEEP = (ConvCaps(4, 4, kernel=3), Dense(6, 4), Dense(dim=4))
RELATIVE = Route("em", options={"relative": True, "norm_activation": True, "beta_u": -1.0})
TEMPERED = Route("em", pose="vector", options={"sharpness": (0.5, 1.0, 1.0), "vote_bias": True, "eps": 1e-3,
                                               "inverse_temperature": (0.1, 0.2, 0.3)})  # fmt: skip
GATED = Route("attention", iterations=2, options={"activation": True, "initial": "learned", "norm": False})
SMALL = {
    "dynamic": small(Route("dynamic", options={"prior": True, "bias": True, "leaky": True}), TYPE, padding=1),
    "dynamic plain": small(Route("dynamic"), shares=0),
    "dynamic shifted": small(Route("dynamic"), shares=7, shift=0.1),
    "dynamic over positions": small(Route("dynamic", options={"over": "positions"}), TYPE, conv(pool="max"), kernel=1),
    "dynamic hidden": small(Route("dynamic"), (Dense(6, 4), Dense(dim=3)), conv(standardise=True, norm="before")),
    "em": small(Route("em"), TYPE, conv(activation="leaky_relu", norm="after")),
    "em relative": small(RELATIVE, TYPE, ResNet(((6, 1, 1), (8, 1, 2))), batch_norm=True),
    "em vectors": small(TEMPERED, TYPE),
    "attention": small(Route("attention", iterations=3), DEEP, image=(3, 24, 24)),
    "attention with activation": small(GATED, TYPE),
    "attention sequential": small(Route("attention", iterations=3, concurrent=False, options={"scale": 0.3}), TYPE),
    "heinsen": small(Route("heinsen"), (Dense(6, 4, "any"), Dense(dim=4)), CoordinateConvs(8, (1, 2)), kernel=1),
    "heinsen one to one": small(Route("heinsen", options={"one_to_one": 2.0}), (Dense(12, 4), Dense(12, 4)),
                                conv(pool="global"), types=12, kernel=1),
    "heinsen tied": small(Route("heinsen", options={"tied": True, "eps": 0.1}), TYPE,
                          conv(activation="swish", pool="average")),
    "discriminative": small(Route("discriminative"), TYPE, Chain((conv(), Conv(6, kernel=1)))),
}


def shaken(model: Any) -> Any:
    """Learned tensors and statistics as after training, as half precision has them."""
    for name, x in model.state_dict().items():
        if x.is_floating_point():
            x += 0.3 * torch.rand_like(x) if name.endswith("running_var") else 0.2 * torch.randn_like(x)
            x.copy_(x.half())
    return model.eval()


@pytest.mark.parametrize("title", SMALL)
def test_every_layer_and_option(run: Callable[..., Any], site: Path, title: str) -> None:
    model = shaken(SMALL[title].build())
    model.name = "small"
    info, content = network_file("small", model, IMAGES[:3])
    assert info["pose_dim"] == model.capsules.layers[-1].out_dim
    (site / "small.caps").write_bytes(content)
    compare(run, "small.caps", model, batch_of(model, IMAGES[:3]).inputs)


READ = """async ([bytes]) => {
  const { readFile } = await import("./page/engine/network.js");
  const { fromBase64 } = await import("./page/codec.js");
  try {
    return Object.keys(readFile(fromBase64(bytes).buffer, "models/bad.caps").header).length;
  } catch (error) {
    return `${error.constructor.name} ${error.message}`;
  }
}"""


def signed(text: str, rest: bytes = bytes(16), size: int | None = None) -> bytes:
    """A file whose checksum is right and whose header may lie."""
    header = text.encode() + b" " * (len(text) % 2)
    return MAGIC + struct.pack("<II", len(header) if size is None else size, zlib.crc32(header + rest)) + header + rest


def holding(shape: str, offset: str) -> str:
    return f'{{"format":1,"tensors":{{"x":{{"shape":{shape},"offset":{offset}}}}}}}'


GOOD = pack({"info": {"name": "good"}}, {"x": torch.ones(5, 2)})
BAD = [
    (b"", "cut short"),
    (GOOD[:10], "cut short"),
    (GOOD[:30], "cut short"),
    (GOOD[:-1], "damaged"),
    (b"PNG" + GOOD[3:], "another kind of file"),
    *((GOOD[:n] + bytes([GOOD[n] ^ 1 << bit]) + GOOD[n + 1 :], "damaged|cut short")
      for n in (8, 12, 20, len(GOOD) - 1) for bit in (0, 7)),
    (signed("{}", size=2**31), "its header says 2147483648 bytes"),
    (signed("{not json}"), "header cannot be read"),
    (signed("null"), "expected format 1, got undefined"),
    (signed('{"format":2}'), "expected format 1, got 2"),
    (signed(holding("[9]", "0")), "x lies outside the file"),
    (signed(holding("[1]", "1e9")), "x lies outside the file"),
    (signed(holding("[-1,-4]", "0")), "x lies outside the file"),
    (signed(holding("[0.5]", "0")), "x lies outside the file"),
    (signed(holding("7", "0")), "x lies outside the file"),
    (signed(holding("[2]", "0"), b"\0\x7c\0\x7e"), "x has numbers that are not finite"),
]  # fmt: skip


def test_a_malformed_file_and_an_unknown_algorithm_are_errors_that_name_them(ask: Asked) -> None:
    with pytest.raises(Exception, match=r"routing: expected one of dynamic, em, .*, got toString"):
        ask.page.evaluate("async () => (await import('./page/engine/routing.js')).route('toString', [], {}, {})")
    for content, message in [(GOOD, "3"), *((content, f"RangeError models/bad.caps: .*({m})") for content, m in BAD)]:
        said = ask.page.evaluate(READ, [base64.b64encode(content).decode()])
        assert re.match(message, str(said)), (content[:90], said)
