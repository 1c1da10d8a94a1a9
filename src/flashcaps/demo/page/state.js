/** What the page shows, in one place, and its mirror in the address bar. */

import { decodeDrawing, encodeDrawing } from "./codec.js";
import { NAMES } from "./parts_route.js";
import { atHome, readToy, writeToy } from "./parts_scene.js";

export const VIEWS = ["parts", "draw", "routing", "tweak", "overlap", "compare"];

/**
 * @typedef {object} State
 * @property {string} view
 * @property {import("./parts_scene.js").Toy} toy  the parts, where they lie and how they are looked at
 * @property {string} model       the model of single digits
 * @property {string} pair        the model of overlapping digits
 * @property {import("./codec.js").Drawing} drawing
 * @property {import("./codec.js").Drawing} second
 * @property {number[]} shift     how far both digits are moved: dx, dy of the first, dx, dy of the second
 * @property {number} iterations  how many to run, 1 to 10; 0 is the number the network was trained with
 * @property {number} step        the routing iteration shown, from 0; -1 is the last
 * @property {number[] | null} zoom  one multiplication: place, type of the small capsule, class
 * @property {number | null} parent  the class capsule looked at
 * @property {number[]} tweak     the slider of each pose dimension, in whole steps from its middle
 * @property {string[]} compared  names, [] is one of each algorithm
 * @property {number | null} lesson  step of the tour, from 0; null where nobody takes it
 */

/** @returns {State} */
export function initialState() {
  return {
    view: VIEWS[0],
    toy: atHome("house"),
    model: "",
    pair: "",
    drawing: { kind: "strokes", strokes: [] },
    second: { kind: "strokes", strokes: [] },
    shift: [-3, -2, 3, 2],
    iterations: 0,
    step: -1,
    zoom: null,
    parent: null,
    tweak: [],
    compared: [],
    lesson: null,
  };
}

/** Is the picture made of both digits? Under Overlap, and where its model is watched routing. */
export const usesTwo = (state) => state.view === "overlap" || (state.view === "routing" && state.model === state.pair);

const whole = (text, low, high) => {
  const value = Number.parseInt(text, 10);
  return Number.isFinite(value) ? Math.max(low, Math.min(high, value)) : undefined;
};
const list = (text, limit) => text.split(",").map((part) => whole(part, -limit, limit) ?? 0);

/** Each field that travels: its key, how it is written (null: leave out) and read (undefined: ignore). */
const FIELDS = {
  view: { key: "v", write: (v) => v, read: (t) => (VIEWS.includes(t) ? t : undefined) },
  toy: { key: "p", write: (v, s) => (s.view === "parts" ? writeToy(v) : null), read: (t) => readToy(t, NAMES) },
  model: { key: "m", write: (v) => v || null, read: (t) => t },
  pair: { key: "mp", write: (v) => v || null, read: (t) => t },
  drawing: { key: "d", write: encodeDrawing, read: (t) => decodeDrawing(t) ?? undefined },
  second: {
    key: "e",
    write: (v, s) => (usesTwo(s) ? encodeDrawing(v) : null),
    read: (t) => decodeDrawing(t) ?? undefined,
  },
  shift: {
    key: "o",
    write: (v, s) => (usesTwo(s) ? v.join(",") : null),
    read: (t) => (t.split(",").length === 4 ? list(t, 4) : undefined),
  },
  iterations: { key: "i", write: (v) => v || null, read: (t) => whole(t, 1, 10) },
  step: {
    key: "t",
    write: (v, s) => (["draw", "routing"].includes(s.view) && v >= 0 ? v + 1 : null),
    read: (t) => whole(t, 1, 99) - 1,
  },
  zoom: {
    key: "z",
    write: (v, s) => (s.view === "routing" && v ? v.join(",") : null),
    read: (t) => (/^\d{1,4},\d{1,4},\d{1,3}$/.test(t) ? t.split(",").map(Number) : undefined),
  },
  parent: { key: "c", write: (v) => v, read: (t) => whole(t, 0, 999) },
  tweak: {
    key: "w",
    write: (v, s) => (s.view === "tweak" && v.some(Boolean) ? v.join(",") : null),
    read: (t) => list(t, 25),
  },
  compared: {
    key: "k",
    write: (v, s) => (s.view === "compare" && v.length ? v.join(",") : null),
    read: (t) => t.split(",").slice(0, 12),
  },
  lesson: { key: "l", write: (v) => (v === null ? null : v + 1), read: (t) => whole(t, 1, 99) - 1 },
};

/** @param {State} state */
export function toHash(state) {
  const parts = new URLSearchParams();
  for (const [name, { key, write }] of Object.entries(FIELDS)) {
    const text = write(state[name], state);
    if (text !== null && text !== undefined) parts.set(key, String(text));
  }
  return `#${parts.toString().replaceAll("%2C", ",")}`;
}

/** @returns {Partial<State>} what the address says; what it does not say or says wrongly is left out */
export function fromHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const found = {};
  for (const [name, { key, read }] of Object.entries(FIELDS)) {
    const text = parts.get(key);
    const value = text === null ? undefined : read(text);
    if (value !== undefined && !Number.isNaN(value)) found[name] = value;
  }
  return found;
}

/**
 * A record with listeners. `set` changes fields and tells those who asked for one of them, once.
 * @template {object} T
 * @param {T} initial
 */
export function createStore(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    /** @returns {T} */
    get: () => value,
    /** @param {Partial<T>} patch */
    set(patch) {
      const changed = Object.keys(patch).filter((name) => !Object.is(patch[name], value[name]));
      if (!changed.length) return;
      value = { ...value, ...patch };
      for (const { names, call } of [...listeners])
        if (names.some((name) => changed.includes(name))) call(value, changed);
    },
    /** @param {(keyof T)[]} names */
    on(names, call) {
      const entry = { names, call };
      listeners.add(entry);
      return () => listeners.delete(entry);
    },
  };
}

/** What a link means that says nothing of the fields that are left out when they are at rest. */
const AT_REST = {
  view: VIEWS[0],
  tweak: [],
  iterations: 0,
  step: -1,
  zoom: null,
  parent: null,
  compared: [],
  lesson: null,
};

/**
 * Keep the address bar in step: a new view is a new page of the history, all else replaces the present one.
 * @param {(found: Partial<State>) => Partial<State>} sound  what of an address can be followed
 * @returns {() => void} writes what is still to be written
 */
export function mirror(store, sound) {
  let timer = 0;
  let shown = store.get().view;
  const write = () => {
    const hash = toHash(store.get());
    if (hash === location.hash) return;
    const push = store.get().view !== shown;
    shown = store.get().view;
    history[push ? "pushState" : "replaceState"](null, "", hash);
  };
  const names = /** @type {any} */ (Object.keys(FIELDS));
  store.on(names, (_, changed) => {
    clearTimeout(timer);
    if (changed.includes("view")) write();
    else timer = setTimeout(write, 350); // browsers refuse more than a hundred changes in half a minute
  });
  addEventListener("popstate", () => {
    const found = { ...AT_REST, ...sound(fromHash(location.hash)) };
    shown = found.view;
    store.set(found);
  });
  write();
  return write;
}
