/** Which of two recognised digits is the person's first, so that its colour stays the same everywhere. */

import { fromBase64 } from "./codec.js";
import { alike } from "./measures.js";

const THERE = { activation: 0.5, likeness: 0.65 }; // of a second digit: one that is not there stays below either

/** The network's two drawings in the order of the two digits: the assignment that is more alike. */
function match(made, placed) {
  const fit = (n, m) => alike(fromBase64(made[n].image), placed[m]);
  const straight = fit(0, 0) + fit(1, 1) >= fit(0, 1) + fit(1, 0);
  return made.map((one, n) => ({ ...one, digit: straight ? n : 1 - n, likeness: fit(n, straight ? n : 1 - n) }));
}

/**
 * What the network drew of the digits that are there, in the order of the digits: { class, image, digit }.
 * It was trained to name two different digits, so it names two even of one; the second counts where its capsule is
 * active and its drawing is like a digit that was laid down.
 */
export function drawings({ route, placed, digits }) {
  const { reconstructions: made, activation } = route;
  if (!placed || made.length < 2) return made.map((one, digit) => ({ ...one, digit }));
  const single = digits.findIndex((digit) => !digit);
  if (single >= 0) return [{ ...made[0], digit: 1 - single }];
  const [best, next] = match(made, placed);
  const there = activation[next.class] >= THERE.activation && next.likeness >= THERE.likeness;
  return (there ? [best, next] : [best]).sort((a, b) => a.digit - b.digit);
}

/** The recognised classes, those of two digits in the order of the digits. */
export function recognised(answer) {
  const { placed, route } = answer;
  return placed && route.reconstructions.length === 2 ? drawings(answer).map((one) => one.class) : route.predicted;
}
