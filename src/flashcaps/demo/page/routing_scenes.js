/** The three scenes of the tour that are about routing: votes, agreement, squash. */

import { h, number, percent, reducedMotion, svg } from "./dom.js";
import { flows, placeName, shareOf } from "./flow.js";
import { createTree } from "./tree.js";

/** A loop that stands still for those who asked for calm. */
function everySecond(call) {
  return reducedMotion() ? 0 : setInterval(call, 1300);
}

/** The tree of the routing view, running by itself. */
export function agreementScene() {
  let answer = null;
  let flow = [];
  let step = 0;
  const title = (text) => ({ title: text });
  const facts = {
    cell: (cell) => title(placeName(answer.route.routing, cell)),
    parent: (k) => ({
      title: `Class capsule ${answer.model.classes[k]}`,
      rows: [["share of all sent", percent(shareOf(flow[step], k))]],
    }),
    line: (cell, k) => ({
      title: `${placeName(answer.route.routing, cell)} → ${answer.model.classes[k]}`,
      rows: [["mean coupling", number(flow[step].coupling[cell][k], 4)]],
    }),
  };
  const tree = createTree({ facts: { ...facts, twig: () => null }, choose: () => {} });
  const count = h("p", { class: "faint" });
  const slider = h("input", {
    type: "range",
    min: 1,
    value: 1,
    "aria-label": "Routing iteration",
    oninput: () => {
      clearInterval(timer);
      step = Number(slider.value) - 1;
      draw();
    },
  });
  const element = h("div", { class: "scene" }, tree.element, slider, count);
  const timer = everySecond(() => {
    if (!answer || !element.isConnected || element.closest("[hidden]")) return;
    step = (step + 1) % answer.route.routing.steps.length;
    draw();
  });
  new ResizeObserver(() => tree.layoutIsStale() && answer && draw()).observe(tree.element);

  function draw() {
    const { route, model } = answer;
    const [height, width] = route.shape;
    const { routing } = route;
    step = Math.min(step, routing.steps.length - 1);
    tree.update({
      names: model.classes,
      routing,
      types: model.grid[0],
      step,
      flow: flow[step],
      winners: route.predicted,
      activation: routing.steps[step].activation,
      parent: null,
      pixels: answer.pixels,
      height,
      width,
    });
    slider.max = String(routing.steps.length);
    slider.value = String(step + 1);
    slider.hidden = routing.signed;
    count.textContent = routing.signed
      ? "Learned once: no iterations."
      : `Iteration ${step + 1} of ${routing.steps.length}`;
  }
  return {
    element,
    update(next) {
      if (next !== answer) flow = flows(next);
      answer = next;
      draw();
    },
  };
}

/** Votes for the winner and for the runner-up as points: do they meet? */
export function votesScene() {
  const plots = h("div", { class: "votes" });
  const element = h("div", { class: "scene" }, plots);
  function cloud(vote, n, { model }) {
    const reach =
      Math.max(...vote.points.flatMap(([x, y]) => [Math.abs(x - vote.pose[0]), Math.abs(y - vote.pose[1])]), 1e-6) *
      1.1;
    const most = Math.max(...vote.points.map((p) => p[2]), 1e-9);
    const dots = vote.points.map(([x, y, much]) =>
      svg("circle", {
        cx: (x - vote.pose[0]) / reach,
        cy: (y - vote.pose[1]) / reach,
        r: 0.015 + 0.03 * (much / most),
        class: "vote",
      }),
    );
    const facts = vote.aligned === undefined ? "" : ` · ${percent(vote.aligned, 0)} pull the same way`;
    return h(
      "figure",
      { class: `picture ${n ? "second" : "first"}` },
      svg(
        "svg",
        {
          class: "cloud",
          viewBox: "-1.08 -1.08 2.16 2.16",
          role: "img",
          "aria-label": `Votes for ${model.classes[vote.class]}`,
        },
        svg("path", { class: "rule", d: "M-1 0H1M0 -1V1" }),
        ...dots,
        svg("circle", { class: "mean", r: 0.06 }),
      ),
      h("figcaption", {}, `${vote.points.length} votes for ${model.classes[vote.class]}${facts}`),
    );
  }
  return {
    element,
    update(answer) {
      const votes = answer.route.routing.votes ?? [];
      const shown = votes.length > 1 ? [votes[0], votes.at(-1)] : votes;
      plots.replaceChildren(...(shown.length ? shown.map((vote, n) => cloud(vote, n, answer)) : [evenVotes(answer)]));
    },
  };
}

/** Without votes from the server: what each class gets in the first iteration. */
function evenVotes(answer) {
  const [first] = flows(answer);
  const total = first.weight.reduce((sum, row) => sum + row.reduce((a, b) => a + Math.abs(b), 0), 0);
  const rows = answer.model.classes.map((name, k) =>
    h("li", {}, `${name}: ${percent(first.weight.reduce((s, r) => s + Math.abs(r[k]), 0) / total)} of all votes sent`),
  );
  return h("ul", { class: "faint" }, rows);
}

const CURVE = { width: 420, height: 260, pad: 36 };

/** The squashing curve with the ten class capsules on it; for scores, the logistic function. */
export function squashScene() {
  const plot = svg("svg", {
    class: "curves",
    viewBox: `0 0 ${CURVE.width} ${CURVE.height}`,
    role: "img",
    "aria-label": "The curve that turns evidence into a number between 0 and 1",
  });
  const element = h("div", { class: "scene" }, plot);
  return {
    element,
    update({ route, model }) {
      const squash = route.routing.measure === "length";
      const f = squash ? (s) => (s * s) / (1 + s * s) : (s) => 1 / (1 + Math.exp(-s));
      const inverse = squash ? (v) => Math.sqrt(v / (1 - v)) : (v) => Math.log(v / (1 - v));
      const points = route.activation.map((v) => inverse(Math.max(0.0005, Math.min(0.9995, v))));
      const [low, high] = squash
        ? [0, Math.max(4, ...points) * 1.05]
        : [Math.min(-4, ...points) * 1.05, Math.max(4, ...points) * 1.05];
      const x = (s) => CURVE.pad + ((s - low) / (high - low)) * (CURVE.width - 2 * CURVE.pad);
      const y = (v) => CURVE.height - CURVE.pad - v * (CURVE.height - 1.6 * CURVE.pad);
      const line = Array.from({ length: 81 }, (_, i) => low + (i / 80) * (high - low)).map(
        (s) => `${x(s).toFixed(1)},${y(f(s)).toFixed(1)}`,
      );
      const dots = points.map((s, k) =>
        svg(
          "g",
          { transform: `translate(${x(s)} ${y(f(s))})`, class: route.predicted.includes(k) ? "winner" : "other" },
          svg("circle", { class: `dot ${route.predicted.includes(k) ? "winner" : "other"}`, r: 6 }),
          route.predicted.includes(k) && svg("text", { y: -12, "text-anchor": "middle" }, model.classes[k]),
        ),
      );
      plot.replaceChildren(
        ...[0, 0.5, 1].map((v) =>
          svg(
            "g",
            {},
            svg("line", { class: "rule", x1: CURVE.pad, x2: CURVE.width - CURVE.pad, y1: y(v), y2: y(v) }),
            svg("text", { x: CURVE.pad - 8, y: y(v) + 4, "text-anchor": "end" }, v),
          ),
        ),
        svg(
          "text",
          { x: CURVE.width / 2, y: CURVE.height - 8, "text-anchor": "middle" },
          squash ? "length of the sum of votes, |s|" : "how far it lies above the rest (log-odds)",
        ),
        svg("polyline", { class: "curve winner", points: line.join(" ") }),
        ...dots,
      );
    },
  };
}
