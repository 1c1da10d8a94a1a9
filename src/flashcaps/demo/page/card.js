/** The card of the model in use: a small, safe part of Markdown. */

import { byId, h, number } from "./dom.js";

/** **bold**, `code` and [text](address) as elements; everything else as text. */
function inline(text) {
  const pieces = text.split(/(\*\*[^*]+\*\*|`[^`]+`|\[[^\]]+\]\(https?:[^)\s]+\))/);
  return pieces.map((piece) => {
    if (piece.startsWith("**")) return h("strong", {}, piece.slice(2, -2));
    if (piece.startsWith("`")) return h("code", {}, piece.slice(1, -1));
    const link = /^\[([^\]]+)\]\((https?:[^)]+)\)$/.exec(piece);
    return link ? h("a", { href: link[2], rel: "noreferrer", target: "_blank" }, link[1]) : piece;
  });
}

const cells = (line) =>
  line
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());

function table(lines) {
  const rows = lines.filter((line) => !/^\|?[\s:|-]+\|?$/.test(line)).map(cells);
  const row = (tag, parts) =>
    h(
      "tr",
      {},
      parts.map((part) => h(tag, {}, inline(part))),
    );
  return h(
    "table",
    {},
    h(
      "tbody",
      {},
      rows.map((parts, n) => row(n ? "td" : "th", parts)),
    ),
  );
}

/** Headings, lists, tables, code and paragraphs. */
export function markdown(text) {
  const body = text.replace(/^---\n[\s\S]*?\n---\n/, "");
  return body.split(/\n{2,}|\n(?=#)|(?<=^#.*)\n/m).map((block) => {
    const lines = block.split("\n").filter((line) => line.trim());
    if (!lines.length) return null;
    const heading = /^(#+)\s+(.*)$/.exec(lines[0]);
    if (heading) return h("h3", {}, inline(heading[2]));
    if (lines.every((line) => line.trimStart().startsWith("|"))) return table(lines);
    if (lines.every((line) => line.startsWith("    ")))
      return h("pre", {}, lines.map((line) => line.slice(4)).join("\n"));
    if (lines[0].startsWith("```")) return h("pre", {}, lines.filter((line) => !line.startsWith("```")).join("\n"));
    if (/^[-*] /.test(lines[0]))
      return h(
        "ul",
        {},
        lines.map((line) => h("li", {}, inline(line.replace(/^\s*[-*] /, "")))),
      );
    return h("p", {}, inline(lines.join(" ")));
  });
}

/** @param {() => any} model */
export function mountCard(model) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("card"));
  byId("about").addEventListener("click", () => {
    const { title, parameters, result, card } = model();
    const facts = [`${number(parameters, 0)} parameters`];
    if (result) facts.push(`${number(result.error, 2)} % error (${result.split})`);
    byId("card-text").replaceChildren(
      h("h2", { id: "card-title" }, title),
      h("p", { class: "faint" }, facts.join(" · ")),
      ...markdown(card ?? "").filter(Boolean),
    );
    dialog.showModal();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
