/** Centres a drawing as in MNIST: its bounding box scaled to 20 pixels, its centre of mass in the middle of 28 x 28. */

import { SIDE } from "../codec.js";

const BOX = 20;
const FAINT = 200; // thin lines fade when scaled down; below this maximum the ink is stretched to 255
const PAPER = 0.25; // share of the contrast of a photograph below which a pixel is paper
const LARGEST = 640; // pixels a side that a photograph is shrunk to

/** Half to even, as Python rounds. */
function round(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 ? low + 1 : low;
}

/** The bounding box of the ink in (H, W): {top, left, height, width}; null for an empty sheet. */
function inkBox(pixels, height, width) {
  let [top, bottom, left, right] = [height, -1, width, -1];
  for (let y = 0, n = 0; y < height; y++) {
    for (let x = 0; x < width; x++, n++) {
      if (!pixels[n]) continue;
      [top, bottom] = [Math.min(top, y), y];
      [left, right] = [Math.min(left, x), Math.max(right, x)];
    }
  }
  return bottom < 0 ? null : { top, left, height: bottom - top + 1, width: right - left + 1 };
}

/** Along one side, which of n pixels make up each of m: lists of [pixel, share]. Means of parts, or bilinear. */
function resampling(n, m, enlarge) {
  return Array.from({ length: m }, (_, part) => {
    if (enlarge) {
      const at = Math.max(((part + 0.5) * n) / m - 0.5, 0);
      const low = Math.min(Math.floor(at), n - 1);
      return [
        [low, 1 - (at - low)],
        [Math.min(low + 1, n - 1), at - low],
      ];
    }
    const [begin, end] = [(part * n) / m, ((part + 1) * n) / m];
    const shares = [];
    for (let k = Math.floor(begin); k < Math.min(Math.ceil(end), n); k++) {
      shares.push([k, ((Math.min(k + 1, end) - Math.max(k, begin)) * m) / n]);
    }
    return shares;
  });
}

/** The offset, within 0 .. room, that puts the centre of mass of a profile in the middle. */
function shift(profile, room) {
  const mass = profile.reduce((a, b) => a + b, 0);
  const middle = profile.reduce((sum, v, k) => sum + v * k, 0) / mass;
  return Math.min(Math.max(Math.ceil(SIDE / 2 - 0.5 - middle), 0), room);
}

/**
 * Grey bytes (H, W), ink high -> (28, 28), or null for an empty sheet.
 *
 * The longer side of the bounding box becomes 20 pixels. A whole-pixel shift puts the centre of mass, in coordinates of
 * pixel centres, into [13.5, 14.5), where it is in every MNIST digit, so that these do not change.
 */
export function center(pixels, height, width) {
  const box = inkBox(pixels, height, width);
  if (!box) return null;
  const longest = Math.max(box.height, box.width);
  const [h, w] = [box.height, box.width].map((n) => Math.max(1, round((n * BOX) / longest)));
  const [down, across] = [
    [box.height, h],
    [box.width, w],
  ].map(([n, m]) => resampling(n, m, longest < BOX));
  const ink = new Float64Array(h * w);
  ink.forEach((_, n) => {
    for (const [y, a] of down[Math.floor(n / w)]) {
      const from = (box.top + y) * width + box.left;
      for (const [x, b] of across[n % w]) ink[n] += a * b * pixels[from + x];
    }
  });
  const top = ink.reduce((a, b) => Math.max(a, b), 0);
  const stretch = top < FAINT ? 255 / Math.max(top, 1e-6) : 1;
  const [rows, columns] = [new Array(h).fill(0), new Array(w).fill(0)];
  ink.forEach((v, n) => {
    rows[Math.floor(n / w)] += v;
    columns[n % w] += v;
  });
  const [y, x] = [shift(rows, SIDE - h), shift(columns, SIDE - w)];
  const out = new Uint8Array(SIDE * SIDE);
  ink.forEach((v, n) => {
    out[(y + Math.floor(n / w)) * SIDE + x + (n % w)] = Math.min(round(v * stretch), 255);
  });
  return out;
}

/** A photograph or scan, grey bytes (H, W), as ink: what differs from the border; paper becomes 0. */
export function toInk(grey, height, width) {
  const border = [];
  for (let x = 0; x < width; x++) border.push(grey[x], grey[(height - 1) * width + x]);
  for (let y = 0; y < height; y++) border.push(grey[y * width], grey[(y + 1) * width - 1]);
  const paper = border.sort((a, b) => a - b)[(border.length - 1) >> 1];
  const sign = paper > 127 ? -1 : 1;
  let top = 0;
  for (let n = 0; n < grey.length; n++) top = Math.max(top, sign * (grey[n] - paper));
  if (top < 16) return new Uint8Array(grey.length); // a sheet without contrast: noise, not ink
  return Uint8Array.from(grey, (v) => {
    const ink = Math.max((sign * (v - paper)) / top, 0);
    return ink > PAPER ? round(255 * ink) : 0;
  });
}

/**
 * A picture file as ink: {pixels, height, width}. Large ones are shrunk; what is transparent is paper.
 * @param {Blob} file
 */
export async function readPicture(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new RangeError("That file is not a picture this page can read; PNG and JPEG work.");
  }
  const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((n) => Math.max(1, Math.round(n * scale)));
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  const grey = Uint8Array.from({ length: width * height }, (_, n) =>
    Math.round(0.299 * data[4 * n] + 0.587 * data[4 * n + 1] + 0.114 * data[4 * n + 2]),
  );
  return { pixels: toInk(grey, height, width), height, width };
}
