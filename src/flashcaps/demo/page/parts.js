/** Parts: the oldest explanation of capsules, to be touched. Four shapes vote for the wholes they could belong to. */

import { h, number, reducedMotion } from "./dom.js";
import { createControls } from "./parts_controls.js";
import { DIM, NAMES, routeParts, RULES } from "./parts_route.js";
import { atHome, HOMES, partName, poseOf, roleOf, SHAPES, tidy, TRANSFORMS, WHOLES, wrap } from "./parts_scene.js";
import { createStage } from "./parts_stage.js";
import { createSteps } from "./parts_steps.js";
import { caption, invitation, MEANING } from "./parts_words.js";
import { prose } from "./words.js";

const GLIDE = 900; // ms parts take to move by themselves
const QUIET = 600; // ms without a change until a screen reader is told: not every frame of a drag

/** A button for each algorithm, with what it makes of the same votes. */
function createStrip(choose) {
  const entries = NAMES.map((name) => {
    const bars = WHOLES.map((_, j) => h("span", { class: `mini-bar whole-${j}` }));
    const winner = h("b", {});
    const element = h(
      "button",
      { type: "button", class: "algorithm", "data-rule": name, onclick: () => choose(name) },
      h("span", { class: "algorithm-name" }, RULES[name].title),
      winner,
      h("span", { class: "mini-bars", "aria-hidden": "true" }, bars),
    );
    return { name, element, bars, winner };
  });
  const buttons = entries.map(({ element }) => element);
  return {
    element: h("div", { class: "algorithms", role: "group", "aria-label": "Algorithm" }, buttons),
    update(routed, rule) {
      for (const { name, element, bars, winner } of entries) {
        const { light } = routed[name].steps.at(-1);
        const most = Math.max(...light);
        const first = WHOLES.map((_, j) => j).filter((j) => light[j] > 0.9 * most);
        const all = WHOLES.map((whole, j) => `${whole.name} ${number(light[j], 2)}`);
        bars.forEach((bar, j) => bar.style.setProperty("--share", light[j].toFixed(3)));
        const dark = number(most, 2) === number(0, 2);
        winner.textContent = dark ? "nothing" : `${first.map((j) => WHOLES[j].name).join(", ")} ${number(most, 2)}`;
        winner.className = dark ? "" : `whole-${first[0]}`;
        element.setAttribute("aria-pressed", String(name === rule));
        element.setAttribute("aria-label", `${RULES[name].title}: ${all.join(", ")}`);
      }
    },
  };
}

/** A pose as people write matrices. */
function matrix([a, b, c, d, e, f]) {
  const cells = [a, c, e, b, d, f].map((value) => h("span", {}, number(value, 2)));
  return h("span", { class: "matrix" }, cells);
}

/** One vote: the pose of the part in hand, times its transform, is its vote for the whole looked at. */
function createProduct() {
  const product = h("div", { class: "product" });
  const says = h("p", { class: "faint" });
  const figure = (pose, words, props = {}) => h("figure", props, matrix(pose), h("figcaption", {}, words));
  const sign = (text) => h("span", { class: "sign" }, text);
  return {
    element: h(
      "section",
      { class: "card parts-numbers", "aria-label": "One vote" },
      h("h3", {}, "One vote, in numbers"),
      product,
      says,
    ),
    update({ part, whole, pieces }, votes) {
      const [name, role] = [WHOLES[whole].name, roleOf(part, whole)];
      product.replaceChildren(
        figure(poseOf(pieces[part]), `pose of ${partName(part, pieces.length)}`),
        sign("×"),
        figure(TRANSFORMS[part % SHAPES.length][whole], `from ${role} to ${name}`),
        sign("="),
        figure(votes[part][whole], `its vote for the ${name}`, { class: `whole-${whole}` }),
      );
      says.textContent = `Two columns turn and scale, the third is the place. The middle matrix was set by hand and never changes: it says where a ${name} is, seen from its ${role}. All five algorithms get the same votes, each written as a direction of ${DIM} numbers. What a network would learn was chosen once, so that four votes light a whole and three do not, where the algorithm can; the rest is computed as you move.`;
    },
  };
}

/** @param {any} app */
export function createView(app) {
  const { store } = app;
  const toy = () => store.get().toy;
  const set = (patch) => store.set({ toy: { ...toy(), ...patch } });
  let routed = {}; // by algorithm
  let last = null; // the pieces that `routed` is of
  let frame = 0;
  let speaking = 0;

  /** Stops the parts that move by themselves. */
  const rest = () => cancelAnimationFrame(frame);
  const swap = (part, piece) => toy().pieces.map((old, i) => (i === part ? piece : old));
  const choose = (part) => part !== toy().part && set({ part });
  const move = (part, piece) => {
    rest();
    set({ pieces: swap(part, piece) });
  };

  /** Moves the parts to where they shall be; every frame is routed. */
  function glide(pieces) {
    rest();
    const from = toy().pieces;
    const started = performance.now();
    const tick = (now) => {
      const t = reducedMotion() ? 1 : Math.min(1, Math.max(0, (now - started) / GLIDE));
      const ease = t * t * (3 - 2 * t);
      const between = (a, b, n) => a + ease * (n === 2 ? wrap(b - a) : b - a);
      set({ pieces: t === 1 ? pieces : pieces.map((to, i) => tidy(to.map((b, n) => between(from[i][n], b, n)))) });
      if (t < 1) frame = requestAnimationFrame(tick);
    };
    tick(started);
  }

  function arrange(home) {
    steps.pause();
    const next = { ...atHome(home), rule: toy().rule };
    if (next.pieces.length !== toy().pieces.length) return set(next);
    set({ ...next, part: toy().part, pieces: toy().pieces });
    glide(next.pieces);
  }

  const controls = createControls(toy, { arrange, choose, move, glide });
  const stage = createStage(toy, {
    choose,
    move,
    look: (whole) => set({ whole }),
    home: (part) => glide(swap(part, HOMES[toy().home].pieces[part])),
  });
  const steps = createSteps((step) => set({ step }));
  const strip = createStrip((rule) => {
    steps.pause();
    set({ rule, step: -1 });
  });
  const product = createProduct();
  const invites = h("h2", { class: "invitation" });
  const says = h("p", { class: "story", "data-testid": "parts-caption" });
  const status = h("p", { class: "visually-hidden", role: "status" });
  const meaning = h("p", { class: "faint" });
  const key = h("p", { class: "faint", "data-testid": "key" });
  const next = h(
    "button",
    { type: "button", class: "tool", onclick: () => store.set({ view: "draw" }) },
    "Next: a network that learned its parts",
  );
  const element = h(
    "div",
    { class: "view parts-view" },
    h(
      "section",
      { class: "card parts-card", "aria-label": "Parts and wholes" },
      h("div", { class: "card-head" }, invites, steps.element),
      key,
      stage.element,
      says,
      status,
      strip.element,
      meaning,
      h("div", { class: "tools" }, next),
    ),
    controls.element,
    product.element,
  );
  new ResizeObserver(() => stage.stale() && show()).observe(stage.element);

  function show() {
    const { pieces, rule, step: wanted } = toy();
    if (pieces !== last) routed = Object.fromEntries(NAMES.map((name) => [name, routeParts(name, pieces)]));
    last = pieces;
    const { votes, steps: all } = routed[rule];
    const step = wanted < 0 ? all.length - 1 : Math.min(wanted, all.length - 1);
    const now = { toy: toy(), routed: routed[rule], step };
    stage.update({ toy: toy(), votes, step: all[step], signed: rule === "discriminative" });
    steps.update(step, all.length);
    strip.update(routed, rule);
    controls.update();
    product.update(toy(), votes);
    invites.textContent = invitation(now);
    says.textContent = caption(now);
    const whole = WHOLES[toy().whole].name;
    if (key.dataset.of !== whole) {
      key.dataset.of = whole;
      key.replaceChildren(
        ...prose(
          `A white shape is a part. A thin ${whole} is its [vote] (dashed: of the part in hand): where a ${whole} would be, judging by that part. Where votes meet, the ${whole} lights up. The thicker a line, the more of itself a part sends.`,
        ),
      );
    }
    meaning.textContent = MEANING[rule];
    clearTimeout(speaking);
    speaking = setTimeout(() => (status.textContent = says.textContent), QUIET);
  }

  return {
    element,
    update: show,
    leave() {
      steps.pause();
      rest();
    },
  };
}
