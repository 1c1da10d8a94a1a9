"""What the page is told of an image is what the network does."""

import base64
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flashcaps
from flashcaps.analysis.figure import Run
from flashcaps.data import load_data
from flashcaps.demo.facts import batch_of, place
from flashcaps.nn.trace import presence
from flashcaps.routing.math import length
from tests.conftest import assert_near
from tests.demo.page_server import ALGORITHMS, IMAGES, LABELS, Asked, image

pytestmark = pytest.mark.browser

NAMES = [f"demo_{name}" for name in (*ALGORITHMS, "pairs")]
ROW = 13
PREDICT = """async ([names, image]) => {
  const { results } = await (await import("./page/api.js")).api.compare(names, image);
  return results.map((x) => x.predicted);
}"""


def sample(name: str, row: int = ROW) -> dict[str, Any]:
    return image(place(IMAGES[row], 36, 36) if name == "demo_pairs" else IMAGES[row])


def pixels(text: str, shape: Any) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).view(*shape)


def drawn(digit: Tensor, generator: torch.Generator, side: int = 112) -> Tensor:
    """A digit as somebody draws it on the pad: of any size, anywhere."""
    rows, columns = digit.any(1).nonzero()[:, 0], digit.any(0).nonzero()[:, 0]
    ink = digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    size = int(torch.randint(50, 100, (), generator=generator))
    h, w = (max(1, round(n * size / max(ink.shape))) for n in ink.shape)
    large = F.interpolate(ink[None, None].float(), (h, w), mode="bilinear")[0, 0].round().byte()
    y, x = (int(torch.randint(0, side - n + 1, (), generator=generator)) for n in (h, w))
    return F.pad(large, (x, side - w - x, y, side - h - y))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_numbers_are_the_models_own(ask: Asked, name: str) -> None:
    model: Any = flashcaps.load(name).eval()
    found, batch = ask("route", name, sample(name)), batch_of(model, IMAGES[ROW : ROW + 1])
    votes, top = Run(model, batch, name=name).class_votes(batch)
    there, k, routing = presence(top)[0].flatten(), found["predicted"][0], found["routing"]
    scores, pose = model.head(top.out)[0], top.out.pose[0]
    assert_near(torch.tensor(found["scores"]), scores.tolist(), 1e-4)
    assert_near(torch.tensor(found["poses"]), pose.tolist(), 1e-4)
    assert_near(torch.tensor(found["lengths"]), length(pose).tolist(), 1e-4)
    assert k == int(scores.argmax())
    picture = model.reconstruct(top.out, torch.tensor([k]))[0, 0]
    assert_near(pixels(found["reconstructions"][0]["image"], picture.shape).float() / 255, picture.tolist(), 0.003)
    cells = math.prod(routing["grid"])
    assert_near(torch.tensor(routing["presence"]), there.view(-1, cells).sum(0).tolist(), 1e-4)
    for step, own in zip(routing["steps"], top.steps, strict=True):
        c = own.coupling[0]
        assert_near(torch.tensor(step["coupling"]), c.view(-1, cells, 10).sum(0).tolist(), 1e-4)
        assert_near(torch.tensor(step["flow"]), (c * there[:, None]).view(-1, cells, 10).sum(0).tolist(), 1e-4)
        assert_near(torch.tensor(step["poses"]), own.pose[0].tolist(), 1e-4)
        p = c.abs() / c.abs().sum(1, keepdim=True)
        assert step["entropy"] == pytest.approx(float(-p.xlogy(p).sum(1).mean()), abs=1e-4)
        if top.out.variance is None:
            near = torch.cosine_similarity(votes[0], own.pose, dim=-1)
        else:
            spread = (votes[0] - votes[0].mean(0)).square().sum(-1).mean()
            near = (-(votes[0] - own.pose).square().sum(-1) / (2 * spread)).exp()
        weight = c.abs() * there[:, None]
        assert_near(torch.tensor(step["agreement"]), ((near * weight).sum(0) / weight.sum(0)).tolist(), 1e-3)
        speaker = (c * there[:, None]).abs().view(-1, cells, 10)
        assert (speaker.gather(0, torch.tensor(step["speaker"])[None])[0] >= speaker.amax(0) - 1e-5).all()
    assert_near(torch.tensor(routing["steps"][-1]["activation"]), found["activation"], 1e-6)
    weight = c if top.out.variance is None else c * there[:, None]  # arrows along the winner's pose, which add up
    along = torch.einsum("ij,ijd,d->j", weight, votes[0], F.normalize(pose[k], dim=0))
    assert_near(torch.tensor(routing["plane"]["arrows"][-1]).sum(1)[:, 0], along.tolist(), 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_one_vote_multiplied_out(ask: Asked, name: str) -> None:
    child, parent, iteration = 20, 7, 0 if name == "demo_discriminative" else 2
    which = {"child": child, "parent": parent, "iteration": iteration}
    found = ask("explain", name, sample(name), which)
    u = torch.tensor(found["vector"]).view(found["rows"], -1)
    vote, pose = torch.tensor(found["vote"]), torch.tensor(found["pose"])
    product = (u @ torch.tensor(found["matrix"])).flatten() + torch.tensor(found["bias"] or 0.0)
    assert_near(vote, product.tolist())
    if found["variance"] is None:
        scale = 0.25 if name == "demo_attention" else 1
        assert found["agreement"] == pytest.approx(scale * float(vote @ pose), abs=1e-5)
    else:
        variance = torch.tensor(found["variance"])
        expected = -0.5 * ((vote - pose).square() / variance + variance.log()).sum()
        assert found["agreement"] == pytest.approx(float(expected), rel=1e-4)
    assert found["coupling"] == found["couplings"][parent]
    if name != "demo_discriminative":
        assert_near(torch.tensor(found["logits"]).softmax(0), found["couplings"])
    shown = ask("route", name, sample(name))
    assert found["pose"] == pytest.approx(shown["routing"]["steps"][iteration]["poses"][parent])


@pytest.mark.parametrize("name", NAMES)
def test_the_slider_draws_what_the_decoder_draws(ask: Asked, name: str) -> None:
    found = ask("route", name, sample(name))
    k, info = found["predicted"][0], next(m for m in ask("models")["models"] if m["name"] == name)
    pose = found["poses"][k]
    still, rows = ask("decode", name, pose, k), ask("dimensions", name, pose, k)
    assert still["image"] == found["reconstructions"][0]["image"]
    assert rows["offsets"][5] == 0
    assert rows["offsets"][-1] == -rows["offsets"][0] == info["reach"]
    assert [row["dimension"] for row in rows["rows"]] == list(range(16))
    assert [row["stands_for"] for row in rows["rows"]] == info["dimensions"]
    for row in rows["rows"]:
        assert len(row["images"]) == 11
        assert row["images"][5] == still["image"]
    pose[3] += rows["offsets"][-1]
    assert ask("decode", name, pose, k)["image"] == rows["rows"][3]["images"][10]
    assert any(row["images"][0] != row["images"][10] for row in rows["rows"])


def test_digits_drawn_anywhere_are_recognised(ask: Asked) -> None:
    split, generator = load_data("digits").test, torch.Generator().manual_seed(0)
    right = torch.zeros(len(ALGORITHMS))
    rows = torch.randperm(len(split), generator=generator)[:50].tolist()
    for row in rows:
        answer = ask("center", image(drawn(split.images[row, 0], generator)))
        assert not answer["empty"]
        answers = ask.page.evaluate(PREDICT, [NAMES[:-1], image(pixels(answer["image"], (28, 28)))])
        right += torch.tensor([x == [int(split.labels[row])] for x in answers])
    assert right.min() >= 0.95 * len(rows), right


def test_samples_are_recognised_and_two_digits_taken_apart(ask: Asked) -> None:
    for row in range(0, 30, 3):
        answers = ask.page.evaluate(PREDICT, [NAMES[:-1], image(IMAGES[row])])
        assert answers == [[int(LABELS[row])]] * len(ALGORITHMS)
    first, second = torch.zeros(2, 36, 36, dtype=torch.uint8)
    first[2:30, 1:29], second[7:35, 8:36] = IMAGES[2], IMAGES[22]
    found = ask("route", "demo_pairs", image((first.int() + second.int()).clamp(max=255).byte()))
    assert sorted(found["predicted"]) == [0, 7]
    pictures = {r["class"]: pixels(r["image"], (36, 36)).float().flatten() for r in found["reconstructions"]}
    for k, own, other in ((0, first, second), (7, second, first)):
        same, crossed = (torch.cosine_similarity(pictures[k], y.float().flatten(), 0) for y in (own, other))
        assert same > crossed + 0.2


def test_wrong_questions_are_answered_in_one_line(ask: Asked) -> None:
    picture, pose = sample("demo_em"), [0.0] * 16
    for words, message in (
        (("route", "gone", picture), r"gone.caps cannot be loaded \(404\)"),
        (("route", "demo_pairs", picture), r"demo_pairs expects 36 x 36 \(height x width\), got 28 x 28"),
        (("route", "demo_em", picture, None, {"iterations": 11}), "iterations: expected 1 to 10, got 11"),
        (("decode", "demo_em", pose[:15], 0), "pose: expected 16 numbers, got 15"),
        (("decode", "demo_em", pose, 10), "class: expected 0 to 9, got 10"),
        (("explain", "demo_em", picture, {"child": 288, "parent": 0}), "child: expected 0 to 287, got 288"),
        (("explain", "demo_em", picture, {"child": 0, "parent": -1}), "parent: expected 0 to 9, got -1"),
        (("explain", "demo_em", picture, {"child": 0, "parent": 0, "iteration": 3}), "iteration: expected 0 to 2"),
    ):
        with pytest.raises(Exception, match=message):
            ask(*words)
