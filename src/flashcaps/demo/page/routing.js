/** Watch routing: who sends what to whom, iteration by iteration, down to one multiplication. */

import { agreementSays, blankPaper, closest, lead, story } from "./captions.js";
import { barChart } from "./charts.js";
import { h, number } from "./dom.js";
import { wordsFor } from "./explain.js";
import { createFacts } from "./facts.js";
import { typeset } from "./formula.js";
import { evenSplit, largestGain } from "./measures.js";
import { recognised } from "./pairs.js";
import { createPlane } from "./plane.js";
import { createRounds } from "./rounds.js";
import { usesTwo } from "./state.js";
import { createTree } from "./tree.js";
import { prose } from "./words.js";
import { createZoom } from "./zoom.js";

/** @param {any} app */
export function createView(app) {
  let answer = null;
  let winners = [];
  let step = 0;
  let written = "";
  const { store } = app;
  const facts = createFacts(() => ({ answer, step }));
  const choose = (k) => store.set({ parent: store.get().parent === k ? null : k });
  /** One small capsule at a place: the one that sends most to the class asked for, or to the one it sends most. */
  function open(cell, k) {
    const { flow, speaker } = answer.route.routing.steps[step];
    const sent = flow[cell].map(Math.abs);
    const even = Math.max(...sent) - Math.min(...sent) < 1e-6;
    const to = k ?? store.get().parent ?? (even ? winners[0] : sent.indexOf(Math.max(...sent)));
    store.set({ zoom: [cell, speaker[cell][to], to] });
  }
  const rounds = createRounds(app);
  const tree = createTree({ facts, choose, open });
  const plane = createPlane({ choose, open });
  const zoom = createZoom(app);
  const agreed = barChart({
    label: "Agreement with each class",
    compact: true,
    facts: (k) => facts.agreement(k, step),
  });
  const first = h("p", { class: "lead" });
  const says = h("div", { class: "story", "aria-live": "polite" });
  const legend = h("p", { class: "faint", "data-testid": "legend" });
  const sums = h("p", { class: "faint", "data-testid": "sums" });
  const look = h("p", { "data-testid": "plane-says" });
  const near = h("p", { class: "faint", "data-testid": "agreement-says" });
  const where = h("p", { class: "faint where" });
  const formula = h("div", { class: "formulas" });
  const blank = h("p", { class: "blank", hidden: true }, "Draw a digit, or pick one, to watch it being routed.");
  const overview = h(
    "section",
    { class: "card tree-card", "aria-label": "Routing" },
    h("h2", {}, "Who sends what to whom"),
    h(
      "p",
      { class: "faint" },
      ...prose(
        "Each dot is a place with several [small capsule|small capsules], each ring a [class capsule]. Click a dot or a line to see its numbers; click a ring to follow one class.",
      ),
    ),
    tree.element,
    legend,
    says,
  );
  const agreementCard = h(
    "section",
    { class: "card plane-card", "aria-label": "Agreement" },
    h("h2", {}, "Agreement you can see"),
    h(
      "p",
      { class: "faint" },
      ...prose(
        "Each small arrow is what one place [vote|votes] for a class, times its [coupling]. End to end they add up to the thick arrow: the class capsule’s [pose] before it is normalised. Each class points its own way, all on one scale: thick arrows have their true length, small ones are seen from the side where they differ most.",
      ),
    ),
    plane.element,
    look,
  );
  const numbers = h(
    "section",
    { class: "card charts", "aria-label": "Agreement and update" },
    h("div", { class: "chart" }, h("h3", {}, "Agreement with each class, largest = 1"), agreed.element, near),
    h("div", { class: "chart" }, h("h3", {}, "The update, iteration by iteration"), formula, where, sums),
  );
  const all = h(
    "div",
    { class: "view" },
    h("section", { class: "card lead-card", "aria-label": "What to look at" }, first, rounds.element),
    overview,
    zoom.element,
    agreementCard,
    numbers,
  );
  const element = h("div", { class: "view routing-view" }, blank, all);
  new ResizeObserver(() => tree.layoutIsStale() && answer?.route && show(store.get())).observe(tree.element);

  function show(state) {
    const { route, model } = answer;
    const { routing } = route;
    const [height, width] = route.shape;
    const names = model.classes;
    step = rounds.update(answer, state);
    const parent = state.parent !== null && state.parent < names.length ? state.parent : null;
    tree.update({ names, routing, step, winners, parent, pixels: answer.pixels, height, width });
    overview.classList.toggle("signed", routing.signed);
    const chains = routing.plane.chains[step];
    const straight = names.map((_, k) => k).sort((a, b) => chains[b].share - chains[a].share);
    const focus = [...new Set([parent ?? winners[0], ...winners, ...straight.slice(0, 2)])]; // the caption speaks of them
    plane.update({ names, routing, step, focus, parent });
    look.textContent = agreementSays(answer, step);
    near.textContent = closest(answer, step);
    where.replaceChildren(typeset(`${wordsFor(model.algorithm).where}.`));
    const { agreement } = routing.steps[step];
    const most = Math.max(...agreement.map(Math.abs), 1e-12);
    agreed.update({ names, values: agreement.map((a) => a / most), winners, measure: "agreement" });
    first.textContent = lead(answer);
    const lines = [...story(answer, step), blankPaper(answer, step)].filter(Boolean);
    if (written !== (written = lines.join())) says.replaceChildren(...lines.map((line) => h("p", {}, ...prose(line))));
    const top = number(largestGain(routing), 2);
    legend.textContent = routing.signed
      ? `Line width: what a place sends, solid for a class, dashed against it. The thickest: ${top}.`
      : `Line width: what a place sends above an even split, in small capsules. One scale for all classes and iterations: the thickest line would be ${top} above the ${number(evenSplit(routing), 2)} of an even split. A hairline gains nothing.`;
    const [low, high] = routing.steps[step].coupling_sum ?? [];
    sums.textContent = routing.signed
      ? `Signed and no distribution: the coefficients of a small capsule sum to ${number(low)} to ${number(high)}.`
      : `The couplings of each small capsule sum to ${number(low)}${number(low) === number(high) ? "" : ` to ${number(high)}`}.`;
    formula.replaceChildren(...routing.formula.split("\n").map(typeset));
    zoom.update(answer, state, step);
    overview.hidden = !zoom.element.hidden;
  }

  return {
    element,
    leave: rounds.pause,
    update(state, answers) {
      const newer = usesTwo(state) ? answers.two : answers.one;
      if (newer !== answer) {
        answer = newer;
        winners = answer?.route ? recognised(answer) : [];
      }
      const ready = Boolean(answer?.route);
      blank.hidden = ready;
      all.hidden = !ready;
      blank.textContent = answer?.failed
        ? "No answer to this drawing."
        : "Draw a digit, or pick one, to watch it being routed.";
      if (ready) show(state);
      else rounds.pause();
    },
  };
}
