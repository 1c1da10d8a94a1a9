/** What the lessons of the tour show, made from the person's own drawing. Each gives { element, update(answer) }. */

import { api, newest } from "./api.js";
import { barChart } from "./charts.js";
import { fromBase64 } from "./codec.js";
import { assign, h, number, svg } from "./dom.js";
import { classFacts, measureOf } from "./draw.js";
import { fieldOf, placeName } from "./flow.js";
import { paint, picture } from "./pixels.js";

const seenBy = (answer) => {
  const [height, width] = answer.route.shape;
  return [answer.pixels, height, width];
};

/** The picture, and the number behind the pixel pointed at. */
export function pixelScene() {
  const view = picture("Point at it to read its numbers");
  let pixels = null;
  let width = 28;
  view.canvas.addEventListener("pointermove", (event) => {
    const box = view.canvas.getBoundingClientRect();
    const [column, row] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((v) =>
      Math.floor(v * width),
    );
    const ink = pixels?.[row * width + column];
    if (ink !== undefined)
      view.element.lastChild.textContent = `Row ${row + 1}, column ${column + 1}: ink ${number(ink / 255, 2)}`;
  });
  return {
    element: h("div", { class: "scene big-picture" }, view.element),
    update(answer) {
      const [seen, height, w] = seenBy(answer);
      [pixels, width] = [seen, w];
      view.show(seen, height, w);
    },
  };
}

/** A window over each place in turn, and how much the small capsules there found. */
export function placesScene() {
  const canvas = h("canvas", { class: "pixels", "aria-hidden": "true" });
  const plot = svg("svg", { class: "places", role: "img", "aria-label": "The places small capsules look at" });
  const slider = h("input", { type: "range", min: 0, value: 0, "aria-label": "Place looked at" });
  const says = h("p", { class: "faint", "aria-live": "polite" });
  const element = h("div", { class: "scene" }, h("div", { class: "paper places-paper" }, canvas, plot), slider, says);
  let answer = null;
  let cell = 0;

  function mark() {
    const { routing, shape } = answer.route;
    const { x, y, side } = fieldOf(routing, cell);
    const most = Math.max(...(routing.presence ?? [1]));
    plot.setAttribute("viewBox", `0 0 ${shape[1]} ${shape[0]}`);
    const dots = routing.steps[0].coupling.map((_, i) => {
      const f = fieldOf(routing, i);
      const much = (routing.presence?.[i] ?? most) / most;
      return svg("circle", {
        cx: f.x + f.side / 2,
        cy: f.y + f.side / 2,
        r: 0.35 + 0.75 * much,
        class: i === cell ? "here" : "",
      });
    });
    plot.replaceChildren(svg("rect", { x, y, width: side, height: side, rx: 0.6 }), ...dots);
    slider.max = String(dots.length - 1);
    slider.value = String(cell);
    const much = routing.presence
      ? `. Found here: ${number(routing.presence[cell], 2)} of ${answer.model.grid[0]}`
      : "";
    const name = placeName(routing, cell);
    says.textContent = `${name[0].toUpperCase()}${name.slice(1)}: a window of ${side} × ${side} pixels${much}`;
  }
  slider.addEventListener("input", () => {
    cell = Number(slider.value);
    mark();
  });
  return {
    element,
    update(next) {
      if (answer !== next) {
        const { presence } = next.route.routing;
        cell = presence ? presence.indexOf(Math.max(...presence)) : 0;
      }
      answer = next;
      paint(canvas, ...seenBy(next));
      mark();
    },
  };
}

/** The class capsules as bars. */
export function barsScene() {
  let answer = null;
  const bars = barChart({ label: "Class capsules of your digit", facts: (k) => classFacts(answer, k) });
  return {
    element: h("div", { class: "scene" }, bars.element),
    update(next) {
      answer = next;
      const { route, model } = next;
      bars.update({
        names: model.classes,
        values: route.activation,
        winners: route.predicted,
        measure: measureOf(next),
      });
    },
  };
}

/** The picture and what the winner draws of it. */
export function redrawScene() {
  const seen = picture("Your digit");
  const drawn = picture("Drawn from the capsule");
  return {
    element: h("div", { class: "scene pair" }, seen.element, drawn.element),
    update(answer) {
      const made = answer.route.reconstructions[0];
      seen.show(...seenBy(answer));
      drawn.show(
        made ? fromBase64(made.image) : null,
        ...answer.route.shape,
        made ? `Drawn from ${answer.model.pose_dim} numbers` : "This model has no decoder",
      );
    },
  };
}

/** One slider: the dimension with a name, or the largest one. */
export function sliderScene(say) {
  const drawn = picture("Move the slider");
  const slider = h("input", {
    type: "range",
    min: -0.25,
    max: 0.25,
    step: 0.01,
    value: 0,
    "aria-label": "Change one number of the pose",
  });
  let answer = null;
  const decode = newest(({ model, pose, k }, signal) => api.decode(model, pose, k, signal), {
    done: (result) => drawn.show(fromBase64(result.image), ...result.shape),
    failed: (error) => error.name !== "AbortError" && say(error),
  });
  function move() {
    const { route, model } = answer;
    if (!model.decoder) return;
    const k = route.predicted[0];
    const named = (model.dimensions ?? []).findIndex(Boolean);
    const d =
      named >= 0
        ? named
        : route.poses[k].reduce((best, v, n, all) => (Math.abs(v) > Math.abs(all[best]) ? n : best), 0);
    const pose = route.poses[k].map((v, n) => v + (n === d ? Number(slider.value) : 0));
    const stands = model.dimensions?.[d];
    drawn.element.lastChild.textContent = `Number ${d + 1}${stands ? `, ${stands}` : ""}: ${number(pose[d], 2)}`;
    decode({ model: model.name, pose, k });
  }
  slider.addEventListener("input", move);
  return {
    element: h("div", { class: "scene big-picture" }, drawn.element, slider),
    update(next) {
      if (next === answer) return;
      answer = next;
      const reach = next.model.reach ?? 0.25;
      assign(slider, { min: -reach, max: reach, step: reach / 25 });
      slider.value = "0";
      move();
    },
  };
}
