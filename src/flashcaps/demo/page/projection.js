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
 * @returns {{classes: number[], arrows: number[][][][], chains: {gone: number, reached: number, share: number}[][]}}
 *   arrows[step][class][cell] = [x, y]; chains[step][class], in all dimensions: how long the arrows of all places are
 *   together, how far they get, and the share of the way that counts
 */
export function project(votes, { children, parents, dim, cells }, steps, there, classes) {
  const [first, second] = axes(Float64Array.from(steps.at(-1).pose), parents, dim, ...classes);
  const along = (x, axis) => x.reduce((sum, v, d) => sum + v * axis[d], 0);
  const norm = (x) => Math.hypot(...x);
  const sums = steps.map(({ coupling, variance }) => {
    const all = Array.from({ length: parents }, () => Array.from({ length: cells }, () => new Float64Array(dim)));
    for (let i = 0, n = 0; i < children; i++) {
      for (let k = 0; k < parents; k++, n++) {
        const weight = coupling[n] * (variance ? there[i] : 1);
        const sum = all[k][i % cells];
        for (let d = 0; d < dim; d++) sum[d] += weight * votes[n * dim + d];
      }
    }
    return all;
  });
  const each = (of) => sums.map((all) => all.map(of));
  return {
    classes,
    arrows: each((chain) => chain.map((x) => [along(x, first), along(x, second)])),
    chains: each((chain) => {
      const gone = chain.reduce((sum, x) => sum + norm(x), 0);
      const reached = norm(first.map((_, d) => chain.reduce((sum, x) => sum + x[d], 0)));
      return { gone, reached, share: gone > 1e-12 ? reached / gone : 0 };
    }),
  };
}
