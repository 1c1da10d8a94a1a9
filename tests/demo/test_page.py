"""The page in headless Chromium, view by view: what a person does, and what the page makes of it."""

import io
import math
import re
from typing import Any

import pytest
from PIL import Image

from .page_server import DESKTOP, IMAGES, OPENING, PHONE, PIXELS, Asked, Visit, Visits, expect, shares, winner

pytestmark = pytest.mark.browser

def answer(one: Visit, model: str, sample: int, method: str = "route", **options: Any) -> Any:
    """The engine's own answer on a sample, beside the page."""
    picture = {"width": 28, "height": 28, "pixels": one.ask("models")["samples"][sample]["image"]}
    return one.ask(method, model, picture, *([options] if method == "explain" else [None, options]))


@pytest.mark.parametrize("digit", "0123456789")
def test_draw_strokes_and_the_right_digit_wins(visit: Visits, digit: str) -> None:
    one, page = visit("#v=draw")
    one.draw(digit)
    expect(winner(page)).to_have_text(digit)
    lengths = shares(page.locator("#view-draw"))
    assert max(lengths) == lengths[int(digit)]


def test_corners_of_straight_strokes_survive(ask: Asked) -> None:
    """Full ink reaches every corner of a 7, Z, 4 and L to within half of one of the network's pixels."""
    found = ask.page.evaluate("""async () => {
      const load = (file) => import(`./page/${file}`);
      const [{ packLine }, { raster, RASTER }] = [await load('codec.js'), await load('strokes.js')];
      const shapes = [[[0.25, 0.2], [0.75, 0.2], [0.45, 0.85]], [[0.2, 0.2], [0.8, 0.2], [0.2, 0.8], [0.8, 0.8]],
        [[0.4, 0.15], [0.25, 0.55], [0.8, 0.55]], [[0.3, 0.15], [0.3, 0.85], [0.6, 0.7]]];
      const between = ([x, y], [u, v], t) => [x + (u - x) * t / 20, y + (v - y) * t / 20];
      return shapes.flatMap((corners) => {
        const line = corners.slice(1).flatMap((to, n) => [...Array(21).keys()].map((t) => between(corners[n], to, t)));
        const inked = [...raster(packLine(line)).entries()].filter(([, v]) => v > 250)
          .map(([i]) => [(i % RASTER) + 0.5, Math.floor(i / RASTER) + 0.5]);
        return corners.map(([x, y]) =>
          Math.min(...inked.map(([u, v]) => Math.hypot(u - x * RASTER, v - y * RASTER))) * 28 / RASTER);
      });
    }""")
    assert len(found) == 13
    assert max(found) < 0.5


def test_undo_brings_back_what_was_there(visit: Visits) -> None:
    one, page = visit("#v=draw")
    undo = page.get_by_role("button", name="Undo")
    for sample in one.ask("models")["samples"][::7]:
        one.pick(sample["id"])
        expect(winner(page)).to_have_text(str(sample["label"]))
    one.draw("7")  # clears first
    expect(winner(page)).to_have_text("7")
    undo.click()  # the stroke
    expect(winner(page)).to_have_text("")
    for label in (9, 7):  # what Clear took, and the sample before it
        undo.click()
        expect(winner(page)).to_have_text(str(label))


def test_anything_pointed_at_gives_its_numbers(visit: Visits) -> None:
    one, page = visit("#v=draw&m=demo_em&d=n21", reduced_motion="reduce")
    card, winning = page.locator(".inspector"), page.locator("#view-draw .bar.winner")
    winning.hover()
    expect(card).to_be_visible()
    assert f"{float(card.locator('dd').first.inner_text()):.2f}" == winning.locator(".value").inner_text()
    assert card.locator(".formula").count() >= 1
    page.mouse.move(2, 500)
    expect(card).to_be_hidden()
    winning.click()
    page.mouse.move(2, 500)
    expect(card).to_be_visible()  # a click keeps it
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    one.show("routing")
    for n in (0, 14, 35):
        page.locator(".cells circle").nth(n).hover(force=True)
        expect(card.locator("dd").last).to_have_text("1.0000")  # the sum over classes
        field, shown = page.locator(".field").bounding_box(), card.bounding_box()
        assert any(shown[at] >= field[at] + field[size] or shown[at] + shown[size] <= field[at]
                   for at, size in (("x", "width"), ("y", "height")))  # fmt: skip
    page.locator(".parent.winner").click()
    expect(card).to_contain_text("Class capsule 7")
    page.wait_for_function("() => location.hash.includes('c=7')")


def test_iterations_from_none_to_ten(visit: Visits) -> None:
    one, page = visit("#v=draw&m=demo_em&d=n21", reduced_motion="reduce")
    panel = page.locator("#view-draw")
    steps = answer(one, "demo_em", 21)["routing"]["steps"]
    cards = panel.locator(".round-card")
    leads = [max(range(10), key=s["activation"].__getitem__) for s in steps]
    assert cards.locator("b").all_inner_texts() == [str(k) for k in leads]
    cards.first.click()
    expect(winner(page)).to_have_text(str(leads[0]))
    assert shares(panel) == pytest.approx(steps[0]["activation"], abs=1e-6)
    page.get_by_role("button", name="Without routing").click()
    expect(panel.get_by_test_id("lead")).to_contain_text("one iteration of the same network")
    expect(cards).to_have_count(1)
    expect(winner(page)).to_have_text(str(leads[0]))
    for many in (10, 2):
        page.get_by_label("How many iterations to run").fill(str(many))
        expect(cards).to_have_count(many)
        expect(panel.locator(".amount output")).to_have_text(f"{many}; trained with 3")
        page.wait_for_function(f"() => location.hash.includes('i={many}')")
        last = answer(one, "demo_em", 21, iterations=many)["activation"]
        one.settle()
        assert shares(panel) == pytest.approx(last, abs=1e-6)


def test_the_way_of_a_digit_counts_what_is_there_and_leads_into_it(visit: Visits) -> None:
    one, page = visit("#v=draw&m=demo_em&d=n21", reduced_motion="reduce")
    small = math.prod(next(m for m in one.singles() if m["name"] == "demo_em")["grid"])
    told = page.locator(".flow figcaption b").all_inner_texts()
    assert [int(text.split()[0].replace(",", "")) for text in told] == [784, small, small * 10, 10, 16]
    places = page.locator(".flow figure").nth(2).locator(".heat rect")
    flow = answer(one, "demo_em", 21)["routing"]["steps"]
    page.locator("#view-draw .round-card").nth(1).click()
    k = max(range(10), key=flow[1]["activation"].__getitem__)
    expect(page.locator(".flow")).to_contain_text(f"sends to {k} in iteration 2")
    sent = [row[k] for row in flow[1]["flow"]]
    drawn = [float(rect.get_attribute("fill-opacity")) for rect in places.all()]
    assert drawn == pytest.approx([0.04 + 0.96 * v / max(sent) for v in sent], abs=1e-3)
    page.get_by_role("button", name="Follow one vote").click()
    expect(page.locator(".zoom")).to_be_visible()
    digit = IMAGES[21].float()
    middles = [digit[4 * y + 1 : 4 * y + 5, 4 * x + 1 : 4 * x + 5] for y in range(6) for x in range(6)]
    cell = max(range(36), key=lambda n: sent[n] * bool((middles[n] > 25).any()))  # a place with ink
    page.wait_for_function(f"() => location.hash.includes('z={cell},{flow[1]['speaker'][cell][k]},{k}')")
    one.show("draw")
    page.get_by_role("button", name="See all votes").click()
    expect(page.locator(".tree")).to_be_visible()


def test_a_heart_is_no_digit(visit: Visits) -> None:
    one, page = visit("#v=draw")
    one.draw("heart")
    refused = []
    for model in one.singles():
        one.choose(model["name"])
        verdict = page.get_by_test_id("verdict").inner_text()
        assert verdict.startswith(("Not a digit", "Perhaps"))
        refused.append(verdict.startswith("Not"))
        if refused[-1]:
            expect(winner(page)).to_have_text("?")
    assert any(refused)


def pick(one: Visit, which: str, sample: int) -> None:
    one.page.get_by_role("button", name=f"{which} digit", exact=True).click()
    one.pick(sample)
    one.settle()


def test_overlap_names_the_digits_that_are_there(visit: Visits) -> None:
    one, page = visit("#v=overlap")
    samples = {s["label"]: s["id"] for s in one.ask("models")["samples"]}
    both, right = page.get_by_test_id("both"), 0
    for first, second in [(5, 0), (1, 6), (7, 2), (3, 8), (4, 0)]:
        pick(one, "First", samples[first])
        pick(one, "Second", samples[second])
        right += sorted(both.locator("span").all_inner_texts()) == sorted([str(first), str(second)])
    assert right >= 4
    inks = [page.locator(".quad .tinted").nth(n).evaluate(PIXELS) for n in range(4)]
    assert inks[0] != inks[1]  # two drawings, each alone and both over each other
    assert inks[:2] == inks[2:]
    page.get_by_role("button", name="Watch them being routed").click()
    expect(page.locator(".parent.winner text")).to_have_text("4")
    expect(page.locator(".parent.second text")).to_have_text("0")
    page.locator("#view-routing").get_by_role("button", name="Next iteration").click()
    for digit in (4, 0):
        expect(page.locator("#view-routing .story")).to_contain_text(f"capsule {digit} gets")
    one.show("overlap")
    for digit in (5, 4, 8):  # of two that are the same, one
        pick(one, "First", samples[digit])
        pick(one, "Second", samples[digit])
        assert both.locator("span").all_inner_texts() == [str(digit)]
        expect(page.locator("#view-overlap .verdict")).to_contain_text("No second digit stands out")
    page.get_by_role("button", name="Clear").click()
    one.settle()
    expect(both.locator("span")).to_have_count(1)
    expect(page.locator("#view-overlap .verdict")).to_contain_text("Draw the second digit")
    page.get_by_role("button", name="Watch them being routed").click()
    one.show("draw")  # where there is one digit, a network of single digits reads it
    expect(winner(page)).to_have_text("8")
    assert page.locator("#model option").count() == 5


def test_overlapped_digits_are_dragged(visit: Visits) -> None:
    one, page = visit("#v=overlap&o=0,0,0,0")
    handle = page.locator(".overlap-view .chip.first")
    expect(handle).to_have_text("First at 0, 0")
    before = page.locator(".quad .pixels").first.evaluate(PIXELS)
    box = page.locator(".sheet").bounding_box()
    pixel = box["width"] / 36
    x, y = box["x"] + 5 * pixel, box["y"] + 5 * pixel  # where there is no ink: the left half is the first digit's
    one.drag((x, y), (x - 3 * pixel, y + 2 * pixel), steps=5)
    expect(handle).to_have_text("First at −3, 2")
    handle.focus()
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    expect(handle).to_have_text("First at 4, 2")  # and no further
    page.wait_for_function(f"before => ({PIXELS})(document.querySelector('.quad .pixels')) !== before", arg=before)


def test_a_slider_changes_the_drawing_and_reset_takes_it_back(visit: Visits) -> None:
    one, page = visit("#v=tweak&m=demo_dynamic")
    panel = page.locator("#view-tweak")
    drawn = panel.locator(".tweak-pictures > .picture .pixels")
    page.wait_for_function("() => document.querySelectorAll('.film .pixels').length >= 11")
    before = drawn.evaluate(PIXELS)
    model = next(m for m in one.singles() if m["name"] == "demo_dynamic")
    assert panel.locator(".stands").all_inner_texts() == [name or "" for name in model["dimensions"]]
    slider = panel.locator("input[type=range]").first
    slider.focus()
    slider.press("End")
    one.settle()
    after = drawn.evaluate(PIXELS)
    assert after != before
    strip = panel.locator(".film").first.locator("canvas")
    assert strip.last.evaluate(PIXELS) == after  # the end of the row is what the slider shows at its end
    page.get_by_role("button", name="Reset all").click()
    one.settle()
    assert drawn.evaluate(PIXELS) == before
    capsules = panel.get_by_role("group", name="Class capsule to tweak")
    capsules.get_by_role("button", name="0", exact=True).click()
    one.settle()
    assert drawn.evaluate(PIXELS) != before
    one.pick(12)  # the next digit begins with its own capsule
    expect(capsules.locator("[aria-pressed=true]")).to_have_text("4")


def test_couplings_sum_to_one_and_the_largest_agreement_is_named(visit: Visits) -> None:
    one, page = visit()
    panel = page.locator("#view-routing")
    for model in one.singles():
        one.open(f"#v=routing&t=1&d=n21&m={model['name']}")
        if model["algorithm"] == "discriminative":
            expect(panel.get_by_test_id("sums")).to_contain_text("Signed and no distribution")
            expect(panel.locator(".transport").first).to_be_hidden()  # no iterations
            continue
        for step in range(model["iterations"]):
            expect(panel.locator(".count")).to_have_text(f"Iteration {step + 1} of {model['iterations']}")
            expect(panel.get_by_test_id("sums")).to_have_text(re.compile(r"sum to 1\.000\.$"))
            panel.get_by_role("button", name="Next iteration").click()
        expect(panel.get_by_test_id("plane-says")).not_to_be_empty()
        agreement = answer(one, model["name"], 21)["routing"]["steps"][-1]["agreement"]
        best = max(range(10), key=agreement.__getitem__)
        expect(panel.get_by_test_id("agreement-says")).to_contain_text(f"Largest for {best}")


def test_routing_plays_pauses_and_ends(visit: Visits) -> None:
    _, page = visit("#v=routing")
    panel = page.locator("#view-routing")
    expect(panel.locator(".count")).to_have_text("Iteration 3 of 3")
    panel.get_by_role("button", name="Play").click()
    panel.get_by_role("button", name="Pause").click()
    paused = panel.locator(".count").inner_text()
    page.wait_for_timeout(1800)
    assert panel.locator(".count").inner_text() == paused != "Iteration 3 of 3"
    panel.get_by_role("button", name="Play").click()
    expect(panel.locator(".count")).to_have_text("Iteration 3 of 3")
    expect(panel.get_by_role("button", name="Play")).to_be_visible()


WIDTHS = """() => [...document.querySelectorAll('.lines path')].map((p) =>
  [...p.dataset.at.split(',').map(Number), Number(p.getAttribute('stroke-width'))])"""


@pytest.mark.parametrize("name", ["demo_em", "demo_dynamic"])
def test_lines_are_linear_in_what_is_gained_on_one_scale(visit: Visits, name: str) -> None:
    """And at once: who asks for less motion sees none."""
    one, page = visit(f"#v=routing&m={name}&d=n29&c=3&t=1", reduced_motion="reduce")
    flows = [step["flow"] for step in answer(one, name, 29)["routing"]["steps"]]
    gains = [[[v - sum(row) / 10 for v in row] for row in flow] for flow in flows]
    top = max(abs(v) for step in gains for row in step for v in row)
    for t, step in enumerate(gains):
        expect(page.locator("#view-routing .count")).to_contain_text(f"Iteration {t + 1}")
        widths = page.evaluate(WIDTHS)
        assert len(widths) == len(step) * 10
        for cell, k, width in widths:
            assert width == pytest.approx(0.5 + 10 * max(0, step[cell][k]) / max(top, 1e-3), abs=0.011)
        page.get_by_role("button", name="Next iteration").click()


def test_arrows_add_up_on_one_scale(visit: Visits) -> None:
    one, page = visit("#v=routing&m=demo_dynamic&d=n21", reduced_motion="reduce")
    plane = answer(one, "demo_dynamic", 21)["routing"]["plane"]
    totals = [[sum(v[d] for v in chain) for d in (0, 1)] for chain in plane["arrows"][-1]]
    drawn = page.evaluate("""() => [...document.querySelectorAll('.votes-of')].map((g) => {
      const points = (path) => path.getAttribute('d').match(/-?[\\d.]+/g).map(Number);
      const [sum, chain] = ['.sum', '.chain'].map((name) => points(g.querySelector(name)));
      return [Number(g.querySelector('text').textContent), chain.slice(0, 2), sum.slice(0, 2), sum.slice(2, 4)];
    })""")
    origin, best = drawn[0][1], 7
    scale = next(math.dist(end, origin) for k, _, _, end in drawn if k == best) / math.hypot(*totals[best])
    assert sorted(k for k, *_ in drawn) == list(range(10))
    for k, start, begin, end in drawn:
        assert start == begin == origin
        assert [end[d] - origin[d] for d in (0, 1)] == pytest.approx([scale * v for v in totals[k]], abs=0.2)
    winners = page.locator(".votes-of.focus .sum").last
    before = winners.get_attribute("d")
    page.get_by_role("button", name="Previous iteration").click()
    expect(winners).not_to_have_attribute("d", before)  # they move over the iterations


@pytest.mark.parametrize("name", ["demo_dynamic", "demo_em", "demo_attention", "demo_heinsen"])
def test_down_to_one_multiplication_and_back(visit: Visits, name: str) -> None:
    one, page = visit(f"#v=routing&m={name}&d=n21", reduced_motion="reduce")
    places = page.locator(".cells circle").count()
    page.locator(".cells circle").nth(6).click(force=True)
    zoom = page.locator(".zoom")
    expect(zoom.locator("h2")).to_be_focused()
    one.settle()
    for n in range(1, 5):
        expect(zoom.get_by_test_id("progress")).to_have_text(f"{n} of 5")
        zoom.get_by_role("button", name="Next").click()
    expect(zoom.get_by_role("button", name="Next")).to_be_hidden()
    _, kind, k = page.evaluate("() => location.hash.match(/z=([\\d,]+)/)?.[1].split(',').map(Number)") or (0, 0, 7)
    steps = [answer(one, name, 21, "explain", child=places * kind + 6, parent=k, iteration=t) for t in (1, 2)]
    n = len(steps[1]["vote"]) - 1
    zoom.locator(".falk button").last.focus()
    line = zoom.locator(".sum-line").inner_text()
    assert float(line.split("= ")[1].replace("−", "-")) == pytest.approx(steps[1]["vote"][n], abs=6e-4)
    terms = [float(a) * float(b) for a, b in re.findall(r"([\d.-]+) × ([\d.-]+)", line.replace("−", "-"))]
    assert sum(terms) + (steps[1]["bias"] or [0] * (n + 1))[n] == pytest.approx(steps[1]["vote"][n], abs=0.4)
    agreement = float(zoom.locator(".result b").inner_text().replace("−", "-").replace(",", ""))
    assert agreement == pytest.approx(steps[0]["agreement"], abs=6e-4)
    softmax, answers = zoom.locator(".softmax").all()
    shown = [float(v) for v in softmax.locator(".strong td").all_inner_texts()]
    logits = steps[1]["logits"]
    exp = [math.exp(v - max(logits)) for v in logits]
    assert shown == pytest.approx([v / sum(exp) for v in exp], abs=6e-4)
    rows = zoom.get_by_role("group", name="The sum of votes").locator(".number-line")
    cells = [row.locator("span").all_inner_texts() for row in rows.all()[:2]]
    added, total = ([float(v.replace("−", "-")) for v in texts] for texts in cells)
    assert added == pytest.approx([steps[1]["weight"] * v for v in steps[1]["vote"]], abs=0.06)
    assert total == pytest.approx(steps[1]["sum"], abs=0.06)
    given = [float(v) for v in answers.locator(".strong td").all_inner_texts()]
    assert given == pytest.approx(steps[1]["shown"], abs=6e-3)  # the way ends at what the rings show
    expect(zoom.locator("h3").last).to_have_text(f"So {k} gets {given[k]:.2f}")
    for part in (".window", ".formula"):
        expect(zoom.locator(part).first).to_be_visible()
    page.keyboard.press("Escape")
    expect(zoom).to_be_hidden()
    expect(page.locator(".tree")).to_be_visible()


def test_compare_five_algorithms(visit: Visits) -> None:
    one, page = visit("#v=compare")
    names = [m["name"] for m in one.singles()]
    panel = page.locator("#view-compare")
    expect(panel.locator("[data-results='5']")).to_be_visible()
    assert panel.locator(".compare-card").count() == 5
    sample, early = page.evaluate(OPENING)["sample"], 0
    for name, card in zip(names, panel.locator(".compare-card").all(), strict=True):
        found = answer(one, name, sample)
        expect(card.locator(".card-digit")).to_have_text(str(found["predicted"][0]))
        expect(card.locator(".card-words p").first).not_to_be_empty()
        first = found["routing"]["steps"][0]["activation"]
        second, best = sorted(first)[-2:]
        early += best - second >= 0.045 and first.index(best) == found["predicted"][0]
    expect(panel.get_by_test_id("verdict")).to_contain_text(f"{early} of 5 had")


@pytest.mark.parametrize("size", [DESKTOP, (1280, 720), PHONE])
def test_the_tour_lights_up_the_real_views(visit: Visits, size: tuple[int, int]) -> None:
    one, page = visit("#v=draw", size=size, reduced_motion="reduce")
    page.get_by_role("button", name="Tour", exact=True).click()
    tour, spot = page.locator(".tour"), page.locator(".spot")
    views = set()
    for step in range(1, 12):
        expect(tour.locator(".faint").first).to_have_text(f"Step {step} of 11")
        one.settle()
        expect(spot).to_be_visible()
        lit, card = spot.bounding_box(), tour.bounding_box()
        assert min(lit["width"], lit["height"]) > 60
        assert page.locator(".top").bounding_box()["height"] <= lit["y"] <= size[1] - lit["height"]  # on the screen
        assert any(a[at] + a[length] <= b[at] for at, length in (("x", "width"), ("y", "height"))
                   for a, b in ((lit, card), (card, lit)))  # and not under the card  # fmt: skip
        views.add(page.evaluate("document.body.dataset.view"))
        if step == 8 and size == DESKTOP:
            one.draw("1")
            expect(tour).to_contain_text("It says 1")  # of the person's own digit
        tour.get_by_role("button", name="Next" if step < 11 else "End tour").click()
    assert views == {"parts", "draw", "routing", "tweak", "overlap"}
    expect(tour).to_be_hidden()
    expect(spot).to_be_hidden()


def test_the_article_shows_what_it_says(visit: Visits) -> None:
    one, page = visit("#v=draw", reduced_motion="reduce")
    article = page.locator("article")
    buttons = article.get_by_role("button", name=re.compile("^Show me"))
    assert buttons.count() == article.locator("p").count()
    seen = set()
    for n in range(buttons.count()):
        buttons.nth(n).click()
        one.settle()
        seen.add(page.evaluate("location.hash"))
        assert page.evaluate("scrollY") < page.evaluate("document.querySelector('article').offsetTop")
    assert len(seen) >= 10
    word = article.locator(".term").first
    word.focus()
    for key in ("Shift+Tab", "Tab"):
        page.keyboard.press(key)
    expect(page.locator(".inspector")).to_contain_text("group of neurons")


def test_picture_of_the_readme(visit: Visits) -> None:
    one, page = visit("#v=routing", size=(1360, 1012), device_scale_factor=1.25, reduced_motion="reduce")
    page.mouse.move(2, 2)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    small = picture.quantize(256, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    small.save(one.shots / "demo.png", optimize=True)
    assert picture.size == (1700, 1265)
