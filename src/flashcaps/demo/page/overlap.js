/** Overlap: two digits over each other, both recognised, the picture taken apart in two colours. */

import { barChart } from "./charts.js";
import { fromBase64, placeOrBlank } from "./codec.js";
import { measureOf } from "./captions.js";
import { h, number, spoken } from "./dom.js";
import { classFacts } from "./draw.js";
import { drawings } from "./pairs.js";
import { paint, picture, TINTS, twoTone } from "./pixels.js";

const LIMIT = 4; // pixels each way: what pairs were trained with
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const NAMES = ["first", "second"];

/** The two digits on one sheet, each a layer that can be dragged or moved with the arrow keys. */
function createSheet(store, edit) {
  const clip = (v) => Math.max(-LIMIT, Math.min(LIMIT, v));
  const shiftBy = (n, dx, dy, from = store.get().shift) => {
    const shift = [...from];
    shift[2 * n] = clip(from[2 * n] + dx);
    shift[2 * n + 1] = clip(from[2 * n + 1] + dy);
    store.set({ shift });
  };
  const layers = NAMES.map((name) => h("canvas", { class: `pixels tinted ${name}`, "aria-hidden": "true" }));
  const handles = NAMES.map((name, n) =>
    h("button", {
      type: "button",
      class: `chip ${name}`,
      onclick: () => edit(n),
      onkeydown: (event) => {
        if (!(event.key in MOVES)) return;
        event.preventDefault();
        shiftBy(n, ...MOVES[event.key]);
      },
    }),
  );
  const element = h(
    "div",
    { class: "paper two-tone sheet", "aria-label": "The two digits; drag them", role: "group" },
    layers,
  );
  let held = null;
  let placed = [];

  /** The digit with more ink near the pointer. */
  function under(event) {
    const box = element.getBoundingClientRect();
    const side = layers[0].width;
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((v) =>
      Math.floor(v * side),
    );
    const ink = placed.map((pixels) => {
      let sum = 0;
      for (let r = y - 2; r <= y + 2; r++) for (let c = x - 2; c <= x + 2; c++) sum += pixels[r * side + c] ?? 0;
      return sum;
    });
    if (ink[0] !== ink[1]) return ink[0] > ink[1] ? 0 : 1;
    return x < side / 2 ? 0 : 1;
  }
  element.addEventListener("pointerdown", (event) => {
    if (!placed.length) return;
    held = { n: under(event), x: event.clientX, y: event.clientY, from: store.get().shift };
    element.setPointerCapture(event.pointerId);
    element.classList.add("held");
  });
  element.addEventListener("pointermove", (event) => {
    if (!held) return;
    const pixel = element.clientWidth / layers[0].width;
    shiftBy(
      held.n,
      Math.round((event.clientX - held.x) / pixel),
      Math.round((event.clientY - held.y) / pixel),
      held.from,
    );
  });
  for (const name of ["pointerup", "pointercancel"])
    element.addEventListener(name, () => {
      held = null;
      element.classList.remove("held");
    });

  return {
    element,
    handles,
    show(next, height, width, shift) {
      placed = next;
      placed.forEach((pixels, n) => paint(layers[n], pixels, height, width, TINTS[NAMES[n]]));
      handles.forEach((handle, n) => {
        const at = `${number(shift[2 * n], 0)}, ${number(shift[2 * n + 1], 0)}`;
        handle.replaceChildren(h("b", {}, n ? "Second" : "First"), ` at ${at}`);
        handle.setAttribute("aria-label", `${n ? "Second" : "First"} digit, moved by ${at} pixels; arrow keys move it`);
      });
    },
  };
}

/** What was recognised; where one digit is missing, why. */
function told(names, both) {
  if (names.length === 2) return `Recognised: ${spoken(names)}. Each was drawn back by a capsule of its own.`;
  if (!both) return `Recognised: ${names[0]}. Draw the second digit over it.`;
  return `Recognised: ${names[0]}. No second digit stands out. The network learned from pairs of different digits: of two that are the same it names one.`;
}

/** @param {any} app */
export function createView(app) {
  let answer = null;
  const sheet = createSheet(app.store, (n) => app.panel.edit(n ? "second" : "drawing"));
  const seen = picture("What the network sees");
  const apart = twoTone("The picture taken apart into two coloured digits");
  const made = NAMES.map((tint) => picture("", { tint }));
  const says = h("p", { class: "verdict", "aria-live": "polite" });
  const digits = h("output", { class: "both", "data-testid": "both" });
  const bars = barChart({ label: "Class capsules", facts: (k) => classFacts(answer, k) });
  const none = h(
    "p",
    { class: "blank", hidden: true },
    "No model of overlapping digits was given: start the page with one.",
  );
  const watch = h(
    "button",
    {
      type: "button",
      class: "tool watch",
      onclick: () => app.store.set({ view: "routing", model: app.store.get().pair, step: 0, parent: null }),
    },
    "Watch them being routed",
  );
  const body = h(
    "div",
    { class: "overlap-body" },
    h(
      "section",
      { class: "card", "aria-label": "Two digits over each other" },
      h("h2", {}, "Drag them over each other"),
      sheet.element,
      h("div", { class: "chips" }, sheet.handles),
      watch,
    ),
    h(
      "section",
      { class: "card overlap-answer", "aria-label": "What the network makes of it" },
      h("div", { class: "card-head" }, h("h2", {}, "Taken apart"), digits),
      says,
      h(
        "div",
        { class: "quad" },
        seen.element,
        h("figure", { class: "picture" }, apart.element, h("figcaption", {}, "Both drawings, in two colours")),
        made[0].element,
        made[1].element,
      ),
    ),
    h("section", { class: "card", "aria-label": "Class capsules" }, h("h2", {}, "Class capsules"), bars.element),
  );
  const element = h("div", { class: "view overlap-view" }, none, body);

  function show(state) {
    const { route, model, digits: inks } = answer;
    const [, height, width] = model.image;
    const now = inks.map((ink, n) => placeOrBlank(ink, height, width, state.shift.slice(2 * n)));
    sheet.show(now, height, width, state.shift); // follows the hand at once; the rest follows the answer
    seen.show(answer.pixels, height, width);
    if (!route) {
      apart.show(null, null, height, width);
      made.forEach((one) => one.show(null, height, width, ""));
      says.textContent = answer.failed ? "No answer to these drawings." : "Draw two digits, or pick them.";
      digits.textContent = "";
      return;
    }
    const found = drawings(answer);
    const of = (n) => found.find((one) => one.digit === n);
    const drawn = NAMES.map((_, n) => (of(n) ? fromBase64(of(n).image) : null));
    apart.show(...drawn, height, width);
    made.forEach((one, n) =>
      one.show(drawn[n], height, width, of(n) ? `Capsule ${model.classes[of(n).class]} drew this` : "Nothing drawn"),
    );
    const order = found.map((one) => one.class);
    digits.replaceChildren(...found.map((one) => h("span", { class: NAMES[one.digit] }, model.classes[one.class])));
    says.textContent = told(
      found.map((one) => model.classes[one.class]),
      inks.every(Boolean),
    );
    bars.update({ names: model.classes, values: route.activation, winners: order, measure: measureOf(answer) });
  }

  return {
    element,
    update(state, answers) {
      answer = answers.two;
      none.hidden = Boolean(app.model()?.pairs);
      body.hidden = !none.hidden;
      if (answer) show(state);
    },
  };
}
