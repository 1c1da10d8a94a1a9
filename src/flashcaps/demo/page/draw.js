/** Draw: the picture, what the network makes of it after each iteration, and what it draws back. */

import { lead, measureOf, verdict } from "./captions.js";
import { barChart, heatGrid } from "./charts.js";
import { fromBase64 } from "./codec.js";
import { h, icon, number } from "./dom.js";
import { wordsFor } from "./explain.js";
import { inspectable } from "./inspect.js";
import { leaders, standing, strongest } from "./measures.js";
import { picture } from "./pixels.js";
import { createRounds } from "./rounds.js";

const ARROW = "M4 12h15m-5-5 5 5-5 5";

/** What stands behind the bar of class k, after the last iteration or another. */
export function classFacts(answer, k, step = -1) {
  if (!answer?.route) return null;
  const { route, model } = answer;
  const { activation, agreement } = route.routing.steps.at(step);
  const rows = [[measureOf(answer), number(activation[k], 4)]];
  if (step === -1 && route.scores[k] !== route.activation[k]) rows.push(["score", number(route.scores[k], 4)]);
  if (step === -1 && route.lengths[k] !== route.activation[k])
    rows.push(["length of its pose", number(route.lengths[k], 4)]);
  rows.push(["agreement", number(agreement[k], 4)]);
  return { title: `Class capsule ${model.classes[k]}`, rows, formula: wordsFor(model.algorithm).present };
}

/** @param {any} app */
export function createView(app) {
  let answer = null;
  let step = -1;
  let shown = 0; // the class whose votes are shown
  const rounds = createRounds(app);
  const seen = picture("What the network sees");
  const drawn = picture("What the winning capsule draws back");
  const parts = heatGrid("How much each place of the picture has to say");
  const sent = heatGrid("Where the votes for the strongest class come from");
  const captions = Array.from({ length: 5 }, () => h("figcaption"));
  const grid = (heat, caption) =>
    h("figure", { class: "picture" }, h("div", { class: "paper heat-paper" }, heat.element), caption);
  const [partsFigure, votesFigure] = [grid(parts, captions[1]), grid(sent, captions[2])];
  /** What a step of the way counts, and what it is. */
  const tell = (n, count, what) => captions[n].replaceChildren(h("b", {}, count), ` ${what}`);
  seen.element.lastChild.replaceWith(captions[0]);
  drawn.element.lastChild.replaceWith(captions[4]);
  const digit = h("output", { class: "big-digit", "aria-live": "polite", "data-testid": "winner" });
  const first = h("p", { class: "lead", "data-testid": "lead" });
  const says = h("p", { class: "verdict", "data-testid": "verdict" });
  const time = h("p", { class: "faint" });
  const bars = barChart({ label: "Class capsules", facts: (k) => classFacts(answer, k, step) });
  const heading = h("h2", {}, "Class capsules");
  const go = (text, patch) =>
    h(
      "button",
      { type: "button", class: "tool", onclick: () => answer?.route && app.store.set({ view: "routing", ...patch() }) },
      text,
    );
  const element = h(
    "div",
    { class: "view draw-view" },
    h("section", { class: "card lead-card", "aria-label": "What to look at" }, first, rounds.element),
    h(
      "section",
      { class: "card flow", "aria-label": "From the picture to the class capsules and back" },
      seen.element,
      icon(ARROW, { class: "icon arrow" }),
      partsFigure,
      icon(ARROW, { class: "icon arrow" }),
      votesFigure,
      icon(ARROW, { class: "icon arrow" }),
      h("figure", { class: "picture" }, h("div", { class: "paper answer" }, digit), captions[3]),
      icon(ARROW, { class: "icon arrow" }),
      drawn.element,
      h(
        "div",
        { class: "tools" },
        go("Follow one vote", () => ({ zoom: strongest(answer, shown, step) })),
        go("See all votes", () => ({ zoom: null })),
      ),
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
        title: "Small capsules",
        rows: [
          ["at each place", number(answer.model.grid[0], 0)],
          ["places", answer.route.routing.grid.join(" × ")],
          ["pixels that one sees", `${answer.route.routing.field.size} × ${answer.route.routing.field.size}`],
        ],
        note: answer.route.routing.presence
          ? "The bluer, the more active its small capsules are, over ink or over blank paper."
          : "All squares are alike: small capsules of this network do not say how active they are.",
      }),
    ],
    [
      votesFigure,
      () => ({
        title: `Votes for ${answer.model.classes[shown]}, by place`,
        note: answer.route.routing.signed
          ? "Blue: coefficients that speak for it, orange: against it."
          : "The bluer, the more of their votes the small capsules at this place give to this class. Each makes one vote for every class.",
      }),
    ],
    [
      drawn.element,
      () =>
        answer.route.reconstructions.length
          ? {
              title: "Drawn back",
              rows: [
                ["from", `${answer.model.pose_dim} numbers`],
                ["likeness to the picture", number(standing(answer).likeness, 3)],
              ],
              formula: "x̂ = decoder(v_j)",
              note: "Drawn from the pose of the winning capsule alone; all others are set to zero.",
            }
          : null,
    ],
  ]) {
    target.setAttribute("tabindex", "0");
    inspectable(target, () => (answer?.route ? facts() : null));
  }

  function empty(text) {
    seen.show(null, 28, 28);
    drawn.show(null, 28, 28);
    parts.update([], 1, 1);
    sent.update([], 1, 1);
    for (const caption of captions) caption.replaceChildren();
    digit.textContent = "";
    time.textContent = "";
    says.textContent = "";
    first.textContent = text;
    rounds.element.hidden = true;
    rounds.pause();
    const names = app.model()?.classes ?? [];
    bars.update({ names, values: names.map(() => 0), winners: [], measure: "length" });
  }

  function answerAt(state) {
    const { route, model } = answer;
    const at = rounds.update(answer, state);
    const final = at === route.routing.steps.length - 1;
    const leader = leaders(answer)[at];
    step = final ? -1 : at;
    const known = !final || standing(answer).digit !== "no";
    digit.textContent = known ? (final ? route.predicted : [leader]).map((k) => model.classes[k]).join(" ") : "?";
    digit.classList.toggle("long", digit.textContent.length > 2);
    shown = final ? route.predicted[0] : leader;
    const { flow, activation } = route.routing.steps[at];
    const [name, votes] = [model.classes[shown], flow.length * model.grid[0] * model.classes.length];
    sent.update(
      flow.map((row) => row[shown]),
      ...route.routing.grid,
    );
    const when = route.routing.steps.length > 1 ? ` in iteration ${at + 1}` : "";
    tell(
      2,
      `${number(votes, 0)} votes`,
      `each of ${model.pose_dim} numbers. The bluer a place, the more it sends to ${name}${when}`,
    );
    const value = `${measureOf(answer)} ${number(activation[shown], 2)}`;
    const stands = known ? `${name} is strongest: ${value}` : "no class stands out";
    tell(3, `${number(model.classes.length, 0)} class capsules`, stands);
    heading.textContent = `Class capsules: ${measureOf(answer)}${final ? "" : ` after iteration ${at + 1}`}`;
    bars.update({
      names: model.classes,
      values: final ? route.activation : route.routing.steps[at].activation,
      winners: !known ? [] : final ? route.predicted : [leader],
      measure: measureOf(answer),
    });
  }

  return {
    element,
    leave: rounds.pause,
    update(state, answers) {
      answer = answers.one;
      if (!answer?.route)
        return empty(
          answer?.failed ? "No answer to this drawing." : "Draw a digit, pick one, or drop a picture on the pad.",
        );
      const { route, model } = answer;
      const [height, width] = route.shape;
      seen.show(answer.pixels, height, width);
      const made = route.reconstructions[0];
      drawn.show(made ? fromBase64(made.image) : null, height, width);
      const label = made ? `What capsule ${model.classes[made.class]} draws back` : "This model has no decoder";
      drawn.canvas.setAttribute("aria-label", label);
      const [types, ...size] = model.grid;
      const places = size[0] * size[1];
      tell(0, `${number(height * width, 0)} pixels`, "what the network sees");
      tell(
        1,
        `${number(types * places, 0)} small capsules`,
        `${types} at each of ${places} places, each with ${route.routing.numbers} numbers`,
      );
      if (made) tell(4, `${model.pose_dim} numbers`, `are all that capsule ${model.classes[made.class]} draws this from`);
      else tell(4, "No drawing", "this model has no decoder");
      const { presence, steps, grid } = route.routing;
      parts.update(presence ?? steps[0].coupling.map((row) => row.reduce((a, b) => a + Math.abs(b), 0)), ...grid);
      first.textContent = lead(answer);
      says.textContent = verdict(answer);
      answerAt(state);
      time.textContent = `${model.title} · ${number(model.parameters, 0)} parameters · answered in ${number(route.ms, 0)} ms`;
    },
  };
}
