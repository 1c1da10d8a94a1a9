/** Agreement to be seen: what each place votes for each class, laid end to end from one origin, each class its own way. */

import { h, number, percent, reducedMotion, roving, svg } from "./dom.js";
import { inspectable } from "./inspect.js";
import { placeName } from "./measures.js";

const SIDE = 1000;
const MARGIN = 60;
const TWEEN = 650; // ms
const HEAD = 9;
const NEAREST = 66; // where ten names round the origin do not touch

/** One scale and one origin, so that every chain of every iteration fits. */
function frame(arrows) {
  let [left, right, top, bottom] = [0, 0, 0, 0];
  for (const step of arrows) {
    for (const chain of step) {
      let [x, y] = [0, 0];
      for (const [dx, dy] of chain) {
        [x, y] = [x + dx, y + dy];
        [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
      }
    }
  }
  const scale = (SIDE - 2 * MARGIN) / Math.max(right - left, (bottom - top) * 1.25, 1e-9);
  const height = (bottom - top) * scale + 2 * MARGIN;
  const room = (SIDE - 2 * MARGIN - (right - left) * scale) / 2;
  return { scale, origin: [MARGIN + room - left * scale, MARGIN - top * scale], height: Math.max(height, 260) };
}

function head([x, y], [dx, dy], size) {
  const length = Math.hypot(dx, dy);
  if (length < 1e-6) return "";
  const [ux, uy] = [dx / length, dy / length];
  const wing = (side) =>
    `${(x - size * (ux - side * 0.5 * uy)).toFixed(1)} ${(y - size * (uy + side * 0.5 * ux)).toFixed(1)}`;
  return `M${wing(1)}L${x.toFixed(1)} ${y.toFixed(1)}L${wing(-1)}`;
}

/** @param {{choose: (k: number) => void, open: (cell: number, k: number) => void}} options */
export function createPlane({ choose, open }) {
  const chains = svg("g", { class: "chains" });
  const origin = svg("circle", { class: "origin", r: 7 });
  const plot = svg(
    "svg",
    { class: "plane", role: "group", "aria-label": "Votes of every class as arrows" },
    chains,
    origin,
  );
  const element = h("div", {}, plot);
  roving(element, () => /** @type {any} */ (nodes.map(({ badge }) => badge)));
  let view = null; // { names, plane, step, focus, routing }
  let nodes = [];
  let shown = []; // the arrows as drawn, midway while they move
  let place = null; // the frame
  let built = null;
  let timer = 0;

  function facts(k) {
    const { reached, gone, share } = view.plane.chains[view.step][k];
    return {
      title: `Votes for ${view.names[k]}, iteration ${view.step + 1}`,
      rows: [
        ["length of all arrows", number(gone, 3)],
        ["how far they get together", number(reached, 3)],
        ["share that counts", percent(share, 0)],
      ],
      note: "In all dimensions, not only in the two drawn. The rest of the way cancels out.",
    };
  }

  function build() {
    nodes = view.names.map((name, k) => {
      const chain = svg("path", { class: "chain" });
      const pose = svg("path", { class: "sum" });
      const hits = svg("g", { class: "hits" });
      const label = svg("text", { "text-anchor": "middle", dy: "0.35em" }, name);
      const disc = svg("circle", { r: 17 });
      const badge = svg("g", { class: "badge", role: "button", tabindex: k ? -1 : 0 }, disc, label);
      badge.addEventListener("click", () => choose(k));
      inspectable(badge, () => facts(k));
      const group = svg("g", { class: "votes-of", "--hue": `var(--c${k % 10})` }, chain, pose, hits, badge);
      return { group, chain, pose, hits, badge };
    });
    chains.replaceChildren(...nodes.map(({ group }) => group));
  }

  function draw(arrows) {
    const { scale, origin: start } = place;
    arrows.forEach((chain, k) => {
      let [x, y] = start;
      let path = `M${x.toFixed(1)} ${y.toFixed(1)}`;
      let heads = "";
      for (const [vx, vy] of chain) {
        const [dx, dy] = [vx * scale, vy * scale];
        [x, y] = [x + dx, y + dy];
        path += `L${x.toFixed(1)} ${y.toFixed(1)}`;
        if (Math.hypot(dx, dy) > 3) heads += head([x, y], [dx, dy], Math.min(HEAD, 0.5 * Math.hypot(dx, dy)));
      }
      const { chain: line, pose, badge } = nodes[k];
      line.setAttribute("d", path + heads);
      const whole = [x - start[0], y - start[1]];
      pose.setAttribute(
        "d",
        `M${start[0].toFixed(1)} ${start[1].toFixed(1)}L${x.toFixed(1)} ${y.toFixed(1)}${head([x, y], whole, 16)}`,
      );
      const angle = (2 * Math.PI * k) / arrows.length - Math.PI / 2;
      const far = Math.max(NEAREST, Math.hypot(...whole) + 24);
      const at = [start[0] + far * Math.cos(angle), start[1] + far * Math.sin(angle)];
      badge.setAttribute("transform", `translate(${at[0].toFixed(1)} ${at[1].toFixed(1)})`);
    });
  }

  /** Under the arrows of the classes looked at: something to click. */
  function targets() {
    const { scale, origin: start } = place;
    nodes.forEach(({ hits }, k) => {
      if (!view.focus.includes(k)) return hits.replaceChildren();
      let [x, y] = start;
      hits.replaceChildren(
        ...view.plane.arrows[view.step][k].map(([vx, vy], cell) => {
          const from = [x, y];
          [x, y] = [x + vx * scale, y + vy * scale];
          const hit = svg("path", { d: `M${from[0]} ${from[1]}L${x} ${y}` });
          hit.addEventListener("click", () => open(cell, k));
          inspectable(hit, () => ({
            title: `Votes for ${view.names[k]} from ${placeName(view.routing, cell)}`,
            rows: [["length in this plane", number(Math.hypot(vx, vy), 3)]],
            note: "The votes of the small capsules at this place, each times its coupling. Click for the numbers of one of them.",
          }));
          return hit;
        }),
      );
    });
  }

  function move() {
    cancelAnimationFrame(timer);
    const target = view.plane.arrows[view.step];
    const from = shown.length === target.length && shown[0]?.length === target[0]?.length ? shown : target;
    const started = performance.now();
    const tick = (now) => {
      const t = reducedMotion() || from === target ? 1 : Math.min(1, (now - started) / TWEEN);
      const ease = t * t * (3 - 2 * t);
      shown = target.map((chain, k) =>
        chain.map(([x, y], i) => [
          from[k][i][0] + ease * (x - from[k][i][0]),
          from[k][i][1] + ease * (y - from[k][i][1]),
        ]),
      );
      draw(shown);
      if (t < 1) timer = requestAnimationFrame(tick);
      else targets();
    };
    tick(started);
  }

  return {
    element,
    /** @param {{names, routing, step, focus: number[], parent: number | null}} next  focus: classes drawn in full colour */
    update(next) {
      const fresh = next.routing !== view?.routing;
      const moved = fresh || next.step !== view.step || next.focus.join() !== view.focus.join();
      view = { ...next, plane: next.routing.plane };
      if (built !== view.names.join()) build();
      built = view.names.join();
      if (fresh) {
        place = frame(view.plane.arrows);
        shown = [];
        plot.setAttribute("viewBox", `0 0 ${SIDE} ${Math.round(place.height)}`);
        origin.setAttribute("cx", place.origin[0]);
        origin.setAttribute("cy", place.origin[1]);
      }
      nodes.forEach(({ group, badge }, k) => {
        group.classList.toggle("focus", view.focus.includes(k));
        badge.setAttribute("aria-label", `Votes for ${view.names[k]}`);
        badge.setAttribute("aria-pressed", String(view.parent === k));
      });
      if (moved) {
        const held = /** @type {any} */ (document.activeElement);
        for (const k of [...view.focus].reverse()) chains.append(nodes[k].group); // those looked at lie on top
        if (held !== document.activeElement) held.focus();
        move();
      }
    },
  };
}
