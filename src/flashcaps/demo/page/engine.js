/** From a drawing to the network's answer. One pipeline for one digit, one for two. */

import { api, newest } from "./api.js";
import { asPicture, fromBase64, overlay, place, placeOrBlank, SIDE } from "./codec.js";
import { raster, RASTER } from "./strokes.js";
import { createStore, usesTwo } from "./state.js";

/**
 * @typedef {object} Answer
 * @property {Uint8Array | null} digit   28 x 28, null where nothing is drawn
 * @property {Uint8Array | null} pixels  what the network sees: one digit or two, of the model's size
 * @property {any} route                 what `api.route` said
 * @property {any} model                 who said it
 */

const GAP = 70; // ms between requests while a line is being drawn

/**
 * @param {ReturnType<typeof createStore>} store
 * @param {{models: any[], samples: any[]}} catalog
 * @param {(error: Error | null) => void} say
 */
export function createEngine(store, catalog, say) {
  const answers = createStore({ one: null, two: null });
  const centred = new WeakMap();
  const samples = new Map(catalog.samples.map((sample) => [sample.id, sample]));
  const models = new Map(catalog.models.map((model) => [model.name, model]));

  /** @returns {Promise<Uint8Array | null>} */
  async function toDigit(drawing, signal) {
    if (drawing.kind === "pixels") return drawing.pixels;
    if (drawing.kind === "sample") return samples.has(drawing.id) ? fromBase64(samples.get(drawing.id).image) : null;
    if (!drawing.strokes.length) return null;
    if (!centred.has(drawing)) {
      const answer = await api.center(asPicture(raster(drawing.strokes), RASTER, RASTER), signal);
      centred.set(drawing, answer.empty ? null : fromBase64(answer.image));
    }
    return centred.get(drawing);
  }

  async function one({ drawing, model: name, iterations }, signal) {
    const model = models.get(name);
    const digit = await toDigit(drawing, signal);
    if (!digit) return { digit: null, pixels: null, route: null, model };
    const [, height, width] = model.image;
    const pixels = place(digit, height, width);
    return { digit, pixels, model, route: await ask(name, pixels, iterations, signal) };
  }

  async function two({ drawing, second, shift, pair: name, iterations }, signal) {
    const model = models.get(name);
    const digits = [await toDigit(drawing, signal), await toDigit(second, signal)];
    const [, height, width] = model.image;
    const placed = digits.map((digit, n) => placeOrBlank(digit, height, width, shift.slice(2 * n)));
    const pixels = overlay(...placed);
    if (!digits[0] && !digits[1]) return { digits, placed, pixels, route: null, model };
    return { digits, placed, pixels, model, route: await ask(name, pixels, iterations, signal) };
  }

  const ask = (name, pixels, iterations, signal) => {
    const [, height, width] = models.get(name).image;
    const options = iterations ? { iterations } : {};
    return api.route(name, asPicture(pixels, height, width), signal, options);
  };

  /** A picture without an answer shows none: that of the picture before it would be taken for its own. */
  const run = (work, slot) =>
    newest(work, {
      gap: GAP,
      done: (answer) => {
        say(null);
        answers.set({ [slot]: answer });
      },
      failed: (error, { model, pair }) => {
        if (error.name === "AbortError") return;
        say(error);
        const blank = { digit: null, digits: [null, null], placed: [], pixels: null, route: null, failed: true };
        answers.set({ [slot]: { ...blank, model: models.get(slot === "two" ? pair : model) } });
      },
    });
  const [runOne, runTwo] = [run(one, "one"), run(two, "two")];

  function refresh() {
    const state = store.get();
    if (usesTwo(state)) {
      if (models.has(state.pair)) runTwo(state);
    } else if (models.has(state.model)) runOne(state);
  }

  let asked = {};
  store.on(["view", "drawing", "second", "shift", "model", "pair", "iterations"], (state) => {
    const { drawing, second, shift, model, pair, iterations } = state;
    const now = usesTwo(state)
      ? { two: true, drawing, second, shift, pair, iterations }
      : { two: false, drawing, model, iterations };
    const same =
      Object.keys(now).length === Object.keys(asked).length && Object.entries(now).every(([k, v]) => asked[k] === v);
    asked = now;
    if (!same) refresh();
  });

  return { answers, models, samples, toDigit, refresh, side: SIDE };
}
