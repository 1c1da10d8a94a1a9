/** Watch routing: play, pause and step through the iterations. */

import { barChart, curveChart } from "./charts.js";
import { h, icon, number } from "./dom.js";
import { flows } from "./flow.js";
import { typeset } from "./formula.js";
import { recognised } from "./pairs.js";
import { createFacts, story } from "./routing_facts.js";
import { usesTwo } from "./state.js";
import { createTree } from "./tree.js";

const PLAY = "M7 5l12 7-12 7Z";
const PAUSE = "M8 5v14M16 5v14";
const BACK = "M15 6l-6 6 6 6";
const ON = "M9 6l6 6-6 6";
const PACE = 1500; // ms an iteration is shown for

/** @param {any} app */
export function createView(app) {
  let answer = null;
  let flow = [];
  let winners = [];
  let step = 0;
  let curves = [];
  let timer = 0;
  const { store } = app;
  const facts = createFacts(() => ({ answer, flow, step, curves }));
  const tree = createTree({ facts, choose: (k) => store.set({ parent: store.get().parent === k ? null : k }) });
  const entropy = curveChart({ label: "Entropy of the couplings", facts: facts.entropy });
  const agreement = curveChart({ label: "Agreement with each class", facts: facts.agreement });
  const agreed = barChart({ label: "Agreement with each class", compact: true, facts: (k) => facts.agreement(k, 0) });
  const single = h("div", { class: "chart" }, h("h3", {}, "Agreement with each class, largest = 1"), agreed.element);
  const says = h("p", { class: "story", "aria-live": "polite" });
  const sums = h("p", { class: "faint", "data-testid": "sums" });
  const formula = h("div", { class: "formulas" });

  const last = () => answer.route.routing.steps.length - 1;
  const go = (to) => answer?.route && store.set({ step: Math.max(0, Math.min(last(), to)) });
  const button = (label, path, onclick) =>
    h("button", { type: "button", class: "round", "aria-label": label, onclick }, icon(path));
  const play = button("Play", PLAY, () => (timer ? pause() : start()));
  const slider = h("input", {
    type: "range",
    min: 1,
    max: 3,
    value: 1,
    "aria-label": "Iteration",
    oninput: () => {
      pause();
      go(Number(slider.value) - 1);
    },
  });
  const count = h("output", { class: "count" });
  const transport = h(
    "div",
    { class: "transport", role: "group", "aria-label": "Iterations" },
    button("Previous iteration", BACK, () => {
      pause();
      go(step - 1);
    }),
    play,
    button("Next iteration", ON, () => {
      pause();
      go(step + 1);
    }),
    slider,
    count,
  );

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.setAttribute("aria-label", "Play");
    play.replaceChildren(icon(PLAY));
  }
  function start() {
    if (!answer?.route) return;
    go(step >= last() ? 0 : step + 1);
    timer = setInterval(() => (step >= last() ? pause() : go(step + 1)), PACE);
    play.setAttribute("aria-label", "Pause");
    play.replaceChildren(icon(PAUSE));
  }

  const stage = h(
    "section",
    { class: "card", "aria-label": "Routing" },
    h("div", { class: "card-head" }, h("h2", {}, "Who sends what to whom"), transport),
    h(
      "p",
      { class: "faint" },
      "Point at anything for its numbers. Choose a class to see the single capsules that speak for it most.",
    ),
    tree.element,
    says,
  );
  const blank = h("p", { class: "blank", hidden: true }, "Draw a digit, or pick one, to watch it being routed.");
  const element = h(
    "div",
    { class: "view routing-view" },
    blank,
    stage,
    h(
      "section",
      { class: "card charts", "aria-label": "Curves" },
      entropy.element,
      agreement.element,
      single,
      h("div", { class: "chart" }, h("h3", {}, "The update"), formula, sums),
    ),
  );
  new ResizeObserver(() => tree.layoutIsStale() && answer?.route && show(store.get())).observe(tree.element);

  function show(state) {
    const { route, model } = answer;
    const { routing } = route;
    const [height, width] = route.shape;
    const names = model.classes;
    step = state.step < 0 ? last() : Math.min(state.step, last());
    const parent = state.parent !== null && state.parent < names.length ? state.parent : null;
    tree.update({
      names,
      routing,
      types: model.grid[0],
      step,
      flow: flow[step],
      winners,
      activation: routing.steps[step].activation,
      parent,
      pixels: answer.pixels,
      height,
      width,
    });
    curves = names.map((name, k) => ({
      name,
      values: routing.steps.map((s) => s.agreement[k]),
      role: k === winners[0] ? "winner" : k === parent || k === winners[1] ? "second" : "other",
    }));
    for (const chart of [entropy, agreement]) chart.element.hidden = routing.signed;
    single.hidden = !routing.signed;
    const most = Math.max(...routing.steps[0].agreement.map(Math.abs), 1e-12);
    agreed.update({
      names,
      values: routing.steps[0].agreement.map((a) => a / most),
      winners,
      measure: "agreement",
    });
    entropy.update({
      series: [{ name: "Entropy", values: routing.steps.map((s) => s.entropy), role: "winner" }],
      step,
    });
    agreement.update({ series: curves, step });
    says.textContent = story(answer, flow, step);
    transport.hidden = routing.signed;
    slider.max = String(last() + 1);
    slider.value = String(step + 1);
    count.textContent = `Iteration ${step + 1} of ${last() + 1}`;
    const [low, high] = routing.steps[step].coupling_sum ?? [];
    sums.textContent = routing.signed
      ? `Signed and no distribution: the coefficients of a small capsule sum to ${number(low)} to ${number(high)}.`
      : `The couplings of each small capsule sum to ${number(low)}${number(low) === number(high) ? "" : ` to ${number(high)}`}.`;
    formula.replaceChildren(...routing.formula.split("\n").map(typeset));
  }

  return {
    element,
    leave: pause,
    update(state, answers) {
      const newer = usesTwo(state) ? answers.two : answers.one;
      if (newer !== answer) {
        answer = newer;
        flow = answer?.route ? flows(answer) : [];
        winners = answer?.route ? recognised(answer) : [];
      }
      const ready = Boolean(answer?.route);
      blank.hidden = ready;
      for (const part of [stage, stage.nextElementSibling]) part.hidden = !ready;
      if (ready) show(state);
      else pause();
    },
  };
}
