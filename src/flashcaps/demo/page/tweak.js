/** Tweak: one slider for each number of a class capsule's pose; the drawing follows. */

import { api, newest } from "./api.js";
import { measureOf } from "./captions.js";
import { fromBase64 } from "./codec.js";
import { assign, h, number } from "./dom.js";
import { inspectable } from "./inspect.js";
import { paint, picture } from "./pixels.js";

const REACH = 0.25; // what the paper changes a dimension by, to either side, where the model does not say otherwise
const STEPS = 25; // of a slider, from its middle to either end

/** Eleven small drawings: the dimension over the slider's whole way, all else as it is. */
function filmstrip() {
  const canvases = Array.from({ length: 11 }, () => h("canvas", { class: "pixels", width: 28, height: 28 }));
  return {
    element: h("div", { class: "film", "aria-hidden": "true" }, canvases),
    show: (images, height, width) =>
      canvases.forEach((canvas, n) => paint(canvas, images ? fromBase64(images[n]) : null, height, width)),
  };
}

/** @param {any} app */
export function createView(app) {
  const { store, say } = app;
  let answer = null;
  let chosen = 0; // the class capsule
  let pose = [];
  let asked = ""; // what the film strips were fetched for
  let drawn = ""; // what the right-hand drawing was asked for
  let rows = [];
  let unit = REACH / STEPS; // what one step of a slider adds

  const before = picture("As it was");
  const after = picture("As you made it");
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Class capsule to tweak" });
  const sliders = h("div", { class: "sliders" });
  const reset = h("button", { type: "button", class: "tool", onclick: () => store.set({ tweak: [] }) }, "Reset all");
  const length = h("p", { class: "faint", "data-testid": "pose-length" });
  const blank = h("p", { class: "blank" }, "Draw a digit, or pick one, to take its capsule apart.");
  const body = h(
    "div",
    { class: "tweak-body" },
    h(
      "section",
      { class: "card tweak-pictures", "aria-label": "Drawings" },
      h("h2", {}, "What the capsule draws"),
      after.element,
      h("div", { class: "was" }, before.element, length),
      h("h3", {}, "Capsule"),
      chips,
    ),
    h(
      "section",
      { class: "card", "aria-label": "Pose" },
      h("div", { class: "card-head" }, h("h2", {}, "Its pose, number by number"), reset),
      sliders,
    ),
  );
  const element = h("div", { class: "view tweak-view" }, blank, body);

  const failed = (error) => error.name !== "AbortError" && say(error);
  const decode = newest(({ model, pose: moved, k }, signal) => api.decode(model, moved, k, signal), {
    failed,
    done: (result) => {
      say(null);
      after.show(fromBase64(result.image), ...result.shape);
    },
  });
  const strips = newest(({ model, pose: still, k }, signal) => api.dimensions(model, still, k, signal), {
    failed,
    done: ({ rows: found }, { shape }) =>
      found.forEach(({ dimension, images }) => rows[dimension]?.film.show(images, ...shape)),
  });

  function makeRow(d, stands) {
    const input = h("input", {
      type: "range",
      min: -STEPS,
      max: STEPS,
      step: 1,
      value: 0,
      id: `pose-${d}`,
      oninput: () =>
        store.set({ tweak: pose.map((_, n) => (n === d ? Number(input.value) : (store.get().tweak[n] ?? 0))) }),
      ondblclick: () => {
        input.value = "0";
        input.dispatchEvent(new Event("input"));
      },
    });
    const value = h("output", { for: `pose-${d}` });
    const words = h("span", { class: "stands" }, stands ?? "");
    const label = h("label", { for: `pose-${d}` }, h("b", {}, `${d + 1}`), words);
    const film = filmstrip();
    const row = h("div", { class: "slider" }, label, h("div", { class: "run" }, film.element, input), value);
    inspectable(label, () => ({
      title: `Pose dimension ${d + 1}`,
      formula: "x̂ = decoder(v_j + δ e_d)",
      rows: [
        ["as routed", number(pose[d], 4)],
        ["you added", number(unit * Number(input.value), 2)],
        ["stands for", words.textContent || "nothing nameable"],
      ],
    }));
    input.setAttribute("aria-label", `Pose dimension ${d + 1}${stands ? `, ${stands}` : ""}`);
    return { row, input, value, film };
  }

  function rebuild(model) {
    unit = (model.reach ?? REACH) / STEPS;
    rows = Array.from({ length: model.pose_dim }, (_, d) => makeRow(d, model.dimensions?.[d]));
    sliders.replaceChildren(...rows.map(({ row }) => row));
    chips.replaceChildren(
      ...model.classes.map((name, k) =>
        h("button", { type: "button", class: "chip", onclick: () => store.set({ parent: k, tweak: [] }) }, name),
      ),
    );
  }

  function show(state) {
    const { route, model } = answer;
    if (rows.length !== model.pose_dim || chips.dataset.model !== model.name) {
      rebuild(model);
      chips.dataset.model = model.name;
    }
    chosen = state.parent !== null && state.parent < model.classes.length ? state.parent : route.predicted[0];
    pose = route.poses[chosen];
    [...chips.children].forEach((chip, k) => assign(chip, { "aria-pressed": String(k === chosen) }));
    const moved = pose.map((v, d) => v + unit * (state.tweak[d] ?? 0));
    rows.forEach(({ input, value, row }, d) => {
      const steps = state.tweak[d] ?? 0;
      input.value = String(steps);
      input.setAttribute("aria-valuetext", number(moved[d], 2));
      value.textContent = number(moved[d], 2);
      row.classList.toggle("moved", steps !== 0);
    });
    reset.disabled = !state.tweak.some(Boolean);
    const size = (v) => Math.hypot(...v);
    length.textContent = `Length of the pose: ${number(size(pose))}${reset.disabled ? "" : `, now ${number(size(moved))}`}. ${measureOf(answer) === "length" ? "The length says how surely the digit is there, the direction how it looks." : ""}`;
    const key = JSON.stringify([model.name, chosen, pose]);
    if (key !== asked) {
      asked = key;
      strips({ model: model.name, pose, k: chosen, shape: route.shape });
      api
        .decode(model.name, pose, chosen)
        .then((r) => key === asked && before.show(fromBase64(r.image), ...r.shape), failed);
    }
    const wanted = JSON.stringify([model.name, chosen, moved]);
    if (wanted !== drawn) decode({ model: model.name, pose: moved, k: chosen });
    drawn = wanted;
  }

  return {
    element,
    update(state, answers) {
      answer = answers.one;
      const able = Boolean(answer?.route && answer.model.decoder);
      blank.hidden = able;
      body.hidden = !able;
      if (answer?.route && !able)
        blank.textContent = "This model has no decoder: it cannot draw what its capsules hold. Please choose another.";
      if (able) show(state);
    },
  };
}
