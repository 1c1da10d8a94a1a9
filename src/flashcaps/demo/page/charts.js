/** Bars and grids, drawn by hand. */

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
