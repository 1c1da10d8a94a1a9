/** Questions to the worker that runs the networks, and the rule that a slow answer never overwrites a newer one. */

/** What went wrong, in one line for whoever reads the page. */
export class ApiError extends Error {}

let worker = null;
let asked = 0;
const waiting = new Map(); // by id: {resolve, reject}

/** Says on the page that answers are awaited, for whoever drives it. */
function awaited() {
  document.body.toggleAttribute("data-busy", waiting.size > 0);
}

function settle(id, how, value) {
  const promise = waiting.get(id);
  waiting.delete(id);
  awaited();
  promise?.[how](value);
}

function start() {
  worker = new Worker(new URL("./engine/worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data: { id, answer, error } }) =>
    error === undefined ? settle(id, "resolve", answer) : settle(id, "reject", new ApiError(error));
  worker.onerror = () => {
    worker = null; // the next question starts another
    const failed = new ApiError("The network stopped working; please try again, or load the page again.");
    for (const id of [...waiting.keys()]) settle(id, "reject", failed);
  };
}

/** @param {AbortSignal} [signal]  drops the answer, not the work */
function ask(method, words, signal) {
  if (!worker) start();
  const id = ++asked;
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    signal?.addEventListener("abort", () => settle(id, "reject", signal.reason), { once: true });
    waiting.set(id, { resolve, reject });
    awaited();
    worker.postMessage({ id, method, words });
  });
}

/** Images are what `asPicture` makes; which answer has what is in engine/answers.js. */
export const api = {
  models: () => ask("models", []),
  center: (picture, signal) => ask("center", [picture], signal),
  upload: (file, signal) => ask("upload", [file], signal),
  /** options: {iterations}, 1 to 10; without, the network's own number. */
  route: (model, image, signal, options = {}) => ask("route", [model, image, options], signal),
  /** which: {child, parent, iteration, iterations}: the numbers of one multiplication. */
  explain: (model, image, which, signal) => ask("explain", [model, image, which], signal),
  decode: (model, pose, k, signal) => ask("decode", [model, pose, k], signal),
  dimensions: (model, pose, k, signal) => ask("dimensions", [model, pose, k], signal),
  compare: (models, image, signal, options = {}) => ask("compare", [models, image, options], signal),
};

/**
 * Work of which only the newest matters. One call runs at a time, at least `gap` ms apart; while it runs only the
 * newest request waits; one that runs longer than `patience` ms is dropped for it. Answers thus arrive in order.
 *
 * @template A, R
 * @param {(args: A, signal: AbortSignal) => Promise<R>} work
 * @param {{ done: (result: R, args: A) => void, failed: (error: Error, args: A) => void, gap?: number, patience?: number }} options
 * @returns {(args: A) => void}
 */
export function newest(work, { done, failed, gap = 0, patience = 400 }) {
  let running = null; // { controller, started }
  let waiting = null; // [args]
  let last = -Infinity;
  let timer = 0;

  async function start(args) {
    const mine = { controller: new AbortController(), started: performance.now() };
    running = mine;
    last = mine.started;
    try {
      const result = await work(args, mine.controller.signal);
      if (running === mine) done(result, args);
    } catch (error) {
      if (running === mine) failed(error, args);
    }
    if (running === mine) {
      running = null;
      next();
    }
  }

  function next() {
    clearTimeout(timer);
    if (!waiting) return;
    const now = performance.now();
    const free = running ? running.started + patience : now;
    const at = Math.max(free, last + gap);
    if (at > now) {
      timer = setTimeout(next, at - now);
      return;
    }
    const [args] = waiting;
    waiting = null;
    running?.controller.abort();
    start(args);
  }

  return (args) => {
    waiting = [args];
    next();
  };
}
