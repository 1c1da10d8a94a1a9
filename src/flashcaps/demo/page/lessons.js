/** The lessons of the tour: a title, plain words with the person's own numbers, and a scene. */

import { number, percent } from "./dom.js";
import { measureOf } from "./draw.js";
import { wordsFor } from "./explain.js";
import { flows, shareOf } from "./flow.js";
import { agreementScene, squashScene, votesScene } from "./routing_scenes.js";
import { barsScene, pixelScene, placesScene, redrawScene, sliderScene } from "./scenes.js";

/** Do the votes for the winner pull together more than those for the runner-up? */
function meeting({ route, model }) {
  const votes = route.routing.votes ?? [];
  const [best, other] = [votes[0], votes.at(-1)];
  if (votes.length < 2 || best.aligned === undefined)
    return "Where the guess is right, votes meet; where it is wrong, they scatter.";
  const [a, b] = [model.classes[best.class], model.classes[other.class]];
  return best.aligned > other.aligned
    ? `Votes for ${a} pull the same way more (${percent(best.aligned, 0)}) than those for ${b}, the runner-up (${percent(other.aligned, 0)}).`
    : `On your digit it is close: votes for ${a} pull the same way at ${percent(best.aligned, 0)}, those for ${b}, the runner-up, at ${percent(other.aligned, 0)}.`;
}

/** Are the bars a softmax, that is shares of one whole? */
const shared = (answer) => measureOf(answer).includes("softmax");

/** How a sum of votes becomes a number between zero and one. */
function squashed(answer) {
  if (measureOf(answer) === "length") {
    return "Each class capsule adds up what it was sent. The sum can be of any length, but a length should read like a probability. So it is squashed: short sums shrink to almost nothing, long ones end just below one. The direction stays.";
  }
  if (shared(answer)) {
    return "Each class capsule ends with a score, which can be any number. A softmax turns the scores into shares of one whole: what counts is how far a score lies above the rest, and a curve presses that between zero and one.";
  }
  return "Each class capsule ends with a score, which can be any number. A curve presses it between zero and one: far below stays near zero, far above near one.";
}

/** Where the winner stands, and the next. */
function standing({ route, model }) {
  const [first, next] = route.activation.map((v, k) => [v, model.classes[k]]).sort((x, y) => y[0] - x[0]);
  return `On the curve: your digit’s capsule, ${first[1]}, stands at ${number(first[0], 2)}. The next, ${next[1]}, stands at ${number(next[0], 2)}.`;
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
      if (route.routing.signed)
        return [
          wordsFor(model.algorithm).idea,
          "Blue lines speak for a digit, dashed orange ones against it. Choose another model above to see routing by agreement.",
        ];
      return [
        "When many guesses for a digit agree, it can hardly be chance. So each small capsule listens: it sends more of itself to the digit whose other voters say the same, and less to the rest. That is routing by agreement.",
        `At first capsule ${winner(answer)} gets ${percent(share(0))} of everything, like all others. After ${route.routing.steps.length} iterations it gets ${percent(share(-1))}${share(-1) < share(0) ? `: less, and still it wins, for ${wordsFor(model.algorithm).counts}` : ""}.`,
      ];
    },
  },
  {
    title: "Squash",
    scene: squashScene,
    words: (answer) => [squashed(answer), standing(answer)],
  },
  {
    title: "The answer",
    scene: barsScene,
    words: (answer) => [
      `There is one class capsule for each digit, and the largest wins: ${winner(answer)}.`,
      shared(answer)
        ? "This model’s bars are shares of one whole. Lengths, as in dynamic routing, need not be: where two digits lie over each other, two capsules can be long at once. Try that under Overlap."
        : "The bars need not sum to one. Where two digits lie over each other, two capsules can be long at once. Try that under Overlap.",
    ],
  },
  {
    title: "Drawing it back",
    scene: redrawScene,
    words: ({ model }) =>
      model.decoder
        ? [
            `Does the capsule really know what your digit looks like, or only its name? Here a small network, the decoder, draws from the ${model.pose_dim} numbers of the winning capsule, and nothing else.`,
            "Look at slant, width and stroke. What comes back is what the capsule kept.",
          ]
        : ["This model was trained without a decoder, so it cannot draw. Choose another above."],
  },
  {
    title: "Numbers with a meaning",
    scene: sliderScene,
    words: ({ model }) => [
      "Change one number of the pose, and the drawing changes in one respect: it gets bolder, or wider, or leans over. Nobody told the network to do so.",
      model.decoder
        ? "Move the slider. All of the numbers wait under Tweak."
        : "Choose a model with a decoder to try it.",
    ],
  },
];
