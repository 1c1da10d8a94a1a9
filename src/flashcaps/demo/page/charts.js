/** Bars and curves, drawn by hand. */

import { assign, h, number, roving, svg } from "./dom.js";
import { inspectable } from "./inspect.js";

/**
 * One row for each class capsule: its name, a bar, its number.
 * @param {{label: string, facts: (k: number) => import("./inspect.js").Facts | null, compact?: boolean}} options
 */
export function barChart({ label, facts, compact = false }) {
  const element = h("div", { class: compact ? "bars compact" : "bars", role: "group", "aria-label": label });
  let rows = [];

  function build(names) {
    rows = names.map((name, k) => {
      const fill = h("span", { class: "fill" });
      const value = h("span", { class: "value" });
      const row = h(
        "button",
        { type: "button", class: "bar", tabindex: k ? -1 : 0 },
        h("span", { class: "name" }, name),
        h("span", { class: "track" }, fill),
        value,
      );
      inspectable(row, () => facts(k));
      return { row, fill, value, name };
    });
    element.replaceChildren(...rows.map(({ row }) => row));
  }
  roving(element, () => rows.map(({ row }) => row));

  return {
    element,
    /** @param {{names: string[], values: number[], winners: number[], measure: string}} data */
    update({ names, values, winners, measure }) {
      if (names.length !== rows.length || names.some((name, k) => name !== rows[k].name)) build(names);
      rows.forEach(({ row, fill, value, name }, k) => {
        const place = winners.indexOf(k);
        row.classList.toggle("winner", place === 0);
        row.classList.toggle("second", place === 1);
        fill.style.setProperty("--share", String(Math.max(0, Math.min(1, values[k] ?? 0))));
        value.textContent = number(values[k], 2);
        row.setAttribute(
          "aria-label",
          `${name}: ${measure} ${number(values[k], 3)}${place >= 0 ? ", recognised" : ""}`,
        );
      });
    },
  };
}

const WIDTH = 320;
const HEIGHT = 150;
const PAD = { left: 40, right: 14, top: 12, bottom: 26 };

/**
 * Curves over routing iterations.
 * @param {{label: string, title?: any[], facts: (series: number, step: number) => import("./inspect.js").Facts}} options
 */
export function curveChart({ label, title = [label], facts }) {
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curves", role: "group", "aria-label": label });
  const element = h("div", { class: "chart" }, h("h3", {}, ...title), plot);

  function axes(count, low, high, x, y) {
    const marks = [low, (low + high) / 2, high].map((v) =>
      svg(
        "g",
        {},
        svg("line", { class: "rule", x1: PAD.left, x2: WIDTH - PAD.right, y1: y(v), y2: y(v) }),
        svg("text", { x: PAD.left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v, 2)),
      ),
    );
    const ticks = Array.from({ length: count }, (_, t) =>
      svg("text", { x: x(t), y: HEIGHT - 8, "text-anchor": "middle" }, t + 1),
    );
    return [...marks, ...ticks];
  }

  return {
    element,
    /** @param {{series: {name: string, values: number[], role: string}[], step: number, range: number[]}} data */
    update({ series, step, range: [low, high] }) {
      const count = series[0].values.length;
      const x = (t) => PAD.left + (count > 1 ? (t / (count - 1)) * (WIDTH - PAD.left - PAD.right - 12) + 6 : 130);
      const y = (v) => PAD.top + (1 - (v - low) / (high - low)) * (HEIGHT - PAD.top - PAD.bottom);
      const now = svg("line", { class: "now", x1: x(step), x2: x(step), y1: PAD.top - 4, y2: HEIGHT - PAD.bottom + 4 });
      const lines = series.map(({ values, role }) =>
        svg("polyline", { class: `curve ${role}`, points: values.map((v, t) => `${x(t)},${y(v)}`).join(" ") }),
      );
      const dots = series.flatMap(({ name, values, role }, s) =>
        role === "other"
          ? []
          : values.map((v, t) => {
              const dot = svg("circle", {
                class: `dot ${role}`,
                cx: x(t),
                cy: y(v),
                r: t === step ? 5.5 : 3.5,
                role: "button",
                tabindex: 0,
                "aria-label": `${name}, iteration ${t + 1}: ${number(v)}`,
              });
              inspectable(dot, () => facts(s, t));
              return dot;
            }),
      );
      plot.replaceChildren(...axes(count, low, high, x, y), now, ...lines, ...dots);
    },
  };
}

/**
 * A small grid of how much goes where: { element, update(values, rows, columns) }.
 * From nothing at zero to full colour at the largest; signed values take two colours.
 */
export function heatGrid(label) {
  const plot = svg("svg", { class: "heat", role: "img", "aria-label": label });
  return {
    element: plot,
    update(values, rows, columns) {
      const top = Math.max(...values.map(Math.abs), 1e-9);
      assign(plot, { viewBox: `0 0 ${columns} ${rows}` });
      plot.replaceChildren(
        ...values.map((v, i) =>
          svg("rect", {
            x: (i % columns) + 0.04,
            y: Math.floor(i / columns) + 0.04,
            width: 0.92,
            height: 0.92,
            rx: 0.12,
            class: v < 0 ? "negative" : "positive",
            "fill-opacity": (0.04 + (0.96 * Math.abs(v)) / top).toFixed(3),
          }),
        ),
      );
    },
  };
}
