"""The view of parts: exact votes, algorithms as in `flashcaps.functional`, a whole that goes dark and lights up."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps import functional

from .page_server import ALGORITHMS, Asked, Visits, expect, lights

pytestmark = pytest.mark.browser

WHOLES = ("house", "boat", "face")
SHIFT = torch.tensor([0.5, 0.5, 0.5, -0.2])
ROUTE = """async ([name, pieces]) => {
  const { RULES, routeParts } = await import('./page/parts_route.js');
  const { votes, steps } = routeParts(name, pieces);
  const { length, options } = RULES[name];
  const plain = (step) => ({ ...step, pose: step.pose.map((x) => [...x]) });
  return { votes, steps: steps.map(plain), length, options: options(pieces.length) };
}"""
HOMES = "async () => (await import('./page/parts_scene.js')).HOMES"
PLACES = "async () => (await import('./page/parts_scene.js')).WHOLES.map(({ places }) => places)"
# What is left of its light to a whole of which one part is turned, at most. Attention has no activation but shares
# parts out, and discriminative routing sends nothing elsewhere: there a whole fades, and the page says so.
DARK = {"dynamic": 0.5, "em": 0.5, "heinsen": 0.5, "attention": 0.8, "discriminative": 0.9}


def pose(piece: list[float]) -> Tensor:
    """The affine matrix (3, 3) of [x, y, turn, size] in hundredths, degrees and percent."""
    x, y, turn, size = piece
    a = math.radians(turn)
    cos, sin = size / 100 * math.cos(a), size / 100 * math.sin(a)
    return torch.tensor([[cos, -sin, x / 100], [sin, cos, y / 100], [0, 0, 1]], dtype=torch.float64)


def cast(pieces: list[list[float]], places: list[list[list[float]]]) -> Tensor:
    """V_ij = M_i W_ij, (I, J, 3, 3); W_ij undoes the place of part i in whole j."""
    rows = [[pose(p) @ pose(whole[i % 4]).inverse() for whole in places] for i, p in enumerate(pieces)]
    return torch.stack([torch.stack(row) for row in rows])


def directions(votes: Tensor) -> Tensor:
    """(I, J, 3, 3) -> (1, I, J, 36): twelve hands of three numbers."""
    x, y = votes[..., 0, 2], votes[..., 1, 2]
    turn, growth = torch.atan2(votes[..., 1, 0], votes[..., 0, 0]), votes[..., :2, 0].norm(dim=-1).log()
    hands = []
    for n in range(12):
        line = math.pi * (n + 0.5) / 12
        angle = 1.5 * (math.cos(line) * x + math.sin(line) * y) + (1, -1, 2, -2)[n % 4] * turn
        angle = angle + (1.5 if n % 4 < 2 else -1.5) * growth
        hands += [torch.cos(angle + 2 * math.pi * m / 3) / math.sqrt(18) for m in range(3)]
    return torch.stack(hands, -1)[None]


def turned(pieces: list[list[float]], part: int, by: float = 90) -> list[list[float]]:
    return [[*p[:2], p[2] + by, p[3]] if i == part else p for i, p in enumerate(pieces)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_votes_and_routing_are_those_of_the_library(ask: Asked, name: str) -> None:
    homes, places = ask.page.evaluate(HOMES), ask.page.evaluate(PLACES)
    generator = torch.Generator().manual_seed(0)
    loose = torch.tensor([600, 400, 360, 200]) * (torch.rand(4, 4, generator=generator) - SHIFT)
    for pieces in (*[home["pieces"] for home in homes.values()], turned(homes["house"]["pieces"], 0), loose.tolist()):
        found = ask.page.evaluate(ROUTE, [name, pieces])
        votes = cast(pieces, places)
        seen = torch.tensor(found["votes"], dtype=torch.float64)[..., [0, 2, 4, 1, 3, 5]]
        assert torch.allclose(seen, votes[..., :2, :].flatten(-2), atol=1e-9)
        u = (found["length"] * directions(votes)).float().double()  # as the page rounds them
        options = {key: torch.tensor(x, dtype=torch.float64) if isinstance(x, list) else x
                   for key, x in found["options"].items()}  # fmt: skip
        for key in ("activation", "score"):
            if key in options:
                options[key] = options[key][None]
        if name == "em":
            options["inverse_temperature"] = options["inverse_temperature"].tolist()
        if name == "discriminative":
            options["coefficients"] = options["coefficients"].view(len(pieces), 3)
        routed = getattr(functional, f"{name}_routing")(u, record=True, **options)
        assert len(found["steps"]) == len(routed.history)
        for step, recorded in zip(found["steps"], routed.history, strict=True):
            assert torch.allclose(torch.tensor(step["coupling"]).double(), recorded.coupling[0], atol=1e-5)
            assert torch.allclose(torch.tensor(step["pose"]).double(), recorded.pose[0], atol=1e-5)
        active = routed.coupling.mean(1) if name == "attention" else routed.activation
        active = active.sigmoid() if name == "heinsen" else active
        assert torch.allclose(torch.tensor(found["steps"][-1]["light"]).double(), active[0], atol=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_whole_lights_up_goes_dark_and_lights_up_again(ask: Asked, name: str) -> None:
    homes = ask.page.evaluate(HOMES)

    def route(pieces: list[list[float]]) -> tuple[Tensor, Tensor]:
        last = ask.page.evaluate(ROUTE, [name, pieces])["steps"][-1]
        return torch.tensor(last["light"]), torch.tensor(last["coupling"])

    for j, whole in enumerate(WHOLES):
        pieces = homes[whole]["pieces"]
        light, coupling = route(pieces)
        others = torch.cat([light[:j], light[j + 1 :]])
        assert light[j] > 0.6
        assert others.max() < 0.7 * light[j]
        if name != "discriminative":
            assert coupling[:, j].min() > 0.8
            assert others.max() < 0.05
        for part in range(4):
            dim, changed = route(turned(pieces, part))
            assert dim[j] < DARK[name] * light[j]
            assert (changed[part, j] == coupling[part, j]) if name == "discriminative" else changed[part, j] < 0.25
    light, coupling = route(homes["both"]["pieces"])  # each part finds its own whole
    assert min(light[0], light[2]) > max(0.45, 1.9 * light[1])
    if name != "discriminative":
        assert coupling[:4, 0].min() > 0.8
        assert coupling[4:, 2].min() > 0.8


def test_coefficients_are_the_papers_objective_at_its_largest(ask: Asked) -> None:
    homes, places = ask.page.evaluate(HOMES), ask.page.evaluate(PLACES)
    votes = torch.cat([directions(cast(homes[whole]["pieces"], places)) for whole in WHOLES])  # (K, I, J, D)
    options = ask.page.evaluate(ROUTE, ["discriminative", homes["house"]["pieces"]])["options"]
    coefficients = torch.tensor(options["coefficients"]).view(4, 3).double()
    for j in range(3):
        grams = votes[:, :, j] @ votes[:, :, j].mT
        _, vectors = torch.linalg.eigh(2 * grams[j] - grams.sum(0))  # Eq. 11: delta is 1 for whole j, -1 elsewhere
        best = vectors[:, -1] * vectors[:, -1].sum().sign()
        assert torch.allclose(coefficients[:, j], 0.7 * best, atol=0.006)


def width(page: Any, part: int, whole: int) -> float:
    """Of a line; all are as wide as their coupling says, on one scale."""
    lines = [[float(path.get_attribute(name)) for name in ("stroke-width", "data-coupling")]
             for path in page.locator(".couplings path").all()]  # fmt: skip
    assert all(wide == pytest.approx(11 * abs(coupling), abs=0.006) for wide, coupling in lines)
    return lines[3 * part + whole][0]


def drawn(page: Any, whole: int) -> list[float]:
    """The pose of a whole, as drawn."""
    text = page.locator(".glows .light").nth(whole).get_attribute("transform")
    return [float(x) for x in re.findall(r"-?[\d.]+", text)]


def test_the_page_opens_on_parts_and_a_hand_turns_the_roof(visit: Visits) -> None:
    one, page = visit(reduced_motion="reduce")
    before, thick = lights(page), width(page, 0, 0)
    assert drawn(page, 0) == pytest.approx([1, 0, 0, 1, 0, 0], abs=1e-4)
    knob, piece = page.locator(".knob.turn").bounding_box(), page.locator(".piece .shape").first.bounding_box()
    x, y = (knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    one.drag((x, y), (x + 300, piece["y"] + piece["height"] / 2), steps=6)
    expect(page.get_by_label("Turn", exact=True)).to_have_value(re.compile("8[5-9]|9[0-5]"))
    assert lights(page)[0] < before[0] / 2
    assert width(page, 0, 0) < thick / 2
    assert drawn(page, 0) == pytest.approx([1, 0, 0, 1, 0, 0], abs=0.1)  # where the other three still vote
    page.get_by_role("button", name="Put all back").click()
    expect(page.get_by_label("Turn", exact=True)).to_have_value("0")
    assert lights(page) == before
    assert width(page, 0, 0) == thick


def test_the_algorithms_are_in_a_low_window(visit: Visits) -> None:
    _, page = visit(size=(1280, 720))
    box = page.locator(".algorithms").bounding_box()
    assert box["y"] + box["height"] <= 720


def test_keyboard_alone_and_sliders(visit: Visits) -> None:
    _, page = visit(reduced_motion="reduce")
    before = lights(page)
    page.locator(".piece").nth(1).focus()
    for _ in range(6):
        page.keyboard.press("e")
    expect(page.get_by_label("Turn", exact=True)).to_have_value("90")
    assert lights(page)[0] < before[0] / 2
    for key, label, value in (("ArrowLeft", "Across", "-10"), ("ArrowDown", "Down", "65"), ("+", "Size", "110")):
        page.keyboard.press(key)
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    page.keyboard.press("Home")
    expect(page.get_by_label("Turn", exact=True)).to_have_value("0")
    assert lights(page) == before
    page.get_by_label("Size", exact=True).fill("250")
    assert lights(page)[0] < before[0] / 2
    page.get_by_role("button", name="Boat", exact=True).press("Enter")
    expect(page.locator(".invitation")).to_contain_text("Watch the boat")
    panel = page.get_by_role("button", name=re.compile("^face: brightness"))
    panel.press("Enter")
    expect(page.locator(".invitation")).to_contain_text("votes for a face")
    expect(panel).to_be_focused()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_captions_and_iterations_have_the_numbers_that_are_there(visit: Visits, name: str) -> None:
    _, page = visit("#v=parts&p=house", reduced_motion="reduce")
    page.locator(f".algorithm[data-rule={name}]").click()
    expect(page.locator(f".algorithm[data-rule={name}][aria-pressed=true] b")).to_contain_text("house")
    caption, count, most = page.get_by_test_id("parts-caption"), page.locator("#view-parts .count"), lights(page)[0]
    expect(caption).to_contain_text("All 4 votes")
    if name == "discriminative":
        expect(page.get_by_role("button", name="Previous iteration")).to_be_hidden()
    else:
        page.get_by_label("Iteration", exact=True).fill("1")
        expect(count).to_contain_text("Iteration 1 of")
        assert lights(page)[0] < most
        page.get_by_role("button", name="Next iteration").click()
        expect(count).to_contain_text("Iteration 2 of")
        page.get_by_label("Iteration", exact=True).press("End")
    heading = page.locator(".invitation").inner_text()
    page.get_by_role("button", name="Turn it 90°").click()
    expect(caption).to_contain_text("3 of 4 votes")
    now = lights(page)[0]
    expect(caption).to_contain_text(f": {now:.2f}, put together {most:.2f}")
    assert ("go dark" in heading) == (now < most / 2)
    assert ("lose some light" in heading) == (most / 2 <= now < 0.95 * most)
