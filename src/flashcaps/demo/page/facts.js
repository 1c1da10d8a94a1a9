/** Words and numbers behind everything that can be pointed at in the routing view. */

import { measureOf } from "./captions.js";
import { number, percent } from "./dom.js";
import { wordsFor } from "./explain.js";
import { gains, placeName, shares } from "./measures.js";

/** @param {() => {answer: any, step: number}} now  what is shown */
export function createFacts(now) {
  const symbol = () => wordsFor(now().answer.model.algorithm).symbol;
  const kind = () => (now().answer.route.routing.signed ? "mean coefficient" : "mean coupling");
  const mean = (cell, step = now().step) => {
    const { route, model } = now().answer;
    return route.routing.steps[step].coupling[cell].map((c) => c / model.grid[0]);
  };
  return {
    cell(cell) {
      const { answer } = now();
      const { routing } = answer.route;
      const row = mean(cell);
      const best = row
        .map((c, k) => [c, k])
        .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]))
        .slice(0, 3);
      return {
        title: `Place in ${placeName(routing, cell)}`,
        rows: [
          ["small capsules here", number(answer.model.grid[0], 0)],
          ...(routing.presence ? [["how much is there", number(routing.presence[cell], 2)]] : []),
          ...best.map(([c, k]) => [`${kind()} to ${answer.model.classes[k]}`, number(c, 4)]),
          [
            "sum over classes",
            number(
              row.reduce((a, b) => a + b, 0),
              4,
            ),
          ],
        ],
        note: "Click it to follow its numbers to the answer.",
      };
    },
    line(cell, k) {
      const { answer, step } = now();
      const { routing } = answer.route;
      const c = mean(cell)[k];
      const rows = [
        [`${kind()} ${symbol().replace("_", " ")}`, number(c, 4)],
        [routing.signed ? "sent" : "sent above an even split", number(gains(routing, step)[cell][k], 3)],
      ];
      if (step) rows.push(["change in this iteration", number(c - mean(cell, step - 1)[k], 4)]);
      return { title: `${placeName(routing, cell)} → ${answer.model.classes[k]}`, rows, formula: routing.formula };
    },
    parent(k) {
      const { answer, step } = now();
      const { activation, agreement } = answer.route.routing.steps[step];
      return {
        title: `Class capsule ${answer.model.classes[k]}, iteration ${step + 1}`,
        rows: [
          [measureOf(answer), number(activation[k], 4)],
          ["agreement", number(agreement[k], 4)],
          ["share of all sent", percent(shares(answer.route.routing.steps[step])[k])],
        ],
        formula: wordsFor(answer.model.algorithm).present,
      };
    },
    agreement: (k, t) => ({
      title: `Agreement with ${now().answer.model.classes[k]}, iteration ${t + 1}`,
      rows: [["agreement", number(now().answer.route.routing.steps[t].agreement[k], 4)]],
      formula: now().answer.route.routing.agreement_formula,
    }),
  };
}
