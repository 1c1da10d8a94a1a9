/** Back, play, on: stepping through the iterations of an answer. */

import { h, icon } from "./dom.js";

const PLAY = "M7 5l12 7-12 7Z";
const PAUSE = "M8 5v14M16 5v14";
const BACK = "M15 6l-6 6 6 6";
const ON = "M9 6l6 6-6 6";

/**
 * @param {(step: number, last: number) => void} show
 * @param {number} pace  ms an iteration is shown for
 */
export function createTransport(show, pace) {
  let timer = 0;
  let step = 0;
  let last = -1; // nothing to step through yet

  const go = (to) => last >= 0 && show(Math.max(0, Math.min(last, to)), last);
  /** To an iteration a person chose. */
  const pick = (to) => {
    pause();
    go(to);
  };
  const round = (label, path, onclick) =>
    h("button", { type: "button", class: "round", "aria-label": label, onclick }, icon(path));
  const play = round("Play", PLAY, () => (timer ? pause() : start()));
  const count = h("output", { class: "count" });
  const element = h(
    "div",
    { class: "transport", role: "group", "aria-label": "Iterations" },
    round("Previous iteration", BACK, () => pick(step - 1)),
    play,
    round("Next iteration", ON, () => pick(step + 1)),
    count,
  );

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.setAttribute("aria-label", "Play");
    play.replaceChildren(icon(PLAY));
  }
  function start() {
    go(step >= last ? 0 : step + 1);
    timer = setInterval(() => (step >= last ? pause() : go(step + 1)), pace);
    play.setAttribute("aria-label", "Pause");
    play.replaceChildren(icon(PAUSE));
  }

  return {
    element,
    count,
    pause,
    pick,
    update(now, all) {
      [step, last] = [now, all - 1];
      count.textContent = `Iteration ${step + 1} of ${all}`;
    },
  };
}
