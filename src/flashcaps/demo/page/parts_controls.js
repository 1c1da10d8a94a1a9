/** What can be done without dragging: choose an arrangement and a part, and set its pose with sliders. */

import { h, number } from "./dom.js";
import { HOMES, isHome, LIMITS, partName, tidy, wrap } from "./parts_scene.js";

const SLIDERS = [
  { n: 2, label: "Turn", unit: "°" },
  { n: 3, label: "Size", unit: "\u202f%" },
  { n: 0, label: "Across", unit: "" },
  { n: 1, label: "Down", unit: "" },
];

/**
 * @param {() => import("./parts_scene.js").Toy} toy
 * @param {{arrange: (home: string) => void, choose: (part: number) => void, move: (part: number, piece: number[]) => void,
 *   glide: (pieces: number[][]) => void}} actions
 */
export function createControls(toy, { arrange, choose, move, glide }) {
  const homes = Object.entries(HOMES).map(([key, { title }]) =>
    h("button", { type: "button", class: "chip", "data-home": key, onclick: () => arrange(key) }, title),
  );
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Part" });
  const sliders = SLIDERS.map(({ n, label, unit }) => {
    const output = h("output", {});
    const input = h("input", {
      type: "range",
      min: LIMITS[n][0],
      max: LIMITS[n][1],
      "aria-label": label,
      oninput: () => {
        const { part, pieces } = toy();
        move(part, tidy(pieces[part].map((value, k) => (k === n ? Number(input.value) : value))));
      },
    });
    const element = h("label", { class: "part-slider" }, h("span", {}, label), input, output);
    return { n, unit, input, output, element };
  });
  const quarter = ([x, y, turn, size]) => [x, y, wrap(turn + 90), size];
  const turn = () => glide(toy().pieces.map((piece, i) => (i === toy().part ? quarter(piece) : piece)));
  const back = h(
    "button",
    { type: "button", class: "tool", onclick: () => glide(HOMES[toy().home].pieces) },
    "Put all back",
  );
  const element = h(
    "section",
    { class: "card parts-controls", "aria-label": "Move the parts" },
    h("h3", {}, "Arrange the parts as"),
    h("div", { class: "chips", role: "group", "aria-label": "Arrangement" }, homes),
    h("h3", {}, "Take one"),
    chips,
    h(
      "div",
      { class: "part-sliders" },
      sliders.map((slider) => slider.element),
    ),
    h(
      "div",
      { class: "tools" },
      h("button", { type: "button", class: "tool primary", onclick: turn }, "Turn it 90°"),
      back,
    ),
    h(
      "p",
      { class: "faint", id: "parts-keys" },
      "Or drag it on the stage, with its handles. Keys: arrows move, Q and E turn, + and − scale, Home puts it back.",
    ),
  );

  return {
    element,
    update() {
      const { home, part, pieces } = toy();
      for (const chip of homes) chip.setAttribute("aria-pressed", String(chip.dataset.home === home && isHome(toy())));
      if (chips.children.length !== pieces.length) {
        const names = pieces.map((_, i) => partName(i, pieces.length));
        chips.replaceChildren(
          ...names.map((name, i) => h("button", { type: "button", class: "chip", onclick: () => choose(i) }, name)),
        );
      }
      [...chips.children].forEach((chip, i) => chip.setAttribute("aria-pressed", String(i === part)));
      for (const { n, unit, input, output } of sliders) {
        const value = pieces[part][n];
        const text = unit ? `${number(value, 0)}${unit}` : number(value / 100, 2);
        input.value = String(value);
        input.setAttribute("aria-valuetext", text);
        output.textContent = text;
      }
      back.disabled = isHome(toy());
    },
  };
}
