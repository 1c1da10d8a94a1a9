/** Starts the page: fetches the models, restores the state of the address, shows the view asked for. */

import { api } from "./api.js";
import { mountArticle } from "./article.js";
import { mountCard } from "./card.js";
import { createView as createCompare } from "./compare.js";
import { byId, h, icon, roving } from "./dom.js";
import { createView as createDraw } from "./draw.js";
import { createEngine } from "./engine.js";
import { closeInspector, mountInspector, refreshInspector } from "./inspect.js";
import { OPENING } from "./opening.js";
import { createView as createOverlap } from "./overlap.js";
import { createPanel } from "./panel.js";
import { createView as createParts } from "./parts.js";
import { createView as createRouting } from "./routing.js";
import { createStore, fromHash, initialState, mirror, VIEWS } from "./state.js";
import { mountTheme } from "./theme.js";
import { mountTour } from "./tour.js";
import { createView as createTweak } from "./tweak.js";

const TABS = {
  parts: { title: "Parts", path: "M4 11L12 4l8 7M6 11v9h12v-9M10 20v-5h4v5", make: createParts },
  draw: { title: "Draw", path: "M4 20l1-4L16.5 4.5a2 2 0 0 1 3 3L8 19l-4 1Z", make: createDraw },
  routing: { title: "Routing", path: "M5 5c8 0 6 7 14 7M5 12h14M5 19c8 0 6-7 14-7", make: createRouting },
  tweak: { title: "Tweak", path: "M4 7h9m5 0h2M4 17h3m5 0h8M15.5 4.5v5M9.5 14.5v5", make: createTweak },
  overlap: {
    title: "Overlap",
    path: "M15 9.5A5.5 5.5 0 1 1 4 9.5a5.5 5.5 0 0 1 11 0ZM20 14.5a5.5 5.5 0 1 1-11 0 5.5 5.5 0 0 1 11 0Z",
    make: createOverlap,
  },
  compare: { title: "Compare", path: "M5 20V10m5 10V4m5 16v-8m5 8V7", make: createCompare },
};

/** The line at the foot of the page: a note, for a while, over an error, which the next good answer takes away. */
const line = { note: "", error: "", timer: 0 };
const showLine = () => (byId("says").textContent = line.note || line.error);

function say(error) {
  line.error = error?.message ?? "";
  showLine();
}

function tell(note) {
  clearTimeout(line.timer);
  line.note = note;
  showLine();
  line.timer = setTimeout(() => {
    line.note = "";
    showLine();
  }, 4000);
}

/** What an address says, less models that are not here. */
function soundly(found, { models }) {
  const { model, pair, ...rest } = found;
  if (models.some((m) => m.name === model)) rest.model = model;
  if (models.some((m) => m.name === pair && m.pairs)) rest.pair = pair;
  return rest;
}

/** What the address leaves open: the network and the digit to open on, and a second digit to lay over it. */
function complete(found, { models, samples }) {
  const state = { ...initialState(), ...found };
  const single = models.filter((m) => !m.pairs);
  state.model ||= (single.find((m) => m.name === OPENING.model) ?? single[0] ?? models[0])?.name ?? "";
  state.pair ||= models.find((m) => m.pairs)?.name ?? "";
  if (!found.drawing && samples.length) state.drawing = { kind: "sample", id: OPENING.sample };
  if (!found.second && samples.length)
    state.second = { kind: "sample", id: samples.find((s) => s.label === 2)?.id ?? 0 };
  return state;
}

/** A network of two digits reads two; where there is one digit, another takes its place. */
function keepToOneDigit(store, { models }) {
  const check = ({ view, model }) => {
    if (view === "overlap" || view === "routing" || !models.find((m) => m.name === model)?.pairs) return;
    const single = models.find((m) => !m.pairs);
    if (single) store.set({ model: single.name, step: -1 });
  };
  store.on(["view", "model"], check);
  check(store.get());
}

function mountTabs(store) {
  const tabs = VIEWS.map((name) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${name}`,
        "aria-controls": `view-${name}`,
        onclick: () => store.set({ view: name }),
      },
      icon(TABS[name].path),
      h("span", {}, TABS[name].title),
    ),
  );
  byId("tabs").append(...tabs);
  roving(byId("tabs"), () => tabs);
  return (view) =>
    tabs.forEach((tab, n) => {
      tab.setAttribute("aria-selected", String(VIEWS[n] === view));
      tab.setAttribute("tabindex", VIEWS[n] === view ? "0" : "-1");
    });
}

function mountModels(store, catalog) {
  const select = /** @type {HTMLSelectElement} */ (byId("model"));
  select.addEventListener("change", () =>
    store.set(
      store.get().view === "overlap"
        ? { pair: select.value }
        : { model: select.value, step: -1, tweak: [], zoom: null },
    ),
  );
  const show = (state) => {
    const pairs = state.view === "overlap";
    const among = catalog.models.filter((m) => state.view === "routing" || Boolean(m.pairs) === pairs);
    select.replaceChildren(...among.map((m) => h("option", { value: m.name }, m.title)));
    select.value = pairs ? state.pair : state.model;
    byId("about").hidden = select.disabled = state.view === "compare" || !among.length;
  };
  store.on(["view", "model", "pair"], show);
  show(store.get());
}

/** To follow the link itself would change the address, and with it the view. */
function mountSkip() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
}

function mountShare(write) {
  byId("share").addEventListener("click", async () => {
    write();
    try {
      await navigator.clipboard.writeText(location.href);
      tell("The link is copied: it holds your drawing and this view.");
    } catch {
      tell("The address bar holds the link to your drawing and this view.");
    }
  });
}

/** Views are made when first shown, and only the one shown is kept up to date, once a frame. */
function mountViews(app) {
  const stage = h("div", { class: "stage" });
  const mark = mountTabs(app.store);
  const views = new Map();
  let shown = "";
  let due = false;

  function draw() {
    due = false;
    const state = app.store.get();
    if (!views.has(state.view)) {
      const view = TABS[state.view].make(app);
      const panel = h(
        "div",
        { id: `view-${state.view}`, role: "tabpanel", "aria-labelledby": `tab-${state.view}`, hidden: true },
        view.element,
      );
      stage.append(panel);
      views.set(state.view, { ...view, panel });
    }
    if (shown !== state.view) {
      views.get(shown)?.leave?.();
      closeInspector();
      for (const [name, { panel }] of views) panel.hidden = name !== state.view;
      document.body.dataset.view = state.view;
      document.title = `${TABS[state.view].title} · Capsule Explainer`;
      mark(state.view);
      shown = state.view;
    }
    views.get(state.view).update(state, app.engine.answers.get());
    refreshInspector();
  }
  const later = () => {
    if (!due) requestAnimationFrame(draw);
    due = true;
  };
  app.store.on(/** @type {any} */ (Object.keys(app.store.get())), later);
  app.engine.answers.on(["one", "two"], later);
  draw();
  return stage;
}

async function start() {
  mountTheme(byId("theme"));
  mountInspector();
  let catalog;
  try {
    catalog = await api.models();
  } catch (error) {
    byId("loading").textContent = error.message;
    return;
  }
  const sound = (found) => soundly(found, catalog);
  const store = createStore(complete(sound(fromHash(location.hash)), catalog));
  keepToOneDigit(store, catalog);
  const engine = createEngine(store, catalog, say);
  const model = () => engine.models.get(store.get()[store.get().view === "overlap" ? "pair" : "model"]);
  const app = { store, engine, catalog, say, model };
  mountModels(store, catalog);
  mountCard(model);
  app.panel = createPanel(app);
  byId("loading").remove();
  byId("main").append(app.panel.element, mountViews(app));
  mountSkip();
  mountArticle(store);
  mountTour(app);
  mountShare(mirror(store, sound));
  engine.refresh();
  document.body.dataset.ready = "true";
}

start();
