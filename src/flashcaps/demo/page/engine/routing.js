/**
 * The five routing algorithms on explicit votes, one image at a time, every iteration kept: what `flashcaps.functional`
 * computes, in plain loops. Sums are in double precision.
 *
 * Axes: I children, J parents, D pose; arrays are row-major. In a convolutional layer the same runs at P places, and
 * rows, the children of all places, are (P, I).
 */

/**
 * @typedef {object} Sizes
 * @property {number} children  I, at one place
 * @property {number} parents   J
 * @property {number} dim       D
 * @property {number} [places]  P, default 1
 * @property {Int32Array} [child]  (P, I): the child each row belongs to, where a child's softmax runs over the parents
 *   of several places; without it each row is a child of its own
 * @property {number} [total]   how many children there are then, those that no parent covers included
 *
 * @typedef {object} Step
 * One iteration.
 * @property {Float64Array} logit      (P, I, J), whose softmax over a child's parents is the coupling
 * @property {Float64Array} coupling   (P, I, J): c, r or R of the papers, or the coefficients of discriminative routing
 * @property {Float64Array} pose       (P, J, D)
 * @property {Float64Array | null} activation  (P, J): a length (dynamic, discriminative), a probability (em), a score
 *   before any logistic function (heinsen), null (attention, unless it has beta_u and beta_a)
 * @property {Float64Array} agreement  (P, I, J), of each vote with the pose of this iteration, as the algorithm sees
 *   it: vote . pose (dynamic, discriminative), scale vote . pose (attention), log N(vote; pose, variance) without the
 *   constant of 2 pi (em, heinsen)
 * @property {Float64Array} [variance] (P, J, D), where there are betas of em or heinsen
 * @property {number} [sharpness]  of em: how many times the agreement counts in the next logit
 *
 * @typedef {Step & {steps: Step[]}} Routed  the last step, and all of them
 */

/** @typedef {ArrayLike<number>} Numbers */

/**
 * Routes the votes of one image.
 *
 * Options of all but discriminative: `iterations` (default 3, attention 1).
 * dynamic: logits (I, J) or (J), log priors; bias (J, D); leaky.
 * em: activation (I); beta_u (J) or (J, D); beta_a (J); inverse_temperature and sharpness, a number or one per
 *   iteration; relative; eps (1e-8); activation_scale, activation_shift (J): batch normalisation of the logit of the
 *   activation that comes out. Without inverse_temperature or sharpness the defaults of the class `EM`.
 * attention: pose (J, D) to begin from; scale (1); norm (true); weight, bias (D) of LayerNorm; and for capsules with
 *   em's activation: activation (I), beta_u, beta_a.
 * heinsen: score (I); beta_use, beta_ignore (I, J) or (J); start (I, J), logits of the first R; eps (1e-5).
 * discriminative: coefficients (I, J).
 * With several places `activation`, `score` are (P, I) and `pose` is (P, J, D); all else is shared by places.
 *
 * @param {"dynamic" | "em" | "attention" | "heinsen" | "discriminative"} name
 * @param {Float32Array} votes  (I, J, D), or (P, I, J, D)
 * @param {Sizes} sizes
 * @param {object} [options]
 * @returns {Routed}
 */
export function route(name, votes, sizes, options = {}) {
  if (!Object.hasOwn(ROUTING, name)) {
    throw new RangeError(`routing: expected one of ${Object.keys(ROUTING).join(", ")}, got ${name}`);
  }
  const { children, parents, dim, places = 1 } = sizes;
  const size = places * children * parents * dim;
  if (votes.length !== size) {
    throw new RangeError(`votes: expected ${places} x ${children} x ${parents} x ${dim} numbers, got ${votes.length}`);
  }
  const steps = ROUTING[name](votes, { ...sizes, places }, options);
  return { ...steps.at(-1), steps };
}

/** The algorithms: (votes, sizes, options) -> steps. */
export const ROUTING = { dynamic, em, attention, heinsen, discriminative };

/** Sabour, Frosst, Hinton (2017), Procedure 1. */
function dynamic(votes, sizes, { iterations = 3, logits = null, bias = null, leaky = false }) {
  const steps = [];
  let logit = rows(logits, sizes);
  for (let t = 0; t < iterations; t++) {
    const coupling = softmax(logit, sizes, leaky);
    const pose = squash(plus(weightedSum(coupling, votes, sizes), bias), sizes.dim);
    const agreement = dots(votes, pose, sizes, 1);
    steps.push({ logit, coupling, pose, activation: lengths(pose, sizes.dim), agreement });
    logit = logit.map((b, n) => b + agreement[n]);
  }
  return steps;
}

/** Hinton, Sabour, Frosst (2018), Procedure 1. */
function em(votes, sizes, options) {
  const { activation, beta_u, beta_a, iterations = 3, eps = 1e-8, relative = false } = options;
  const { activation_scale = null, activation_shift = null } = options;
  const { children, parents, dim, places, total: all = places * children } = sizes;
  const cooling = (t) => (relative ? 1 : 0.01 * (1 - 0.95 ** (t + 1)));
  const rising = (t) => (relative ? (t + 1) / (Math.max(iterations - 1, 1) * dim) : 1);
  const inverse = perIteration(options.inverse_temperature, cooling);
  const sharpness = perIteration(options.sharpness, rising);
  const whole = relative ? (all / (places * parents)) * dim : 1; // n_0 D: the cost is by share and pose element
  const steps = [];
  let logit = rows(null, sizes);
  for (let t = 0; t < iterations; t++) {
    const coupling = softmax(logit, sizes);
    const present = coupling.map((r, n) => r * activation[Math.floor(n / parents)]);
    const { total, mean, variance } = moments(present, votes, sizes, eps); // M-step
    const a = activationLogit(total, variance, sizes, beta_u, (j) => whole * beta_a[j], inverse(t) / whole);
    const density = logDensity(votes, mean, variance, sizes);
    const out = a.map((x, n) => {
      const j = n % parents;
      return logistic(activation_scale ? activation_scale[j] * x + activation_shift[j] : x);
    });
    const tau = sharpness(t);
    steps.push({ logit, coupling, pose: mean, activation: out, agreement: density, variance, sharpness: tau });
    logit = density.map((x, n) => logLogistic(a[parentOf(n, children, parents)]) + tau * x); // E-step
  }
  return steps;
}

/** Tsai et al. (2020), Procedure 1. */
function attention(votes, sizes, options) {
  const { pose: first = null, iterations = 1, scale = 1, norm = true, weight = null, bias = null } = options;
  const { activation = null, beta_u = null, beta_a = null } = options;
  const { parents, dim } = sizes;
  if (activation) votes = votes.map((v, n) => v * activation[Math.floor(n / (parents * dim))]);
  const steps = [];
  let logit = first ? dots(votes, first, sizes, scale) : rows(null, sizes);
  for (let t = 0; t < iterations; t++) {
    const coupling = softmax(logit, sizes);
    const sum = weightedSum(coupling, votes, sizes);
    const pose = norm ? layerNorm(sum, dim, weight, bias) : sum;
    const agreement = dots(votes, pose, sizes, scale);
    const step = { logit, coupling, pose, activation: null, agreement };
    if (beta_u) {
      const { total, variance } = moments(coupling, votes, sizes, 1e-8);
      step.activation = activationLogit(total, variance, sizes, beta_u, (j) => beta_a[j], 1).map(logistic);
      step.variance = variance;
    }
    steps.push(step);
    logit = agreement;
  }
  return steps;
}

/** Heinsen (2019), Algorithm 1. */
function heinsen(votes, sizes, { score, beta_use, beta_ignore, iterations = 3, eps = 1e-5, start = null }) {
  const { children, parents, places } = sizes;
  const [use, ignore] = [beta_use, beta_ignore].map((beta) => (n) => beta[n % beta.length]);
  const steps = [];
  let logit = rows(start, sizes);
  for (let t = 0; t < iterations; t++) {
    const coupling = softmax(logit, sizes);
    const a = new Float64Array(places * parents);
    const used = coupling.map((r, n) => {
      const f = logistic(score[Math.floor(n / parents)]);
      a[parentOf(n, children, parents)] += use(n) * f * r - ignore(n) * (f - f * r);
      return f * r;
    });
    const { mean, variance } = moments(used, votes, sizes, eps);
    const agreement = logDensity(votes, mean, variance, sizes);
    steps.push({ logit, coupling, pose: mean, activation: a, agreement, variance });
    logit = agreement.map((x, n) => logLogistic(a[parentOf(n, children, parents)]) + x);
  }
  return steps;
}

/** Routing towards discriminative power (2021), Eq. 6 and 2: no softmax, no iterations, signed coefficients. */
function discriminative(votes, sizes, { coefficients }) {
  const coupling = rows(coefficients, sizes);
  const pose = squash(weightedSum(coupling, votes, sizes), sizes.dim);
  const agreement = dots(votes, pose, sizes, 1);
  return [{ logit: coupling, coupling, pose, activation: lengths(pose, sizes.dim), agreement }];
}

export const logistic = (x) => 1 / (1 + Math.exp(-x));

/** log(logistic(x)), without overflow. */
const logLogistic = (x) => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x)));

/** Where the parent of entry n of (P, I, J) is in (P, J). */
const parentOf = (n, children, parents) => Math.floor(n / (children * parents)) * parents + (n % parents);

/** A number, or one per iteration of which the last serves all that follow; `otherwise` where there is none. */
function perIteration(value, otherwise) {
  if (value === null || value === undefined) return otherwise;
  return typeof value === "number" ? () => value : (t) => value[Math.min(t, value.length - 1)];
}

/** (I, J) or (J) repeated to (P, I, J); null: zeros. */
function rows(values, { places, children, parents }) {
  const out = new Float64Array(places * children * parents);
  return values ? out.map((_, n) => values[n % values.length]) : out;
}

const plus = (x, bias) => (bias ? x.map((v, n) => v + bias[n % bias.length]) : x);

/** The length of every vector (..., D) -> (...). */
export function lengths(x, dim) {
  const out = new Float64Array(x.length / dim);
  for (let n = 0; n < x.length; n++) out[Math.floor(n / dim)] += x[n] * x[n];
  return out.map(Math.sqrt);
}

/** Keeps the direction of every vector, maps its length n to n^2 / (1 + n^2). */
export function squash(x, dim) {
  const long = lengths(x, dim);
  return x.map((v, n) => {
    const l = long[Math.floor(n / dim)];
    return (v * l) / (1 + l * l);
  });
}

/** Every vector (..., D) with mean 0 and variance 1, times weight, plus bias. */
export function layerNorm(x, dim, weight = null, bias = null, eps = 1e-5) {
  const out = Float64Array.from(x);
  for (let at = 0; at < x.length; at += dim) {
    let mean = 0;
    let variance = 0;
    for (let d = 0; d < dim; d++) mean += x[at + d] / dim;
    for (let d = 0; d < dim; d++) variance += (x[at + d] - mean) ** 2 / dim;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let d = 0; d < dim; d++) {
      out[at + d] = (x[at + d] - mean) * scale * (weight ? weight[d] : 1) + (bias ? bias[d] : 0);
    }
  }
  return out;
}

/**
 * Softmax over the parents of every child, which may lie in several rows. logit (P, I, J) -> (P, I, J).
 * leaky: one more parent of logit 0, its share dropped.
 */
function softmax(logit, { children, parents, places, child, total: all = places * children }, leaky = false) {
  const count = places * children;
  const top = new Float64Array(all).fill(leaky ? 0 : -Infinity);
  const total = new Float64Array(all);
  const owner = (n) => (child ? child[n] : n);
  for (let n = 0; n < count; n++) {
    const k = owner(n);
    for (let j = 0; j < parents; j++) top[k] = Math.max(top[k], logit[n * parents + j]);
  }
  const out = new Float64Array(count * parents);
  for (let n = 0; n < count; n++) {
    const k = owner(n);
    for (let j = 0; j < parents; j++) total[k] += out[n * parents + j] = Math.exp(logit[n * parents + j] - top[k]);
  }
  for (let n = 0; n < count; n++) {
    const k = owner(n);
    const share = 1 / (total[k] + (leaky ? Math.exp(-top[k]) : 0));
    for (let j = 0; j < parents; j++) out[n * parents + j] *= share;
  }
  return out;
}

/** sum_i w_ij v_ij: weight (P, I, J) -> (P, J, D). */
function weightedSum(weight, votes, { children, parents, dim, places }) {
  const out = new Float64Array(places * parents * dim);
  for (let p = 0, at = 0, n = 0; p < places; p++) {
    for (let i = 0; i < children; i++) {
      for (let j = 0, to = p * parents * dim; j < parents; j++, n++) {
        const w = weight[n];
        for (let d = 0; d < dim; d++) out[to++] += w * votes[at++];
      }
    }
  }
  return out;
}

/** scale v_ij . p_j: pose (P, J, D) -> (P, I, J). */
function dots(votes, pose, { children, parents, dim, places }, scale) {
  const out = new Float64Array(places * children * parents);
  for (let p = 0, at = 0, n = 0; p < places; p++) {
    for (let i = 0; i < children; i++) {
      for (let j = 0, to = p * parents * dim; j < parents; j++, n++) {
        let sum = 0;
        for (let d = 0; d < dim; d++) sum += votes[at++] * pose[to++];
        out[n] = scale * sum;
      }
    }
  }
  return out;
}

/** The votes weighted by (P, I, J): total weight (P, J), mean and variance (P, J, D). */
function moments(weight, votes, sizes, eps) {
  const { children, parents, dim, places } = sizes;
  const total = new Float64Array(places * parents);
  weight.forEach((w, n) => (total[parentOf(n, children, parents)] += w));
  const share = weight.map((w, n) => w / (total[parentOf(n, children, parents)] + eps));
  const mean = weightedSum(share, votes, sizes);
  const variance = new Float64Array(mean.length).fill(eps);
  for (let p = 0, at = 0, n = 0; p < places; p++) {
    for (let i = 0; i < children; i++) {
      for (let j = 0, to = p * parents * dim; j < parents; j++, n++) {
        const w = share[n];
        for (let d = 0; d < dim; d++, at++, to++) variance[to] += w * (votes[at] - mean[to]) ** 2;
      }
    }
  }
  return { total, mean, variance };
}

/** log N(votes; mean, variance) up to the constant of 2 pi, which a softmax over parents cancels. (P, I, J) */
function logDensity(votes, mean, variance, { children, parents, dim, places }) {
  const precision = variance.map((x) => 1 / x);
  const logs = new Float64Array(places * parents);
  variance.forEach((x, n) => (logs[Math.floor(n / dim)] += Math.log(x)));
  const out = new Float64Array(places * children * parents);
  for (let p = 0, at = 0, n = 0; p < places; p++) {
    for (let i = 0; i < children; i++) {
      for (let j = 0, to = p * parents * dim; j < parents; j++, n++) {
        let sum = logs[p * parents + j];
        for (let d = 0; d < dim; d++, at++, to++) sum += (votes[at] - mean[to]) ** 2 * precision[to];
        out[n] = -0.5 * sum;
      }
    }
  }
  return out;
}

/** em's lambda (beta_a - sum_h (beta_u + log sigma_jh) sum_i r'_ij), (P, J). beta_a: a function of j. */
function activationLogit(total, variance, { parents, dim }, beta_u, beta_a, inverse) {
  return total.map((weight, n) => {
    const j = n % parents;
    let cost = 0;
    for (let d = 0; d < dim; d++) {
      const beta = beta_u.length === parents ? beta_u[j] : beta_u[j * dim + d];
      cost += beta + 0.5 * Math.log(variance[n * dim + d]);
    }
    return inverse * (beta_a(j) - cost * weight);
  });
}
