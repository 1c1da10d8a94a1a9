/** The parse tree: lines from places of the picture to class capsules, as thick as what they gain over an even split. */

import { assign, h, reducedMotion, roving, svg } from "./dom.js";
import { inspectable } from "./inspect.js";
import { fieldOf, gains, largestGain } from "./measures.js";
import { paint } from "./pixels.js";

const WIDE = { width: 1000, height: 520, picture: { x: 30, y: 50, side: 420 }, across: false };
const SMALL = { width: 640, height: 450, picture: { x: 6, y: 65, side: 320 }, across: false };
const TALL = { width: 400, height: 600, picture: { x: 55, y: 12, side: 290 }, across: true };
const TWEEN = 650; // ms
const RADIUS = 20;
const HAIR = 0.5; // of a line that gains nothing
const THICK = 10; // of the largest gain in this picture, in any iteration
const layoutFor = (width) => (!width || width > 640 ? WIDE : width > 400 ? SMALL : TALL);

/**
 * @param {{facts: Record<"cell" | "parent" | "line", Function>, choose: (k: number) => void,
 *   open: (cell: number, k: number | null) => void}} options  choose a class; open a place, and with it a line
 */
export function createTree({ facts, choose, open }) {
  const canvas = h("canvas", { class: "pixels", "aria-hidden": "true" });
  const paper = h("div", { class: "paper tree-paper" }, canvas);
  const lines = svg("g", { class: "lines" });
  const field = svg("rect", { class: "field", rx: 4, visibility: "hidden" });
  const cells = svg("g", { class: "cells", role: "group", "aria-label": "Places of the picture" });
  const parents = svg("g", { class: "parents", role: "group", "aria-label": "Class capsules" });
  const plot = svg("svg", { role: "group", "aria-label": "Parse tree" }, lines, field, cells, parents);
  const element = h("div", { class: "tree" }, paper, plot);

  let built = "";
  let layout = WIDE;
  let view = null; // what is shown
  let paths = []; // (cells x classes)
  let weights = []; // as shown, mid-way while they move
  let frame = 0;

  const cellNodes = () => /** @type {any} */ ([...cells.children]);
  const parentNodes = () => /** @type {any} */ ([...parents.children]);
  roving(element, cellNodes, () => view?.routing.grid[1] ?? 1);
  roving(element, parentNodes);

  const scale = () => layout.picture.side / view.width;
  function cellPoint(cell) {
    const { x, y, side } = fieldOf(view.routing, cell);
    return [layout.picture.x + (x + side / 2) * scale(), layout.picture.y + (y + side / 2) * scale()];
  }
  function parentPoint(k) {
    const n = view.names.length;
    const along = n > 1 ? k / (n - 1) : 0.5;
    return layout.across
      ? [24 + along * (layout.width - 48), layout.height - 40]
      : [layout.width - 70, 34 + along * (layout.height - 68)];
  }

  /** Light up the lines of a place or of a class capsule. */
  function heat(test) {
    plot.classList.toggle("looking", Boolean(test));
    for (const { path, cell, k } of paths) path.classList.toggle("hot", Boolean(test?.(cell, k)));
  }
  function watch(node, test, cell = null) {
    const on = () => {
      heat(test);
      if (cell === null) return;
      const { x, y, side } = fieldOf(view.routing, cell);
      assign(field, {
        visibility: "visible",
        x: layout.picture.x + x * scale(),
        y: layout.picture.y + y * scale(),
        width: side * scale(),
        height: side * scale(),
      });
    };
    const off = () => {
      heat(view.parent === null ? null : (_, k) => k === view.parent);
      field.setAttribute("visibility", "hidden");
    };
    for (const name of ["pointerenter", "focus"]) node.addEventListener(name, on);
    for (const name of ["pointerleave", "blur"]) node.addEventListener(name, off);
  }

  /** Lines leave a place fanned out, so that its shares can be told apart, and reach a class together. */
  function curve([x0, y0], [x1, y1]) {
    const [dx, dy] = [x1 - x0, y1 - y0];
    return layout.across
      ? `M${x0} ${y0}C${x0 + 0.2 * dx} ${y0 + 0.35 * dy} ${x1} ${y0 + 0.6 * dy} ${x1} ${y1 - 15}`
      : `M${x0} ${y0}C${x0 + 0.35 * dx} ${y0 + 0.2 * dy} ${x0 + 0.6 * dx} ${y1} ${x1 - RADIUS} ${y1}`;
  }

  function build() {
    const { picture, width, height } = layout;
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    element.style.setProperty("--ratio", `${width} / ${height}`);
    for (const [name, value] of [
      ["left", picture.x / width],
      ["top", picture.y / height],
      ["width", picture.side / width],
      ["height", picture.side / height],
    ]) {
      paper.style[name] = `${100 * value}%`;
    }
    const count = view.routing.grid[0] * view.routing.grid[1];
    paths = [];
    for (let cell = 0; cell < count; cell++) {
      for (let k = 0; k < view.names.length; k++) {
        const path = svg("path", { d: curve(cellPoint(cell), parentPoint(k)), "--hue": `var(--c${k % 10})` });
        inspectable(path, () => facts.line(cell, k));
        path.addEventListener("click", () => open(cell, k));
        paths.push({ path, cell, k });
      }
    }
    lines.replaceChildren(...paths.map(({ path }) => path));
    cells.replaceChildren(...Array.from({ length: count }, (_, cell) => buildCell(cell)));
    parents.replaceChildren(...view.names.map((name, k) => buildParent(name, k)));
    weights = [];
  }

  function buildCell(cell) {
    const [cx, cy] = cellPoint(cell);
    const node = svg("circle", { cx, cy, r: 6, role: "button", tabindex: cell ? -1 : 0 });
    watch(node, (c) => c === cell, cell);
    inspectable(
      node,
      () => facts.cell(cell),
      () => field,
    );
    node.addEventListener("click", () => open(cell, null));
    return node;
  }

  function buildParent(name, k) {
    const [x, y] = parentPoint(k);
    const r = layout.across ? 15 : RADIUS;
    const node = svg(
      "g",
      {
        class: "parent",
        transform: `translate(${x} ${y})`,
        role: "button",
        tabindex: k ? -1 : 0,
        "--hue": `var(--c${k % 10})`,
      },
      svg("circle", { class: "disc", r }),
      svg("circle", { class: "ring", r, pathLength: 1, transform: "rotate(-90)" }),
      svg("text", { dy: "0.36em", "text-anchor": "middle" }, name),
    );
    node.addEventListener("click", () => choose(k));
    inspectable(node, () => facts.parent(k));
    watch(node, (_, j) => j === k);
    return node;
  }

  /** One scale for all classes and iterations: twice the gain is twice the width. Losses are hairlines. */
  function style({ path, cell, k }, gain) {
    const { signed } = view.routing;
    const share = (signed ? Math.abs(gain) : Math.max(0, gain)) / view.top;
    path.setAttribute(
      "class",
      `${signed && gain < 0 ? "negative" : "positive"}${path.classList.contains("hot") ? " hot" : ""}`,
    );
    path.setAttribute("stroke-width", (HAIR + THICK * share).toFixed(2));
    path.style.setProperty("--strength", (0.16 + 0.74 * Math.min(1, 2 * share)).toFixed(3));
    path.dataset.at = `${cell},${k}`;
  }

  function move() {
    cancelAnimationFrame(frame);
    const target = paths.map(({ cell, k }) => view.gains[cell][k]);
    const same = weights.length !== target.length || target.every((w, i) => w === weights[i]);
    const from = same ? target : weights;
    const started = performance.now();
    const tick = (now) => {
      const t = reducedMotion() || from === target ? 1 : Math.min(1, (now - started) / TWEEN);
      const ease = t * t * (3 - 2 * t);
      weights = target.map((w, i) => from[i] + ease * (w - from[i]));
      paths.forEach((entry, i) => style(entry, weights[i]));
      if (t < 1) frame = requestAnimationFrame(tick);
    };
    tick(started);
  }

  function labels() {
    const present = view.routing.presence;
    const most = present ? Math.max(...present, 1e-9) : 1;
    cellNodes().forEach((node, cell) =>
      assign(node, {
        r: 3 + 5 * ((present?.[cell] ?? most) / most),
        "aria-label": facts.cell(cell).title,
      }),
    );
    parentNodes().forEach((node, k) => {
      const place = view.winners.indexOf(k);
      node.setAttribute("class", `parent ${["winner", "second"][place] ?? ""} ${view.parent === k ? "chosen" : ""}`);
      node.querySelector(".ring").setAttribute("stroke-dasharray", `${Math.max(0, Math.min(1, view.activation[k]))} 1`);
      assign(node, { "aria-label": facts.parent(k).title, "aria-pressed": String(view.parent === k) });
    });
  }

  return {
    element,
    /** @param {{names, routing, step, winners, parent, pixels, height, width}} next */
    update(next) {
      view = {
        ...next,
        gains: gains(next.routing, next.step),
        top: largestGain(next.routing),
        activation: next.routing.steps[next.step].activation,
      };
      const form = layoutFor(element.clientWidth);
      const key = JSON.stringify([form.width, view.names, view.routing.grid, view.routing.field, view.width]);
      if (key !== built) {
        layout = form;
        built = key;
        build();
      }
      paint(canvas, view.pixels, view.height, view.width);
      move();
      labels();
      heat(view.parent === null ? null : (_, k) => k === view.parent);
    },
    layoutIsStale: () => Boolean(built) && layoutFor(element.clientWidth) !== layout,
  };
}
