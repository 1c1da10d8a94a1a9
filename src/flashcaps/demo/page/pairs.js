/** Which of two recognised digits is the person's first, so that its colour stays the same everywhere. */

import { fromBase64 } from "./codec.js";

/** How alike two pictures are: the cosine between them. */
function alike(a, b) {
  let [ab, aa, bb] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return aa && bb ? ab / Math.sqrt(aa * bb) : 0;
}

/** The network's two drawings in the order of the two digits: the assignment that is more alike. */
export function match(made, placed) {
  if (made.length < 2) return made;
  const fit = (a, b) => alike(fromBase64(made[a].image), placed[0]) + alike(fromBase64(made[b].image), placed[1]);
  return fit(0, 1) >= fit(1, 0) ? [made[0], made[1]] : [made[1], made[0]];
}

/** The recognised classes, those of two digits in the order of the digits. */
export function recognised({ route, placed }) {
  const { predicted, reconstructions } = route;
  return placed && reconstructions.length === 2 ? match(reconstructions, placed).map((one) => one.class) : predicted;
}
