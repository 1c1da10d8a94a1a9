/** Layers of a plain network on one image, as PyTorch computes them in evaluation. Maps are (C, H, W), row-major. */

import { logistic } from "./routing.js";

/** @typedef {{data: Float32Array, channels: number, height: number, width: number}} Map */

/**
 * a (rows, inner) times the transpose of b (columns, inner), plus bias (rows): (rows, columns).
 * Blocks of 4 x 4 sums stay in registers, so that each number read serves four products.
 */
export function product(a, b, rows, columns, inner, bias = null) {
  const out = new Float32Array(rows * columns);
  const whole = { rows: rows - (rows % 4), columns: columns - (columns % 4) };
  for (let r = 0; r < whole.rows; r += 4) {
    const [a0, a1, a2, a3] = [r * inner, (r + 1) * inner, (r + 2) * inner, (r + 3) * inner];
    for (let c = 0; c < whole.columns; c += 4) {
      const [b0, b1, b2, b3] = [c * inner, (c + 1) * inner, (c + 2) * inner, (c + 3) * inner];
      let s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
      let s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
      for (let k = 0; k < inner; k++) {
        const x0 = a[a0 + k], x1 = a[a1 + k], x2 = a[a2 + k], x3 = a[a3 + k];
        const y0 = b[b0 + k], y1 = b[b1 + k], y2 = b[b2 + k], y3 = b[b3 + k];
        s00 += x0 * y0; s01 += x0 * y1; s02 += x0 * y2; s03 += x0 * y3;
        s10 += x1 * y0; s11 += x1 * y1; s12 += x1 * y2; s13 += x1 * y3;
        s20 += x2 * y0; s21 += x2 * y1; s22 += x2 * y2; s23 += x2 * y3;
        s30 += x3 * y0; s31 += x3 * y1; s32 += x3 * y2; s33 += x3 * y3;
      }
      let to = r * columns + c;
      out[to] = s00; out[to + 1] = s01; out[to + 2] = s02; out[to + 3] = s03;
      to += columns;
      out[to] = s10; out[to + 1] = s11; out[to + 2] = s12; out[to + 3] = s13;
      to += columns;
      out[to] = s20; out[to + 1] = s21; out[to + 2] = s22; out[to + 3] = s23;
      to += columns;
      out[to] = s30; out[to + 1] = s31; out[to + 2] = s32; out[to + 3] = s33;
    }
  }
  for (let r = 0; r < rows; r++) {
    for (let c = r < whole.rows ? whole.columns : 0; c < columns; c++) {
      let sum = 0;
      for (let k = 0; k < inner; k++) sum += a[r * inner + k] * b[c * inner + k];
      out[r * columns + c] = sum;
    }
  }
  if (bias) for (let r = 0, n = 0; r < rows; r++) for (let c = 0; c < columns; c++) out[n++] += bias[r];
  return out;
}

/** How many windows of a kernel fit along a side. */
export const fits = (side, { kernel, stride, padding = 0 }) => Math.floor((side + 2 * padding - kernel) / stride) + 1;

/** What each place of the output looks at: (H' W', C k k), zeros outside the image. */
function windows({ data, channels, height, width }, { kernel, stride, padding }, [high, wide]) {
  const out = new Float32Array(high * wide * channels * kernel * kernel);
  let n = 0;
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      for (let c = 0; c < channels; c++) {
        for (let dy = 0; dy < kernel; dy++) {
          const row = y * stride - padding + dy;
          if (row < 0 || row >= height) {
            n += kernel;
            continue;
          }
          const from = (c * height + row) * width;
          let column = x * stride - padding;
          for (let dx = 0; dx < kernel; dx++, n++, column++) {
            if (column >= 0 && column < width) out[n] = data[from + column];
          }
        }
      }
    }
  }
  return out;
}

function conv(x, layer, tensor) {
  const { weight, bias, kernel } = layer;
  const [channels, inputs] = layer.shape;
  if (inputs !== x.channels) throw new RangeError(`${weight}: expected ${inputs} channels, got ${x.channels}`);
  const [height, width] = [fits(x.height, layer), fits(x.width, layer)];
  const seen = windows(x, layer, [height, width]);
  const inner = inputs * kernel * kernel;
  const data = product(tensor(weight), seen, channels, height * width, inner, bias ? tensor(bias) : null);
  return { data, channels, height, width };
}

function batchNorm(x, layer, tensor) {
  const [weight, bias, mean, variance] = ["weight", "bias", "mean", "variance"].map((k) => tensor(layer[k]));
  const size = x.height * x.width;
  const data = new Float32Array(x.data.length);
  for (let c = 0, n = 0; c < x.channels; c++) {
    const scale = weight[c] / Math.sqrt(variance[c] + layer.eps);
    const shift = bias[c] - mean[c] * scale;
    for (let k = 0; k < size; k++, n++) data[n] = x.data[n] * scale + shift;
  }
  return { ...x, data };
}

const each = (f) => (x) => ({ ...x, data: x.data.map(f) });

/** A number for every 2 x 2 places, or for all places. */
function pool(x, layer) {
  const kernel = layer.kernel ?? Math.max(x.height, x.width);
  const [height, width] = layer.kernel ? [fits(x.height, layer), fits(x.width, layer)] : [1, 1];
  const data = new Float32Array(x.channels * height * width);
  data.forEach((_, n) => {
    const [c, y, left] = [Math.floor(n / (height * width)), Math.floor(n / width) % height, (n % width) * kernel];
    const seen = [];
    for (let row = y * kernel; row < Math.min((y + 1) * kernel, x.height); row++) {
      for (let column = left; column < Math.min(left + kernel, x.width); column++) {
        seen.push(x.data[(c * x.height + row) * x.width + column]);
      }
    }
    data[n] = layer.max ? Math.max(...seen) : seen.reduce((a, b) => a + b) / seen.length;
  });
  return { ...x, data, height, width };
}

/** The image less its mean, over its standard deviation, which is at least that of one bright pixel. */
function standardise(x) {
  const count = x.data.length;
  const mean = x.data.reduce((a, b) => a + b, 0) / count;
  const variance = x.data.reduce((sum, v) => sum + (v - mean) ** 2, 0) / count;
  const deviation = Math.max(Math.sqrt(variance), 1 / Math.sqrt(count));
  return { ...x, data: x.data.map((v) => (v - mean) / deviation) };
}

/** Two more channels: where each place is, from -1 to 1, across and down. */
function coordinates(x) {
  const size = x.height * x.width;
  const data = new Float32Array(x.data.length + 2 * size);
  data.set(x.data);
  const along = (k, side) => (side === 1 ? -1 : (2 * k) / (side - 1) - 1);
  for (let n = 0; n < size; n++) {
    data[x.data.length + n] = along(n % x.width, x.width);
    data[x.data.length + size + n] = along(Math.floor(n / x.width), x.height);
  }
  return { ...x, data, channels: x.channels + 2 };
}

function residual(x, layer, tensor) {
  const [y, shortcut] = [through(layer.body, x, tensor), through(layer.shortcut, x, tensor)];
  return { ...y, data: y.data.map((v, n) => Math.max(0, v + shortcut.data[n])) };
}

function linear(x, layer, tensor) {
  const [outputs, inputs] = layer.shape;
  if (inputs !== x.width) throw new RangeError(`${layer.weight}: expected ${inputs} numbers, got ${x.width}`);
  const bias = layer.bias ? tensor(layer.bias) : null;
  const columns = product(tensor(layer.weight), x.data, outputs, x.height, inputs, bias);
  const data = columns.map((_, n) => columns[(n % outputs) * x.height + Math.floor(n / outputs)]);
  return { ...x, data, width: outputs };
}

/** Layers by type: (map, layer of the header, tensor by name) -> map. linear works on rows: (1, N, inputs). */
export const LAYERS = {
  conv,
  batch_norm: batchNorm,
  relu: each((v) => Math.max(0, v)),
  leaky_relu: (x, { slope }) => each((v) => (v > 0 ? v : slope * v))(x),
  swish: each((v) => v * logistic(v)),
  sigmoid: each(logistic),
  pool,
  standardise,
  coordinates,
  residual,
  linear,
};

/** A map through all layers. */
export function through(layers, x, tensor) {
  return layers.reduce((y, layer) => {
    if (!Object.hasOwn(LAYERS, layer.type)) throw new RangeError(`layer: this page does not run ${layer.type}`);
    return LAYERS[layer.type](y, layer, tensor);
  }, x);
}
