/** The votes of all classes in one plane, as arrows that add up. Pure numbers, no page. */

/**
 * An orthonormal pair of axes through the origin: the first along the pose of class a, the second so that the pose of
 * class b lies in the plane, too. A vote's dot product with either pose is then what it is in all dimensions.
 */
function axes(pose, parents, dim, a, b) {
  const of = (k) => Array.from(pose.subarray(k * dim, (k + 1) * dim));
  const dot = (x, y) => x.reduce((sum, v, d) => sum + v * y[d], 0);
  const unit = (x) => {
    const size = Math.sqrt(dot(x, x));
    return size > 1e-9 ? x.map((v) => v / size) : null;
  };
  const first = unit(of(a)) ?? of(a).map((_, d) => Number(d === 0));
  const across = (x) => unit(x.map((v, d) => v - dot(x, first) * first[d]));
  const rest = [b, ...Array.from({ length: parents }, (_, k) => k)].map((k) => across(of(k)));
  return [first, rest.find(Boolean) ?? first.map(() => 0)];
}

/**
 * What each place adds to each class at each iteration: votes times their weights in the sum, seen in one plane.
 * The weights are the couplings; where a pose is a mean of votes (em, heinsen), couplings times presence. The pose is
 * the sum squashed, divided by the sum of its weights, or normalised, as the algorithm has it.
 *
 * @param {ArrayLike<number>} votes  (I, J, D), I = types x cells
 * @param {{children: number, parents: number, dim: number, cells: number}} sizes
 * @param {{coupling: ArrayLike<number>, pose: any, variance?: any}[]} steps
 * @param {ArrayLike<number>} there  (I) presence
 * @param {number[]} classes  the two whose poses lie in the plane
 * @returns {{classes: number[], arrows: number[][][][]}}  arrows[step][class][cell] = [x, y]
 */
export function project(votes, { children, parents, dim, cells }, steps, there, classes) {
  const [first, second] = axes(Float64Array.from(steps.at(-1).pose), parents, dim, ...classes);
  const flat = new Float64Array(children * parents * 2);
  for (let n = 0; n < children * parents; n++) {
    for (let d = 0; d < dim; d++) {
      flat[2 * n] += votes[n * dim + d] * first[d];
      flat[2 * n + 1] += votes[n * dim + d] * second[d];
    }
  }
  const arrows = steps.map(({ coupling, variance }) => {
    const weight = (i, k) => coupling[i * parents + k] * (variance ? there[i] : 1);
    return Array.from({ length: parents }, (_, k) => {
      const sums = Array.from({ length: cells }, () => [0, 0]);
      for (let i = 0; i < children; i++) {
        sums[i % cells][0] += weight(i, k) * flat[2 * (i * parents + k)];
        sums[i % cells][1] += weight(i, k) * flat[2 * (i * parents + k) + 1];
      }
      return sums;
    });
  });
  return { classes, arrows };
}
