/** Numbers behind the lines: how much of each place goes to each class capsule at one routing step. */

/**
 * @typedef {object} Flow
 * @property {number[][]} weight    (cells, classes): coupling times how much is there, summed over types
 * @property {number[][]} coupling  (cells, classes): mean coupling of a capsule at that place
 * @property {number} top           largest |weight| over all steps, so that steps can be compared by eye
 */

const product = (routing, step, types) =>
  step.coupling.map((row, cell) => row.map((c) => (c / types) * (routing.presence?.[cell] ?? 1)));

/** @returns {Flow[]} one for each step */
export function flows({ route, model }) {
  const { routing } = route;
  const types = model.grid[0];
  const weights = routing.steps.map((step) => step.flow ?? product(routing, step, types));
  const top = Math.max(1e-9, ...weights.flat(2).map(Math.abs));
  return routing.steps.map((step, t) => ({
    weight: weights[t],
    coupling: step.coupling.map((row) => row.map((c) => c / types)),
    top,
  }));
}

/** The share of everything sent that class k gets. */
export function shareOf(flow, k) {
  const sum = (pick) => flow.weight.reduce((total, row) => total + pick(row), 0);
  return (
    sum((row) => Math.abs(row[k])) /
    Math.max(
      1e-12,
      sum((row) => row.reduce((a, b) => a + Math.abs(b), 0)),
    )
  );
}

/** Where a cell looks, in pixels: x, y, side. */
export function fieldOf(routing, cell) {
  const { size, stride, offset } = routing.field;
  const columns = routing.grid[1];
  return { x: offset + stride * (cell % columns), y: offset + stride * Math.floor(cell / columns), side: size };
}

export const placeName = (routing, cell) =>
  `row ${Math.floor(cell / routing.grid[1]) + 1}, column ${(cell % routing.grid[1]) + 1}`;
