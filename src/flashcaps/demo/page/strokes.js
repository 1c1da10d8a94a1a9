/** Strokes as ink: the same pen on the screen and in what the network gets. */

import { unpackStroke } from "./codec.js";

export const RASTER = 112; // pixels a side of what is sent to be centred: four for each of the network's
const PEN = 0.082; // width of the pen as a share of the pad

/** Draw one line of points in 0..1 through the middles of its pieces. */
function trace(context, points, side) {
  const [x0, y0] = points[0];
  context.beginPath();
  context.moveTo(x0 * side, y0 * side);
  if (points.length === 1) context.lineTo(x0 * side + 0.01, y0 * side);
  for (let i = 1; i < points.length; i++) {
    const [x, y] = points[i];
    const [nx, ny] = points[i + 1] ?? points[i];
    const last = i === points.length - 1;
    context.quadraticCurveTo(x * side, y * side, (last ? x : (x + nx) / 2) * side, (last ? y : (y + ny) / 2) * side);
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
