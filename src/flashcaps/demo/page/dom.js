/** Small helpers to make elements. Text always goes in as text nodes, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {Element} element
 * @param {Record<string, any>} props  `onclick` etc. listen; `--name` sets a CSS property; null and false leave out
 */
export function assign(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) /** @type {HTMLElement} */ (element).style.setProperty(name, value);
    else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

function make(element, props, children) {
  assign(element, props);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: h("p", { class: "note" }, "text", child). */
export function h(tag, props = {}, ...children) {
  return make(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props = {}, ...children) {
  return make(document.createElementNS(SVG, tag), props, children);
}

/** An inline icon: the strokes of a 24 x 24 drawing. */
export function icon(path, props = {}) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", ...props }, svg("path", { d: path }));
}

export const byId = (id) => document.getElementById(id);

/** A number as people read it: 0.937, 12.5, 1,204, and a true minus sign. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : value.toFixed(digits);
  return /[1-9]/.test(text) ? text.replace("-", "−") : text.replace("-", "");
}

/** A share as people read it, its sign kept on the same line. */
export const percent = (share, digits = 1) => `${number(100 * share, digits)}\u202f%`;

/** A list read aloud: "3", "3 and 5", "3, 5 and 7". */
export function spoken(items) {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/**
 * One tab stop for many elements: arrow keys move inside, Home and End jump. With `columns` up and down move by rows.
 * @param {HTMLElement} group  not an SVG element: to listen for focus would make that a tab stop, too
 * @param {() => HTMLElement[]} members
 */
export function roving(group, members, columns = () => 1) {
  group.addEventListener("keydown", (event) => {
    const all = members();
    const here = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
    let next = null;
    if (event.key in steps) next = here + steps[event.key];
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = all.length - 1;
    if (here < 0 || next === null) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.max(0, Math.min(all.length - 1, next))].focus();
  });
  group.addEventListener("focusin", (event) => {
    const all = members();
    if (!all.includes(/** @type {HTMLElement} */ (event.target))) return;
    for (const member of all) member.setAttribute("tabindex", member === event.target ? "0" : "-1");
  });
}
