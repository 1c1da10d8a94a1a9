/** The tour: a card that goes through the real views and lights up what it speaks of. */

import { byId, h } from "./dom.js";
import { LESSONS } from "./lessons.js";
import { usesTwo } from "./state.js";
import { prose } from "./words.js";

const ROOM = 8; // px around what is lit up

/** @param {any} app */
export function mountTour(app) {
  const { store, engine } = app;
  const where = h("p", { class: "faint" });
  const title = h("h2", { tabindex: -1 });
  const text = h("div", { class: "lesson-text", "aria-live": "polite" });
  const dots = LESSONS.map((lesson, n) =>
    h("button", { type: "button", "aria-label": `Step ${n + 1}: ${lesson.title}`, onclick: () => go(n) }),
  );
  const back = h("button", { type: "button", class: "tool", onclick: () => go(store.get().lesson - 1) }, "Back");
  const next = h(
    "button",
    { type: "button", class: "tool primary", onclick: () => go(store.get().lesson + 1) },
    "Next",
  );
  const end = h("button", { type: "button", class: "tool", onclick: () => go(null) }, "End tour");
  const card = h(
    "section",
    { class: "tour card", "aria-label": "Guided tour", hidden: true },
    where,
    title,
    text,
    h("div", { class: "lesson-steps", role: "group", "aria-label": "Steps" }, dots),
    h("div", { class: "tools" }, back, next, end),
  );
  const spot = h("div", { class: "spot", hidden: true, "aria-hidden": "true" });
  document.body.append(spot, card);
  byId("tour").addEventListener("click", () => go(store.get().lesson === null ? 0 : null));

  let shown = null; // the lesson whose view has been set
  let brought = null; // the lesson whose target has been scrolled to
  let written = "";
  let watched = null; // what is lit up, whose size may change
  const grown = new ResizeObserver(() => place());

  function go(n) {
    const lesson = n === null || n >= LESSONS.length ? null : Math.max(0, n);
    if (lesson === null) byId("tour").focus();
    store.set({ lesson });
  }

  const answerOf = (state) => engine.answers.get()[usesTwo(state) ? "two" : "one"];
  const target = () =>
    [...document.querySelectorAll(`.stage ${LESSONS[shown].target}`)].find((e) => e.getClientRects().length);

  /** Brings what is lit up to where it is free of the card, which stands beside it or, on a phone, at the foot. */
  function place() {
    const lit = shown === null ? null : target();
    spot.hidden = !lit;
    if (lit !== watched) {
      grown.disconnect();
      for (const e of [lit, document.querySelector(".stage")]) if (e) grown.observe(e); // where it may still appear
      watched = lit;
    }
    if (!lit) return;
    if (brought !== shown) {
      if (!("busy" in document.body.dataset)) brought = shown; // else what is above may still grow
      const top = document.querySelector(".top").getBoundingClientRect().bottom;
      const foot = card.offsetWidth > innerWidth / 2 ? card.getBoundingClientRect().top : innerHeight;
      const { y, height } = lit.getBoundingClientRect();
      scrollBy(0, y - top - Math.max(ROOM, 0.7 * (foot - top - height)));
    }
    const box = lit.getBoundingClientRect();
    Object.assign(spot.style, {
      left: `${box.left - ROOM}px`,
      top: `${box.top - ROOM}px`,
      width: `${box.width + 2 * ROOM}px`,
      height: `${box.height + 2 * ROOM}px`,
    });
    const right = document.body.dataset.view === "draw" && box.right + card.offsetWidth + 40 < innerWidth;
    card.classList.toggle("left", !right); // at the right the pad stays free
  }

  function update() {
    const state = store.get();
    const open = state.lesson !== null;
    card.hidden = !open;
    document.body.classList.toggle("touring", open);
    byId("tour").setAttribute("aria-pressed", String(open));
    if (!open) {
      spot.hidden = true;
      shown = brought = null;
      return;
    }
    const n = Math.min(state.lesson, LESSONS.length - 1);
    const lesson = LESSONS[n];
    const answer = answerOf(state);
    if (shown !== n) {
      const set = typeof lesson.set === "function" ? (answer?.route ? lesson.set(answer) : null) : (lesson.set ?? {});
      if (set === null) return;
      const opened = shown === null;
      shown = n;
      store.set({ view: lesson.view, ...set });
      if (opened) title.focus({ preventScroll: true });
    }
    where.textContent = `Step ${n + 1} of ${LESSONS.length}`;
    title.textContent = lesson.title;
    back.disabled = n === 0;
    next.hidden = n === LESSONS.length - 1;
    dots.forEach((dot, i) => {
      dot.classList.toggle("done", i < n);
      if (i === n) dot.setAttribute("aria-current", "step");
      else dot.removeAttribute("aria-current");
    });
    const told = answer?.route || lesson.own === false;
    const lines = told ? lesson.words(answer) : ["Draw a digit, or pick one: the tour explains what happens to it."];
    const key = `${n}|${lines.join("|")}`;
    if (key !== written) text.replaceChildren(...lines.map((line) => h("p", {}, ...prose(line))));
    written = key;
    requestAnimationFrame(() => requestAnimationFrame(place)); // after the view has been drawn
  }

  addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape" || store.get().lesson === null || !card.contains(document.activeElement)) return;
      event.stopPropagation();
      go(null);
    },
    { capture: true },
  );
  for (const name of ["scroll", "resize"]) addEventListener(name, place, { passive: true, capture: true });
  store.on(/** @type {any} */ (Object.keys(store.get())), update);
  engine.answers.on(["one", "two"], update);
  update();
}
