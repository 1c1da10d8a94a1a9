"""The page for everyone: keyboard, screen reader, phone, dark, calm; links, errors, slow answers; any static host."""

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flashcaps.demo.build import DEMO

from .page_server import PHONE, PIXELS, VIEWS, Visit, Visits, expect, serving, shares, winner

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
    tab_to(page, "e.classList.contains('pad')")
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


def test_focus_is_seen_and_can_leave(visit: Visits) -> None:
    _, page = visit("#v=routing")
    tab_to(page, "e.classList.contains('skip')")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("#view-routing")).to_be_visible()  # and the view stays
    tab_to(page, "e.classList.contains('pad')")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.classList.contains('pad')")


DEVICES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"}, "dark": {"color_scheme": "dark"},
    "phone": {"size": PHONE, "has_touch": True, "is_mobile": True},
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_and_nothing_scrolls_to_the_side(visit: Visits, view: str, device: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    one, page = visit(f"#v={view}", reduced_motion="reduce", **DEVICES[device])
    one.settle()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    one.shoot(f"{device}-{view}")
    if device == "phone":
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
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


def test_a_finger_draws(visit: Visits) -> None:
    one, page = visit("#v=draw", size=PHONE, has_touch=True, is_mobile=True)
    page.get_by_role("button", name="Clear").tap()
    expect(winner(page)).to_have_text("")
    box = page.locator(".pad").bounding_box()
    x, top = box["x"] + box["width"] / 2, box["y"] + 40
    one.touch(*((x, top + 10 * step) for step in range(17)))
    expect(winner(page)).to_have_text("1")
    assert page.evaluate("scrollY") == 0  # the pad keeps the finger to itself


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


def test_calm_moves_nothing_by_itself(visit: Visits) -> None:
    _, page = visit("#v=routing&t=1", reduced_motion="reduce")
    widths = "() => [...document.querySelectorAll('.lines path')].map((p) => p.getAttribute('stroke-width')).join()"
    expect(page.locator("#view-routing .count")).to_contain_text("Iteration 1")
    before = page.evaluate(widths)
    page.get_by_role("button", name="Next iteration").click()
    expect(page.locator("#view-routing .count")).to_contain_text("Iteration 2")
    at_once = page.evaluate(widths)
    page.wait_for_timeout(900)
    assert before != at_once == page.evaluate(widths)


def state_of(one: Visit) -> dict[str, Any]:
    """What a person would call the same page."""
    one.settle()
    page = one.page
    view = page.evaluate("document.body.dataset.view")
    panel = page.locator(f"#view-{view}")
    return {
        "view": view, "hash": page.evaluate("location.hash"), "model": page.locator("#model").input_value(),
        "bars": shares(panel), "sliders": [s.input_value() for s in panel.locator("input[type=range]").all()],
        "pressed": panel.locator("[aria-pressed=true]").all_inner_texts(),
        "heading": panel.locator("h2:visible").all_inner_texts(),
        "inks": [c.evaluate(PIXELS) for c in panel.locator(".picture .pixels").all()[:6]],
    }  # fmt: skip


def test_a_link_restores_every_view(visit: Visits) -> None:
    one, page = visit("#v=draw", reduced_motion="reduce")
    names = [m["name"] for m in one.ask("models")["models"] if not m["pairs"]]
    one.draw("2")
    expect(winner(page)).to_have_text("2")
    links = {"draw": state_of(one)}
    assert len(links["draw"]["hash"]) < 600
    page.locator("#model").select_option(names[2])
    panel = one.show("tweak")
    panel.locator("input[type=range]").nth(3).fill("10")
    links["tweak"] = state_of(one)
    one.show("routing")
    page.get_by_role("button", name="Previous iteration").click()
    page.locator(".parent").nth(4).click()
    links["routing"] = state_of(one)
    one.show("compare")
    page.get_by_role("button", name="Any two").click()
    page.get_by_label("Second model").select_option(names[3])
    links["compare"] = state_of(one)
    one.show("overlap")
    page.locator(".overlap-view .chip.second").press("ArrowUp")
    links["overlap"] = state_of(one)
    one.show("routing")
    page.locator("#model").select_option(names[0])
    page.locator(".cells circle").nth(9).click(force=True)
    links["zoom"] = state_of(one)
    page.get_by_role("button", name="Tour", exact=True).click()
    page.get_by_role("button", name="Step 6: Routing").click()
    links["tour"] = state_of(one)
    for state in links.values():
        other, _ = visit(state["hash"], reduced_motion="reduce")
        assert state_of(other) == state


def test_back_goes_to_the_view_before_and_an_edited_address_is_followed_as_far_as_it_goes(visit: Visits) -> None:
    one, page = visit("#v=draw")
    one.show("routing")
    one.show("compare")
    page.go_back()
    expect(page.locator("#view-routing")).to_be_visible()
    page.go_forward()
    expect(page.locator("#view-compare")).to_be_visible()
    page.evaluate("location.hash = '#v=routing&m=nobody&mp=nobody&t=2&d=n0'")
    expect(page.locator("#view-routing")).to_be_visible()
    expect(page.locator("#view-routing .count")).to_contain_text("Iteration 2")
    opening = page.evaluate("async () => (await import('./page/opening.js')).OPENING")
    assert page.locator("#model").input_value() == opening["model"]
    page.evaluate("location.hash = '#'")
    expect(page.locator(f"#view-{VIEWS[0]}")).to_be_visible()


def test_uploads_and_bad_links_are_no_trouble(visit: Visits, tmp_path: Path) -> None:
    from PIL import Image

    one, page = visit("#v=draw&m=nobody&d=s%%%&e=pAAAA&t=x&w=a,b&l=x&c=zz&o=1,2&i=y&z=1")
    expect(winner(page)).not_to_have_text("")
    picture = Image.new("L", (60, 60))
    for y in range(8, 52):
        for x in range(28, 33):
            picture.putpixel((x, y), 255)
    picture.save(tmp_path / "one.png")
    page.locator("input[type=file]").set_input_files(tmp_path / "one.png")
    expect(winner(page)).to_have_text("1")
    before = state_of(one)
    assert "d=p" in before["hash"]
    other, _ = visit(before["hash"])
    assert state_of(other) == before


def test_the_link_is_copied(visit: Visits) -> None:
    _, page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator("#says")).to_contain_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_errors_are_one_polite_line_and_leave_no_old_answer(visit: Visits, tmp_path: Path) -> None:
    one, page = visit("#v=draw")
    (tmp_path / "not.png").write_text("this is no picture")
    page.locator("input[type=file]").set_input_files(tmp_path / "not.png")
    says = page.locator("#says")
    expect(says).to_have_text("That file is not a picture this page can read; PNG and JPEG work.")
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
    page.locator(".sample[data-id='12']").click()
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


def test_a_slow_answer_never_overwrites_a_newer_one_and_questions_are_throttled(visit: Visits) -> None:
    one, page = visit()
    one.context.add_init_script(SLOW)
    one.open("#v=draw")  # the answer to the first picture comes late
    page.locator(".sample[data-id='12']").click()
    expect(winner(page)).to_have_text("4")
    page.wait_for_timeout(2600)
    expect(winner(page)).to_have_text("4")
    box = page.locator(".pad").bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 140)
    page.mouse.down()
    for step in range(100):
        page.mouse.move(box["x"] + 40 + 2 * step, box["y"] + 140 + 60 * ((step // 10) % 2))
    page.mouse.up()
    one.settle()
    starts = page.evaluate("window.asked")
    assert len(starts) > 1
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


def test_a_network_that_cannot_be_loaded_is_told_on_the_page(chromium: Any, site: Path, tmp_path: Path) -> None:
    with serving(site) as url:
        one = Visit(chromium, url, tmp_path)
        one.context.route("**/*.caps", lambda route: route.abort())
        page = one.open("#v=draw")
        page.wait_for_function("() => document.body.textContent.includes('caps cannot be loaded')")
        one.context.unroute("**/*.caps")
        page.locator(".sample").first.click()  # the next picture asks again
        page.wait_for_function("() => document.querySelector('[data-testid=winner]')?.textContent.trim()")
        one.context.close()
