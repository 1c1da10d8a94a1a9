/** The drawing pad: mouse, pen, finger or keyboard. */

import { packLine, SIDE, unpackStroke } from "./codec.js";
import { h } from "./dom.js";
import { paint } from "./pixels.js";
import { inkLines } from "./strokes.js";

const RESOLUTION = 560;
const KEY_STEP = 1 / 28;
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * @typedef {import("./codec.js").Drawing} Drawing
 * @param {{change: (drawing: Drawing) => void, remember: () => void, undo: () => void,
 *   digitOf: (drawing: Drawing) => Uint8Array | null}} options  remember: what is there now can be asked back
 */
export function createPad({ change, remember, undo, digitOf }) {
  const canvas = h("canvas", { class: "pixels pad-ink", width: RESOLUTION, height: RESOLUTION, "aria-hidden": "true" });
  const under = h("canvas", { class: "pixels pad-under", width: SIDE, height: SIDE, "aria-hidden": "true" });
  const cursor = h("span", { class: "pad-cursor", hidden: true });
  const hint = h("span", { class: "pad-hint" }, "Draw a digit here");
  const element = h(
    "div",
    {
      class: "pad paper",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "drawing pad",
      "aria-label": "Drawing pad",
      "aria-describedby": "pad-help",
    },
    under,
    canvas,
    cursor,
    hint,
  );
  const context = canvas.getContext("2d");

  /** @type {Drawing} */
  let drawing = { kind: "strokes", strokes: [] };
  let line = null; // points of the stroke being drawn
  let pen = [0.5, 0.25]; // where the keyboard's pen is
  let writing = false;

  const strokes = () => (drawing.kind === "strokes" ? drawing.strokes : []);

  function render() {
    context.clearRect(0, 0, RESOLUTION, RESOLUTION);
    const lines = strokes().map(unpackStroke);
    inkLines(context, line ? [...lines, line] : lines, RESOLUTION, "#000");
    paint(under, drawing.kind === "strokes" ? null : digitOf(drawing), SIDE, SIDE);
    hint.hidden = drawing.kind !== "strokes" || strokes().length > 0 || line !== null;
    cursor.hidden = document.activeElement !== element || !element.matches(":focus-visible");
    cursor.classList.toggle("down", writing);
    cursor.style.left = `${100 * pen[0]}%`;
    cursor.style.top = `${100 * pen[1]}%`;
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const clip = (v) => Math.max(0, Math.min(1, v));
    return [clip((event.clientX - box.left) / box.width), clip((event.clientY - box.top) / box.height)];
  }

  /** Tell the others: the strokes so far, and the one being drawn. */
  function tell() {
    const all = line ? [...strokes(), ...packLine(line)] : strokes();
    change({ kind: "strokes", strokes: all });
  }

  function begin(point) {
    remember();
    if (drawing.kind !== "strokes") drawing = { kind: "strokes", strokes: [] };
    line = [point];
    render();
    tell();
  }

  function extend(points) {
    line.push(...points);
    render();
    tell();
  }

  function finish() {
    if (!line) return;
    drawing = { kind: "strokes", strokes: [...strokes(), ...packLine(line)] };
    line = null;
    render();
    tell();
  }

  function clear() {
    remember();
    line = null;
    writing = false;
    drawing = { kind: "strokes", strokes: [] };
    render();
    tell();
  }

  function takeBack() {
    writing = false;
    finish();
    undo();
  }

  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    event.preventDefault();
    element.focus({ preventScroll: true, focusVisible: false });
    element.setPointerCapture(event.pointerId);
    begin(at(event));
  });
  element.addEventListener("pointermove", (event) => {
    if (!line || !event.isPrimary || writing) return;
    const events = event.getCoalescedEvents?.() ?? [];
    extend((events.length ? events : [event]).map(at));
  });
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"])
    element.addEventListener(name, () => !writing && finish());

  element.addEventListener("keydown", (event) => {
    if (event.key in MOVES) {
      const [dx, dy] = MOVES[event.key];
      pen = [pen[0] + dx * KEY_STEP, pen[1] + dy * KEY_STEP].map((v) => Math.max(0.06, Math.min(0.94, v)));
      if (writing) extend([pen]);
      else render();
    } else if (event.key === " " || event.key === "Enter") {
      writing = !writing;
      if (writing) begin(pen);
      else finish();
    } else if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey)) takeBack();
    else if (event.key === "Delete" || event.key === "Backspace") clear();
    else return;
    event.preventDefault();
  });
  element.addEventListener("focus", render);
  element.addEventListener("blur", () => {
    if (writing) finish();
    writing = false;
    render();
  });

  return {
    element,
    undo: takeBack,
    clear,
    /** Show what the state holds; a stroke that is just being drawn goes on. */
    show(next) {
      if (line) return;
      drawing = next;
      render();
    },
  };
}
