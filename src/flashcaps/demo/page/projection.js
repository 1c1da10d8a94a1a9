/** The votes of all classes as arrows that add up, on paper. Pure numbers, no page. */

const ROUNDS = 8; // of the power iteration; its result is only the side a chain is seen from

function dot(x, y) {
  let all = 0;
  for (let d = 0; d < x.length; d++) all += x[d] * y[d];
  return all;
}
const norm = (x) => Math.sqrt(dot(x, x));
function unit(x) {
  const size = norm(x);
  return size > 1e-9 ? x.map((v) => v / size) : x.map((_, d) => Number(d === 0));
}
function across(x, axis) {
  const along = dot(x, axis);
  return x.map((v, d) => v - along * axis[d]);
}
function sum(chain, weight = (_) => 1) {
  const all = new Float64Array(chain[0].length);
  for (const x of chain) {
    const w = weight(x);
    for (let d = 0; d < all.length; d++) all[d] += w * x[d];
  }
  return all;
}

/** The direction across an axis in which a chain's arrows differ most. */
function widest(chain, axis) {
  const rest = chain.map((x) => across(x, axis));
  let found = unit(rest.reduce((a, b) => (norm(b) > norm(a) ? b : a)));
  for (let n = 0; n < ROUNDS; n++) {
    const before = found;
    found = unit(sum(rest, (x) => dot(x, before)));
  }
  return found;
}

/**
 * What each place adds to each class at each iteration: votes times their weights in the sum. The weights are the
 * couplings; where a pose is a mean of votes (em, heinsen), couplings times presence. The pose is the sum squashed,
 * divided by the sum of its weights, or normalised, as the algorithm has it.
 *
 * Each class is seen in a plane of its own, which holds its sum, and points its own way, like the hours of a clock: sums
 * have their true length, and no class is seen from a better side than another.
 *
 * @param {ArrayLike<number>} votes  (I, J, D), I = types x cells
 * @param {{children: number, parents: number, dim: number, cells: number}} sizes
 * @param {{coupling: ArrayLike<number>, variance?: any}[]} steps
 * @param {ArrayLike<number>} there  (I) presence
 * @returns {{arrows: number[][][][], chains: {gone: number, reached: number, share: number}[][]}}
 *   arrows[step][class][cell] = [x, y]; chains[step][class], in all dimensions: how long the arrows of all places are
 *   together, how far they get, and the share of the way that counts
 */
export function project(votes, { children, parents, dim, cells }, steps, there) {
  const sums = steps.map(({ coupling, variance }) => {
    const all = Array.from({ length: parents }, () => Array.from({ length: cells }, () => new Float64Array(dim)));
    for (let i = 0, n = 0; i < children; i++) {
      for (let k = 0; k < parents; k++, n++) {
        const weight = coupling[n] * (variance ? there[i] : 1);
        const own = all[k][i % cells];
        for (let d = 0; d < dim; d++) own[d] += weight * votes[n * dim + d];
      }
    }
    return all;
  });
  const sides = sums.at(-1).map((chain) => widest(chain, unit(sum(chain))));
  const each = (of) => sums.map((all) => all.map(of));
  return {
    arrows: each((chain, k) => {
      const along = unit(sum(chain));
      const side = unit(across(sides[k], along));
      const angle = (2 * Math.PI * k) / parents - Math.PI / 2;
      const [c, s] = [Math.cos(angle), Math.sin(angle)];
      return chain.map((x) => {
        const [a, b] = [dot(x, along), dot(x, side)];
        return [a * c - b * s, a * s + b * c];
      });
    }),
    chains: each((chain) => {
      const gone = chain.reduce((all, x) => all + norm(x), 0);
      const reached = norm(sum(chain));
      return { gone, reached, share: gone > 1e-12 ? reached / gone : 0 };
    }),
  };
}
