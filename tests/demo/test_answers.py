"""What the page is told: of an image what the network does, of drawings and photographs a digit as in MNIST."""

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

import flashcaps
from flashcaps.analysis.figure import Run
from flashcaps.data import load_data
from flashcaps.demo.facts import batch_of, place
from flashcaps.nn.trace import presence
from flashcaps.routing.math import length
from tests.conftest import assert_near
from tests.demo.page_server import ALGORITHMS, IMAGES, Asked, image
from tests.own_pictures import gigapixels

pytestmark = pytest.mark.browser

NAMES = [f"demo_{name}" for name in (*ALGORITHMS, "pairs")]
ROW = 13
UPLOAD = """async ([bytes, type]) => {
  const { api } = await import("./page/api.js");
  const { fromBase64 } = await import("./page/codec.js");
  return api.upload(new Blob([fromBase64(bytes)], { type }));
}"""


def sample(name: str) -> dict[str, Any]:
    return image(place(IMAGES[ROW], 36, 36) if name == "demo_pairs" else IMAGES[ROW])


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


def traced(name: str) -> tuple[Any, Tensor, Any]:
    """A network of PyTorch, and its votes and steps of routing on the same sample."""
    model: Any = flashcaps.load(name).eval()
    batch = batch_of(model, IMAGES[ROW : ROW + 1])
    return model, *Run(model, batch, name=name).class_votes(batch)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_numbers_are_the_models_own(ask: Asked, name: str) -> None:
    found, (model, votes, top) = ask("route", name, sample(name)), traced(name)
    there, k, routing = presence(top)[0].flatten(), found["predicted"][0], found["routing"]
    scores, pose = model.head(top.out)[0], top.out.pose[0]
    assert_near(torch.tensor(found["scores"]), scores.tolist(), 1e-4)
    assert_near(torch.tensor(found["poses"]), pose.tolist(), 1e-4)
    assert_near(torch.tensor(found["lengths"]), length(pose).tolist(), 1e-4)
    assert k == int(scores.argmax())
    picture = model.reconstruct(top.out, torch.tensor([k]))[0, 0]
    assert_near(pixels(found["reconstructions"][0]["image"], picture.shape).float() / 255, picture.tolist(), 0.003)
    cells = math.prod(routing["grid"])
    if name == "demo_attention":  # whose small capsules have no activation, and vectors of one length
        assert routing["presence"] is None
        assert there.eq(1).all()
    else:
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
    weight = c if top.out.variance is None else c * there[:, None]  # arrows, which add up to their true sum
    total, hours = torch.einsum("ij,ijd->jd", weight, votes[0]), torch.arange(10) * math.tau / 10 - math.pi / 2
    ends = torch.tensor(routing["plane"]["arrows"][-1]).sum(1)
    assert_near(ends, (length(total)[:, None] * torch.stack([hours.cos(), hours.sin()], 1)).tolist(), 1e-3)
    places = (weight[..., None] * votes[0]).view(-1, cells, 10, 16).sum(0)  # (cells, J, D)
    gone, reached = length(places).sum(0), length(places.sum(0))
    for key, x in (("gone", gone), ("reached", reached), ("share", reached / gone)):
        assert_near(torch.tensor([chain[key] for chain in routing["plane"]["chains"][-1]]), x.tolist(), 1e-3)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_from_one_vote_to_the_answer(ask: Asked, name: str) -> None:
    """The vote multiplied out, what it weighs, what all add up to, and what the class gets for it, against PyTorch."""
    model, votes, top = traced(name)
    there, gaussian = presence(top)[0].flatten(), top.out.variance is not None
    parent, child = 7, 20
    answer = ask("route", name, sample(name))["routing"]["steps"]
    for iteration, (step, shown) in enumerate(zip(top.steps, answer, strict=True)):
        found = ask("explain", name, sample(name), {"child": child, "parent": parent, "iteration": iteration})
        vote, pose = votes[0, child, parent], step.pose[0, parent]
        u = torch.tensor(found["vector"]).view(found["rows"], -1)
        product = (u @ torch.tensor(found["matrix"])).flatten() + torch.tensor(found["bias"] or 0.0)
        assert_near(torch.tensor(found["vote"]), product.tolist())
        assert_near(product, vote.tolist(), 1e-3)
        assert_near(torch.tensor(found["pose"]), pose.tolist(), 1e-4)
        assert found["pose"] == pytest.approx(shown["poses"][parent])
        seen, middle = torch.tensor(found["vote"]), torch.tensor(found["pose"])
        if gaussian:
            variance = torch.tensor(found["variance"])
            agreement = float(-0.5 * ((seen - middle).square() / variance + variance.log()).sum())
        else:
            agreement = (0.25 if name == "demo_attention" else 1) * float(seen @ middle)
        assert found["agreement"] == pytest.approx(agreement, rel=1e-4, abs=1e-5)
        assert found["coupling"] == found["couplings"][parent]
        if name != "demo_discriminative":
            assert_near(torch.tensor(found["logits"]).float().softmax(0), found["couplings"])
        weight = step.coupling[0, :, parent] * (there if gaussian else 1)
        total = weight @ votes[0, :, parent]
        assert found["weight"] == pytest.approx(float(weight[child]), abs=1e-5)
        assert found["count"] == len(weight)
        assert_near(torch.tensor(found["sum"]), total.tolist(), 1e-3)
        assert found["share"] == pytest.approx(float(weight[child] * (vote @ total) / (total @ total)), abs=1e-4)
        if found["made"] == "squash":
            long = float(length(total))
            assert float(length(pose)) == pytest.approx(long**2 / (1 + long**2), abs=1e-4)
        elif found["made"] == "mean":
            assert found["total"] == pytest.approx(float(weight.sum()), rel=1e-4)
            assert found["total"] + found["ignored"] == pytest.approx(float(there.sum()), rel=1e-4)
            assert_near(pose, (total / weight.sum()).tolist(), 1e-3)
            deviation = ((weight[:, None] * (votes[0, :, parent] - pose) ** 2).sum(0) / weight.sum()).sqrt()
            assert found["spread"] == pytest.approx(float(deviation.log().mean().exp()), rel=1e-2)
        else:
            assert found["made"] == "norm"
        assert found["shown"] == pytest.approx(shown["activation"])
        assert found["formulas"]["sum"]
    assert_near(torch.tensor(found["scores"]), model.head(top.out)[0].tolist(), 1e-4)


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


def test_digits_drawn_anywhere_are_recognised(ask: Asked, center: Callable[..., Any]) -> None:
    split, generator = load_data("digits").test, torch.Generator().manual_seed(0)
    right = torch.zeros(len(ALGORITHMS))
    rows = torch.randperm(len(split), generator=generator)[:50].tolist()
    for row in rows:
        digit = center(drawn(split.images[row, 0], generator))
        answers = ask("compare", NAMES[:-1], image(digit))["results"]
        right += torch.tensor([x["predicted"] == [int(split.labels[row])] for x in answers])
    assert right.min() >= 0.95 * len(rows), right


def test_two_digits_are_taken_apart(ask: Asked) -> None:
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


def test_digits_are_put_in_the_middle_as_mnist_is_described(center: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    thin = torch.zeros(400, 400, dtype=torch.uint8)
    thin[10:390, 200] = 255  # its ink is stretched
    sheets = [thin, *(torch.full(shape, 255, dtype=torch.uint8) for shape in ((1, 1), (10, 4), (3, 400), (400, 3)))]
    for height, width in ((61, 40), (47, 70), (30, 33)):
        sheets.append((torch.rand(height, width, generator=generator) > 0.9).byte() * 230)
        sheets[-1][: height // 5] = sheets[-1][:, : width // 3] = 0
    for sheet in sheets:
        plain = torch.tensor(plain_center(sheet.tolist()))
        assert (center(sheet).int() - plain).abs().max() <= 1  # where a half is rounded the other way
    for digit in IMAGES[::4]:
        assert torch.equal(center(digit), digit)
        large = digit.repeat_interleave(4, 0).repeat_interleave(4, 1)
        assert torch.equal(center(F.pad(large, (9, 3, 20, 0))), digit)
    assert center(torch.zeros(30, 30, dtype=torch.uint8)) is None
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
        with pytest.raises(Exception, match="is not a picture this page can read"):
            upload(content, "image/png")
    assert ask("center", image(IMAGES[0]))["empty"] is False  # and the page still works
