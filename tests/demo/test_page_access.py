"""The page for everyone: keyboard, screen reader, phone, dark, calm; links, errors, slow answers; any static host."""

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flashcaps.demo.build import DEMO

from .page_server import OPENING, PHONE, PIXELS, VIEWS, Visit, Visits, expect, lights, serving, shares, winner

pytestmark = pytest.mark.browser

def tab_to(page: Any, test: str, limit: int = 60) -> None:
    """Press Tab until the focused element passes a test in JavaScript."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        if page.evaluate(f"(() => {{ const e = document.activeElement; return Boolean({test}); }})()"):
            return
    raise AssertionError(f"not reached with the Tab key: {test}")


def test_keyboard_alone_draws_switches_and_inspects(visit: Visits) -> None:
    _, page = visit("#v=draw")
    tab_to(page, "e.classList.contains('skip')")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("#view-draw")).to_be_visible()  # and the view stays
    tab_to(page, "e.classList.contains('pad')")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Delete")
    expect(winner(page)).to_have_text("")
    page.keyboard.press("Space")
    for _ in range(14):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(winner(page)).to_have_text("1")
    page.keyboard.press("Control+z")
    expect(winner(page)).to_have_text("")
    tab_to(page, "e.classList.contains('sample')")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(winner(page)).not_to_have_text("")
    tab_to(page, "e.classList.contains('bar')")
    expect(page.locator(".inspector")).to_be_visible()  # focus shows what pointing shows
    page.keyboard.press("Escape")
    expect(page.locator(".inspector")).to_be_hidden()


def test_keyboard_alone_goes_through_the_views(visit: Visits) -> None:
    _, page = visit()
    tab_to(page, "e.role === 'tab' || e.getAttribute('role') === 'tab'")
    for view in VIEWS[1:]:
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.locator(f"#view-{view}")).to_be_visible()
    page.keyboard.press("Home")
    for _ in range(VIEWS.index("routing")):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    panel = page.locator("#view-routing")
    expect(panel.locator(".tree circle").first).to_be_visible()
    tab_to(page, "e.getAttribute('aria-label') === 'Previous iteration'")
    before = panel.locator(".count").inner_text()
    page.keyboard.press("Enter")
    expect(panel.locator(".count")).not_to_have_text(before)
    tab_to(page, "e.closest('.cells')")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".inspector")).to_contain_text("row 2, column 1")
    tab_to(page, "e.closest('.parents')")
    page.keyboard.press("Enter")
    expect(panel.locator(".parent.chosen")).to_have_count(1)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # from a place to its numbers, and back
    expect(page.locator(".zoom h2")).to_be_focused()
    tab_to(page, "e.closest('.falk') && e.tagName === 'BUTTON'")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".sum-line")).to_contain_text("×")
    page.keyboard.press("Escape")
    expect(page.locator(".zoom")).to_be_hidden()
    expect(page.locator(".cells :focus")).to_have_count(1)  # where it was left


DEVICES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"}, "dark": {"color_scheme": "dark"},
    "phone": {"size": PHONE, "has_touch": True, "is_mobile": True},
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_and_nothing_scrolls_to_the_side(visit: Visits, view: str, device: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    one, page = visit(f"#v={view}", reduced_motion="reduce", **DEVICES[device])
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    one.shoot(f"{device}-{view}")
    if device == "phone":
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        heights = page.locator(".badge text").evaluate_all("all => all.map((e) => e.getBoundingClientRect().height)")
        assert min(heights, default=13) >= 12.5  # a line of 11 px
        tabs = page.locator("#tabs").bounding_box()
        assert tabs["y"] + tabs["height"] == pytest.approx(PHONE[1], abs=1)  # under the thumb
    for width in (320, 390, 600, 800, 901, 1024, 1180, 1190, 1250, 1311, 1360, 1920) if device == "light" else ():
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        theme = page.locator("#theme").bounding_box()
        assert theme["x"] + theme["width"] <= width, f"header at {width}"
        panel = page.locator(".panel").bounding_box()
        for part in (".pad", ".samples") if panel else ():
            box = page.locator(part).bounding_box()
            assert box["x"] + box["width"] <= panel["x"] + panel["width"], f"{part} at {width}"


def test_a_finger_drags_a_part_and_draws(visit: Visits) -> None:
    """Part and pad keep the finger to themselves: the page does not scroll."""
    one, page = visit("#v=parts", **DEVICES["phone"])
    before, wall = lights(page)[0], page.locator(".piece .shape").nth(1).bounding_box()
    x, y = wall["x"] + 8, wall["y"] + wall["height"] - 6
    one.touch(*((x, y + 9 * step) for step in range(11)))
    expect(page.locator(".invitation")).to_contain_text("Put the wall back")
    assert lights(page)[0] < before / 2
    assert page.evaluate("scrollY") == 0
    one.show("draw")
    page.get_by_role("button", name="Clear").tap()
    expect(winner(page)).to_have_text("")
    box = page.locator(".pad").bounding_box()
    x, top = box["x"] + box["width"] / 2, box["y"] + 40
    one.touch(*((x, top + 10 * step) for step in range(17)))
    expect(winner(page)).to_have_text("1")
    assert page.evaluate("scrollY") == 0


def test_dark_follows_the_system_until_told_otherwise(visit: Visits) -> None:
    one, page = visit(color_scheme="dark")
    light = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) > 380"
    assert not page.evaluate(light)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(light)
    page.get_by_role("button", name="Dark colours").click()
    assert not page.evaluate(light)
    one.open()
    assert not page.evaluate(light)  # and remembered


def state_of(one: Visit) -> dict[str, Any]:
    """What a person would call the same page."""
    one.settle()
    page = one.page
    view = page.evaluate("document.body.dataset.view")
    panel = page.locator(f"#view-{view}")
    return {
        "view": view, "hash": page.evaluate("location.hash"), "model": page.locator("#model").input_value(),
        "bars": shares(panel), "lights": lights(panel),
        "sliders": [s.input_value() for s in panel.locator("input[type=range]").all()],
        "pressed": panel.locator("[aria-pressed=true]").all_inner_texts(),
        "heading": panel.locator("h2:visible").all_inner_texts(),
        "inks": [c.evaluate(PIXELS) for c in panel.locator(".picture .pixels").all()[:6]],
    }  # fmt: skip


def test_a_link_restores_every_view(visit: Visits, tmp_path: Path) -> None:
    one, page = visit("#v=parts&p=both,em,2,5,1", reduced_motion="reduce")
    page.locator(".piece").nth(5).press("ArrowRight")
    page.get_by_role("button", name="Turn it 90°").click()
    page.wait_for_timeout(500)  # the address follows
    states = [state_of(one)]
    names = [m["name"] for m in one.singles()]
    one.show("draw")
    one.draw("2")
    expect(winner(page)).to_have_text("2")
    states.append(state_of(one))
    assert len(states[-1]["hash"]) < 600
    page.locator("#model").select_option(names[2])
    panel = one.show("tweak")
    panel.locator("input[type=range]").nth(3).fill("10")
    states.append(state_of(one))
    one.show("routing")
    page.get_by_role("button", name="Previous iteration").click()
    page.locator(".parent").nth(4).click()
    states.append(state_of(one))
    one.show("compare")
    page.get_by_role("button", name="Any two").click()
    page.get_by_label("First model").select_option(names[4])
    page.get_by_label("Second model").select_option(names[3])
    states.append(state_of(one))
    assert f"k={names[4]},{names[3]}" in states[-1]["hash"]
    assert len(states[-1]["bars"]) == 2 * 10
    one.show("overlap")
    page.locator(".overlap-view .chip.second").press("ArrowUp")
    states.append(state_of(one))
    one.show("routing")
    page.locator("#model").select_option(names[0])
    page.locator(".cells circle").nth(9).click(force=True)
    states.append(state_of(one))
    page.get_by_role("button", name="Tour", exact=True).click()
    page.get_by_role("button", name="Step 6: Routing").click()
    states.append(state_of(one))
    page.get_by_role("button", name="End tour").click()
    one.show("draw")
    picture = Image.new("L", (60, 60))
    picture.paste(255, (28, 8, 33, 52))
    picture.save(tmp_path / "one.png")
    page.locator("input[type=file]").set_input_files(tmp_path / "one.png")
    expect(winner(page)).to_have_text("1")
    states.append(state_of(one))
    assert "d=p" in states[-1]["hash"]
    for state in states:
        other, _ = visit(state["hash"], reduced_motion="reduce")
        assert state_of(other) == state


def test_back_goes_to_the_view_before_and_any_address_is_followed_as_far_as_it_goes(visit: Visits) -> None:
    one, page = visit("#v=draw", permissions=["clipboard-read", "clipboard-write"])
    one.show("routing")
    one.show("compare")
    page.go_back()
    expect(page.locator("#view-routing")).to_be_visible()
    page.go_forward()
    expect(page.locator("#view-compare")).to_be_visible()
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator("#says")).to_contain_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.evaluate("location.hash = '#v=routing&m=nobody&mp=nobody&t=2&d=n0'")
    expect(page.locator("#view-routing")).to_be_visible()
    expect(page.locator("#view-routing .count")).to_contain_text("Iteration 2")
    assert page.locator("#model").input_value() == page.evaluate(OPENING)["model"]
    page.evaluate("location.hash = '#'")
    expect(page.locator(f"#view-{VIEWS[0]}")).to_be_visible()
    one.open("#v=draw&m=nobody&d=s%%%&e=pAAAA&t=x&w=a,b&l=x&c=zz&o=1,2&i=y&z=1")
    expect(winner(page)).not_to_have_text("")
    for bad in ("nowhere", "house,magic,9,9,999", "boat,em,0,0,-1,1,2,3", "face,em,0,0,-1," + "9" * 400):
        one.open(f"#v=parts&p={bad}")
        assert max(lights(page)) > 0.6


def test_errors_are_one_polite_line_and_leave_no_old_answer(visit: Visits, tmp_path: Path) -> None:
    one, page = visit()
    says = page.locator("#says")
    one.context.route("**/*.caps", lambda route: route.abort())
    one.open("#v=draw")
    expect(says).to_contain_text("caps cannot be loaded")
    one.context.unroute("**/*.caps")
    page.locator(".sample").first.click()  # the next picture asks again
    expect(winner(page)).not_to_have_text("")
    (tmp_path / "not.png").write_text("this is no picture")
    page.locator("input[type=file]").set_input_files(tmp_path / "not.png")
    expect(says).to_contain_text("PNG and JPEG")
    one.draw("1")
    expect(winner(page)).to_have_text("1")
    expect(says).to_have_text("")  # the next good answer takes it away
    one.context.route("**/demo_heinsen.caps", lambda route: route.abort())
    page.locator("#model").select_option("demo_heinsen")
    expect(says).to_contain_text("cannot be loaded")
    assert "\n" not in says.inner_text()
    expect(winner(page)).to_have_text("")  # the answer of another network would be taken for its own
    expect(page.get_by_test_id("lead")).to_have_text("No answer to this drawing.")
    one.show("routing")
    expect(page.locator("#view-routing .blank")).to_be_visible()
    one.context.unroute("**/demo_heinsen.caps")
    one.pick(12)
    expect(page.locator("#view-routing .parent.winner text")).to_have_text("4")
    expect(says).to_have_text("")


SLOW = """
window.asked = [];
const own = Worker.prototype.postMessage;
let count = 0;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message.method === 'center') window.asked.push(performance.now());
  if (message.method !== 'route' || count++) own.call(this, message, ...rest);
  else setTimeout(() => own.call(this, message, ...rest), 2500);
};
"""


def test_a_slow_answer_never_overwrites_a_newer_one_and_lengths_move_with_the_stroke(visit: Visits) -> None:
    one, page = visit()
    one.context.add_init_script(SLOW)
    one.open("#v=draw")  # the answer to the first picture comes late
    one.pick(12)
    expect(winner(page)).to_have_text("4")
    page.wait_for_timeout(2600)
    expect(winner(page)).to_have_text("4")
    page.get_by_role("button", name="Clear").click()
    expect(winner(page)).to_have_text("")
    box, seen = page.locator(".pad").bounding_box(), set()
    page.mouse.move(box["x"] + 90, box["y"] + 60)
    page.mouse.down()
    for x, y in [(190, 60), (180, 100), (150, 160), (130, 230)]:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=40)
        one.settle()
        seen.add(tuple(shares(page.locator("#view-draw"))))
    assert len(seen) >= 3  # with the button still held down
    page.mouse.up()
    starts = page.evaluate("window.asked")
    assert len(starts) > 4
    assert min(b - a for a, b in pairwise(starts)) > 50  # a gap of 70 ms, less the clock's grain


def test_drawings_survive_the_address_bar(visit: Visits) -> None:
    _, page = visit("#v=draw")
    assert page.evaluate("""async () => {
      const { decodeDrawing, encodeDrawing, packLine, overlay, place, unpackStroke } = await import('./page/codec.js');
      const turn = (t) => [0.5 + 0.4 * Math.cos(t), 0.5 + 0.4 * Math.sin(t)];
      const circle = Array.from({ length: 300 }, (_, t) => turn(t / 40));
      const [stroke] = packLine(circle);
      const zigzag = Array.from({ length: 600 }, (_, t) => [t / 600, t % 2]);
      const [long, next, last] = packLine(zigzag).map(unpackStroke);
      const whole = long.length === 255 && String(long.at(-1)) === String(next[0]) && String(last.at(-1)) === '1,1';
      const pixels = Uint8Array.from({ length: 784 }, (_, i) => 17 * (i % 7 ? 0 : i % 16));
      const drawings = [{ kind: 'strokes', strokes: [stroke, ...packLine([[0, 1]])] },
        { kind: 'pixels', pixels }, { kind: 'sample', id: 12 }];
      const same = drawings.every((d) => JSON.stringify(decodeDrawing(encodeDrawing(d))) === JSON.stringify(d));
      const bad = ['', 'x', 's', 'sAA', 's!', 'pAAAA', 'n', 'n-1', 's' + 'A'.repeat(999)]
        .filter((text) => { const d = decodeDrawing(text); return d && d.strokes?.length !== 0; });
      const digit = new Uint8Array(784).fill(9);
      const moved = place(digit, 36, 36, 4, -4);
      const shifted = moved[8] === 9 && moved[7] === 0 && moved[28 * 36 + 8] === 0;
      return same && whole && !bad.length && stroke.length < 120 && shifted
        && overlay(moved, moved.map(() => 250))[8] === 255;
    }""")  # fmt: skip


def test_the_folder_is_all_the_page_needs(chromium: Any, site: Path, tmp_path: Path) -> None:
    """Under a sub-path, with nothing else to reach: every view works and nothing complains. At most 8 MB, of which at
    most 1.5 MB before the first answer."""
    shutil.copytree(site, tmp_path / "host" / "caps" / "page")
    assert sum(path.stat().st_size for path in site.rglob("*")) <= 8_000_000
    with serving(tmp_path / "host") as host:
        one = Visit(chromium, f"{host}caps/page/", tmp_path)
        loaded: dict[str, int] = {}
        one.context.route(re.compile(f"^(?!{re.escape(one.url)})"), lambda route: route.abort())
        one.context.on("response", lambda response: loaded.update({response.url: len(response.body())}))
        page = one.open("#v=draw")
        page.wait_for_function("() => document.querySelector('[data-testid=winner]')?.textContent.trim()")
        one.settle()
        assert sum(loaded.values()) <= 1_500_000, loaded
        assert sum(url.endswith(".caps") for url in loaded) == 1
        for view in VIEWS:
            one.show(view)
            one.settle()
        assert {Path(url).stem for url in loaded if url.endswith(".caps")} == set(DEMO)
        one.context.close()
        assert one.complaints == []
