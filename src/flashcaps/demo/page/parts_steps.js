/** The iterations of the algorithm that is looked at, with a slider to go to any of them. */

import { h } from "./dom.js";
import { createTransport } from "./transport.js";

const PACE = 700; // ms an iteration is shown for

/** @param {(step: number) => void} show  -1 is the last iteration, whichever that is */
export function createSteps(show) {
  const { element, count, pause, pick, update } = createTransport((to, last) => show(to >= last ? -1 : to), PACE);
  const slider = h("input", {
    type: "range",
    min: 1,
    "aria-label": "Iteration",
    oninput: () => pick(Number(slider.value) - 1),
  });
  count.before(slider);

  return {
    element,
    pause,
    update(step, all) {
      update(step, all);
      element.hidden = all < 2;
      slider.max = String(all);
      slider.value = String(step + 1);
    },
  };
}
