/** The iterations of one answer, side by side: step through them, play them, take fewer or more of them. */

import { measureOf } from "./captions.js";
import { assign, h, icon, number, roving, svg } from "./dom.js";
import { leaders } from "./measures.js";

const PLAY = "M7 5l12 7-12 7Z";
const PAUSE = "M8 5v14M16 5v14";
const BACK = "M15 6l-6 6 6 6";
const ON = "M9 6l6 6-6 6";
const PACE = 1500; // ms an iteration is shown for
const MOST = 10;

/** Ten columns on one scale from 0 to 1. */
function columns(values, lit) {
  return svg(
    "svg",
    { class: "columns", viewBox: `0 0 ${values.length} 4`, preserveAspectRatio: "none", "aria-hidden": "true" },
    values.map((v, k) => {
      const height = 4 * Math.max(0.015, Math.min(1, v));
      return svg("rect", { x: k + 0.12, y: 4 - height, width: 0.76, height, class: k === lit ? "lit" : "" });
    }),
  );
}

/** @param {any} app */
export function createRounds(app) {
  const { store } = app;
  let answer = null;
  let step = 0;
  let timer = 0;
  let buttons = [];

  const last = () => answer.route.routing.steps.length - 1;
  const go = (to) => answer?.route && store.set({ step: Math.max(0, Math.min(last(), to)) });
  const tool = (label, path, onclick) =>
    h("button", { type: "button", class: "round", "aria-label": label, onclick }, icon(path));
  const play = tool("Play", PLAY, () => (timer ? pause() : start()));
  const turn = (by) => () => {
    pause();
    go(step + by);
  };
  const count = h("output", { class: "count" });
  const transport = h(
    "div",
    { class: "transport", role: "group", "aria-label": "Iterations" },
    tool("Previous iteration", BACK, turn(-1)),
    play,
    tool("Next iteration", ON, turn(1)),
    count,
  );
  const take = (iterations) => {
    pause();
    store.set({ iterations, step: -1 });
  };
  const without = h(
    "button",
    {
      type: "button",
      class: "chip",
      title: "One iteration of the same network: not a network trained without routing",
      onclick: () => take(store.get().iterations === 1 ? 0 : 1),
    },
    "Without routing",
  );
  const many = h("input", {
    type: "range",
    min: 1,
    max: MOST,
    "aria-label": "How many iterations to run",
    oninput: () => take(Number(many.value) === answer?.model.iterations ? 0 : Number(many.value)),
  });
  const howMany = h("output", { class: "faint" });
  const amount = h(
    "div",
    { class: "amount", role: "group", "aria-label": "Amount of routing" },
    without,
    many,
    howMany,
  );
  const strip = h("div", { class: "rounds", role: "group", "aria-label": "The answer after each iteration" });
  roving(strip, () => buttons);
  const element = h("div", { class: "rounds-block" }, h("div", { class: "card-head" }, transport, amount), strip);

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.setAttribute("aria-label", "Play");
    play.replaceChildren(icon(PLAY));
  }
  function start() {
    if (!answer?.route) return;
    go(step >= last() ? 0 : step + 1);
    timer = setInterval(() => (step >= last() ? pause() : go(step + 1)), PACE);
    play.setAttribute("aria-label", "Pause");
    play.replaceChildren(icon(PAUSE));
  }

  function build() {
    const { route, model } = answer;
    const ahead = leaders(answer);
    buttons = route.routing.steps.map(({ activation }, t) =>
      h(
        "button",
        {
          type: "button",
          class: "round-card",
          "aria-label": `After iteration ${t + 1}: ${model.classes[ahead[t]]}, ${measureOf(answer)} ${number(activation[ahead[t]], 2)}`,
          onclick: () => {
            pause();
            go(t);
          },
        },
        h("span", { class: "faint" }, `${t + 1}`),
        h("b", {}, model.classes[ahead[t]]),
        h("span", { class: "value" }, number(activation[ahead[t]], 2)),
        columns(activation, ahead[t]),
      ),
    );
    strip.replaceChildren(...buttons);
  }

  return {
    element,
    pause,
    /** @returns {number} the iteration to show, from 0 */
    update(next, state) {
      if (next !== answer) {
        answer = next;
        build();
      }
      step = state.step < 0 ? last() : Math.min(state.step, last());
      element.hidden = answer.route.routing.signed;
      buttons.forEach((button, t) =>
        assign(button, { "aria-pressed": String(t === step), tabindex: t === step ? 0 : -1 }),
      );
      const ran = last() + 1;
      const own = answer.model.iterations;
      count.textContent = `Iteration ${step + 1} of ${ran}`;
      many.value = String(ran);
      howMany.textContent = ran === own ? `${ran}, as trained` : `${ran}; trained with ${own}`;
      without.setAttribute("aria-pressed", String(ran === 1));
      return step;
    },
  };
}
