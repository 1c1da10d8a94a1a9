/** The lessons of the tour: a title, plain words with the person's own numbers, and a scene. */

import { h, number, percent } from "./dom.js";
import { flows, placeName, shareOf } from "./flow.js";
import { wordsFor } from "./explain.js";
import { barsScene, everySecond, pixelScene, placesScene, redrawScene, sliderScene, squashScene, votesScene } from "./scenes.js";
import { createTree } from "./tree.js";
import { place } from "./codec.js";

/** The tree of the routing view, running by itself. */
function agreementScene() {
  let answer = null;
  let flow = [];
  let step = 0;
  const title = (text) => ({ title: text });
  const facts = {
    cell: (cell) => title(placeName(answer.route.routing, cell)),
    parent: (k) => ({ title: `Class capsule ${answer.model.classes[k]}`, rows: [["share of all sent", percent(shareOf(flow[step], k))]] }),
    line: (cell, k) => ({ title: `${placeName(answer.route.routing, cell)} → ${answer.model.classes[k]}`, rows: [["mean coupling", number(flow[step].coupling[cell][k], 4)]] }),
  };
  const tree = createTree({ facts, choose: () => {} });
  const count = h("p", { class: "faint" });
  const slider = h("input", { type: "range", min: 1, value: 1, "aria-label": "Routing iteration", oninput: () => { clearInterval(timer); step = Number(slider.value) - 1; draw(); } });
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
    tree.update({ names: model.classes, routing, types: model.grid[0], step, flow: flow[step], winners: route.predicted, activation: routing.steps[step].activation, parent: null,
      pixels: place(answer.digit, height, width), height, width });
    slider.max = String(routing.steps.length);
    slider.value = String(step + 1);
    slider.hidden = routing.signed;
    count.textContent = routing.signed ? "Learned once: no iterations." : `Iteration ${step + 1} of ${routing.steps.length}`;
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

/** Do the votes for the winner pull together more than those for the runner-up? */
function meeting({ route, model }) {
  const votes = route.routing.votes ?? [];
  const [best, other] = [votes[0], votes.at(-1)];
  if (votes.length < 2 || best.aligned === undefined) return "Where the guess is right, votes meet; where it is wrong, they scatter.";
  const [a, b] = [model.classes[best.class], model.classes[other.class]];
  return best.aligned > other.aligned
    ? `Votes for ${a} pull the same way more (${percent(best.aligned, 0)}) than those for ${b}, the runner-up (${percent(other.aligned, 0)}).`
    : `On your digit it is close: votes for ${a} pull the same way at ${percent(best.aligned, 0)}, those for ${b}, the runner-up, at ${percent(other.aligned, 0)}.`;
}

const winner = ({ route, model }) => model.classes[route.predicted[0]];

export const LESSONS = [
  {
    title: "Your picture",
    scene: pixelScene,
    words: ({ route }) => [
      `This is your digit as the network gets it: ${route.shape.join(" × ")} numbers, each saying how much ink there is.`,
      "It was scaled and centred first, the way the digits it learned from were. That is all it will ever see of it.",
    ],
  },
  {
    title: "Small capsules",
    scene: placesScene,
    words: ({ model, route }) => [
      `A capsule is a little group of neurons that looks for one thing. At each of ${route.routing.grid.join(" × ")} places, ${model.grid[0]} of them look through a small window: for a bend, an end, a stroke.`,
      "What makes a capsule special: it gives not one number but a whole vector. How strong it is says whether the thing is there; where it points says what it looks like: its slant, its thickness, its place.",
    ],
  },
  {
    title: "Votes",
    scene: votesScene,
    words: (answer) => [
      "Now every small capsule makes a guess: “if I am part of a 3, then that 3 looks like this; if I am part of a 5, that 5 looks like that”. These guesses are called votes. It makes one for each digit.",
      `Each point is one vote, each ring their middle. ${meeting(answer)}`,
    ],
  },
  {
    title: "Agreement",
    scene: agreementScene,
    words: (answer) => {
      const { route, model } = answer;
      const flow = flows(answer);
      const share = (t) => shareOf(flow.at(t), route.predicted[0]);
      if (route.routing.signed) return [wordsFor(model.algorithm).idea, "Blue lines speak for a digit, dashed orange ones against it. Choose another model above to see routing by agreement."];
      return [
        "When many guesses for a digit agree, it can hardly be chance. So each small capsule listens: it sends more of itself to the digit whose other voters say the same, and less to the rest. That is routing by agreement.",
        `At first capsule ${winner(answer)} gets ${percent(share(0))} of everything, like all others. After ${route.routing.steps.length} iterations it gets ${percent(share(-1))}${share(-1) < share(0) ? `: less, and still it wins, for ${wordsFor(model.algorithm).counts}` : ""}.`,
      ];
    },
  },
  {
    title: "Squash",
    scene: squashScene,
    words: (answer) => ["dynamic", "discriminative"].includes(answer.model.algorithm) ? [
      "Each class capsule adds up what it was sent. The sum can be of any length, but a length should read like a probability. So it is squashed: short sums shrink to almost nothing, long ones end just below one. The direction stays.",
      `Your digit’s capsule, ${winner(answer)}, is ${number(answer.route.activation[answer.route.predicted[0]], 2)} long. The others stay at the foot of the curve.`,
    ] : [
      "Each class capsule sums up what it was sent into a score. A score can be any number, so a curve presses it between zero and one: far below stays near zero, far above near one.",
      `This model’s own rule is written where you point at a bar. Your digit’s capsule, ${winner(answer)}, stands at ${number(answer.route.activation[answer.route.predicted[0]], 2)}.`,
    ],
  },
  {
    title: "The answer",
    scene: barsScene,
    words: (answer) => [
      `There is one class capsule for each digit, and the largest wins: ${winner(answer)}.`,
      "The bars need not sum to one. If two digits lie over each other, two capsules can be long at once. Try that under Overlap.",
    ],
  },
  {
    title: "Drawing it back",
    scene: redrawScene,
    words: ({ model }) => model.decoder ? [
      `Does the capsule really know what your digit looks like, or only its name? Here a small network, the decoder, draws from the ${model.pose_dim} numbers of the winning capsule, and nothing else.`,
      "Look at slant, width and stroke. What comes back is what the capsule kept.",
    ] : ["This model was trained without a decoder, so it cannot draw. Choose another above."],
  },
  {
    title: "Numbers with a meaning",
    scene: sliderScene,
    words: ({ model }) => [
      "Change one number of the pose, and the drawing changes in one respect: it gets bolder, or wider, or leans over. Nobody told the network to do so.",
      model.decoder ? "Move the slider. All of the numbers wait under Tweak." : "Choose a model with a decoder to try it.",
    ],
  },
];
