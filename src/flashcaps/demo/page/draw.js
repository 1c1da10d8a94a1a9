/** Draw: class capsules grow and shrink while a digit is being drawn. */

import { fromBase64 } from "./codec.js";
import { barChart, heatGrid } from "./charts.js";
import { h, icon, number, spoken } from "./dom.js";
import { wordsFor } from "./explain.js";
import { inspectable } from "./inspect.js";
import { picture } from "./pixels.js";

const ARROW = "M4 12h15m-5-5 5 5-5 5";

/** What stands behind the bar of class k. */
export function classFacts(answer, k) {
  if (!answer?.route) return null;
  const { route, model } = answer;
  const words = wordsFor(model.algorithm);
  const rows = [[measureOf(answer), number(route.activation[k], 4)]];
  if (route.scores[k] !== route.activation[k]) rows.push(["score", number(route.scores[k], 4)]);
  if (route.lengths[k] !== route.activation[k]) rows.push(["length of its pose", number(route.lengths[k], 4)]);
  rows.push(["agreement", number(route.routing.steps.at(-1).agreement[k], 4)]);
  return { title: `Class capsule ${model.classes[k]}`, rows, formula: words.present };
}

/** The server's name of what the bars show, or the paper's. */
export function measureOf({ route, model }) {
  return route?.routing.measure ?? wordsFor(model.algorithm).measure;
}

/** How sure the network is, in words. */
function verdict({ route, model }) {
  const names = route.predicted.map((k) => model.classes[k]);
  const top = route.activation[route.predicted[0]];
  const rest = route.activation.filter((_, k) => !route.predicted.includes(k));
  const lead = top - Math.max(...rest);
  const sure = lead > 0.5 ? "It is sure." : lead > 0.2 ? "It is fairly sure." : "It hesitates.";
  return `${names.length > 1 ? "The capsules for" : "The capsule for"} ${spoken(names)} ${names.length > 1 ? "stand" : "stands"} out. ${sure}`;
}

/** @param {any} app */
export function createView(app) {
  let answer = null;
  const seen = picture("What the network sees");
  const drawn = picture("What the winning capsule draws back");
  const parts = heatGrid("How much each place of the picture has to say");
  const partsFigure = h(
    "figure",
    { class: "picture" },
    h("div", { class: "paper heat-paper" }, parts.element),
    h("figcaption", {}, "Small capsules, by place"),
  );
  const digit = h("output", { class: "big-digit", "aria-live": "polite", "data-testid": "winner" });
  const most = h("figcaption", {}, "The longest class capsule");
  const says = h("p", { class: "verdict" });
  const time = h("p", { class: "faint" });
  const bars = barChart({ label: "Class capsules", facts: (k) => classFacts(answer, k) });
  const heading = h("h2", {}, "Class capsules");
  const element = h(
    "div",
    { class: "view draw-view" },
    h(
      "section",
      { class: "card flow", "aria-label": "From the picture to the class capsules and back" },
      seen.element,
      icon(ARROW, { class: "icon arrow" }),
      partsFigure,
      icon(ARROW, { class: "icon arrow" }),
      h("figure", { class: "picture" }, h("div", { class: "paper answer" }, digit), most),
      icon(ARROW, { class: "icon arrow" }),
      drawn.element,
    ),
    h(
      "section",
      { class: "card", "aria-label": "Class capsules" },
      h("div", { class: "card-head" }, heading, says),
      bars.element,
      time,
    ),
  );

  for (const [target, facts] of [
    [
      seen.element,
      () => ({
        title: "Input",
        rows: [["size", answer.route.shape.join(" × ")]],
        note: "Scaled so that its longer side is 20 pixels, and moved so that its centre of mass is in the middle, as MNIST was.",
      }),
    ],
    [
      partsFigure,
      () => ({
        title: "Primary capsules",
        rows: [
          ["types", number(answer.model.grid[0], 0)],
          ["places", answer.route.routing.grid.join(" × ")],
        ],
        formula: answer.model.algorithm === "dynamic" ? "u_i = squash(convolution of the picture)" : undefined,
        note: "Each place holds several small capsules. Darker: more of them found what they look for.",
      }),
    ],
    [
      drawn.element,
      () =>
        answer.route.reconstructions.length
          ? {
              title: "Reconstruction",
              rows: [["from", `${answer.model.pose_dim} numbers`]],
              formula: "x̂ = decoder(v_j)",
              note: "Drawn from the pose of the winning capsule alone; all others are set to zero.",
            }
          : null,
    ],
  ]) {
    target.setAttribute("tabindex", "0");
    inspectable(target, () => (answer?.route ? facts() : null));
  }

  function empty() {
    seen.show(null, 28, 28);
    drawn.show(null, 28, 28);
    parts.update([], 1, 1);
    digit.textContent = "";
    time.textContent = "";
    says.textContent = "Draw a digit, pick one, or drop a picture on the pad.";
    const names = app.model()?.classes ?? [];
    bars.update({ names, values: names.map(() => 0), winners: [], measure: "length" });
  }

  return {
    element,
    update(state, answers) {
      answer = answers.one;
      if (!answer?.route) return empty();
      const { route, model } = answer;
      const [height, width] = route.shape;
      seen.show(answer.pixels, height, width);
      const made = route.reconstructions[0];
      drawn.show(
        made ? fromBase64(made.image) : null,
        height,
        width,
        made ? "What the winning capsule draws back" : "This model has no decoder",
      );
      const { presence, steps, grid } = route.routing;
      parts.update(presence ?? steps[0].coupling.map((row) => row.reduce((a, b) => a + Math.abs(b), 0)), ...grid);
      digit.textContent = route.predicted.map((k) => model.classes[k]).join(" ");
      digit.classList.toggle("long", digit.textContent.length > 2);
      heading.textContent = `Class capsules: ${measureOf(answer)}`;
      most.textContent = measureOf(answer) === "length" ? "The longest class capsule" : "The strongest class capsule";
      says.textContent = verdict(answer);
      bars.update({
        names: model.classes,
        values: route.activation,
        winners: route.predicted,
        measure: measureOf(answer),
      });
      time.textContent = `${model.title} · ${number(model.parameters, 0)} parameters · answered in ${number(route.ms, 0)} ms`;
    },
  };
}
