/** Watch routing: play, pause and step through the iterations. */

import { barChart, curveChart } from "./charts.js";
import { place } from "./codec.js";
import { h, icon, number, percent } from "./dom.js";
import { measureOf } from "./draw.js";
import { wordsFor } from "./explain.js";
import { flows, placeName, shareOf } from "./flow.js";
import { typeset } from "./formula.js";
import { createTree } from "./tree.js";

const PLAY = "M7 5l12 7-12 7Z";
const PAUSE = "M8 5v14M16 5v14";
const BACK = "M15 6l-6 6 6 6";
const ON = "M9 6l6 6-6 6";
const PACE = 1500; // ms an iteration is shown for

/** What one iteration did, in words and real numbers. */
function story({ route, model }, flow, step) {
  const { routing } = route;
  const k = route.predicted[0];
  const name = model.classes[k];
  const share = (t) => percent(shareOf(flow[t], k));
  if (routing.signed) {
    return `These coefficients were learned and are the same for every picture. They are signed: blue lines speak for a class, dashed orange ones against it. Capsule ${name} collects ${share(0)} of their weight on this picture.`;
  }
  if (step === 0) {
    return `Nobody knows yet. Every small capsule splits its vote evenly over the ${model.classes.length} classes; capsule ${name} gets ${share(0)}.`;
  }
  const [before, now] = [routing.steps[step - 1].entropy, routing.steps[step].entropy];
  const fewer = shareOf(flow[step], k) < shareOf(flow[0], k) ? ` It is a small share and still wins: ${wordsFor(model.algorithm).counts}.` : "";
  return `Votes that agree attract more. Capsule ${name} now gets ${share(step)} instead of ${share(step - 1)}, and the entropy of the couplings went from ${number(before)} to ${number(now)}.${fewer}`;
}

/** The facts of everything that can be pointed at, for the answer and step now shown. */
function createFacts(now) {
  const symbol = () => wordsFor(now().answer.model.algorithm).symbol;
  const kind = () => (now().answer.route.routing.signed ? "mean coefficient" : "mean coupling");
  return {
    cell(cell) {
      const { answer, flow, step } = now();
      const { routing } = answer.route;
      const row = flow[step].coupling[cell];
      const best = row.map((c, k) => [c, k]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 3);
      return {
        title: `Place in ${placeName(routing, cell)}`,
        rows: [
          ["small capsules here", number(answer.model.grid[0], 0)],
          ...(routing.presence ? [["how much is there", number(routing.presence[cell], 2)]] : []),
          ...best.map(([c, k]) => [`${kind()} to ${answer.model.classes[k]}`, number(c, 4)]),
          ["sum over classes", number(row.reduce((a, b) => a + b, 0), 4)],
        ],
        formula: routing.formula,
      };
    },
    line(cell, k) {
      const { answer, flow, step } = now();
      const { routing } = answer.route;
      const c = flow[step].coupling[cell][k];
      const rows = [[`${kind()} ${symbol().replace("_", " ")}`, number(c, 4)], ["times how much is there", number(flow[step].weight[cell][k], 3)]];
      if (step) rows.push(["change in this iteration", number(c - flow[step - 1].coupling[cell][k], 4)]);
      return { title: `${placeName(routing, cell)} → ${answer.model.classes[k]}`, rows, formula: routing.formula };
    },
    twig({ cell, type, weight }, k) {
      const { answer } = now();
      const { routing } = answer.route;
      return { title: `Small capsule of type ${type + 1}, ${placeName(routing, cell)}`,
        rows: [[`${routing.signed ? "coefficient" : "coupling"} to ${answer.model.classes[k]}`, number(weight, 4)]], formula: routing.formula };
    },
    parent(k) {
      const { answer, flow, step } = now();
      const { routing } = answer.route;
      const { activation, agreement } = routing.steps[step];
      const strongest = routing.top?.[step]?.[k]?.[0];
      return {
        title: `Class capsule ${answer.model.classes[k]}, iteration ${step + 1}`,
        rows: [
          [measureOf(answer), number(activation[k], 4)], ["agreement", number(agreement[k], 4)],
          ["share of all sent", percent(shareOf(flow[step], k))],
          ...(strongest ? [[`strongest: type ${strongest.type + 1}, ${placeName(routing, strongest.cell)}`, number(strongest.weight, 3)]] : []),
        ],
        formula: wordsFor(answer.model.algorithm).present,
      };
    },
    entropy: (_, t) => ({ title: `Entropy, iteration ${t + 1}`, rows: [["entropy", number(now().answer.route.routing.steps[t].entropy, 4)], ["if split evenly", number(Math.log(now().answer.model.classes.length), 4)]],
      formula: `H = −Σ_j ${symbol()} log ${symbol()}, mean over i`, note: "The lower, the more each small capsule has made up its mind." }),
    agreement: (s, t) => ({ title: `Agreement, iteration ${t + 1}`, rows: [["agreement", number(now().curves[s].values[t], 4)]],
      formula: now().answer.route.routing.agreement_formula ?? wordsFor(now().answer.model.algorithm).agreement }),
  };
}

/** @param {any} app */
export function createView(app) {
  let answer = null;
  let flow = [];
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
  const button = (label, path, onclick) => h("button", { type: "button", class: "round", "aria-label": label, onclick }, icon(path));
  const play = button("Play", PLAY, () => (timer ? pause() : start()));
  const slider = h("input", { type: "range", min: 1, max: 3, value: 1, "aria-label": "Iteration", oninput: () => { pause(); go(Number(slider.value) - 1); } });
  const count = h("output", { class: "count" });
  const transport = h("div", { class: "transport", role: "group", "aria-label": "Iterations" },
    button("Previous iteration", BACK, () => { pause(); go(step - 1); }), play,
    button("Next iteration", ON, () => { pause(); go(step + 1); }), slider, count);

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

  const stage = h("section", { class: "card", "aria-label": "Routing" },
    h("div", { class: "card-head" }, h("h2", {}, "Who sends what to whom"), transport), tree.element, says);
  const blank = h("p", { class: "blank", hidden: true }, "Draw a digit, or pick one, to watch it being routed.");
  const element = h("div", { class: "view routing-view" }, blank, stage,
    h("section", { class: "card charts", "aria-label": "Curves" }, entropy.element, agreement.element, single,
      h("div", { class: "chart" }, h("h3", {}, "The update"), formula, sums)));
  stage.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLButtonElement) return;
    if (event.key === " ") {
      event.preventDefault();
      play.click();
    }
  });
  new ResizeObserver(() => tree.layoutIsStale() && answer?.route && show(store.get())).observe(tree.element);

  function show(state) {
    const { route, model } = answer;
    const { routing } = route;
    const [height, width] = route.shape;
    const names = model.classes;
    step = state.step < 0 ? last() : Math.min(state.step, last());
    const parent = state.parent !== null && state.parent < names.length ? state.parent : null;
    tree.update({ names, routing, types: model.grid[0], step, flow: flow[step], winners: route.predicted, activation: routing.steps[step].activation, parent,
      pixels: place(answer.digit, height, width), height, width });
    curves = names.map((name, k) => ({ name, values: routing.steps.map((s) => s.agreement[k]),
      role: k === route.predicted[0] ? "winner" : k === parent || k === route.predicted[1] ? "second" : "other" }));
    for (const chart of [entropy, agreement]) chart.element.hidden = routing.signed;
    single.hidden = !routing.signed;
    const most = Math.max(...routing.steps[0].agreement.map(Math.abs), 1e-12);
    agreed.update({ names, values: routing.steps[0].agreement.map((a) => a / most), winners: route.predicted, measure: "agreement" });
    entropy.update({ series: [{ name: "Entropy", values: routing.steps.map((s) => s.entropy), role: "winner" }], step });
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
      if (answers.one !== answer) {
        answer = answers.one;
        flow = answer?.route ? flows(answer) : [];
      }
      const ready = Boolean(answer?.route);
      blank.hidden = ready;
      for (const part of [stage, stage.nextElementSibling]) part.hidden = !ready;
      if (ready) show(state);
      else pause();
    },
  };
}
