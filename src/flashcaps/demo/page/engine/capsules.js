/** Capsule layers: primary, dense, convolutional, and stacks of them, with every iteration of their routing. */

import { fits, through } from "./layers.js";
import { layerNorm, logistic, route, squash } from "./routing.js";

/**
 * Capsules of one layer on a grid; those of a dense layer have one place.
 * @typedef {object} Capsules
 * @property {ArrayLike<number>} pose  (types, H, W, D)
 * @property {ArrayLike<number> | null} activation  (types, H, W)
 * @property {string | null} kind  what the activation is: "length", "probability" or "score"
 * @property {number} types
 * @property {number} height
 * @property {number} width
 * @property {number} dim
 */

/** Features -> primary capsules. */
export function primary(features, layer, tensor) {
  const { types, dim, form } = layer;
  const { data, height, width } = through(layer.pose, features, tensor);
  const size = height * width;
  let pose = new Float64Array(data.length); // (types, D, H, W) -> (types, H, W, D)
  pose.forEach((_, n) => {
    const [t, at] = [Math.floor(n / (size * dim)), Math.floor(n / dim) % size];
    pose[n] = data[(t * dim + (n % dim)) * size + at];
  });
  let [activation, kind] = [null, null];
  if (form === "squash") pose = squash(pose.map((v) => v / (layer.shares || 1) + layer.shift), dim);
  else if (form === "norm") {
    pose = layerNorm(pose, dim, tensor(layer.norm.weight), tensor(layer.norm.bias), layer.norm.eps);
  } else {
    activation = Float64Array.from(through(layer.activation, features, tensor).data);
    kind = form === "sigmoid" ? "probability" : "score";
    if (form === "sigmoid") activation = activation.map(logistic);
  }
  return { pose, activation, kind, types, height, width, dim };
}

/** The activation of children as an algorithm takes it: "probability", "score" or null (none). */
function activationFor({ activation, kind }, takes) {
  if (!activation || (kind === "length" && takes === null)) return null;
  if (kind === "score" && takes !== "score") return activation.map(logistic);
  if (kind !== "score" && takes === "score") {
    const least = 2 ** -23;
    return activation.map((p) => Math.min(Math.max(p, least), 1 - least)).map((p) => Math.log(p / (1 - p)));
  }
  return activation;
}

/**
 * The children of every place of a layer: poses (P, I, D), activations (P, I) or null, and the sizes `route` takes.
 * Outside the image of a convolutional layer there are absent children.
 */
function gather(below, layer) {
  const { takes } = layer;
  const absent = takes === "score" ? -Infinity : 0;
  const present = takes === "score" ? Infinity : 1;
  const given = activationFor(below, takes);
  const { types, height, width, dim } = below;
  const common = { parents: layer.parents, dim: layer.dim };
  if (layer.type === "dense") {
    const children = types * height * width;
    const activation = given ?? (takes ? new Float64Array(children).fill(present) : null);
    const sizes = { ...common, children, places: 1 };
    return { pose: below.pose, activation, sizes, grid: { height: 1, width: 1 } };
  }
  const { kernel, stride, padding } = layer;
  const [high, wide] = [fits(height, layer), fits(width, layer)];
  const [children, places] = [types * kernel * kernel, high * wide];
  const pose = new Float64Array(places * children * dim);
  const activation = new Float64Array(places * children).fill(absent);
  const child = new Int32Array(places * children);
  const framed = { height: height + 2 * padding, width: width + 2 * padding };
  for (let n = 0; n < places * children; n++) {
    const [p, k] = [Math.floor(n / children), n % (kernel * kernel)];
    const t = Math.floor((n % children) / (kernel * kernel));
    const y = Math.floor(p / wide) * stride + Math.floor(k / kernel);
    const x = (p % wide) * stride + (k % kernel);
    child[n] = (t * framed.height + y) * framed.width + x;
    const [row, column] = [y - padding, x - padding];
    if (row < 0 || row >= height || column < 0 || column >= width) continue;
    const from = (t * height + row) * width + column;
    activation[n] = given ? given[from] : present;
    for (let d = 0; d < dim; d++) pose[n * dim + d] = below.pose[from * dim + d];
  }
  const sizes = { ...common, children, places };
  if (layer.over === "positions") Object.assign(sizes, { child, total: types * framed.height * framed.width });
  return { pose, activation, sizes, grid: { height: high, width: wide } };
}

/**
 * Pose times transform, (P, I, J, D). A pose is `rows` rows of d numbers, a vote as many of h: weight (G, J, d, h),
 * bias (G, J, rows, h), where children come in G groups that share their transform.
 */
function makeVotes({ pose, activation, sizes }, below, layer, tensor) {
  const { children, parents, dim, places } = sizes;
  const [groups, , d, h] = layer.shape;
  const { rows } = layer;
  if (rows * d !== below.dim) throw new RangeError(`${layer.weight}: expected poses of ${rows * d}, got ${below.dim}`);
  if (children % groups) throw new RangeError(`${layer.weight}: expected ${groups} children, got ${children}`);
  const [weight, bias] = [tensor(layer.weight), layer.bias ? tensor(layer.bias) : null];
  const votes = new Float32Array(places * children * parents * dim);
  for (let n = 0, to = 0; n < places * children; n++) {
    const g = Math.floor((n % children) / (children / groups));
    const scale = layer.takes === null && activation ? activation[n] : 1;
    const at = n % (below.height * below.width); // of a dense layer, where coordinates are
    const place = [(Math.floor(at / below.width) + 0.5) / below.height, ((at % below.width) + 0.5) / below.width];
    for (let j = 0; j < parents; j++) {
      const w = (g * parents + j) * d * h;
      const b = (g * parents + j) * dim;
      for (let r = 0; r < rows; r++) {
        for (let c = 0; c < h; c++) {
          let sum = bias ? bias[b + r * h + c] : 0;
          for (let k = 0; k < d; k++) sum += pose[n * below.dim + r * d + k] * weight[w + k * h + c];
          if (layer.coordinates && (rows === 1 ? c < 2 : r < 2 && c === h - 1)) sum += place[rows === 1 ? c : r];
          votes[to++] = scale * sum;
        }
      }
    }
  }
  return votes;
}

/** Learned tensors and options as `route` wants them; what children of a group or all places share is repeated. */
function optionsOf(layer, { children, places, parents }, tensor) {
  const options = { ...layer.options };
  for (const [name, stored] of Object.entries(layer.learned)) {
    const x = tensor(stored);
    const repeats = layer.per_child.includes(name) ? children / layer.shape[0] : 1;
    options[name] = x;
    if (repeats > 1) {
      const from = (n) => Math.floor(n / (parents * repeats)) * parents + (n % parents);
      options[name] = Float32Array.from({ length: x.length * repeats }, (_, n) => x[from(n)]);
    }
  }
  if (options.initial) {
    const { initial } = options;
    options.pose = Float32Array.from({ length: places * initial.length }, (_, n) => initial[n % initial.length]);
  }
  if (layer.output_norm) {
    const [weight, bias, mean, variance] = ["weight", "bias", "mean", "variance"].map((k) =>
      tensor(layer.output_norm[k]),
    );
    const scale = Float64Array.from(weight, (w, j) => w / Math.sqrt(variance[j] + layer.output_norm.eps));
    options.activation_scale = scale;
    options.activation_shift = Float64Array.from(bias, (b, j) => b - mean[j] * scale[j]);
  }
  return options;
}

/** A layer at work: what it got, its votes, all its steps, and the capsules it makes. */
function run(below, layer, tensor, { iterations, pose = null }) {
  const children = gather(below, layer);
  const votes = makeVotes(children, below, layer, tensor);
  const { sizes, grid } = children;
  const options = { ...optionsOf(layer, sizes, tensor), iterations };
  if (layer.takes === "probability") options.activation = children.activation;
  if (layer.takes === "score") options.score = children.activation;
  if (pose) options.pose = pose;
  const { steps } = route(layer.routing, votes, sizes, options);
  return { layer, below, children, votes, sizes, steps, out: capsules(steps.at(-1), layer, grid) };
}

/** The parents (P, J, D) of a layer as capsules on a grid. */
function capsules({ pose, activation }, layer, { height, width }) {
  const { parents, dim } = layer;
  const size = height * width;
  const out = new Float64Array(pose.length);
  out.forEach((_, n) => {
    const [j, p] = [Math.floor(n / (dim * size)), Math.floor(n / dim) % size];
    out[n] = pose[(p * parents + j) * dim + (n % dim)];
  });
  const active = activation && activation.map((_, n) => activation[(n % size) * parents + Math.floor(n / size)]);
  return { pose: out, activation: active, kind: active ? layer.makes : null, types: parents, height, width, dim };
}

/**
 * The class layer above primary capsules, after the layers between. iterations: null is the network's own number.
 * A concurrent stack updates all its layers at once, each from the previous state of its neighbours.
 */
export function routeStack(below, stack, tensor, iterations = null) {
  const { layers, concurrent } = stack;
  if (!concurrent) {
    let top = null;
    for (const layer of layers) {
      top = run(top ? top.out : below, layer, tensor, { iterations: iterations ?? layer.iterations });
    }
    return top;
  }
  let state = [];
  for (const layer of layers) state.push(run(state.at(-1)?.out ?? below, layer, tensor, { iterations: 1 }));
  const steps = [state.at(-1).steps[0]];
  for (let t = 1; t < (iterations ?? stack.iterations); t++) {
    state = state.map(({ layer, steps: [before] }, k) =>
      run(k ? state[k - 1].out : below, layer, tensor, { iterations: 1, pose: before.pose }));
    steps.push(state.at(-1).steps[0]);
  }
  return { ...state.at(-1), steps };
}
