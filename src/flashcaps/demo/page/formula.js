/** Formulas in plain text, set with subscripts: "c_ij = softmax_j(b_ij)". */

import { h } from "./dom.js";

const PIECES = /([_^])(\{[^}]*\}|[\p{L}\p{N}|′']+)/gu;

/** @param {string} text  x_i or x_{i+1} is a subscript, x^2 or x^{2} a superscript */
export function typeset(text) {
  const line = h("span", { class: "formula" });
  let at = 0;
  for (const match of text.matchAll(PIECES)) {
    line.append(text.slice(at, match.index));
    const inner = match[2].replace(/^\{|\}$/g, "");
    line.append(h(match[1] === "_" ? "sub" : "sup", {}, inner));
    at = match.index + match[0].length;
  }
  line.append(text.slice(at));
  return line;
}
