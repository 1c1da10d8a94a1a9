/** The iterations of one answer, side by side: step through them, play them, take fewer or more of them. */

import { measureOf } from "./captions.js";
import { assign, h, number, roving, svg } from "./dom.js";
import { front } from "./measures.js";
import { createTransport } from "./transport.js";

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
  let buttons = [];

  const last = () => answer.route.routing.steps.length - 1;
  const transport = createTransport((step) => store.set({ step }), PACE);
  const take = (iterations) => {
    transport.pause();
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
  const element = h("div", { class: "rounds-block" }, h("div", { class: "card-head" }, transport.element, amount), strip);

  function build() {
    const { route, model } = answer;
    buttons = route.routing.steps.map((now, t) => {
      const { k, clear } = front(now);
      const value = number(now.activation[k], 2);
      const hardly = clear ? "" : ", hardly ahead";
      return h(
        "button",
        {
          type: "button",
          class: clear ? "round-card" : "round-card unclear",
          "aria-label": `After iteration ${t + 1}: ${model.classes[k]}, ${measureOf(answer)} ${value}${hardly}`,
          onclick: () => transport.pick(t),
        },
        h("span", { class: "faint" }, `${t + 1}`),
        h("b", {}, model.classes[k]),
        h("span", { class: "value" }, value),
        columns(now.activation, clear ? k : -1),
      );
    });
    strip.replaceChildren(...buttons);
  }

  return {
    element,
    pause: transport.pause,
    /** @returns {number} the iteration to show, from 0 */
    update(next, state) {
      if (next !== answer) {
        answer = next;
        build();
      }
      const step = state.step < 0 ? last() : Math.min(state.step, last());
      element.hidden = answer.route.routing.signed;
      buttons.forEach((button, t) =>
        assign(button, { "aria-pressed": String(t === step), tabindex: t === step ? 0 : -1 }),
      );
      const ran = last() + 1;
      const own = answer.model.iterations;
      transport.update(step, ran);
      many.value = String(ran);
      howMany.textContent = ran === own ? `${ran}, as trained` : `${ran}; trained with ${own}`;
      without.setAttribute("aria-pressed", String(ran === 1));
      return step;
    },
  };
}
