/** Learn: a tour on the person's own drawing. */

import { h } from "./dom.js";
import { LESSONS } from "./lessons.js";

/** @param {any} app */
export function createView(app) {
  const { store, say } = app;
  const scenes = new Map();
  const title = h("h2");
  const text = h("div", { class: "lesson-text", "aria-live": "polite" });
  const where = h("p", { class: "faint" });
  const dots = LESSONS.map((lesson, n) =>
    h("button", { type: "button", "aria-label": `Step ${n + 1}: ${lesson.title}`, onclick: () => go(n) }),
  );
  const back = h("button", { type: "button", class: "tool", onclick: () => go(store.get().lesson - 1) }, "Back");
  const next = h("button", { type: "button", class: "tool primary", onclick: forward }, "Next");
  const stage = h("div", { class: "lesson-stage" });
  const blank = h(
    "p",
    { class: "blank", hidden: true },
    "Draw a digit, or pick one: the tour explains what happens to it.",
  );
  const card = h(
    "section",
    { class: "card lesson", "aria-label": "Guided tour" },
    h(
      "div",
      { class: "lesson-words" },
      where,
      title,
      text,
      h("div", { class: "lesson-steps", role: "group", "aria-label": "Steps" }, dots),
      h("div", { class: "tools" }, back, next),
    ),
    stage,
  );
  const element = h("div", { class: "view tour-view" }, blank, card);
  let shown = -1;

  function go(n) {
    store.set({ lesson: Math.max(0, Math.min(LESSONS.length - 1, n)) });
  }
  function forward() {
    const { lesson } = store.get();
    if (lesson === LESSONS.length - 1) store.set({ view: "routing", step: 0, lesson: 0 });
    else go(lesson + 1);
  }

  return {
    element,
    update(state, answers) {
      const answer = answers.one;
      const ready = Boolean(answer?.route);
      blank.hidden = ready;
      card.hidden = !ready;
      if (!ready) return;
      const n = Math.min(state.lesson, LESSONS.length - 1);
      const lesson = LESSONS[n];
      if (!scenes.has(n)) scenes.set(n, lesson.scene(say));
      const scene = scenes.get(n);
      if (shown !== n) stage.replaceChildren(scene.element);
      shown = n;
      where.textContent = `Step ${n + 1} of ${LESSONS.length}`;
      title.textContent = lesson.title;
      const lines = lesson.words(answer);
      if (text.textContent !== lines.join("")) text.replaceChildren(...lines.map((line) => h("p", {}, line)));
      dots.forEach((dot, i) => {
        dot.classList.toggle("done", i < n);
        if (i === n) dot.setAttribute("aria-current", "step");
        else dot.removeAttribute("aria-current");
      });
      back.disabled = n === 0;
      next.textContent = n === LESSONS.length - 1 ? "Watch it routed" : "Next";
      scene.update(answer);
    },
  };
}
