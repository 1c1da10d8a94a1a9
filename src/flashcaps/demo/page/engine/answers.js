/** What the page is told of an image: the answer, and its routing: couplings, flow, entropy, agreement, votes. */

import { fromBase64, toBase64 } from "../codec.js";
import { project } from "../projection.js";
import { formulasOf, madeBy, stagesOf } from "./formulas.js";
import { lengths, logistic } from "./routing.js";

const KEPT = 12; // images whose class layers are kept, for the next question on them

/** (N, M) as rows. */
const table = (x, columns) =>
  Array.from({ length: x.length / columns }, (_, n) => Array.from(x.subarray(n * columns, (n + 1) * columns)));

/**
 * Answers about one network.
 * @param {import("./network.js").Network} network
 */
export function createAnswers(network) {
  const { info } = network;
  const kept = new Map(); // by pixels: children, and class layers by number of iterations

  /** The class layer on an image, as it was computed before if it was. */
  function routed({ pixels, width, height }, iterations = null) {
    if (height !== info.image[1] || width !== info.image[2]) {
      const expected = `${info.image[1]} x ${info.image[2]} (height x width)`;
      throw new RangeError(`image: ${info.name} expects ${expected}, got ${height} x ${width}`);
    }
    if (iterations !== null && !(Number.isInteger(iterations) && iterations >= 1 && iterations <= 10)) {
      throw new RangeError(`iterations: expected 1 to 10, got ${iterations}`);
    }
    const found = kept.get(pixels) ?? { children: network.children(fromBase64(pixels)), tops: new Map() };
    if (!found.tops.has(iterations)) found.tops.set(iterations, network.route(found.children, iterations));
    kept.delete(pixels); // and again as the newest
    kept.set(pixels, found);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
    return found.tops.get(iterations);
  }

  return {
    /** The answer and its routing. iterations: 1 to 10, the network's own without. */
    route(image, { iterations = null } = {}) {
      const begun = performance.now();
      const top = routed(image, iterations);
      const last = top.steps.at(-1);
      const scores = network.scores(last);
      const predicted = network.answer(scores);
      const poses = table(last.pose, info.pose_dim);
      return {
        model: info.name,
        shape: info.image.slice(1),
        scores,
        activation: network.shown(scores),
        lengths: Array.from(lengths(last.pose, info.pose_dim)),
        predicted,
        poses,
        reconstructions: info.decoder
          ? predicted.map((k) => ({ class: k, image: toBase64(network.draw([poses[k]], k)[0]) }))
          : [],
        routing: routingOf(network, top),
        ms: performance.now() - begun,
      };
    },

    /**
     * The numbers of one vote: `vector` (the child's, its rows one after the other) times `matrix` (d rows of h), plus
     * `bias` where there is one, is `vote`; with `pose`, the parent's of this iteration, it has `agreement`;
     * `coupling` is the softmax over parents of the child's logits, all in `logits` and `couplings`.
     * `weight` times the vote goes into `sum`, `share` of which it is; `made` is how the pose comes of the sum; `total` is
     * the sum of weights, `ignored` what children have besides; `scores`, `shown`: of all classes after this iteration.
     * child: an index over (type, cell). iteration: from 0; -1 is the last.
     */
    explain(image, { child, parent, iteration = -1, iterations = null }) {
      const top = routed(image, iterations);
      const { layer, below, children, votes, sizes } = top;
      const step = top.steps.at(iteration);
      if (!(child >= 0 && child < sizes.children)) {
        throw new RangeError(`child: expected 0 to ${sizes.children - 1}, got ${child}`);
      }
      if (!(parent >= 0 && parent < sizes.parents)) {
        throw new RangeError(`parent: expected 0 to ${sizes.parents - 1}, got ${parent}`);
      }
      if (!step) throw new RangeError(`iteration: expected 0 to ${top.steps.length - 1}, got ${iteration}`);
      const [groups, , d, h] = layer.shape;
      const pair = Math.floor((child * groups) / sizes.children) * sizes.parents + parent;
      const at = child * sizes.parents + parent;
      const cut = (x, n, size) => Array.from(x.slice(n * size, (n + 1) * size));
      const there = presence(network, top);
      const weightOf = (i) => step.coupling[i * sizes.parents + parent] * (step.variance ? there[i] : 1);
      const bias = layer.learned.bias && layer.routing === "dynamic" ? network.tensor(layer.learned.bias) : null;
      const sum = Array.from({ length: sizes.dim }, (_, d) => (bias ? bias[parent * sizes.dim + d] : 0));
      let [total, all] = [0, 0];
      for (let i = 0; i < sizes.children; i++) {
        const weight = weightOf(i);
        for (let d = 0; d < sizes.dim; d++) sum[d] += weight * votes[(i * sizes.parents + parent) * sizes.dim + d];
        total += weight;
        all += there[i];
      }
      const vote = cut(votes, at, sizes.dim);
      const dot = (x, y) => x.reduce((all, v, d) => all + v * y[d], 0);
      const scores = network.scores(step);
      return {
        weight: weightOf(child),
        sum,
        share: (weightOf(child) * dot(vote, sum)) / Math.max(dot(sum, sum), 1e-12),
        total,
        ignored: all - total,
        count: sizes.children,
        made: madeBy(layer),
        head: network.head.type,
        spread: step.variance
          ? Math.exp(cut(step.variance, parent, sizes.dim).reduce((s, x) => s + Math.log(x), 0) / (2 * sizes.dim))
          : null,
        scores,
        shown: network.shown(scores),
        formulas: stagesOf(network, layer),
        vector: cut(children.pose, child, below.dim),
        rows: layer.rows,
        matrix: table(network.tensor(layer.weight).slice(pair * d * h, (pair + 1) * d * h), h),
        bias: layer.bias ? cut(network.tensor(layer.bias), pair, sizes.dim) : null,
        vote,
        pose: cut(step.pose, parent, sizes.dim),
        variance: step.variance ? cut(step.variance, parent, sizes.dim) : null,
        agreement: step.agreement[at],
        agreements: cut(step.agreement, child, sizes.parents),
        sharpness: step.sharpness ?? 1,
        logit: step.logit[at],
        coupling: step.coupling[at],
        logits: cut(step.logit, child, sizes.parents),
        couplings: cut(step.coupling, child, sizes.parents),
        presence: measured(top) ? there[child] : null,
        iteration: top.steps.indexOf(step),
      };
    },

    /** What the decoder draws of a pose of class capsule k. */
    decode(pose, k) {
      return { image: toBase64(network.draw([pose], k)[0]), shape: info.image.slice(1) };
    },

    /** Drawings with every dimension changed from -reach to reach. */
    dimensions(pose, k) {
      const { offsets } = network;
      const moved = pose.flatMap((_, d) => offsets.map((by) => pose.map((x, n) => (n === d ? x + by : x))));
      const drawn = network.draw(moved, k).map(toBase64);
      const rows = pose.map((_, d) => ({
        dimension: d,
        stands_for: info.dimensions[d],
        images: drawn.slice(d * offsets.length, (d + 1) * offsets.length),
      }));
      return { rows, offsets, shape: info.image.slice(1) };
    },
  };
}

/** Do small capsules say how present they are? */
const measured = ({ layer, children }) => Boolean(children.activation) || layer.makes === "length";

/** How present each child is, (I): its activation as a probability; where its pose has it, its length; else 1. */
function presence(network, { layer, below, children }) {
  if (layer.takes === "score") return Float64Array.from(children.activation, logistic);
  if (children.activation) return Float64Array.from(children.activation);
  if (layer.makes === "length") return lengths(children.pose, below.dim);
  return new Float64Array(children.pose.length / below.dim).fill(1);
}

function routingOf(network, top) {
  const there = presence(network, top);
  const formulas = formulasOf(top.layer);
  const [, high, wide] = network.info.grid;
  const seen = { ...top, there, cells: high * wide };
  const activations = top.steps.map((step) => network.shown(network.scores(step)));
  return {
    signed: network.signed,
    iterations: top.steps.length,
    steps: top.steps.map((step, t) => ({ ...stepOf(seen, step), activation: activations[t] })),
    grid: [high, wide],
    numbers: top.below.dim,
    field: network.field,
    presence: measured(top) ? byCell(there, 1, seen.cells).flat() : null,
    plane: project(top.votes, { ...top.sizes, cells: seen.cells }, top.steps, there),
    measure: network.measure,
    formula: formulas.update.join("\n"),
    agreement_formula: formulas.agreement,
  };
}

/** (I, M) summed over types: rows of cells. */
function byCell(x, columns, cells) {
  const out = new Float64Array(cells * columns);
  for (let n = 0; n < x.length; n++) out[n % out.length] += x[n];
  return table(out, columns);
}

/** The type of the small capsule that sends most from each place to each class: (cells, J). */
function speakers(flow, parents, cells) {
  const most = new Int32Array(cells * parents);
  const at = (n) => Math.abs(flow[most[n] * most.length + n]);
  for (let n = 0; n < flow.length; n++) {
    const to = n % most.length;
    if (Math.abs(flow[n]) > at(to)) most[to] = Math.floor(n / most.length);
  }
  return table(most, parents);
}

function stepOf(seen, { coupling, pose }) {
  const { parents, dim } = seen.sizes;
  const flow = coupling.map((c, n) => c * seen.there[Math.floor(n / parents)]);
  const sums = table(coupling, parents).map((row) => row.reduce((a, b) => a + b, 0));
  return {
    coupling: byCell(coupling, parents, seen.cells),
    flow: byCell(flow, parents, seen.cells),
    speaker: speakers(flow, parents, seen.cells),
    coupling_sum: [sums.reduce((a, b) => Math.min(a, b)), sums.reduce((a, b) => Math.max(a, b))],
    entropy: entropy(coupling, parents),
    agreement: agreement(seen, flow, pose),
    poses: table(pose, dim),
  };
}

/** Mean over children of -sum_j p log p, p the child's |coupling| normalised; from 0 to ln J. */
function entropy(coupling, parents) {
  let total = 0;
  for (let at = 0; at < coupling.length; at += parents) {
    let sum = 0;
    for (let j = 0; j < parents; j++) sum += Math.abs(coupling[at + j]);
    for (let j = 0; j < parents; j++) {
      const p = Math.abs(coupling[at + j]) / Math.max(sum, 1e-12);
      total -= p * Math.log(Math.max(p, 1e-12));
    }
  }
  return (total * parents) / coupling.length;
}

/**
 * The agreement of votes with the pose of each class, a mean weighted by |flow|, (J): their cosine, or where parents
 * are Gaussians exp(-|V - mu|^2 / 2 s^2), s^2 the mean squared distance of all votes from the mean of their class.
 */
function agreement({ votes, sizes, steps }, flow, pose) {
  const { children, parents, dim } = sizes;
  const gaussian = Boolean(steps[0].variance);
  const scale = gaussian ? spread(votes, sizes) : 0;
  const [sum, weight] = [new Float64Array(parents), new Float64Array(parents)];
  for (let i = 0, n = 0; i < children; i++) {
    for (let j = 0; j < parents; j++, n++) {
      let [dot, vv, pp, far] = [0, 0, 0, 0];
      for (let d = 0; d < dim; d++) {
        const [v, p] = [votes[n * dim + d], pose[j * dim + d]];
        dot += v * p;
        vv += v * v;
        pp += p * p;
        far += (v - p) ** 2;
      }
      const near = gaussian ? Math.exp(-far / (2 * scale)) : dot / Math.max(Math.sqrt(vv * pp), 1e-8);
      sum[j] += near * Math.abs(flow[n]);
      weight[j] += Math.abs(flow[n]);
    }
  }
  return Array.from(sum, (x, j) => x / Math.max(weight[j], 1e-12));
}

/** The mean squared distance of votes from the mean of their class. */
function spread(votes, { children, parents, dim }) {
  const row = parents * dim;
  const mean = new Float64Array(row);
  votes.forEach((v, n) => (mean[n % row] += v / children));
  let total = 0;
  votes.forEach((v, n) => (total += (v - mean[n % row]) ** 2));
  return Math.max(total / (children * parents), 1e-12);
}
