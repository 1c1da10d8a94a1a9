/** The card that shows the numbers behind anything on the page, and the formula that made them. */

import { h } from "./dom.js";
import { typeset } from "./formula.js";

/** @typedef {{title: string, rows?: [string, string][], formula?: string, note?: string}} Facts */

const card = h("aside", { class: "inspector", role: "status", hidden: true });
let pinned = null;
let shown = null;
let source = () => null; // of what is shown
let clear = () => null; // what the card must not cover

function fill(facts) {
  const rows = (facts.rows ?? []).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
  const parts = [h("strong", {}, facts.title)];
  if (rows.length) parts.push(h("dl", {}, rows));
  if (facts.formula) parts.push(h("div", { class: "formulas" }, facts.formula.split("\n").map(typeset)));
  if (facts.note) parts.push(h("p", {}, facts.note));
  card.replaceChildren(...parts);
}

function beside() {
  const box = clear().getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card;
  const right = box.right + 12;
  let left = right + width < innerWidth - 8 ? right : box.left - width - 12;
  let top = box.top + box.height / 2 - height / 2;
  if (left < 8) {
    left = Math.min(Math.max(8, box.left + box.width / 2 - width / 2), innerWidth - width - 8);
    top = box.bottom + 10 + height < innerHeight ? box.bottom + 10 : box.top - height - 10;
  }
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${Math.max(8, Math.min(innerHeight - height - 8, top))}px`;
}

function show(element, facts, area) {
  const found = facts();
  if (!found) return;
  shown = element;
  source = facts;
  clear = area;
  fill(found);
  card.hidden = false;
  card.classList.toggle("pinned", pinned === element);
  beside();
}

function hide(element = shown) {
  if (element !== shown || (pinned && pinned === element)) return;
  card.hidden = true;
  shown = null;
}

/** Numbers have changed: show the new ones, or nothing where what was pointed at is gone. */
export function refreshInspector() {
  if (!shown) return;
  if (shown.isConnected && shown.getClientRects().length) show(shown, source, clear);
  else closeInspector();
}

export function closeInspector() {
  pinned = null;
  hide();
}

/**
 * Show `facts()` beside `element` while it is pointed at or focused; a click keeps the card until Escape or the next.
 * @param {Element} element
 * @param {() => Facts | null} facts
 * @param {() => Element} area  what the card keeps clear of: the element, or what it points out
 */
export function inspectable(element, facts, area = () => element) {
  const open = () => show(element, facts, area);
  element.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && !pinned && open());
  element.addEventListener("pointerleave", () => hide(element));
  element.addEventListener("click", (event) => {
    pinned = pinned === element ? null : element;
    if (pinned) open();
    else hide(element);
    event.stopPropagation();
  });
  const drawn = element instanceof SVGElement;
  if (drawn && !element.hasAttribute("tabindex")) return; // to listen for focus would make it a stop of the Tab key
  element.addEventListener("focus", () => element.matches(":focus-visible") && !pinned && open());
  element.addEventListener("blur", () => {
    if (pinned === element) pinned = null;
    hide(element);
  });
  if (!drawn) return;
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  });
}

/** Put the card on the page. */
export function mountInspector() {
  document.body.append(card);
  addEventListener("keydown", (event) => event.key === "Escape" && closeInspector());
  addEventListener("click", closeInspector);
  addEventListener("scroll", () => shown && beside(), { passive: true, capture: true });
}
