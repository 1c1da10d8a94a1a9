/** Parts: the oldest explanation of capsules, to be touched. Four shapes vote for the wholes they could belong to. */

import { h, icon, number, reducedMotion, spoken } from "./dom.js";
import { NAMES, routeParts, RULES } from "./parts_route.js";
import {
  atHome,
  HOMES,
  isHome,
  LIMITS,
  partName,
  poseOf,
  roleOf,
  SHAPES,
  tidy,
  TRANSFORMS,
  WHOLES,
  wrap,
} from "./parts_scene.js";
import { createStage } from "./parts_stage.js";
import { caption, invitation, MEANING } from "./parts_words.js";

const PLAY = "M7 5l12 7-12 7Z";
const PAUSE = "M8 5v14M16 5v14";
const BACK = "M15 6l-6 6 6 6";
const ON = "M9 6l6 6-6 6";
const PACE = 700; // ms an iteration is shown for
const GLIDE = 900; // ms parts take to move by themselves
const SLIDERS = [
  { n: 2, label: "Turn", unit: "°" },
  { n: 3, label: "Size", unit: "\u202f%" },
  { n: 0, label: "Across", unit: "" },
  { n: 1, label: "Down", unit: "" },
];

/** A pose as people write matrices. */
function matrixOf([a, b, c, d, e, f]) {
  const cells = [a, c, e, b, d, f].map((value) => h("span", {}, number(value, 2)));
  return h("span", { class: "matrix" }, cells);
}

/** @param {any} app */
export function createView(app) {
  const { store } = app;
  const toy = () => store.get().toy;
  const set = (patch) => store.set({ toy: { ...toy(), ...patch } });
  let routed = {}; // by algorithm
  let last = null; // pieces that `routed` is of
  let timer = 0;
  let frame = 0;

  const setPiece = (part, piece) => set({ pieces: toy().pieces.map((old, i) => (i === part ? piece : old)) });
  const stage = createStage({
    choose: (part) => part !== toy().part && set({ part }),
    look: (whole) => set({ whole }),
    move(part, piece) {
      rest();
      setPiece(part, piece);
    },
    home: (part) => glide(toy().pieces.map((old, i) => (i === part ? HOMES[toy().home].pieces[i] : old))),
  });

  /** Stops whatever moves by itself. */
  function rest() {
    cancelAnimationFrame(frame);
    frame = 0;
  }

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
      frame = t < 1 ? requestAnimationFrame(tick) : 0;
    };
    tick(started);
  }

  function arrange(home) {
    pause();
    const { part, rule } = toy();
    const next = { ...atHome(home), rule };
    if (next.pieces.length !== toy().pieces.length) return set(next);
    const { pieces, ...rest } = next;
    set({ ...rest, part });
    glide(pieces);
  }

  // What to touch
  const homes = Object.entries(HOMES).map(([key, { title }]) =>
    h("button", { type: "button", class: "chip", "data-home": key, onclick: () => arrange(key) }, title),
  );
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Part" });
  const sliders = SLIDERS.map(({ n, label, unit }) => {
    const output = h("output", {});
    const input = h("input", {
      type: "range",
      min: LIMITS[n][0],
      max: LIMITS[n][1],
      "aria-label": label,
      oninput: () => {
        rest();
        const piece = [...toy().pieces[toy().part]];
        piece[n] = Number(input.value);
        setPiece(toy().part, tidy(piece));
      },
    });
    return {
      n,
      unit,
      input,
      output,
      element: h("label", { class: "part-slider" }, h("span", {}, label), input, output),
    };
  });
  const turn = h(
    "button",
    {
      type: "button",
      class: "tool primary",
      onclick: () => {
        const { part, pieces } = toy();
        glide(pieces.map((p, i) => (i === part ? [p[0], p[1], wrap(p[2] + 90), p[3]] : p)));
      },
    },
    "Turn it 90°",
  );
  const back = h(
    "button",
    { type: "button", class: "tool", onclick: () => glide(HOMES[toy().home].pieces) },
    "Put all back",
  );
  const controls = h(
    "section",
    { class: "card parts-controls", "aria-label": "Move the parts" },
    h("h3", {}, "Arrange the parts as"),
    h("div", { class: "chips", role: "group", "aria-label": "Arrangement" }, homes),
    h("h3", {}, "Take one"),
    chips,
    h(
      "div",
      { class: "part-sliders" },
      sliders.map(({ element }) => element),
    ),
    h("div", { class: "tools" }, turn, back),
    h(
      "p",
      { class: "faint", id: "parts-keys" },
      "Or drag it on the stage, with its handles. Keys: arrows move, Q and E turn, + and − scale, Home puts it back.",
    ),
  );

  // Iterations
  const steps = () => routed[toy().rule].steps;
  const shownStep = () => (toy().step < 0 ? steps().length - 1 : Math.min(toy().step, steps().length - 1));
  const go = (to) => {
    const end = steps().length - 1;
    set({ step: to >= end ? -1 : Math.max(0, to) });
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
  const count = h("output", { class: "count" });
  const by = (d) => () => {
    pause();
    go(shownStep() + d);
  };
  const transport = h(
    "div",
    { class: "transport", role: "group", "aria-label": "Iterations" },
    round("Previous iteration", BACK, by(-1)),
    play,
    round("Next iteration", ON, by(1)),
    slider,
    count,
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
      go(shownStep() + 1);
      if (shownStep() === steps().length - 1) pause();
    }, PACE);
    play.setAttribute("aria-label", "Pause");
    play.replaceChildren(icon(PAUSE));
  }

  // What is seen
  const invites = h("h2", { class: "invitation" });
  const says = h("p", { class: "story", "data-testid": "parts-caption" });
  const status = h("p", { class: "visually-hidden", role: "status" });
  const strip = NAMES.map((name) => {
    const bars = WHOLES.map((_, j) => h("span", { class: `mini-bar whole-${j}` }));
    const winner = h("b", {});
    const element = h(
      "button",
      {
        type: "button",
        class: "rule",
        "data-rule": name,
        onclick: () => {
          pause();
          set({ rule: name, step: -1 });
        },
      },
      h("span", { class: "rule-name" }, RULES[name].title),
      winner,
      h("span", { class: "mini-bars", "aria-hidden": "true" }, bars),
    );
    return { name, element, bars, winner };
  });
  const meaning = h("p", { class: "faint" });
  const product = h("div", { class: "product" });
  const where = h("p", { class: "faint" });
  const element = h(
    "div",
    { class: "view parts-view" },
    controls,
    h(
      "section",
      { class: "card parts-card", "aria-label": "Parts and wholes" },
      h("div", { class: "card-head" }, invites, transport),
      stage.element,
      says,
      status,
      h(
        "div",
        { class: "rules", role: "group", "aria-label": "Algorithm" },
        strip.map(({ element }) => element),
      ),
      meaning,
    ),
    h(
      "section",
      { class: "card parts-numbers", "aria-label": "One vote" },
      h("h3", {}, "One vote, in numbers"),
      product,
      where,
    ),
  );
  new ResizeObserver(() => stage.stale() && show()).observe(stage.element);

  function showControls() {
    const { home, part, whole, pieces } = toy();
    for (const chip of homes) chip.setAttribute("aria-pressed", String(chip.dataset.home === home && isHome(toy())));
    if (chips.children.length !== pieces.length) {
      chips.replaceChildren(
        ...pieces.map((_, i) =>
          h("button", { type: "button", class: "chip", onclick: () => set({ part: i }) }, partName(i, pieces.length)),
        ),
      );
    }
    [...chips.children].forEach((chip, i) => chip.setAttribute("aria-pressed", String(i === part)));
    for (const { n, unit, input, output } of sliders) {
      const value = pieces[part][n];
      const text = unit ? `${number(value, 0)}${unit}` : number(value / 100, 2);
      input.value = String(value);
      input.setAttribute("aria-valuetext", text);
      output.textContent = text;
    }
    back.disabled = isHome(toy());
    const pose = poseOf(pieces[part]);
    product.replaceChildren(
      h("figure", {}, matrixOf(pose), h("figcaption", {}, `pose of the ${partName(part, pieces.length)}`)),
      h("span", { class: "sign" }, "×"),
      h(
        "figure",
        {},
        matrixOf(TRANSFORMS[part % SHAPES.length][whole]),
        h("figcaption", {}, `from ${roleOf(part, whole)} to ${WHOLES[whole].name}`),
      ),
      h("span", { class: "sign" }, "="),
      h(
        "figure",
        { class: `whole-${whole}` },
        matrixOf(routed[toy().rule].votes[part][whole]),
        h("figcaption", {}, `its vote for the ${WHOLES[whole].name}`),
      ),
    );
    where.textContent = `Two columns turn and scale, the third is the place. The middle matrix was set by hand and never changes: it says where a ${WHOLES[whole].name} is, seen from its ${roleOf(part, whole)}. All five algorithms get the same votes, each written as a direction of 36 numbers; parameters were set once by hand, the rest is computed here as you move.`;
  }

  function show() {
    const { pieces, rule } = toy();
    if (pieces !== last) routed = Object.fromEntries(NAMES.map((name) => [name, routeParts(name, pieces)]));
    last = pieces;
    const step = shownStep();
    const now = { toy: toy(), routed: routed[rule], step };
    stage.update({
      toy: toy(),
      votes: routed[rule].votes,
      step: steps()[step],
      signed: rule === "discriminative",
      measure: RULES[rule].measure,
    });
    invites.textContent = invitation(now);
    says.textContent = caption(now);
    meaning.textContent = MEANING[rule];
    transport.hidden = steps().length < 2;
    slider.max = String(steps().length);
    slider.value = String(step + 1);
    count.textContent = `Iteration ${step + 1} of ${steps().length}`;
    for (const { name, element, bars, winner } of strip) {
      const { light } = routed[name].steps.at(-1);
      const most = Math.max(...light);
      const first = WHOLES.map((_, j) => j).filter((j) => light[j] > 0.9 * most);
      bars.forEach((bar, j) => bar.style.setProperty("--share", light[j].toFixed(3)));
      winner.textContent = `${spoken(first.map((j) => WHOLES[j].name))} ${number(most, 2)}`;
      winner.className = `whole-${first[0]}`;
      element.setAttribute("aria-pressed", String(name === rule));
      element.setAttribute(
        "aria-label",
        `${RULES[name].title}: ${WHOLES.map((w, j) => `${w.name} ${number(light[j], 2)}`).join(", ")}`,
      );
    }
    showControls();
    clearTimeout(speaking);
    speaking = setTimeout(() => (status.textContent = says.textContent), 600); // not every frame of a drag
  }
  let speaking = 0;

  return {
    element,
    leave() {
      pause();
      rest();
    },
    update: show,
  };
}
