"""The page in headless Chromium, view by view: what a person does, and what the page makes of it."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .page_server import PIXELS, STROKES, Visit, expect, shares, winner

pytestmark = pytest.mark.browser
OWN_INK = """canvas => {
  const ink = (layer) => layer.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const [own, other] = [ink(canvas), ink(canvas.nextSibling)];
  for (let i = 3; i < own.length; i += 4) {
    if (own[i] > 250 && other[i] === 0) return [((i - 3) / 4) % canvas.width, Math.floor((i - 3) / 4 / canvas.width)];
  }
}"""
BLANK = """() => {
  const blank = document.createElement('canvas');
  [blank.width, blank.height] = [28, 28];
  return blank.toDataURL();
}"""


@pytest.mark.parametrize("digit", sorted(STROKES))
def test_draw_strokes_and_the_right_digit_wins(visit: Callable[..., Visit], digit: str) -> None:
    one = visit()
    page = one.open()
    one.draw(digit)
    expect(winner(page)).to_have_text(digit)
    lengths = shares(page.locator("#view-draw"))
    assert max(lengths) == lengths[int(digit)]
    one.shoot(f"draw-{digit}")


def test_lengths_move_while_a_stroke_is_being_drawn(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open()
    page.get_by_role("button", name="Clear").click()
    expect(winner(page)).to_have_text("")
    box = page.locator(".pad").bounding_box()
    seen = set()
    page.mouse.move(box["x"] + 90, box["y"] + 60)
    page.mouse.down()
    for x, y in [(190, 60), (180, 100), (150, 160), (130, 230)]:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=8)
        one.settle()
        seen.add(tuple(shares(page.locator("#view-draw"))))
    assert len(seen) >= 3  # with the button still held down
    page.mouse.up()


def test_samples_undo_clear_and_upload(visit: Callable[..., Visit], tmp_path: Path) -> None:
    from PIL import Image

    one = visit()
    page = one.open()
    for sample in one.ask("api/models")["samples"][::7]:
        page.locator(f".sample[data-id='{sample['id']}']").click()
        expect(winner(page)).to_have_text(str(sample["label"]))
    one.draw("7")
    expect(winner(page)).to_have_text("7")
    page.get_by_role("button", name="Undo").click()
    expect(winner(page)).to_have_text("")
    seven = next(s for s in one.ask("api/models")["samples"] if s["label"] == 4)
    ink = Image.frombytes("L", (28, 28), base64.b64decode(seven["image"])).resize((200, 200))
    path = tmp_path / "four.png"
    Image.eval(ink, lambda v: 255 - v).save(path)  # dark ink on white, as a photograph would be
    page.locator("input[type=file]").set_input_files(path)
    expect(winner(page)).to_have_text("4")


def test_anything_pointed_at_gives_its_numbers(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open()
    expect(winner(page)).not_to_have_text("")
    card = page.locator(".inspector")
    page.locator("#view-draw .bar.winner").hover()
    expect(card).to_be_visible()
    shown = page.locator("#view-draw .bar.winner .value").inner_text()
    assert f"{float(card.locator('dd').first.inner_text()):.2f}" == shown
    assert card.locator(".formula").count() >= 1
    page.mouse.move(2, 500)
    expect(card).to_be_hidden()
    page.locator("#view-draw .bar").first.click()
    page.mouse.move(2, 500)
    expect(card).to_be_visible()  # a click keeps it
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_overlap_two_digits_and_both_are_recognised(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=overlap")
    samples = {s["label"]: s["id"] for s in one.ask("api/models")["samples"]}
    both = page.get_by_test_id("both")
    right = 0
    for first, second in [(5, 0), (1, 6), (7, 2), (3, 8), (4, 0)]:
        page.get_by_role("button", name="First digit", exact=True).click()
        page.locator(f".sample[data-id='{samples[first]}']").click()
        page.get_by_role("button", name="Second digit", exact=True).click()
        page.locator(f".sample[data-id='{samples[second]}']").click()
        one.settle()
        right += sorted(both.locator("span").all_inner_texts()) == sorted([str(first), str(second)])
    assert right >= 4
    layers = page.locator(".quad .tinted")
    inks = [layers.nth(n).evaluate(PIXELS) for n in range(4)]
    assert inks[0] != inks[1]  # two drawings, each alone and both over each other
    assert inks[:2] == inks[2:]
    one.shoot("overlap")


def test_overlapped_digits_are_dragged(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=overlap&o=0,0,0,0")
    sheet = page.locator(".sheet")
    handle = page.locator(".overlap-view .chip.first")
    expect(handle).to_have_text("First at 0, 0")
    before = page.locator(".quad .pixels").first.evaluate(PIXELS)
    box = sheet.bounding_box()
    pixel = box["width"] / 36
    start = page.locator(".sheet .first").evaluate(OWN_INK)
    x, y = box["x"] + (start[0] + 0.5) * pixel, box["y"] + (start[1] + 0.5) * pixel
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 3 * pixel, y + 2 * pixel, steps=5)
    page.mouse.up()
    expect(handle).to_have_text("First at −3, 2")
    handle.focus()
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    expect(handle).to_have_text("First at 4, 2")  # and no further
    page.wait_for_function(f"before => ({PIXELS})(document.querySelector('.quad .pixels')) !== before", arg=before)


def test_two_digits_are_watched_being_routed(visit: Callable[..., Visit]) -> None:
    one = visit(reduced_motion="reduce")
    page = one.open("#v=overlap")
    one.settle()
    first, second = page.get_by_test_id("both").locator("span").all_inner_texts()
    page.get_by_role("button", name="Watch them being routed").click()
    panel = page.locator("#view-routing")
    expect(panel.locator(".count")).to_contain_text("Iteration 1")
    expect(panel.locator(".parent.winner text")).to_have_text(first)  # in the colours they had
    expect(panel.locator(".parent.second text")).to_have_text(second)
    expect(panel.locator(".story")).to_contain_text(f"capsules {first} and {second}")
    page.get_by_role("button", name="Next iteration").click()
    expect(panel.locator(".count")).to_contain_text("Iteration 2")
    one.shoot("routing-pairs")


def test_a_slider_changes_the_drawing_and_reset_takes_it_back(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=tweak")
    panel = page.locator("#view-tweak")
    drawn = panel.locator(".tweak-pictures > .picture .pixels")
    page.wait_for_function("() => document.querySelectorAll('.film .pixels').length >= 11")
    one.settle()
    before = drawn.evaluate(PIXELS)
    assert before != page.evaluate(BLANK)
    slider = panel.locator("input[type=range]").first
    slider.focus()
    slider.press("End")
    one.settle()
    after = drawn.evaluate(PIXELS)
    assert after != before
    strip = panel.locator(".film").first.locator("canvas")
    assert strip.last.evaluate(PIXELS) == after  # the end of the row is what the slider shows at its end
    one.shoot("tweak")
    page.get_by_role("button", name="Reset all").click()
    one.settle()
    assert drawn.evaluate(PIXELS) == before
    panel.get_by_role("group", name="Class capsule to tweak").get_by_role("button", name="0", exact=True).click()
    one.settle()
    assert drawn.evaluate(PIXELS) != before


def test_dimensions_say_what_they_stand_for(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=tweak")
    model = one.ask("api/models")["models"][0]
    one.settle()
    assert page.locator(".slider").count() == model["pose_dim"]
    said = {text for text in page.locator(".stands").all_inner_texts() if text}
    assert said  # some have a name


def iterative(one: Visit) -> list[dict[str, Any]]:
    return [m for m in one.ask("api/models")["models"] if not m["pairs"] and m["algorithm"] != "discriminative"]


def test_steps_sum_to_one_and_sharpen(visit: Callable[..., Visit]) -> None:
    one = visit()
    for model in iterative(one):
        page = one.open(f"#v=routing&t=1&m={model['name']}")
        panel = page.locator("#view-routing")
        expect(panel.locator(".count")).to_have_text(f"Iteration 1 of {model['iterations']}")
        entropies = []
        for step in range(model["iterations"]):
            expect(panel.locator(".count")).to_have_text(f"Iteration {step + 1} of {model['iterations']}")
            expect(panel.get_by_test_id("sums")).to_have_text("The couplings of each small capsule sum to 1.000.")
            label = panel.locator(".chart").first.locator(".dot").nth(step).get_attribute("aria-label")
            entropies.append(float(label.split(": ")[1]))
            if step + 1 < model["iterations"]:
                panel.get_by_role("button", name="Next iteration").click()
        assert entropies[-1] < entropies[0], model["name"]
        one.shoot(f"routing-{model['algorithm']}")


def test_routing_plays_pauses_and_ends(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=routing")
    panel = page.locator("#view-routing")
    last = iterative(one)[0]["iterations"]
    expect(panel.locator(".count")).to_have_text(f"Iteration {last} of {last}")
    panel.get_by_role("button", name="Play").click()
    panel.get_by_role("button", name="Pause").click()
    paused = panel.locator(".count").inner_text()
    page.wait_for_timeout(1800)
    assert panel.locator(".count").inner_text() == paused != f"Iteration {last} of {last}"
    panel.get_by_role("button", name="Play").click()
    expect(panel.locator(".count")).to_have_text(f"Iteration {last} of {last}")
    expect(panel.get_by_role("button", name="Play")).to_be_visible()


def test_lines_are_as_thick_as_what_flows(visit: Callable[..., Visit]) -> None:
    one = visit(reduced_motion="reduce")
    with one.page.expect_response("**/api/route") as response:
        page = one.open("#v=routing")
    routing = response.value.json()["routing"]
    expect(page.locator(".parent.winner")).to_be_visible()
    flow = routing["steps"][-1]["flow"]
    widths = {tuple(map(int, p.get_attribute("data-at").split(","))): float(p.get_attribute("stroke-width"))
              for p in page.locator(".lines:not(.twigs) path[data-at]").all()}  # fmt: skip
    order = sorted(widths, key=lambda at: flow[at[0]][at[1]])
    assert len(order) > 20
    assert [widths[at] for at in order] == sorted(widths.values())


def test_places_and_classes_tell_their_numbers(visit: Callable[..., Visit]) -> None:
    one = visit()
    with one.page.expect_response("**/api/route") as response:
        page = one.open("#v=routing")
    answer = response.value.json()
    card = page.locator(".inspector")
    page.locator(".cells circle").first.hover(force=True)
    expect(card).to_contain_text("sum over classes")
    assert card.locator("dd").last.inner_text() == "1.0000"
    page.locator(".parent.winner").click()
    expect(card).to_contain_text(f"Class capsule {answer['predicted'][0]}")
    assert page.locator(".twigs path").count() == len(answer["routing"]["top"][-1][answer["predicted"][0]])
    page.wait_for_function(f"() => location.hash.includes('c={answer['predicted'][0]}')")


def test_discriminative_is_signed_and_has_no_iterations(visit: Callable[..., Visit]) -> None:
    one = visit()
    model = next(m for m in one.ask("api/models")["models"] if m["algorithm"] == "discriminative")
    page = one.open(f"#v=routing&m={model['name']}")
    panel = page.locator("#view-routing")
    expect(panel.locator(".story")).to_contain_text("signed")
    expect(panel.locator(".transport")).to_be_hidden()
    expect(panel.get_by_test_id("sums")).to_contain_text("Signed and no distribution")
    expect(panel.locator(".chart").first).to_be_hidden()  # no curve over one step
    one.shoot("routing-discriminative")


def test_compare_five_algorithms_and_any_two(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=compare")
    names = [m["name"] for m in one.ask("api/models")["models"] if not m["pairs"]]
    panel = page.locator("#view-compare")
    expect(panel.locator("[data-results='5']")).to_be_visible()
    assert panel.locator(".compare-card").count() == 5
    for card in panel.locator(".compare-card").all():
        expect(card.locator(".card-digit")).to_have_text(re.compile(r"^\d$"))
    expect(panel.get_by_test_id("verdict")).to_have_text(re.compile("All say|They disagree"))
    one.shoot("compare")
    page.get_by_role("button", name="Any two").click()
    page.get_by_label("First model").select_option(names[-1])
    page.get_by_label("Second model").select_option(names[0])
    expect(panel.locator("[data-results='2']")).to_be_visible()
    assert panel.locator(".compare-card").count() == 2
    page.wait_for_function(f"() => location.hash.includes('k={names[-1]},{names[0]}')")


def test_every_step_of_the_tour(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=learn")
    panel = page.locator("#view-learn")
    titles, texts = [], []
    for step in range(1, 9):
        expect(panel.locator(".lesson .faint").first).to_have_text(f"Step {step} of 8")
        titles.append(panel.locator("h2").inner_text())
        texts.append(panel.locator(".lesson-text").inner_text())
        expect(panel.locator(".scene")).to_be_visible()
        assert panel.locator(".scene :is(canvas, svg, .bar)").count() > 0
        one.settle()
        one.shoot(f"learn-{step}")
        panel.locator(".tool.primary").click()
    assert len(set(titles)) == len(set(texts)) == 8
    expect(page.locator("#view-routing")).to_be_visible()  # and from there to the real thing


def test_the_tour_speaks_of_the_persons_own_digit(visit: Callable[..., Visit]) -> None:
    one = visit()
    page = one.open("#v=learn&l=6")
    for digit in ("1", "0"):
        one.draw(digit)
        expect(page.locator(".lesson-text")).to_contain_text(f"the largest wins: {digit}.")


def test_picture_of_the_readme(visit: Callable[..., Visit]) -> None:
    from PIL import Image

    one = visit(size=(1360, 1012), device_scale_factor=1.25)
    page = one.open("#v=routing")
    one.draw("5")
    one.settle()
    page.mouse.move(2, 2)
    page.wait_for_timeout(900)  # lines have come to rest
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    small = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(one.shots / "demo.png", optimize=True)
    assert picture.size == (1700, 1265)
