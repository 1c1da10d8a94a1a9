/** The stops of the tour: a view, what of it to look at, and words with the person's own numbers. */

import { agreementSays, change, measureOf, story, verdict } from "./captions.js";
import { number, percent } from "./dom.js";
import { front, shares, strongest } from "./measures.js";
import { recognised } from "./pairs.js";

const name = ({ route, model }) => model.classes[route.predicted[0]];

/** How the winner's share of all votes and its activation went. */
function course(answer) {
  const { steps, signed } = answer.route.routing;
  const k = recognised(answer)[0];
  if (signed)
    return "This network learned its couplings once and does not iterate. Choose another above to watch one that does.";
  if (steps.length < 2) return "There is only one iteration now. Take more of them above, and watch the lines grow.";
  const [first, last] = [steps[0], steps.at(-1)];
  const share = change("its share of all votes", shares(first)[k], shares(last)[k], percent);
  return `For capsule ${name(answer)}, ${share}, and ${change(`its ${measureOf(answer)}`, first.activation[k], last.activation[k])}.`;
}

/**
 * own: it speaks of the person's digit, and needs an answer to it.
 * @type {{title: string, view: string, target: string, own?: boolean, set?: object | ((answer: any) => object),
 *   words: (answer: any) => string[]}[]}
 */
export const LESSONS = [
  {
    title: "Parts and wholes",
    view: "parts",
    target: ".board",
    own: false,
    words: () => [
      "Each part says where it expects the whole to be: that is its [vote]. Where the votes meet, the whole lights up.",
      "Turn the triangle and watch: the parts are still there, but they no longer agree. Next comes a network that learned its parts from handwritten digits.",
    ],
  },
  {
    title: "Your picture",
    view: "draw",
    target: ".flow > .picture:first-child",
    words: ({ route }) => [
      `This is your digit as the network gets it: ${route.shape.join(" × ")} numbers, each saying how much ink there is.`,
      "It was scaled and centred first, as the digits it learned from were. Draw another at any time: the tour goes on with it.",
    ],
  },
  {
    title: "Small capsules",
    view: "draw",
    target: ".flow > .picture:nth-of-type(2)",
    words: ({ model, route }) => [
      `At each of ${route.routing.grid.join(" × ")} places, ${model.grid[0]} [small capsule|small capsules] look through the same window of ${route.routing.field.size} × ${route.routing.field.size} pixels. What they look for there, they learned.`,
      "A [capsule] gives not one number but several. Together, as its [pose], they say whether the thing is there, and what it looks like.",
    ],
  },
  {
    title: "Everyone votes for everyone",
    view: "routing",
    target: ".tree",
    set: { step: 0, zoom: null, parent: null },
    words: (answer) => [
      "Each small capsule makes a guess for each digit: if I am part of a 3, that 3 looks like this. Such a guess is a [vote]. How much of it a digit gets is the [coupling].",
      story(answer, 0)[0],
    ],
  },
  {
    title: "Do the votes agree?",
    view: "routing",
    target: ".plane",
    set: { step: -1, zoom: null, parent: null },
    words: (answer) => [
      "Each small arrow is what one place votes for a class. End to end, arrows that agree get far; arrows that do not wander about.",
      agreementSays(answer, answer.route.routing.steps.length - 1),
    ],
  },
  {
    title: "Routing",
    view: "routing",
    target: ".tree",
    set: { step: -1, zoom: null, parent: null },
    words: (answer) => [
      ...(answer.route.routing.signed
        ? []
        : ["Small capsules then give more to the classes their votes agree with, and less to the others. A line is as thick as what a place gives above an even split."]),
      course(answer),
    ],
  },
  {
    title: "One multiplication",
    view: "routing",
    target: ".falk",
    set: (answer) => ({ step: -1, zoom: strongest(answer, recognised(answer)[0]) }),
    words: () => [
      "Of the places with ink in their middle, this one sends most to the answer. What its small capsule sees, times W, is its vote. Next in the card goes on: [agreement], [softmax], the sum of all votes, and the number that the answer is read from.",
      "Click any dot of the overview to get here. Overview or Escape goes back.",
    ],
  },
  {
    title: "The answer",
    view: "draw",
    target: ".lead-card",
    set: { step: -1, zoom: null },
    words: (answer) => {
      const said = answer.route.routing.steps.map(front).map(({ k, clear }) => (clear ? answer.model.classes[k] : "none yet"));
      return [
        `There is one [class capsule] for each digit; the strongest is the answer. Ahead after each iteration: ${said.join(", ")}.`,
        verdict(answer),
      ];
    },
  },
  {
    title: "Drawn back",
    view: "draw",
    target: ".flow > .picture:last-of-type",
    words: ({ model }) =>
      model.decoder
        ? [
            `Does the capsule know what your digit looks like, or only its name? A [decoder] drew this from the ${model.pose_dim} numbers of one class capsule.`,
            "Look at slant, width and stroke: what comes back is what the capsule kept.",
          ]
        : ["This network has no decoder, so it cannot draw. Choose another above."],
  },
  {
    title: "Numbers with a meaning",
    view: "tweak",
    target: ".slider:first-child",
    set: { parent: null },
    words: ({ model }) => {
      const named = (model.dimensions ?? []).filter(Boolean).length;
      return [
        "Change one number of the pose and see what the drawing does.",
        `Of ${model.pose_dim} numbers ${number(named, 0)} ${named === 1 ? "has" : "have"} a name here: a number gets one where it changes one measure of the drawing clearly, for most of the digits.`,
      ];
    },
  },
  {
    title: "Two digits at once",
    view: "overlap",
    target: ".sheet",
    words: () => [
      "Lay two digits over each other. Each stroke belongs to one of them, and routing has to sort it out.",
      "Drag them, and see what each capsule draws back.",
    ],
  },
];
