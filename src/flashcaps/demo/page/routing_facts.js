/** Words and numbers of the routing view: what an iteration did, and what stands behind everything shown. */

import { number, percent, spoken } from "./dom.js";
import { measureOf } from "./draw.js";
import { wordsFor } from "./explain.js";
import { placeName, shareOf } from "./flow.js";
import { recognised } from "./pairs.js";

/** What one iteration did, in words and real numbers. */
export function story(answer, flow, step) {
  const { routing } = answer.route;
  const { model } = answer;
  const predicted = recognised(answer);
  const several = predicted.length > 1;
  const who = `${several ? "capsules" : "capsule"} ${spoken(predicted.map((k) => model.classes[k]))}`;
  const shares = (t) => spoken(predicted.map((k) => percent(shareOf(flow[t], k))));
  if (routing.signed) {
    return `These coefficients were learned and are the same for every picture. They are signed: blue lines speak for a class, dashed orange ones against it. On this picture ${who} ${several ? "collect" : "collects"} ${shares(0)} of their weight.`;
  }
  if (step === 0) {
    return `Nobody knows yet. Every small capsule splits its vote evenly over the ${model.classes.length} classes; ${who} ${several ? "get" : "gets"} ${shares(0)}.`;
  }
  const [before, now] = [routing.steps[step - 1].entropy, routing.steps[step].entropy];
  const fewer = shareOf(flow[step], predicted[0]) < shareOf(flow[0], predicted[0]);
  const why = fewer ? ` It is a small share and still wins: ${wordsFor(model.algorithm).counts}.` : "";
  return `Votes that agree attract more. Now ${who} ${several ? "get" : "gets"} ${shares(step)} instead of ${shares(step - 1)}, and the entropy of the couplings went from ${number(before)} to ${number(now)}.${why}`;
}

/** The facts of everything that can be pointed at, for the answer and step now shown. */
export function createFacts(now) {
  const symbol = () => wordsFor(now().answer.model.algorithm).symbol;
  const kind = () => (now().answer.route.routing.signed ? "mean coefficient" : "mean coupling");
  return {
    cell(cell) {
      const { answer, flow, step } = now();
      const { routing } = answer.route;
      const row = flow[step].coupling[cell];
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
        formula: routing.formula,
      };
    },
    line(cell, k) {
      const { answer, flow, step } = now();
      const { routing } = answer.route;
      const c = flow[step].coupling[cell][k];
      const rows = [
        [`${kind()} ${symbol().replace("_", " ")}`, number(c, 4)],
        ["times how much is there", number(flow[step].weight[cell][k], 3)],
      ];
      if (step) rows.push(["change in this iteration", number(c - flow[step - 1].coupling[cell][k], 4)]);
      return { title: `${placeName(routing, cell)} → ${answer.model.classes[k]}`, rows, formula: routing.formula };
    },
    twig({ cell, type, weight }, k) {
      const { answer } = now();
      const { routing } = answer.route;
      return {
        title: `Small capsule of type ${type + 1}, ${placeName(routing, cell)}`,
        rows: [[`${routing.signed ? "coefficient" : "coupling"} to ${answer.model.classes[k]}`, number(weight, 4)]],
        formula: routing.formula,
      };
    },
    parent(k) {
      const { answer, flow, step } = now();
      const { routing } = answer.route;
      const { activation, agreement } = routing.steps[step];
      const strongest = routing.top?.[step]?.[k]?.[0];
      return {
        title: `Class capsule ${answer.model.classes[k]}, iteration ${step + 1}`,
        rows: [
          [measureOf(answer), number(activation[k], 4)],
          ["agreement", number(agreement[k], 4)],
          ["share of all sent", percent(shareOf(flow[step], k))],
          ...(strongest
            ? [
                [
                  `strongest: type ${strongest.type + 1}, ${placeName(routing, strongest.cell)}`,
                  number(strongest.weight, 3),
                ],
              ]
            : []),
        ],
        formula: wordsFor(answer.model.algorithm).present,
      };
    },
    entropy: (_, t) => ({
      title: `Entropy, iteration ${t + 1}`,
      rows: [
        ["entropy", number(now().answer.route.routing.steps[t].entropy, 4)],
        ["if split evenly", number(Math.log(now().answer.model.classes.length), 4)],
      ],
      formula: `H = −Σ_j ${symbol()} log ${symbol()}, mean over i`,
      note: "The lower, the more each small capsule has made up its mind.",
    }),
    agreement: (s, t) => ({
      title: `Agreement, iteration ${t + 1}`,
      rows: [["agreement", number(now().curves[s].values[t], 4)]],
      formula: now().answer.route.routing.agreement_formula ?? wordsFor(now().answer.model.algorithm).agreement,
    }),
  };
}
