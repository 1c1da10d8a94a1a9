/** The server's addresses, and the rule that a slow answer never overwrites a newer one. */

const TIME_LIMIT = 20_000;

/** What the server or the network said, in one line. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const POLITE = {
  413: "That picture is too large; please take one under 4 MB.",
  415: "That file is not a picture this page can read; PNG and JPEG work.",
  429: "The server is busy; please try again in a moment.",
  503: "The server is busy; please try again in a moment.",
};

let open = 0;

/** Says on the page that answers are awaited, for whoever drives it. */
function awaited(change) {
  open += change;
  document.body.toggleAttribute("data-busy", open > 0);
}

async function ask(path, options, signal) {
  awaited(1);
  try {
    return await answered(path, options, signal);
  } finally {
    awaited(-1);
  }
}

async function answered(path, options, signal) {
  const limit = AbortSignal.timeout(TIME_LIMIT);
  let response;
  try {
    response = await fetch(path, { ...options, signal: signal ? AbortSignal.any([signal, limit]) : limit });
  } catch (error) {
    if (signal?.aborted) throw error;
    if (limit.aborted) throw new ApiError("The server took too long to answer; please try again.");
    throw new ApiError("The server cannot be reached; is `flashcaps demo` still running?");
  }
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  throw new ApiError(
    answer?.error ?? POLITE[response.status] ?? `The server answered ${response.status}.`,
    response.status,
  );
}

const post = (path, body, signal) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }, signal);

export const api = {
  models: () => ask("api/models"),
  center: (picture, signal) => post("api/center", picture, signal),
  upload: (file, signal) =>
    ask("api/upload", { method: "POST", headers: { "content-type": file.type || "image/*" }, body: file }, signal),
  route: (model, image, signal) => post("api/route", { model, image }, signal),
  decode: (model, pose, k, signal) => post("api/decode", { model, pose, class: k }, signal),
  dimensions: (model, pose, k, signal) => post("api/dimensions", { model, pose, class: k }, signal),
  compare: (models, image, signal) => post("api/compare", { models, image }, signal),
};

/**
 * Work of which only the newest matters. One call runs at a time, at least `gap` ms apart; while it runs only the
 * newest request waits; one that runs longer than `patience` ms is dropped for it. Answers thus arrive in order.
 *
 * @template A, R
 * @param {(args: A, signal: AbortSignal) => Promise<R>} work
 * @param {{ done: (result: R, args: A) => void, failed: (error: Error) => void, gap?: number, patience?: number }} options
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
      if (running === mine) failed(error);
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
