/** Strokes as ink: the same pen on the screen and in what the network gets. */

import { unpackStroke } from "./codec.js";

export const RASTER = 112; // pixels a side of what is sent to be centred: four for each of the network's
const PEN = 0.082; // width of the pen as a share of the pad

const CORNER = Math.cos(Math.PI / 5); // a line that turns by more than 36 degrees at a point has a corner there

/** How a smooth line passes the point b between a and c: a third of its shorter side; nothing at a corner. */
function handle(a, b, c) {
  if (!a || !c) return [0, 0];
  const [before, after] = [Math.hypot(b[0] - a[0], b[1] - a[1]), Math.hypot(c[0] - b[0], c[1] - b[1])];
  const turn = ((b[0] - a[0]) * (c[0] - b[0]) + (b[1] - a[1]) * (c[1] - b[1])) / (before * after || 1);
  const along = Math.hypot(c[0] - a[0], c[1] - a[1]);
  if (turn < CORNER || !along) return [0, 0];
  const reach = Math.min(before, after) / 3 / along;
  return [(c[0] - a[0]) * reach, (c[1] - a[1]) * reach];
}

/** Draw one line through all of its points, in 0..1: smooth where it bends, sharp where it turns. */
function trace(context, points, side) {
  const at = ([x, y], [dx, dy], sign) => [(x + sign * dx) * side, (y + sign * dy) * side];
  const [x0, y0] = points[0];
  context.beginPath();
  context.moveTo(x0 * side, y0 * side);
  if (points.length === 1) context.lineTo(x0 * side + 0.01, y0 * side);
  const handles = points.map((point, i) => handle(points[i - 1], point, points[i + 1]));
  for (let i = 1; i < points.length; i++) {
    const [x, y] = points[i];
    context.bezierCurveTo(
      ...at(points[i - 1], handles[i - 1], 1),
      ...at(points[i], handles[i], -1),
      x * side,
      y * side,
    );
  }
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context
 * @param {number[][][]} lines  points in 0..1
 */
export function inkLines(context, lines, side, colour) {
  Object.assign(context, { lineCap: "round", lineJoin: "round", lineWidth: PEN * side, strokeStyle: colour });
  for (const line of lines) trace(context, line, side);
}

/** @param {import("./codec.js").Stroke[]} strokes */
export function raster(strokes) {
  const canvas = new OffscreenCanvas(RASTER, RASTER);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  inkLines(context, strokes.map(unpackStroke), RASTER, "#000");
  const { data } = context.getImageData(0, 0, RASTER, RASTER);
  return Uint8Array.from({ length: RASTER * RASTER }, (_, i) => data[4 * i + 3]);
}
