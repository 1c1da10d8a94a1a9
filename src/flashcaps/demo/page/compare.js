/** Compare: the same picture through several models, side by side. */

import { api, newest } from "./api.js";
import { barChart, heatGrid } from "./charts.js";
import { decided, lead, measureOf } from "./captions.js";
import { asPicture, fromBase64, place } from "./codec.js";
import { assign, h, number } from "./dom.js";
import { classFacts } from "./draw.js";
import { ALGORITHMS, wordsFor } from "./explain.js";
import { inspectable } from "./inspect.js";
import { front } from "./measures.js";
import { picture } from "./pixels.js";

/** One model of each algorithm: those of the papers in their order, then others. */
function oneOfEach(models) {
  const names = new Set([...ALGORITHMS, ...models.map((m) => m.algorithm)]);
  return [...names].map((name) => models.find((m) => m.algorithm === name)).filter(Boolean);
}

/** A model's answer at a glance. */
function createCard(model) {
  let answer = null;
  const digit = h("output", { class: "card-digit" });
  const bars = barChart({
    label: `Class capsules of ${model.title}`,
    facts: (k) => classFacts(answer, k),
    compact: true,
  });
  const drawn = picture("draws back", { label: `What ${model.title} draws back` });
  const heat = heatGrid("What the winner was sent, by place");
  const where = h(
    "figure",
    { class: "picture", tabindex: 0 },
    h("div", { class: "paper heat-paper" }, heat.element),
    h("figcaption", {}, "sent from here"),
  );
  const [first, says] = [h("p"), h("p")];
  const facts = h("p", { class: "faint" });
  const words = wordsFor(model.algorithm);
  const element = h(
    "section",
    { class: "card compare-card", "aria-label": model.title },
    h(
      "div",
      { class: "card-head" },
      h("div", {}, h("h3", {}, model.title), h("p", { class: "idea" }, words.idea)),
      digit,
    ),
    h("div", { class: "pair" }, drawn.element, where),
    bars.element,
    h("div", { class: "card-words" }, first, says, facts),
  );
  inspectable(
    where,
    () =>
      answer && {
        title: `Sent to ${model.classes[answer.route.predicted[0]]}, by place`,
        formula: answer.route.routing.formula,
        note: answer.route.routing.signed
          ? "Blue speaks for it, orange against it."
          : "Coupling times how much is there, after the last iteration.",
      },
  );

  return {
    element,
    show(route) {
      answer = { route, model };
      const k = route.predicted[0];
      const made = route.reconstructions[0];
      digit.textContent = route.predicted.map((j) => model.classes[j]).join(" ");
      drawn.show(made ? fromBase64(made.image) : null, ...route.shape, made ? "draws back" : "no decoder");
      heat.update(
        route.routing.steps.at(-1).flow.map((row) => row[k]),
        ...route.routing.grid,
      );
      bars.update({
        names: model.classes,
        values: route.activation,
        winners: route.predicted,
        measure: measureOf(answer),
      });
      first.textContent = lead(answer);
      const parts = [`${number(model.parameters, 0)} parameters`];
      if (model.result) parts.push(`${number(model.result.error, 2)} % error (${model.result.split})`);
      parts.push(`${number(route.ms, 0)} ms`);
      says.textContent = decided(answer);
      facts.textContent = parts.join(" · ");
    },
  };
}

/** @param {any} app */
export function createView(app) {
  const { store, catalog, engine, say } = app;
  let cards = new Map();
  let asked = "";
  const single = catalog.models.filter((m) => !m.pairs);
  const five = oneOfEach(single).map((m) => m.name);
  const grid = h("div", { class: "compare-grid" });
  const verdict = h("p", { class: "verdict", "aria-live": "polite", "data-testid": "verdict" });
  const blank = h("p", { class: "blank" }, "Draw a digit, or pick one, to see all of them at work on it.");

  const modes = ["One of each", "Any two"].map((text, n) =>
    h(
      "button",
      { type: "button", class: "chip", onclick: () => store.set({ compared: n ? [five[0], five[1] ?? five[0]] : [] }) },
      text,
    ),
  );
  const selects = ["First model", "Second model"].map((label, n) =>
    h(
      "select",
      {
        "aria-label": label,
        onchange: () => {
          const compared = [...names(store.get())];
          compared[n] = selects[n].value;
          store.set({ compared });
        },
      },
      single.map((m) => h("option", { value: m.name }, m.title)),
    ),
  );
  const two = h("div", { class: "selects" }, selects);
  const seen = picture("What all of them see");
  const head = h(
    "section",
    { class: "card compare-head", "aria-label": "What is compared" },
    h("h2", {}, "Same picture, different routing"),
    h("div", { class: "chips", role: "group", "aria-label": "What is compared" }, modes),
    two,
    seen.element,
    verdict,
  );
  const element = h("div", { class: "view compare-view" }, blank, grid);

  const names = (state) => {
    const known = state.compared.filter((name) => single.some((m) => m.name === name));
    return known.length ? known : five;
  };

  const ask = newest(
    async ({ wanted, digit }, signal) => {
      const sizes = new Map(); // the image has to be in the geometry of those that get it
      for (const name of new Set(wanted)) {
        const [, height, width] = engine.models.get(name).image;
        const key = `${height},${width}`;
        sizes.set(key, [...(sizes.get(key) ?? []), name]);
      }
      const groups = [...sizes].map(([key, group]) => {
        const [height, width] = key.split(",").map(Number);
        return api.compare(group, asPicture(place(digit, height, width), height, width), signal);
      });
      return (await Promise.all(groups)).flatMap((answer) => answer.results);
    },
    {
      failed: (error) => error.name !== "AbortError" && say(error),
      done: (results) => {
        say(null);
        for (const result of results) for (const card of cards.get(result.model) ?? []) card.show(result);
        grid.dataset.results = String(results.length);
        verdict.textContent = agreeing(results);
      },
    },
  );

  function agreeing(results) {
    const label = (r) => r.predicted.map((k) => engine.models.get(r.model).classes[k]).join(" and ");
    const said = new Map();
    for (const r of results) said.set(label(r), (said.get(label(r)) ?? 0) + 1);
    const early = results.filter(({ routing: { steps } }) => {
      const { k, clear } = front(steps[0]);
      return clear && k === front(steps.at(-1)).k;
    });
    const first = `${number(early.length, 0)} of ${number(results.length, 0)} had ${early.length === 1 ? "its" : "their"} answer after the first iteration.`;
    if (said.size === 1) return `All say ${label(results[0])}. ${first}`;
    return `They disagree: ${[...said].map(([name, n]) => `${n} ${n > 1 ? "say" : "says"} ${name}`).join(", ")}. ${first}`;
  }

  function lay(wanted) {
    const key = wanted.join();
    if (grid.dataset.models === key) return;
    grid.dataset.models = key;
    cards = new Map();
    grid.replaceChildren(
      head,
      ...wanted.map((name) => {
        const card = createCard(engine.models.get(name));
        cards.set(name, [...(cards.get(name) ?? []), card]);
        return card.element;
      }),
    );
    asked = "";
  }

  return {
    element,
    update(state, answers) {
      const wanted = names(state);
      const pair = state.compared.length > 0;
      modes.forEach((mode, n) => assign(mode, { "aria-pressed": String(pair === Boolean(n)) }));
      two.hidden = !pair;
      selects.forEach((select, n) => (select.value = wanted[n] ?? wanted[0]));
      const digit = answers.one?.digit;
      blank.hidden = Boolean(digit);
      grid.hidden = !digit;
      if (!digit) return;
      lay(wanted);
      seen.show(digit, engine.side, engine.side);
      const key = `${wanted.join()}|${digit.join()}`;
      if (key !== asked) ask({ wanted, digit });
      asked = key;
    },
  };
}
