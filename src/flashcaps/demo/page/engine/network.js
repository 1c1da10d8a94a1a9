/** A network from its file: what it computes for an image, and what its decoder draws of a pose. */

import { primary, routeStack } from "./capsules.js";
import { product, through } from "./layers.js";
import { lengths, logistic } from "./routing.js";

const MAGIC = "flashcap";
const PREAMBLE = 16; // magic, length of the header, checksum of all that follows
export const LARGEST = 64 << 20; // bytes of a file

/** The numbers of all half-precision floats. */
const HALF = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
  return n;
});

/** CRC-32, as zlib has it. */
function checksum(bytes) {
  let sum = 0xffffffff;
  for (let n = 0; n < bytes.length; n++) sum = (sum >>> 8) ^ CRC[(sum ^ bytes[n]) & 255];
  return ~sum >>> 0;
}

/**
 * A file of `flashcaps.demo.build` -> header and tensors. Whatever is wrong with it is an error that names the file.
 * @param {ArrayBuffer} buffer
 * @param {string} file
 */
export function readFile(buffer, file) {
  const wrong = (what) => new RangeError(`${file}: ${what}; build the page again, or load it again`);
  if (buffer.byteLength < PREAMBLE) throw wrong("expected a network, got a file cut short");
  const view = new DataView(buffer);
  const magic = String.fromCharCode(...new Uint8Array(buffer, 0, MAGIC.length));
  if (magic !== MAGIC) throw wrong("expected a network of this page, got another kind of file");
  const [size, sum] = [view.getUint32(8, true), view.getUint32(12, true)];
  const start = PREAMBLE + size;
  if (start > buffer.byteLength || size % 2) throw wrong(`its header says ${size} bytes, the file is cut short`);
  if (checksum(new Uint8Array(buffer, PREAMBLE)) !== sum) throw wrong("the file is damaged (its checksum is another)");
  let header;
  try {
    header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, PREAMBLE, size)));
  } catch {
    throw wrong("its header cannot be read");
  }
  if (header?.format !== 1) throw wrong(`expected format 1, got ${header?.format}`);
  const tensors = new Map();
  const count = Math.floor((buffer.byteLength - start) / 2);
  for (const [name, { shape, offset }] of Object.entries(header.tensors ?? {})) {
    const whole = Array.isArray(shape) && [...shape, offset].every((n) => Number.isInteger(n) && n >= 0);
    const length = whole ? shape.reduce((a, b) => a * b, 1) : NaN;
    if (!(offset + length <= count)) throw wrong(`${name} lies outside the file`);
    const bits = new Uint16Array(buffer, start + 2 * offset, length);
    const numbers = new Float32Array(length);
    for (let n = 0; n < length; n++) numbers[n] = HALF[bits[n]];
    if (!numbers.every(Number.isFinite)) throw wrong(`${name} has numbers that are not finite`);
    tensors.set(name, numbers);
  }
  return { header, tensors };
}

/** What a class capsule is shown by, from scores: unchanged, or through the function of the loss. */
const SHOWN = {
  length: (scores) => scores,
  activation: (scores) => scores,
  "logistic score": (scores) => scores.map(logistic),
  "softmax of scores": (scores) => {
    const top = Math.max(...scores);
    const e = scores.map((x) => Math.exp(x - top));
    const sum = e.reduce((a, b) => a + b, 0);
    return e.map((x) => x / sum);
  },
};

export class Network {
  constructor({ header, tensors }) {
    Object.assign(this, header); // info, backbone, primary, stack, head, decoder, field, ...
    this.tensor = (name) => {
      if (!tensors.has(name)) throw new RangeError(`${this.info.name}: its file has no tensor ${name}`);
      return tensors.get(name);
    };
  }

  /** Grey bytes (H, W) -> primary capsules. */
  children(pixels) {
    const [channels, height, width] = this.info.image;
    if (pixels.length !== height * width) {
      throw new RangeError(`image: ${this.info.name} expects ${height} x ${width} pixels, got ${pixels.length}`);
    }
    const data = Float32Array.from({ length: channels * pixels.length }, (_, n) => pixels[n % pixels.length] / 255);
    return primary(
      through(this.backbone, { data, channels, height, width }, this.tensor),
      this.primary,
      this.tensor,
    );
  }

  /** The class layer on primary capsules. */
  route(children, iterations = null) {
    return routeStack(children, this.stack, this.tensor, iterations);
  }

  /** One score per class capsule, from a step of the class layer. */
  scores({ pose, activation }) {
    const { type, weight, bias } = this.head;
    const dim = this.info.pose_dim;
    if (type === "lengths") return Array.from(lengths(pose, dim));
    if (type === "activations") return Array.from(activation);
    const gated = type === "gated_linear" ? pose.map((v, n) => v * activation[Math.floor(n / dim)]) : pose;
    return Array.from(product(gated, this.tensor(weight), pose.length / dim, 1, dim), (x) => x + this.tensor(bias)[0]);
  }

  shown(scores) {
    return SHOWN[this.measure](scores);
  }

  /** Classes of the answer, best first. */
  answer(scores) {
    const order = scores.map((_, k) => k).sort((a, b) => scores[b] - scores[a]);
    const present = order.filter((k) => scores[k] > this.threshold);
    if (this.rule === "threshold" && present.length) return present;
    return order.slice(0, this.rule === "top2" ? 2 : 1);
  }

  /** Drawings of poses (N, D) of one class capsule: N arrays of grey bytes, channels averaged. */
  draw(poses, label) {
    if (!this.decoder) throw new RangeError(`${this.info.name} has no decoder to draw a pose with`);
    const { pose_dim: dim, parents, image } = this.info;
    if (!(label >= 0 && label < parents)) throw new RangeError(`class: expected 0 to ${parents - 1}, got ${label}`);
    const rows = new Float32Array(poses.length * parents * dim);
    poses.forEach((pose, n) => {
      if (pose.length !== dim) throw new RangeError(`pose: expected ${dim} numbers, got ${pose.length}`);
      rows.set(pose, (n * parents + label) * dim);
    });
    const sheet = { data: rows, channels: 1, height: poses.length, width: parents * dim };
    const { data } = through(this.decoder, sheet, this.tensor);
    const [channels, height, width] = image;
    const size = height * width;
    return poses.map((_, n) =>
      Uint8Array.from({ length: size }, (_, at) => {
        let sum = 0;
        for (let c = 0; c < channels; c++) sum += data[(n * channels + c) * size + at];
        return Math.round(Math.min(Math.max((255 * sum) / channels, 0), 255));
      }),
    );
  }
}
