/** What is measured in one answer of the network. Captions, curves and lines say nothing that is not from here. */

import { fromBase64 } from "./codec.js";

const sum = (values) => values.reduce((a, b) => a + b, 0);
const largest = (values) => values.indexOf(Math.max(...values));

/** Who leads after each iteration. @returns {number[]} class indices */
export const leaders = (answer) => answer.route.routing.steps.map(({ activation }) => largest(activation));

const AHEAD = 0.045; // printed as 0.05; by less no class stands out

/** Who leads an iteration, by how much, and whether that is enough to be called an answer. */
export function front({ activation }) {
  const [first, next = 0] = [...activation].sort((a, b) => b - a);
  return { k: largest(activation), by: first - next, clear: first - next >= AHEAD };
}

/** What each class gets of all that is sent at one iteration. @returns {number[]} */
export function shares({ flow }) {
  const columns = flow[0].map((_, k) => sum(flow.map((row) => Math.abs(row[k]))));
  const all = Math.max(sum(columns), 1e-12);
  return columns.map((column) => column / all);
}

/**
 * How much more than an even split each place sends to each class, in small capsules: (cells, classes).
 * Signed coefficients have no even split: there it is what is sent.
 */
export function gains(routing, step) {
  const { flow } = routing.steps[step];
  if (routing.signed) return flow;
  return flow.map((row) => {
    const even = sum(row) / row.length;
    return row.map((v) => v - even);
  });
}

/** The largest gain, over all places, classes and iterations: what the thickest line stands for. */
export const largestGain = (routing) =>
  Math.max(1e-3, ...routing.steps.flatMap((_, t) => gains(routing, t).flat().map(Math.abs)));

/** What an even split gives a class, from the place that has most to give. */
export const evenSplit = ({ steps }) => Math.max(...steps[0].flow.map((row) => sum(row) / row.length));

/** Where a place looks, in pixels: x, y, side. */
export function fieldOf(routing, cell) {
  const { size, stride, offset } = routing.field;
  const columns = routing.grid[1];
  return { x: offset + stride * (cell % columns), y: offset + stride * Math.floor(cell / columns), side: size };
}

export const placeName = (routing, cell) =>
  `row ${Math.floor(cell / routing.grid[1]) + 1}, column ${(cell % routing.grid[1]) + 1}`;

/** The places in whose middle, one stride wide, there is no ink. @returns {boolean[]} */
function blankPlaces({ route, pixels }) {
  const { routing, shape } = route;
  const { stride } = routing.field;
  return routing.steps[0].flow.map((_, cell) => {
    const { x, y, side } = fieldOf(routing, cell);
    const [left, top] = [x, y].map((v) => Math.round(v + (side - stride) / 2));
    for (let row = Math.max(0, top); row < Math.min(shape[0], top + stride); row++)
      for (let column = Math.max(0, left); column < Math.min(shape[1], left + stride); column++)
        if (pixels[row * shape[1] + column] > 25) return false;
    return true;
  });
}

/** The small capsule that sends most to class k from a place with ink in its middle: [place, type, k]. */
export function strongest(answer, k, step = -1) {
  const { flow, speaker } = answer.route.routing.steps.at(step);
  const blank = blankPlaces(answer);
  const cell = largest(flow.map((row, n) => (blank[n] ? 0 : Math.abs(row[k]))));
  return [cell, speaker[cell][k], k];
}

/** Of what class k gains over an even split, the share that blank places send; and how active they and others are. */
export function blankShare(answer, step, k) {
  const { routing } = answer.route;
  const blank = blankPlaces(answer);
  const gained = gains(routing, step).map((row) => Math.max(0, row[k]));
  const types = answer.model.grid[0];
  const mean = (test) => {
    const chosen = routing.presence.filter((_, cell) => blank[cell] === test);
    return sum(chosen) / Math.max(1, chosen.length) / types;
  };
  return {
    share: sum(gained.filter((_, cell) => blank[cell])) / Math.max(sum(gained), 1e-12),
    blank: mean(true),
    inked: mean(false),
  };
}

/** The cosine between two pictures: 1 for the same ink in the same places. */
export function alike(a, b) {
  let [ab, aa, bb] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return aa && bb ? ab / Math.sqrt(aa * bb) : 0;
}

const LIKE = { surely: 0.9, hardly: 0.86 }; // likeness of a digit's own drawing: drawn digits reach 0.94, a heart 0.85
const CLEAR = 0.6; // by how much the winner leads where a digit is drawn

/**
 * Is it a digit? Where the winner's own drawing is not like the picture, no class stands out, however long its capsule.
 * A network stopped early, or kept at it longer than it learned, cannot tell.
 * @returns {{likeness: number | null, lead: number, digit: "yes" | "perhaps" | "no"}}
 */
export function standing({ route, model, pixels }) {
  const [first, next] = [...route.activation].sort((a, b) => b - a);
  const lead = first - next;
  const { steps, signed } = route.routing;
  if (!signed && steps.length !== model.iterations)
    return { likeness: null, lead, digit: lead < 0.3 ? "perhaps" : "yes" };
  const made = route.reconstructions[0];
  const likeness = made ? alike(fromBase64(made.image), pixels) : null;
  if (likeness === null) return { likeness, lead, digit: lead < 0.2 ? "no" : lead < CLEAR ? "perhaps" : "yes" };
  const no = likeness < LIKE.hardly || (likeness < LIKE.surely && lead < CLEAR);
  return { likeness, lead, digit: no ? "no" : likeness < LIKE.surely || lead < 0.3 ? "perhaps" : "yes" };
}
