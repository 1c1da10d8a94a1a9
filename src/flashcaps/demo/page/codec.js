/** Drawings as short text for the address bar, and pixels as text for the worker. */

/** @typedef {Uint8Array} Stroke  x0, y0, x1, y1, ... each 0..255 */
/** @typedef {{kind: "strokes", strokes: Stroke[]} | {kind: "sample", id: number}} Editable */
/** @typedef {Editable | {kind: "pixels", pixels: Uint8Array}} Drawing  pixels: 28 x 28, of an upload */

export const SIDE = 28;

/** @param {Uint8Array} bytes */
export function toBase64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** @param {string} text */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

const toUrl = (bytes) => toBase64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
const fromUrl = (text) => fromBase64(text.replaceAll("-", "+").replaceAll("_", "/"));

/** Points that matter to the shape (Ramer, Douglas and Peucker): at most `tolerance` off the line drawn. */
export function simplify(points, tolerance = 0.8) {
  if (points.length < 3) return points;
  const [ax, ay] = points[0];
  const [bx, by] = points.at(-1);
  const length = Math.hypot(bx - ax, by - ay);
  let far = 0;
  let at = 0;
  for (let i = 1; i < points.length - 1; i++) {
    const [x, y] = points[i];
    const off = length ? Math.abs((bx - ax) * (ay - y) - (ax - x) * (by - ay)) / length : Math.hypot(x - ax, y - ay);
    if (off > far) [far, at] = [off, i];
  }
  if (far <= tolerance) return [points[0], points.at(-1)];
  return [...simplify(points.slice(0, at + 1), tolerance).slice(0, -1), ...simplify(points.slice(at), tolerance)];
}

const LONGEST = 255; // points of a stroke: its length is one byte

/** [[x, y], ...] in 0..1 -> a stroke, or several that follow each other where it is very long. */
export function packLine(points) {
  const byte = (v) => Math.max(0, Math.min(255, Math.round(v)));
  const kept = simplify(points.map(([x, y]) => [x * 255, y * 255]));
  const strokes = [];
  for (let i = 0; i === 0 || i < kept.length - 1; i += LONGEST - 1) {
    strokes.push(
      Uint8Array.from(
        kept
          .slice(i, i + LONGEST)
          .flat()
          .map(byte),
      ),
    );
  }
  return strokes;
}

/** A stroke -> [[x, y], ...] in 0..1. */
export function unpackStroke(stroke) {
  const points = [];
  for (let i = 0; i + 1 < stroke.length; i += 2) points.push([stroke[i] / 255, stroke[i + 1] / 255]);
  return points;
}

/** Runs of 16 grey levels: each byte is a level and how often it repeats, 1 to 16. */
function packPixels(pixels) {
  const levels = Array.from(pixels, (v) => Math.round(v / 17));
  const out = [];
  for (let i = 0; i < levels.length;) {
    let n = 1;
    while (n < 16 && levels[i + n] === levels[i]) n++;
    out.push((levels[i] << 4) | (n - 1));
    i += n;
  }
  return Uint8Array.from(out);
}

function unpackPixels(bytes) {
  const out = [];
  for (const byte of bytes) for (let n = 0; n <= (byte & 15); n++) out.push((byte >> 4) * 17);
  if (out.length !== SIDE * SIDE) throw new RangeError("pixels: not a 28 x 28 picture");
  return Uint8Array.from(out);
}

/** @param {Drawing} drawing */
export function encodeDrawing(drawing) {
  if (drawing.kind === "sample") return `n${drawing.id}`;
  if (drawing.kind === "pixels") return `p${toUrl(packPixels(drawing.pixels))}`;
  return `s${toUrl(Uint8Array.from(drawing.strokes.flatMap((s) => [s.length / 2, ...s])))}`;
}

/** @returns {Drawing | null} null for text that is no drawing: a bad link opens the page, not an error */
export function decodeDrawing(text) {
  try {
    if (/^n\d{1,6}$/.test(text)) return { kind: "sample", id: Number(text.slice(1)) };
    if (text.startsWith("p")) return { kind: "pixels", pixels: unpackPixels(fromUrl(text.slice(1))) };
    if (!text.startsWith("s")) return null;
    const bytes = fromUrl(text.slice(1));
    const strokes = [];
    for (let i = 0; i < bytes.length;) {
      const end = i + 1 + 2 * bytes[i];
      if (bytes[i] === 0 || end > bytes.length) return null;
      strokes.push(bytes.slice(i + 1, end));
      i = end;
    }
    return { kind: "strokes", strokes };
  } catch {
    return null;
  }
}

/** A picture as `api` takes it: grey bytes, ink high, row by row, as base64. */
export function asPicture(pixels, height, width) {
  return { width, height, pixels: toBase64(pixels) };
}

/** A 28 x 28 digit in the middle of H x W, moved by (dx, dy); on a smaller picture its margin is lost. */
export function place(digit, height, width, dx = 0, dy = 0) {
  const out = new Uint8Array(height * width);
  const top = Math.floor((height - SIDE) / 2) + dy;
  const left = Math.floor((width - SIDE) / 2) + dx;
  for (let y = 0; y < SIDE; y++) {
    for (let x = 0; x < SIDE; x++) {
      const [row, column] = [y + top, x + left];
      if (row >= 0 && row < height && column >= 0 && column < width) out[row * width + column] = digit[y * SIDE + x];
    }
  }
  return out;
}

/** The same for a digit that may not be drawn yet. */
export function placeOrBlank(digit, height, width, [dx, dy]) {
  return digit ? place(digit, height, width, dx, dy) : new Uint8Array(height * width);
}

/** Two pictures over each other: added, and clipped at full ink. */
export function overlay(a, b) {
  return a.map((v, i) => Math.min(255, v + b[i]));
}
