/** From the overview to one multiplication: one small capsule, one class, with the numbers of this picture. */

import { api, newest } from "./api.js";
import { asPicture } from "./codec.js";
import { assign, h, icon, number, roving } from "./dom.js";
import { wordsFor } from "./explain.js";
import { typeset } from "./formula.js";
import { placeName } from "./measures.js";
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

/** Logits of all classes and the shares a softmax makes of them. */
function softmaxTable({ names, rest, agreements, sharpness, logits, couplings, parent, what }) {
  const row = (title, values, digits, extra = "") =>
    h(
      "tr",
      { class: extra },
      h("th", { scope: "row" }, title),
      values.map((v, k) => h("td", { class: k === parent ? "here" : "" }, number(v, digits))),
    );
  const bars = h(
    "tr",
    { class: "share-bars", "aria-hidden": "true" },
    h("th", {}),
    couplings.map((c, k) =>
      h("td", { class: k === parent ? "here" : "" }, h("span", { "--share": c, "--hue": `var(--c${k % 10})` })),
    ),
  );
  return h(
    "div",
    { class: "scroll", role: "group", "aria-label": "Softmax over the classes", tabindex: 0 },
    h(
      "table",
      { class: "softmax" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("td", {}),
          names.map((n, k) => h("th", { scope: "col", class: k === parent ? "here" : "" }, n)),
        ),
      ),
      h(
        "tbody",
        {},
        rest && largest(rest) > 5e-3 && row(what, rest, 2),
        agreements && row(sharpness === 1 ? "+ agreement" : `+ agreement × ${number(sharpness, 3)}`, agreements, 2),
        row(agreements ? "= logit" : "logit", logits, 2),
        row("coupling", couplings, 3, "strong"),
        bars,
      ),
    ),
  );
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
    next,
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
  function tell([found, before], { of, parent, step }) {
    const { model, route } = of;
    const name = model.classes[parent];
    const share = typeset(`${wordsFor(model.algorithm).symbol} = ${number(found.couplings[parent], 3)}`);
    const sums = h("div");
    const item = (heading, ...content) => h("li", {}, h("h3", {}, heading), ...content);
    const told = (text) => h("p", {}, ...prose(text));
    const steps = [
      item(
        "Its numbers, times W, are its vote",
        told(
          `This [small capsule] says what it sees in ${found.vector.length} numbers. A learned matrix W turns them into its [vote]: the [pose] it expects of a whole ${name}, if it is part of one.`,
        ),
        multiplication(found, sums),
        sums,
      ),
    ];
    if (route.routing.signed) {
      steps.push(
        item(
          "Its coupling was learned",
          told(
            `This network does not compare. The [coupling] of this capsule to ${name} was learned once: ${number(found.couplings[parent], 3)}, whatever the picture.`,
          ),
        ),
      );
    } else if (step === 0) {
      steps.push(
        item(
          "No pose yet to agree with",
          told(
            "In the first [iteration] nothing has been added up. The logits are what the network starts from, and [softmax] makes the first [coupling|couplings] of them.",
          ),
          softmaxTable({ ...found, names: model.classes, parent }),
        ),
      );
    } else {
      steps.push(
        item(
          found.variance
            ? "How near the vote lies to the pose is their agreement"
            : "Vote times pose is their agreement",
          told(`All votes for ${name} together made a [pose] in the iteration before. Does this [vote] fit it?`),
          ...comparison(before, step),
        ),
        item(
          "Softmax makes the coupling",
          h(
            "p",
            {},
            ...prose(
              `The same was done for all ${model.classes.length} classes. [softmax|Softmax] turns the numbers into shares of one whole. What this capsule gives ${name} is its [coupling], `,
            ),
            share,
            ".",
          ),
          softmaxTable({
            ...found,
            names: model.classes,
            parent,
            agreements: before.agreements.map((v) => v * before.sharpness),
            sharpness: before.sharpness,
            rest: found.logits.map((v, k) => v - before.agreements[k] * before.sharpness),
            what: before.variance ? "log activation of the class" : "logit before",
          }),
        ),
      );
    }
    steps.push(
      item(
        "Coupling times vote goes into the sum",
        told(
          `Of this [vote] the class capsule ${name} adds up ${number(found.couplings[parent], 3)} times its numbers, and the same of all other small capsules. That makes the next [pose].`,
        ),
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
