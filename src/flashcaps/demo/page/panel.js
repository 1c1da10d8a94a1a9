/** The person's own input, beside every view: pad, samples, upload. */

import { api } from "./api.js";
import { fromBase64, SIDE } from "./codec.js";
import { h, icon, roving } from "./dom.js";
import { createPad } from "./pad.js";
import { paint } from "./pixels.js";
import { usesTwo } from "./state.js";

const UNDO = "M9 14 4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3";
const CLEAR = "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13";
const UPLOAD = "M12 16V4m0 0L7 9m5-5 5 5M4 20h16";

/** Thumbnails of real digits; one tab stop, arrows inside. */
function sampleStrip(samples, pick) {
  const buttons = samples.map((sample, n) => {
    const canvas = h("canvas", { class: "pixels", "aria-hidden": "true" });
    paint(canvas, fromBase64(sample.image), SIDE, SIDE);
    return h(
      "button",
      {
        type: "button",
        class: "sample",
        tabindex: n ? -1 : 0,
        "data-id": sample.id,
        "aria-label": `Sample: a handwritten ${sample.label}`,
        onclick: () => pick(sample.id),
      },
      canvas,
    );
  });
  const element = h("div", { class: "samples", role: "group", "aria-label": "Sample digits" }, buttons);
  roving(element, () => buttons);
  return {
    element,
    mark: (id) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(Number(b.dataset.id) === id))),
  };
}

/** @param {any} app */
export function createPanel(app) {
  const { store, engine, catalog, say } = app;
  let editing = "drawing"; // which of the two digits the pad holds

  const digitOf = (drawing) =>
    drawing.kind === "pixels"
      ? drawing.pixels
      : drawing.kind === "sample" && engine.samples.has(drawing.id)
        ? fromBase64(engine.samples.get(drawing.id).image)
        : null;
  const change = (drawing) => store.set({ [editing]: drawing, tweak: [], parent: null, zoom: null });
  const past = { drawing: [], second: [] }; // what Undo brings back: drawings, samples and uploads alike
  const remember = () => past[editing].push(store.get()[editing]);
  function replace(drawing) {
    remember();
    change(drawing);
  }
  function undo() {
    const { kind, strokes } = store.get()[editing];
    change(past[editing].pop() ?? { kind: "strokes", strokes: kind === "strokes" ? strokes.slice(0, -1) : [] });
  }
  const pad = createPad({ change, remember, undo, digitOf });
  const strip = sampleStrip(catalog.samples, (id) => replace({ kind: "sample", id }));

  async function upload(file) {
    if (!file) return;
    try {
      const answer = await api.upload(file);
      if (answer.empty) throw new Error("That picture is empty: no ink was found in it.");
      say(null);
      replace({ kind: "pixels", pixels: fromBase64(answer.image) });
    } catch (error) {
      say(error);
    }
  }

  const file = h("input", {
    type: "file",
    accept: "image/*",
    class: "visually-hidden",
    tabindex: -1,
    "aria-label": "Upload a picture of a digit",
    onchange: () => upload(file.files[0]).then(() => (file.value = "")),
  });
  const tool = (label, path, onclick) => h("button", { type: "button", class: "tool", onclick }, icon(path), label);
  const which = ["drawing", "second"].map((name, n) =>
    h(
      "button",
      {
        type: "button",
        class: `chip ${n ? "second" : "first"}`,
        onclick: () => {
          editing = name;
          show();
        },
      },
      n ? "Second digit" : "First digit",
    ),
  );
  const switcher = h(
    "div",
    { class: "switch", role: "group", "aria-label": "Digit being edited", hidden: true },
    which,
  );
  const title = h("h2", { id: "panel-title" }, "Your digit");
  const element = h(
    "section",
    { class: "panel card", "aria-labelledby": "panel-title" },
    h("div", { class: "panel-head" }, title, switcher),
    pad.element,
    h(
      "p",
      { id: "pad-help", class: "visually-hidden" },
      "With the keyboard: arrow keys move the pen, Space puts it down or lifts it, Control Z takes back a stroke, Delete clears.",
    ),
    h(
      "div",
      { class: "tools" },
      tool("Undo", UNDO, pad.undo),
      tool("Clear", CLEAR, pad.clear),
      tool("Upload", UPLOAD, () => file.click()),
      file,
    ),
    h("h3", {}, "or pick one"),
    strip.element,
  );

  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    upload(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => {
    const item = [...(event.clipboardData?.files ?? [])].find((f) => f.type.startsWith("image/"));
    if (item) upload(item);
  });

  function show() {
    const state = store.get();
    const pairs = usesTwo(state);
    if (!pairs) editing = "drawing";
    switcher.hidden = !pairs;
    title.textContent = pairs ? "Your digits" : "Your digit";
    which.forEach((button, n) => button.setAttribute("aria-pressed", String(editing === ["drawing", "second"][n])));
    const drawing = state[editing];
    pad.element.classList.toggle("second", editing === "second");
    pad.show(drawing);
    strip.mark(drawing.kind === "sample" ? drawing.id : null);
  }
  store.on(["drawing", "second", "view", "model", "pair"], show);
  show();
  return {
    element,
    edit: (name) => {
      editing = name;
      show();
    },
  };
}
