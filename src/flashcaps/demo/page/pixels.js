/** Grey pictures on canvases. Ink is the canvas's opacity, so that one picture serves light and dark. */

import { h } from "./dom.js";

/** Blue and orange of Okabe and Ito: apart for every kind of colour vision. */
export const TINTS = { first: [0, 114, 178], second: [230, 130, 0] };

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Uint8Array | null} pixels  ink, row by row; null clears
 * @param {number[]} colour
 */
export function paint(canvas, pixels, height, width, colour = [0, 0, 0]) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  if (!pixels) return;
  const image = context.createImageData(width, height);
  pixels.forEach((ink, i) => image.data.set([...colour, ink], 4 * i));
  context.putImageData(image, 0, 0);
}

/** A framed picture with a caption: { element, show(pixels, height, width) }. */
export function picture(caption, { tint = null, label = caption } = {}) {
  const canvas = h("canvas", {
    class: tint ? "pixels tinted" : "pixels",
    role: "img",
    "aria-label": label,
    width: 28,
    height: 28,
  });
  const text = h("figcaption", {}, caption);
  const element = h("figure", { class: "picture" }, h("div", { class: "paper" }, canvas), text);
  return {
    element,
    canvas,
    show(pixels, height, width, says = null) {
      paint(canvas, pixels, height, width, tint ? TINTS[tint] : undefined);
      if (says === null) return;
      text.textContent = says;
      canvas.setAttribute("aria-label", says);
    },
  };
}

/** Two pictures in two colours over each other. */
export function twoTone(label) {
  const layers = ["first", "second"].map((tint) =>
    h("canvas", { class: `pixels tinted ${tint}`, "aria-hidden": "true" }),
  );
  const element = h("div", { class: "paper two-tone", role: "img", "aria-label": label }, layers);
  return {
    element,
    show(first, second, height, width) {
      paint(layers[0], first, height, width, TINTS.first);
      paint(layers[1], second, height, width, TINTS.second);
    },
  };
}
