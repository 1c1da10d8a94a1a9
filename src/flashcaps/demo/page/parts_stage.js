/** The stage: parts that can be dragged, turned and scaled, the wholes they vote for, and the couplings between. */

import { assign, h, number, svg } from "./dom.js";
import { inspectable } from "./inspect.js";
import { poseFrom } from "./parts_route.js";
import { HOMES, isHome, partName, poseOf, roleOf, shapeOf, SHAPES, tidy, WHOLES } from "./parts_scene.js";

const WIDE = {
  width: 1000,
  height: 444,
  stage: { x: 350, y: 226, unit: 88 },
  panels: { x: 764, y: 12, width: 224, height: 132, dx: 0, dy: 144, unit: 24 },
};
const TALL = {
  width: 400,
  height: 540,
  stage: { x: 200, y: 170, unit: 50 },
  panels: { x: 6, y: 372, width: 124, height: 160, dx: 132, dy: 0, unit: 16 },
};
const layoutFor = (width) => (!width || width > 560 ? WIDE : TALL);
const THICKEST = 11; // a line whose coupling is 1
const STALK = 30; // from the edge of a part to its handle, in pixels of the drawing
const SNAP = { place: 12, turn: 4, size: 5 };
const MOVES = { ArrowLeft: [0, -10], ArrowRight: [0, 10], ArrowUp: [1, -10], ArrowDown: [1, 10] };
const KEYS = { ...MOVES, q: [2, -15], e: [2, 15], "-": [3, -10], "+": [3, 10], "=": [3, 10] };

const matrix = (pose) => `matrix(${pose.map((value) => value.toFixed(5)).join(" ")})`;

/** A whole as it is drawn: its parts at their places, and what comes with it. */
function drawing(whole, props) {
  const { places, extra } = WHOLES[whole];
  const parts = places.map((place, i) => svg("path", { d: SHAPES[i].path, transform: matrix(poseOf(place)) }));
  return svg(
    "g",
    { ...props, class: `${props.class} whole-${whole}` },
    ...parts,
    svg("path", { class: "extra", d: extra }),
  );
}

/** Near its place at home a part falls into it: a hand is less exact than the transforms are. */
function snapped(piece, home) {
  const next = tidy(piece);
  if (Math.hypot(next[0] - home[0], next[1] - home[1]) < SNAP.place) [next[0], next[1]] = home;
  if (Math.abs(next[2] - home[2]) < SNAP.turn || Math.abs(next[2] - home[2]) > 360 - SNAP.turn) next[2] = home[2];
  if (Math.abs(next[3] - home[3]) < SNAP.size) next[3] = home[3];
  return next;
}

/**
 * @param {() => import("./parts_scene.js").Toy} toyNow  which may be ahead of what is drawn
 * @param {{choose: (part: number) => void, look: (whole: number) => void, move: (part: number, piece: number[]) => void,
 *   home: (part: number) => void}} options
 */
export function createStage(toyNow, { choose, look, move, home }) {
  const glows = svg("g", { class: "glows", "aria-hidden": "true" });
  const ghosts = svg("g", { class: "ghosts", "aria-hidden": "true" });
  const lines = svg("g", { class: "couplings", "aria-hidden": "true" });
  const parts = svg("g", { class: "pieces", role: "group", "aria-label": "Parts" });
  const handles = svg("g", { class: "handles", "aria-hidden": "true" });
  const panels = svg("g", { role: "group", "aria-label": "Wholes" });
  const floor = svg("g", {}, glows, ghosts);
  const board = svg(
    "svg",
    { role: "group", "aria-label": "Parts, wholes and the couplings between them" },
    floor,
    lines,
    parts,
    handles,
    panels,
  );
  const element = h("div", { class: "board" }, board);

  let layout = WIDE;
  let built = "";
  let shown = null; // {toy, votes, step, signed}
  let grip = null; // what the pointer holds: {part, kind, from, start}

  const count = () => shown.toy.pieces.length;
  const toPixels = ([x, y]) => [
    layout.stage.x + (x / 100) * layout.stage.unit,
    layout.stage.y + (y / 100) * layout.stage.unit,
  ];
  const inMini = (pose) =>
    `translate(${layout.panels.width / 2} ${layout.panels.height / 2 + 10}) scale(${layout.panels.unit}) ${matrix(pose)}`;

  /** Where the pointer is, in the units of pieces. */
  function at(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(board.getScreenCTM().inverse());
    return [
      (100 * (point.x - layout.stage.x)) / layout.stage.unit,
      (100 * (point.y - layout.stage.y)) / layout.stage.unit,
    ];
  }

  function hold(event, part, kind) {
    if (event.button) return;
    event.preventDefault();
    if (kind === "move") {
      choose(part);
      /** @type {SVGElement} */ (parts.children[part]).focus({ preventScroll: true, focusVisible: false });
    }
    grip = { part, kind, from: at(event), start: toyNow().pieces[part] };
    board.setPointerCapture(event.pointerId);
    element.classList.add("held");
  }
  board.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const { part, kind, from, start } = grip;
    const [x, y] = at(event);
    const piece = [...start];
    const [dx, dy] = [x - start[0], y - start[1]];
    if (kind === "move") [piece[0], piece[1]] = [start[0] + x - from[0], start[1] + y - from[1]];
    if (kind === "turn") piece[2] = (Math.atan2(dy, dx) * 180) / Math.PI + 90;
    if (kind === "size")
      piece[3] = (start[3] * Math.hypot(dx, dy)) / Math.hypot(from[0] - start[0], from[1] - start[1]);
    move(part, snapped(piece, HOMES[toyNow().home].pieces[part]));
  });
  // A finger on a part moves the part, elsewhere the page. Chromium ignores `touch-action` inside a drawing.
  board.addEventListener("touchstart", (e) => e.target.closest(".piece, .knob") && e.preventDefault(), {
    passive: false,
  });
  for (const name of ["pointerup", "pointercancel"]) {
    board.addEventListener(name, () => {
      grip = null;
      element.classList.remove("held");
    });
  }

  function press(event, part) {
    const key = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
    if (event.key === "Home") home(part);
    else if (event.key === "Enter" || event.key === " ") choose(part);
    else if (key && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const piece = [...toyNow().pieces[part]];
      piece[key[0]] += event.shiftKey && event.key in MOVES ? key[1] / 10 : key[1];
      choose(part);
      move(part, tidy(piece));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function buildPart(part) {
    const { path, reach } = shapeOf(part);
    const node = svg(
      "g",
      {
        class: "piece",
        role: "button",
        tabindex: 0,
        "aria-describedby": "parts-keys",
        onpointerdown: (e) => hold(e, part, "move"),
      },
      svg("path", { class: "shape", d: path }),
      svg("path", { class: "up", d: `M0 0V${-0.55 * reach}` }),
      svg("circle", { class: "up", r: 0.04 }),
    );
    node.addEventListener("focus", () => choose(part));
    node.addEventListener("keydown", (event) => press(event, part));
    return node;
  }

  function buildPanel(whole) {
    const { x, y, width, height, dx, dy } = layout.panels;
    const node = svg(
      "g",
      {
        class: `whole whole-${whole}`,
        transform: `translate(${x + whole * dx} ${y + whole * dy})`,
        role: "button",
        tabindex: 0,
      },
      svg("rect", { class: "pane", width, height, rx: 12 }),
      svg("svg", { width, height }, drawing(whole, { class: "light" }), svg("g", { class: "minis" })),
      svg("text", { x: 12, y: 22 }, WHOLES[whole].name),
      svg("text", { class: "value", x: width - 12, y: 22, "text-anchor": "end" }),
      svg("rect", { class: "rail", x: 12, y: height - 12, width: width - 24, height: 4, rx: 2 }),
      svg("rect", { class: "gauge", x: 12, y: height - 12, height: 4, rx: 2 }),
    );
    node.addEventListener("click", () => look(whole));
    node.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      look(whole);
    });
    return node;
  }

  function lineFacts(i, j) {
    const { step, signed } = shown;
    const rows = [[signed ? "coefficient" : "coupling", number(step.coupling[i][j])]];
    return {
      title: `${partName(i, count())} → ${WHOLES[j].name}`,
      rows,
      note: `As the ${roleOf(i, j)} of a ${WHOLES[j].name}.`,
    };
  }

  function build() {
    const { width, height, stage } = layout;
    board.setAttribute("viewBox", `0 0 ${width} ${height}`);
    element.style.setProperty("--ratio", `${width} / ${height}`);
    floor.setAttribute("transform", `translate(${stage.x} ${stage.y}) scale(${stage.unit})`);
    glows.replaceChildren(...WHOLES.map((_, j) => drawing(j, { class: "light" })));
    const pairs = Array.from({ length: count() * WHOLES.length }, (_, n) => [
      Math.floor(n / WHOLES.length),
      n % WHOLES.length,
    ]);
    lines.replaceChildren(
      ...pairs.map(([i, j]) => {
        const path = svg("path", { class: `whole-${j}` });
        inspectable(path, () => lineFacts(i, j));
        return path;
      }),
    );
    parts.replaceChildren(...Array.from({ length: count() }, (_, i) => buildPart(i)));
    panels.replaceChildren(...WHOLES.map((_, j) => buildPanel(j)));
    for (const [j, panel] of [...panels.children].entries()) {
      panel
        .querySelector(".minis")
        .replaceChildren(...Array.from({ length: count() }, () => drawing(j, { class: "ghost" })));
    }
    handles.replaceChildren(
      svg("path", { class: "stalk" }),
      svg(
        "g",
        { class: "knob turn", onpointerdown: (e) => hold(e, toyNow().part, "turn") },
        svg("circle", { class: "hit", r: 20 }),
        svg("circle", { r: 9 }),
        svg("path", { d: "M-4-1A4.2 4.2 0 1 1-2 3.6M-5.4-4L-4-.4L-.6-2" }),
      ),
      svg(
        "g",
        { class: "knob size", onpointerdown: (e) => hold(e, toyNow().part, "size") },
        svg("circle", { class: "hit", r: 20 }),
        svg("rect", { x: -8, y: -8, width: 16, height: 16, rx: 4 }),
        svg("path", { d: "M-3.5 3.5L3.5-3.5M0-3.5H3.5V0M-3.5 0V3.5H0" }),
      ),
    );
  }

  /** From the middle of a part to the edge of a whole's panel. */
  function curve(piece, whole) {
    const [x0, y0] = toPixels(piece);
    const { x, y, width, height, dx, dy } = layout.panels;
    const [x1, y1] = dy ? [x, y + whole * dy + height / 2] : [x + whole * dx + width / 2, y];
    return dy
      ? `M${x0} ${y0}C${x0 + 0.5 * (x1 - x0)} ${y0} ${x0 + 0.6 * (x1 - x0)} ${y1} ${x1} ${y1}`
      : `M${x0} ${y0}C${x0} ${y0 + 0.5 * (y1 - y0)} ${x1} ${y0 + 0.6 * (y1 - y0)} ${x1} ${y1}`;
  }

  function showHandles() {
    const { toy } = shown;
    const piece = toy.pieces[toy.part];
    const [x, y] = toPixels(piece);
    const size = (piece[3] / 100) * layout.stage.unit;
    const turn = (piece[2] * Math.PI) / 180;
    const from = shapeOf(toy.part).reach * size;
    const spot = (angle, far) => [x + far * Math.sin(angle), y - far * Math.cos(angle)];
    const [a, b] = [spot(turn, from), spot(turn, from + STALK)];
    const corner = spot(turn + 2.2, Math.max(26, shapeOf(toy.part).reach * 1.75 * size));
    const [stalk, knob, scale] = handles.children;
    stalk.setAttribute("d", `M${a}L${b}`);
    knob.setAttribute("transform", `translate(${b})`);
    scale.setAttribute("transform", `translate(${corner})`);
  }

  return {
    element,
    stale: () => Boolean(shown) && layoutFor(element.clientWidth) !== layout,
    /** @param {{toy: import("./parts_scene.js").Toy, votes: number[][][], step: any, signed: boolean}} next */
    update(next) {
      shown = next;
      const { toy, votes, step, signed } = shown;
      const poses = step.pose.map((vector, j) =>
        poseFrom(
          vector,
          votes.map((row) => row[j]),
        ),
      );
      layout = layoutFor(element.clientWidth);
      const key = `${layout.width} ${count()}`;
      if (key !== built) build();
      built = key;
      [...parts.children].forEach((node, i) => {
        const [x, y, turn, size] = toy.pieces[i];
        const best = step.coupling[i].indexOf(Math.max(...step.coupling[i]));
        assign(node, {
          transform: `translate(${toPixels(toy.pieces[i])}) scale(${layout.stage.unit}) ${matrix(poseOf([0, 0, turn, size]))}`,
          "aria-pressed": String(i === toy.part),
          "aria-label": `${partName(i, count())}: turned by ${turn}°, size ${size} %, ${x / 100} across, ${y / 100} down; ${signed ? "coefficient" : "coupling"} to ${WHOLES[best].name} ${number(step.coupling[i][best], 2)}`,
        });
      });
      [...lines.children].forEach((path, n) => {
        const [i, j] = [Math.floor(n / WHOLES.length), n % WHOLES.length];
        const c = step.coupling[i][j];
        assign(path, {
          d: curve(toy.pieces[i], j),
          "stroke-width": (THICKEST * Math.abs(c)).toFixed(2),
          "data-coupling": c.toFixed(4),
        });
        path.classList.toggle("negative", c < 0);
      });
      [...glows.children].forEach((glow, j) =>
        assign(glow, { transform: matrix(poses[j]), "--light": step.light[j].toFixed(3) }),
      );
      if (ghosts.dataset.of !== `${count()} ${toy.whole}`) {
        ghosts.dataset.of = `${count()} ${toy.whole}`;
        ghosts.replaceChildren(...votes.map(() => drawing(toy.whole, { class: "ghost" })));
      }
      [...ghosts.children].forEach((ghost, i) => {
        assign(ghost, { transform: matrix(votes[i][toy.whole]) });
        ghost.classList.toggle("own", i === toy.part);
      });
      [...panels.children].forEach((panel, j) => {
        const light = step.light[j];
        assign(panel, {
          "aria-pressed": String(j === toy.whole),
          "aria-label": `${WHOLES[j].name}: brightness ${number(light, 2)}. Show the votes for it`,
          "data-light": light.toFixed(4),
          "--light": light.toFixed(3),
        });
        panel.querySelector(".light").setAttribute("transform", inMini(poses[j]));
        panel.querySelector(".value").textContent = number(light, 2);
        panel
          .querySelector(".gauge")
          .setAttribute("width", String((layout.panels.width - 24) * Math.max(0, Math.min(1, light))));
        [...panel.querySelectorAll(".ghost")].forEach((ghost, i) =>
          assign(ghost, { transform: inMini(votes[i][j]), "--coupling": Math.abs(step.coupling[i][j]).toFixed(3) }),
        );
      });
      showHandles();
      element.classList.toggle("fresh", isHome(toy));
    },
  };
}
