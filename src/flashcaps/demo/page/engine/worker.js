/** The worker: loads networks when they are first asked for, and answers what api.js asks. */

import { fromBase64, SIDE, toBase64 } from "../codec.js";
import { createAnswers } from "./answers.js";
import { center, readPicture } from "./centering.js";
import { LARGEST, Network, readFile } from "./network.js";

const MODELS = new URL("../../models/", import.meta.url);
const loaded = new Map(); // by name: a promise of the answers of a network

async function fetched(file, read) {
  let response;
  try {
    response = await fetch(new URL(file, MODELS));
  } catch {
    throw new Error(`${file} cannot be loaded; are you online, and is the page still served?`);
  }
  if (!response.ok) throw new Error(`${file} cannot be loaded (${response.status}); build the page again.`);
  if (Number(response.headers.get("content-length")) > LARGEST) throw new Error(`${file} is too large for this page.`);
  try {
    return await read(response);
  } catch (error) {
    throw error instanceof RangeError ? error : new Error(`${file} cannot be read; build the page again.`);
  }
}

async function load(name) {
  const file = `${encodeURIComponent(name)}.caps`;
  return createAnswers(new Network(await fetched(file, async (r) => readFile(await r.arrayBuffer(), file))));
}

/** The answers of a network; one that failed to load is tried again. */
function answersOf(name) {
  if (!loaded.has(name)) {
    const promise = load(name);
    loaded.set(name, promise);
    promise.catch(() => loaded.delete(name));
  }
  return loaded.get(name);
}

function centred({ pixels, height, width }) {
  const digit = center(pixels, height, width);
  return { image: toBase64(digit ?? new Uint8Array(SIDE * SIDE)), empty: !digit };
}

const METHODS = {
  models: () => fetched("index.json", (response) => response.json()),
  center: ({ pixels, ...size }) => centred({ pixels: fromBase64(pixels), ...size }),
  upload: async (file) => centred(await readPicture(file)),
  route: async (model, image, options) => (await answersOf(model)).route(image, options),
  explain: async (model, image, which) => (await answersOf(model)).explain(image, which),
  decode: async (model, pose, k) => (await answersOf(model)).decode(pose, k),
  dimensions: async (model, pose, k) => (await answersOf(model)).dimensions(pose, k),
  compare: async (models, image, options) => ({
    results: await Promise.all(models.map(async (model) => (await answersOf(model)).route(image, options))),
  }),
};

self.onmessage = async ({ data: { id, method, words } }) => {
  try {
    self.postMessage({ id, answer: await METHODS[method](...words) });
  } catch (error) {
    self.postMessage({ id, error: error.message });
  }
};
