/** Back, play, on: the iterations of the algorithm that is looked at. */

import { h, icon } from "./dom.js";

const PLAY = "M7 5l12 7-12 7Z";
const PAUSE = "M8 5v14M16 5v14";
const BACK = "M15 6l-6 6 6 6";
const ON = "M9 6l6 6-6 6";
const PACE = 700; // ms an iteration is shown for

/** @param {(step: number) => void} show  -1 is the last iteration, whichever that is */
export function createSteps(show) {
  let timer = 0;
  let step = 0;
  let count = 1;

  const go = (to) => show(to >= count - 1 ? -1 : Math.max(0, to));
  const by = (change) => () => {
    pause();
    go(step + change);
  };
  const round = (label, path, onclick) =>
    h("button", { type: "button", class: "round", "aria-label": label, onclick }, icon(path));
  const play = round("Play", PLAY, () => (timer ? pause() : start()));
  const slider = h("input", {
    type: "range",
    min: 1,
    "aria-label": "Iteration",
    oninput: () => {
      pause();
      go(Number(slider.value) - 1);
    },
  });
  const where = h("output", { class: "count" });
  const element = h(
    "div",
    { class: "transport", role: "group", "aria-label": "Iterations" },
    round("Previous iteration", BACK, by(-1)),
    play,
    round("Next iteration", ON, by(1)),
    slider,
    where,
  );

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.setAttribute("aria-label", "Play");
    play.replaceChildren(icon(PLAY));
  }
  function start() {
    go(0);
    timer = setInterval(() => {
      if (step + 1 >= count - 1) pause();
      go(step + 1);
    }, PACE);
    play.setAttribute("aria-label", "Pause");
    play.replaceChildren(icon(PAUSE));
  }

  return {
    element,
    pause,
    update(now, all) {
      [step, count] = [now, all];
      element.hidden = count < 2;
      slider.max = String(count);
      slider.value = String(step + 1);
      where.textContent = `Iteration ${step + 1} of ${count}`;
    },
  };
}
