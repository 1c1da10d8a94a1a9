/** Votes as the five algorithms read them, what each is told by hand, and the routing itself. No DOM. */

import { logistic, route } from "./engine/routing.js";
import { poseOf, votesOf, WHOLES } from "./parts_scene.js";

const WAVES = 12;
export const DIM = 3 * WAVES;

/**
 * A vote as a direction: DIM numbers, of length 1. Each of twelve hands turns as the whole moves (along a line of its
 * own), turns and grows; two votes have the same hands exactly where they are the same pose, and the dot product, the
 * mean cosine between hands, falls from 1 towards 0 as they part. The matrix itself would not do for algorithms that
 * compare by dot products: far from the middle all votes point the same way and are long.
 * A hand is written as three numbers, 120 degrees apart, which sum to 0: LayerNorm leaves the direction as it is.
 */
export function hands(pose) {
  const at = settings(pose);
  const angles = RATES.map((rate) => dot(rate, at));
  return angles.flatMap((angle) => THIRDS.map((third) => Math.cos(angle + third) * Math.sqrt(2 / DIM)));
}

/** How fast each hand turns with x, y, turn and growth (the logarithm of size). */
const RATES = Array.from({ length: WAVES }, (_, n) => {
  const line = (Math.PI * (n + 0.5)) / WAVES;
  return [1.5 * Math.cos(line), 1.5 * Math.sin(line), [1, -1, 2, -2][n % 4], n % 4 < 2 ? 1.5 : -1.5];
});
const THIRDS = [0, (2 * Math.PI) / 3, (4 * Math.PI) / 3];
const dot = (a, b) => a.reduce((sum, value, n) => sum + value * b[n], 0);
const settings = ([a, b, , , x, y]) => [x, y, Math.atan2(b, a), Math.log(Math.hypot(a, b))];

/**
 * The pose that a vector of DIM numbers stands for: the one whose hands are nearest to it, found by climbing from the
 * vote that is nearest. Exact where votes agree.
 */
export function poseFrom(vector, votes) {
  const phases = RATES.map((_, n) => {
    const part = (wave) => THIRDS.reduce((sum, third, m) => sum + vector[3 * n + m] * wave(third), 0);
    return [Math.hypot(part(Math.cos), part(Math.sin)), Math.atan2(-part(Math.sin), part(Math.cos))];
  });
  const near = votes.map((vote) => dot(hands(vote), vector));
  let at = settings(votes[near.indexOf(Math.max(...near))]);
  const pace = 0.3 / phases.reduce((sum, [weight]) => sum + weight, 1e-12);
  for (let n = 0; n < 40; n++) {
    const pulls = phases.map(([weight, phase], k) => weight * Math.sin(phase - dot(RATES[k], at)));
    at = at.map((value, d) => value + pace * RATES.reduce((sum, rate, k) => sum + rate[d] * pulls[k], 0));
  }
  return poseOf([100 * at[0], 100 * at[1], (at[2] * 180) / Math.PI, 100 * Math.exp(at[3])]);
}

const all = (value) => WHOLES.map(() => value);
const each = (count, value) => Array.from({ length: count }, () => value);

/**
 * What a network would learn, chosen once for this toy by trying settings until four votes that agree light a whole and
 * three leave it dark. dynamic's prior has little room: at -3.6 three votes still light it. `options` takes the number
 * of parts; `light` makes a brightness from 0 to 1 of a step.
 */
export const RULES = {
  dynamic: {
    title: "Dynamic",
    measure: "the length of its vector",
    length: 2.5, // of a vote: four that agree sum to 10, which squash maps to 0.99
    // Leaky, with a prior of e^-3.7 for every whole: a part belongs to nobody until votes agree, and agreement has
    // nine iterations to grow. Three votes grow as well, only later.
    options: () => ({ iterations: 9, leaky: true, logits: all(-3.7) }),
    light: ({ activation }) => [...activation],
  },
  em: {
    title: "EM",
    measure: "its probability",
    length: 1,
    // beta_u: votes scattered all over, with a variance of 1 / DIM, cost nothing. Each vote of a tight cluster, whose
    // variance is eps, then gains 40, and beta_a lies between three of them and four. lambda rises, as in the paper.
    // sharpness: a log density sums over DIM numbers that are four settings only, so a third of it is decisive.
    options: (count) => ({
      iterations: 3,
      activation: each(count, 1),
      beta_u: all(0.5 * Math.log(DIM)),
      beta_a: all(-136),
      inverse_temperature: [0.01, 0.03, 0.1],
      sharpness: 0.3,
      eps: 0.003,
    }),
    light: ({ activation }) => [...activation],
  },
  attention: {
    title: "Attention",
    measure: "its share of the parts",
    length: 1,
    // sqrt(DIM), the length LayerNorm gives a pose, so that 1 apart in agreement is decisive. Two steps, the even one
    // and one by agreement: LayerNorm makes a whole that gets hardly anything as long as one that gets all, and from
    // the third step on such a whole wins back the one part it hears.
    options: () => ({ iterations: 2, scale: Math.sqrt(DIM) }),
    light: ({ coupling }) => WHOLES.map((_, j) => mean(coupling.filter((_, n) => n % WHOLES.length === j))),
  },
  heinsen: {
    title: "Heinsen",
    measure: "the logistic function of its score",
    length: 1,
    // A part used instead of ignored is worth 5, and the score is 0 at 3.2 parts used, however many there are. eps is
    // half the variance of scattered votes: with a narrower one a whole never lets go of the part that is off.
    options: (count) => ({
      iterations: 4,
      score: each(count, Infinity),
      beta_use: all(5 - 16 / count),
      beta_ignore: all(16 / count),
      eps: 0.015,
    }),
    light: ({ activation }) => [...activation].map(logistic),
  },
  discriminative: {
    title: "Discriminative",
    measure: "the length of its vector",
    length: 1,
    // For each whole the direction in which the paper's objective (Eq. 10) is largest over the three arrangements:
    // long where it is there, short where it is not; times 0.7.
    options: (count) => ({
      coefficients: each(count / 4, [
        [0.4, 0.42, 0.41],
        [0.31, 0.38, 0.33],
        [0.39, 0.27, 0.41],
        [0.28, 0.3, 0.22],
      ]).flat(2),
    }),
    light: ({ activation }) => [...activation],
  },
};
export const NAMES = /** @type {(keyof typeof RULES)[]} */ (Object.keys(RULES));

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/**
 * Routes the parts to the wholes.
 * @param {keyof typeof RULES} name
 * @param {number[][]} pieces
 * @returns {{votes: number[][][], steps: {coupling: number[][], light: number[], pose: ArrayLike<number>[]}[]}} votes
 *   (parts x wholes) and, of every iteration, couplings (parts x wholes), the brightness of each whole and its pose, as
 *   the algorithm has it: DIM numbers
 */
export function routeParts(name, pieces) {
  const { length, options, light } = RULES[name];
  const [votes, parents] = [votesOf(pieces), WHOLES.length];
  const numbers = Float32Array.from(votes.flat().flatMap((vote) => hands(vote).map((value) => length * value)));
  const { steps } = route(name, numbers, { children: pieces.length, parents, dim: DIM }, options(pieces.length));
  return {
    votes,
    steps: steps.map((step) => ({
      coupling: pieces.map((_, i) => [...step.coupling.slice(i * parents, (i + 1) * parents)]),
      pose: WHOLES.map((_, j) => step.pose.slice(j * DIM, (j + 1) * DIM)),
      light: light(step),
    })),
  };
}

/** The most parts whose votes for a whole are nearly the same pose as that of one of them: their indices. */
export function agreeing(votes, whole) {
  const codes = votes.map((row) => hands(row[whole]));
  const near = codes.map((one) => codes.flatMap((other, i) => (dot(one, other) > 0.7 ? [i] : [])));
  return near.reduce((best, group) => (group.length > best.length ? group : best));
}
