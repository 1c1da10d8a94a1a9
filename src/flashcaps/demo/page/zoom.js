/** From the overview to one multiplication: one small capsule, one class, with the numbers of this picture. */

import { api, newest } from "./api.js";
import { measureOf } from "./captions.js";
import { asPicture } from "./codec.js";
import { assign, h, icon, number, percent, roving } from "./dom.js";
import { typeset } from "./formula.js";
import { fieldOf, leaders, placeName } from "./measures.js";
import { paint } from "./pixels.js";
import { prose } from "./words.js";

const BACK = "M15 6l-6 6 6 6";

const cell = (v) => number(v, Math.abs(v) >= 10 ? 1 : 2);

/** A grid of numbers, blue above zero, orange below, as deep as they are large. */
function grid(values, columns, { label, top }) {
  const cells = values.map((v) =>
    h(
      "span",
      {
        class: v < 0 ? "negative" : "positive",
        "--depth": Math.min(1, Math.abs(v) / Math.max(top, 1e-12)).toFixed(3),
      },
      cell(v),
    ),
  );
  return h("div", { class: "grid", role: "img", "aria-label": label, "--columns": columns }, cells);
}

const largest = (values) => Math.max(...values.map(Math.abs));
const total = (values) => values.reduce((a, b) => a + b, 0);

/**
 * u times W as one writes it by hand: W above, u to the left, the vote where they meet. A vector stands beside the rows
 * of W that it multiplies.
 */
function multiplication({ vector: u, matrix, rows, vote, bias }, sums) {
  const weight = matrix.flat();
  const inner = u.length / rows;
  const columns = vote.length / rows;
  const left = grid(u, rows === 1 ? 1 : inner, { label: "The capsule's own numbers", top: largest(u) });
  const above = grid(weight, columns, { label: "The matrix W", top: largest(weight) });
  const result = h("div", { class: "grid", role: "group", "aria-label": "The vote", "--columns": columns });
  const says = h("p", { class: "faint sum-line", "aria-live": "polite" });
  const show = (n) => {
    const [row, column] = [Math.floor(n / columns), n % columns];
    [...left.children].forEach((cell, m) => cell.classList.toggle("hot", Math.floor(m / inner) === row));
    [...above.children].forEach((cell, m) => cell.classList.toggle("hot", m % columns === column));
    const terms = Array.from({ length: inner }, (_, k) => [u[row * inner + k], weight[k * columns + column]]);
    const written = terms.map(([a, b]) => `${cell(a)} × ${cell(b)}`).join(" + ");
    says.textContent = `${written}${bias ? ` + ${number(bias[n], 2)} (bias)` : ""} = ${number(vote[n], 3)}`;
  };
  const buttons = vote.map((v, n) =>
    h(
      "button",
      {
        type: "button",
        class: v < 0 ? "negative" : "positive",
        tabindex: n ? -1 : 0,
        "--depth": (Math.abs(v) / Math.max(largest(vote), 1e-12)).toFixed(3),
        "aria-label": `Number ${n + 1} of the vote: ${number(v, 3)}`,
        onpointerenter: () => show(n),
        onfocus: () => show(n),
        onclick: () => show(n),
      },
      cell(v),
    ),
  );
  result.append(...buttons);
  roving(
    result,
    () => buttons,
    () => columns,
  );
  show(vote.reduce((best, v, n) => (Math.abs(v) > Math.abs(vote[best]) ? n : best), 0));
  sums.replaceChildren(says);
  const named = (name, part) => h("div", {}, h("h4", {}, name), part);
  const [top, own, made] = [
    named("W, learned", above),
    named(rows === 1 ? "u" : "u, this capsule", left),
    named("its vote", result),
  ];
  return h(
    "div",
    { class: "falk", role: "group", "aria-label": "The multiplication", tabindex: 0 },
    ...(rows === 1 ? [own, top, h("span"), made] : [h("span"), top, own, made]),
  );
}

const line = (name, values, options) =>
  h("div", { class: "number-line" }, h("h4", {}, name), grid(values, values.length, { label: name, ...options }));

/** Vote against pose, number by number: products, or how far they lie apart in units of the spread. */
function comparison({ vote, pose, variance, agreement }, after) {
  const terms = variance
    ? vote.map((v, d) => -((v - pose[d]) ** 2) / (2 * variance[d]) - 0.5 * Math.log(variance[d]))
    : vote.map((v, d) => v * pose[d]);
  const top = Math.max(largest(vote), largest(pose));
  const scale = agreement / total(terms);
  const factor = Math.abs(scale - 1) > 1e-3 ? `, times ${number(scale, 2)},` : "";
  return [
    h(
      "div",
      { class: "lines-of", role: "group", "aria-label": "Vote and pose", tabindex: 0 },
      line("vote", vote, { top }),
      line(`pose after iteration ${after}`, pose, { top }),
      line(variance ? "how near: −(V − μ)² / 2σ² − log σ" : "vote × pose", terms, { top: largest(terms) }),
    ),
    h("p", { class: "result" }, `Their sum${factor} is the agreement: `, h("b", {}, number(agreement, 3)), "."),
  ];
}

/** A row of numbers for each class, the class in hand marked, and bars of the last row. */
function classTable({ label, names, rows, parent }) {
  const row = ([title, values, digits = 2], n) =>
    h(
      "tr",
      { class: n === rows.length - 1 ? "strong" : "" },
      h("th", { scope: "row" }, title),
      values.map((v, k) => h("td", { class: k === parent ? "here" : "" }, number(v, digits))),
    );
  const bars = h(
    "tr",
    { class: "share-bars", "aria-hidden": "true" },
    h("th", {}),
    rows
      .at(-1)[1]
      .map((c, k) =>
        h("td", { class: k === parent ? "here" : "" }, h("span", { "--share": c, "--hue": `var(--c${k % 10})` })),
      ),
  );
  const heads = names.map((n, k) => h("th", { scope: "col", class: k === parent ? "here" : "" }, n));
  return h(
    "div",
    { class: "scroll", role: "group", "aria-label": label, tabindex: 0 },
    h(
      "table",
      { class: "softmax" },
      h("thead", {}, h("tr", {}, h("td", {}), heads)),
      h("tbody", {}, rows.map(row), bars),
    ),
  );
}

/** Logits of all classes and the shares a softmax makes of them. */
function softmaxTable({ rest, agreements, sharpness, logits, couplings, ...table }) {
  const rows = [
    rest && largest(rest) > 5e-3 && [table.what, rest],
    agreements && [sharpness === 1 ? "+ agreement" : `+ agreement × ${number(sharpness, 3)}`, agreements],
    [agreements ? "= logit" : "logit", logits],
    ["coupling", couplings, 3],
  ];
  return classTable({ ...table, label: "Softmax over the classes", rows: rows.filter(Boolean) });
}

/** The window that a small capsule sees, on the picture. */
function windowOf({ pixels, route }, cell) {
  const [height, width] = route.shape;
  const canvas = h("canvas", { class: "pixels", "aria-hidden": "true" });
  paint(canvas, pixels, height, width);
  const { x, y, side } = fieldOf(route.routing, cell);
  const [left, top] = [Math.max(0, x), Math.max(0, y)];
  const [right, bottom] = [Math.min(width, x + side), Math.min(height, y + side)];
  const edge = h("span", {
    class: "window",
    "--x": left / width,
    "--y": top / height,
    "--w": (right - left) / width,
    "--h": (bottom - top) / height,
  });
  const seen = `${right - left} × ${bottom - top} of ${width} × ${height} pixels`;
  return h(
    "figure",
    { class: "picture" },
    h("div", { class: "paper", role: "img", "aria-label": `The window it sees: ${seen}` }, canvas, edge),
    h("figcaption", {}, `sees ${seen}`),
  );
}

/** What one vote adds, what all add, and the pose that comes of it. */
function addition({ vote, weight, sum, pose, total, count, made }, name) {
  const added = vote.map((v) => v * weight);
  const lines = [
    line(`vote × ${number(weight, 3)}`, added, { top: largest(added) }),
    line(`sum of all ${number(count, 0)}`, sum, { top: largest(sum) }),
  ];
  const size = Math.hypot(...sum);
  const says = {
    squash: `The sum is ${number(size, 3)} long. [squash|Squashed], it is ${number(size, 3)}² / (1 + ${number(size, 3)}²) = ${number(Math.hypot(...pose), 3)} long, in the same direction.`,
    mean: `Divided by all weights together, ${number(total, 2)}, it is their mean: the pose of ${name}.`,
    norm: "Less its mean, divided by its deviation, and scaled as learned (LayerNorm), it is the pose.",
    sum: "It is the pose.",
  }[made];
  if (made !== "sum") lines.push(line("pose", pose, { top: largest(pose) }));
  return [
    h("div", { class: "lines-of", role: "group", "aria-label": "The sum of votes", tabindex: 0 }, lines),
    h("p", {}, ...prose(says)),
  ];
}

/** How the answer is read, in what was measured. */
function reading({ head, total, ignored, spread, pose, score }, name) {
  if (head === "lengths") return `The answer is the length of the pose: ${number(Math.hypot(...pose), 3)} for ${name}.`;
  if (head !== "activations") return `The pose times learned weights is the score: ${number(score, 2)} for ${name}.`;
  const sigma = `σ is ${number(spread, 2)}, the geometric mean over its ${pose.length} numbers`;
  return `${name} was sent ${number(total, 2)} capsules’ worth of votes, which lie about its pose (${sigma}); ${number(ignored, 2)} went elsewhere. With what was learned for ${name}, that makes ${number(score, 3)}.`;
}

/** @param {any} app */
export function createZoom(app) {
  const { store, say } = app;
  let answer = null;
  let asked = "";
  let stage = 0; // how far it is told
  let opener = null; // what had the focus before
  const title = h("h2", { tabindex: -1 });
  const body = h("ol", { class: "zoom-steps" });
  const close = () => store.set({ zoom: null });
  const types = h("select", { "aria-label": "Small capsule at this place", onchange: () => pick(1, types.value) });
  const classes = h("select", { "aria-label": "Class it votes for", onchange: () => pick(2, classes.value) });
  const next = h("button", { type: "button", class: "tool primary", onclick: () => reveal(stage + 1, true) }, "Next");
  const progress = h("span", { class: "faint", "data-testid": "progress" });
  const element = h(
    "section",
    { class: "card zoom", "aria-label": "One multiplication", hidden: true },
    h(
      "div",
      { class: "card-head" },
      h("button", { type: "button", class: "tool", onclick: close }, icon(BACK), "Overview"),
      title,
      h("div", { class: "selects" }, types, classes),
    ),
    body,
    h("div", { class: "transport" }, next, progress),
  );
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !element.hidden && element.getClientRects().length) close();
  });

  function pick(n, value) {
    const zoom = [...store.get().zoom];
    zoom[n] = Number(value);
    store.set({ zoom });
  }

  function reveal(to, focus = false) {
    stage = Math.min(to, body.children.length - 1);
    [...body.children].forEach((item, n) => assign(item, { hidden: n > stage }));
    next.hidden = stage >= body.children.length - 1;
    progress.textContent = `${stage + 1} of ${body.children.length}`;
    if (focus) body.children[stage].scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  const explain = newest(
    async ({ of, child, parent, step }, signal) => {
      const [height, width] = of.route.shape;
      const image = asPicture(of.pixels, height, width);
      const { iterations } = store.get();
      const ask = (iteration) =>
        api.explain(of.model.name, image, { child, parent, iteration, iterations: iterations || null }, signal);
      return Promise.all([ask(step), ask(Math.max(0, step - 1))]);
    },
    {
      failed: (error) => error.name !== "AbortError" && say(error),
      done: (found, args) => {
        say(null);
        tell(found, args);
      },
    },
  );

  /** The couplings of this iteration come of the pose and the agreement of the one before. */
  function tell([found, before], { of, child, parent, step }) {
    const { model, route } = of;
    const name = model.classes[parent];
    const [count] = model.grid;
    const sums = h("div");
    const item = (heading, formulas, ...content) =>
      h("li", {}, h("h3", {}, heading), h("div", { class: "formulas" }, formulas.map(typeset)), ...content);
    const told = (text) => h("p", {}, ...prose(text));
    const { agree, share, sum, read } = found.formulas;
    const table = { names: model.classes, parent };
    const steps = [
      item(
        "What it sees, times W, is its vote",
        [found.bias ? "û = u W + bias" : "û = u W"],
        told(
          `This [small capsule], one of ${count} that see the same window, says what it sees in ${found.vector.length} numbers u. A learned matrix W turns them into its [vote]: the [pose] it expects of a whole ${name}, if it is part of one.`,
        ),
        h(
          "div",
          { class: "seeing" },
          windowOf(of, child % (model.grid[1] * model.grid[2])),
          multiplication(found, sums),
        ),
        sums,
      ),
    ];
    if (route.routing.signed) {
      steps.push(
        item(
          "Its coupling was learned",
          [],
          told(
            `This network does not compare. The [coupling] of this capsule to ${name} was learned once: ${number(found.couplings[parent], 3)}, whatever the picture.`,
          ),
        ),
      );
    } else if (step === 0) {
      steps.push(
        item(
          "No pose yet to agree with",
          share,
          told(
            "In the first [iteration] nothing has been added up. The logits are what the network starts from, and [softmax] makes the first [coupling|couplings] of them.",
          ),
          softmaxTable({ ...found, ...table }),
        ),
      );
    } else {
      steps.push(
        item(
          found.variance
            ? "How near the vote lies to the pose is their agreement"
            : "Vote times pose is their agreement",
          agree,
          told(`All votes for ${name} together made a [pose] in the iteration before. Does this [vote] fit it?`),
          ...comparison(before, step),
        ),
        item(
          "Softmax makes the coupling",
          share,
          told(
            `The same was done for all ${model.classes.length} classes. [softmax|Softmax] turns the numbers into shares of one whole. What this capsule gives ${name} is its [coupling], ${number(found.couplings[parent], 3)}.`,
          ),
          softmaxTable({
            ...found,
            ...table,
            agreements: before.agreements.map((v) => v * before.sharpness),
            sharpness: before.sharpness,
            rest: found.logits.map((v, k) => v - before.agreements[k] * before.sharpness),
            what: before.variance ? "log activation of the class" : "logit before",
          }),
        ),
      );
    }
    const there = `, times how much is there, ${number(found.presence, 3)}: ${number(found.weight, 3)}`;
    const times = found.weight === found.coupling ? "" : there;
    const shown = found.shown[parent];
    const more = step + 1 < route.routing.steps.length ? " The next compares all votes with the new poses." : "";
    const scored = found.scores[parent] !== shown;
    steps.push(
      item(
        "Coupling times vote goes into the sum",
        sum,
        told(
          `The vote counts with its coupling, ${number(found.coupling, 3)}${times}. Class capsule ${name} adds it to those of all other small capsules. This one makes ${percent(found.share)} of the sum; an even part would be ${percent(1 / found.count)}${found.share < -5e-4 ? ". It points the other way" : ""}.`,
        ),
        ...addition(found, name),
      ),
      item(
        `So ${name} gets ${number(shown, 2)}`,
        read,
        told(reading({ ...found, score: found.scores[parent] }, name)),
        classTable({
          ...table,
          label: "What every class gets",
          rows: [...(scored ? [["score", found.scores]] : []), [measureOf(of), found.shown]],
        }),
        told(`Iteration ${step + 1} ends with these numbers. Largest is that of ${model.classes[leaders(of)[step]]}.${more}`),
      ),
    );
    body.replaceChildren(...steps);
    reveal(stage);
  }

  return {
    element,
    update(next_, state, step) {
      const fresh = next_ !== answer;
      answer = next_;
      const { routing } = answer.route;
      const [count, ...size] = answer.model.grid;
      const cells = size[0] * size[1];
      const fits =
        state.zoom && state.zoom[0] < cells && state.zoom[1] < count && state.zoom[2] < answer.model.classes.length;
      const opened = element.hidden && Boolean(fits);
      const closed = !element.hidden && !fits;
      if (opened) opener = /** @type {any} */ (document.activeElement);
      element.hidden = !fits;
      if (closed) requestAnimationFrame(() => opener?.focus({ preventScroll: true })); // once the overview is back
      if (!fits) {
        asked = "";
        stage = 0;
        body.replaceChildren();
        return;
      }
      const [cell, type, parent] = state.zoom;
      title.textContent = `Place in ${placeName(routing, cell)}, iteration ${step + 1}`;
      const options = (n, label) => Array.from({ length: n }, (_, k) => h("option", { value: k }, label(k)));
      types.replaceChildren(...options(count, (k) => `capsule ${k + 1} of ${count}`));
      classes.replaceChildren(...options(answer.model.classes.length, (k) => `votes for ${answer.model.classes[k]}`));
      types.value = String(type);
      classes.value = String(parent);
      const key = JSON.stringify([cell, type, parent, step]);
      if (key !== asked || opened || fresh) explain({ of: answer, child: type * cells + cell, parent, step });
      asked = key;
      if (opened) title.focus({ preventScroll: false });
    },
  };
}
