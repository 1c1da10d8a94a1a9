/** The article below the page: lay words first, symbols second, and a button that shows what each paragraph says. */

import { byId, h } from "./dom.js";
import { OPENING } from "./opening.js";
import { VIEWS } from "./state.js";
import { prose } from "./words.js";

const opening = { model: OPENING.model, drawing: { kind: "sample", id: OPENING.sample }, iterations: 0, step: -1 };

/** Each paragraph: its words, and the view it speaks of. */
const SECTIONS = [
  {
    title: "Parts and wholes",
    paragraphs: [
      [
        "Draw a triangle on top of a square and anyone sees a house. Slide the triangle under the square and the house is gone, although both parts are still there. It matters how parts lie to each other. Most networks that read pictures are careless about that: they collect evidence for each part, and add it up, wherever it was found.",
        { view: VIEWS[0] },
      ],
      [
        "Capsule networks begin at this point. A [capsule] is a small group of neurons that looks for one thing, a stroke, a loop, a whole digit. It answers with several numbers, which say whether the thing is there and what it looks like in this picture: where it is, how it leans, how thick it was drawn. These numbers are called its [pose]. The network finds out what each of them means while it learns.",
        { view: "draw", ...opening },
      ],
    ],
  },
  {
    title: "Small capsules look, and vote",
    paragraphs: [
      [
        "The picture comes in as a square of numbers, one for each pixel. A few layers of ordinary neurons look at it through windows, some of which are larger than you might expect. Above them sit the [small capsule|small capsules], several at each place. Nobody tells them what to look for. From here on the network never looks at the pixels again.",
        { view: "draw", spot: ".heat-paper" },
      ],
      [
        "Now comes the step that makes capsules different. Each small capsule makes a guess about the whole. If I am the upper stroke of a seven, it says, then that seven stands here and leans like this. If I am part of a three, then the three would have to look like that. It makes one such guess for every digit, its [vote]. In symbols: the numbers u of a small capsule, times a matrix W, are its vote û = u W. The matrix was learned: how this part lies in that whole.",
        { view: "routing", step: 0, zoom: [13, 2, 7], ...{ model: OPENING.model } },
      ],
    ],
  },
  {
    title: "Agreement is not a coincidence",
    paragraphs: [
      [
        "Imagine ten people who saw a bag being stolen, and each describes the thief. If five of them say the same, that is hardly chance: they will have seen the same man. Votes are such descriptions, with sixteen numbers instead of a height and a hair colour. Where a seven is really there, the votes for a seven that its strokes make should lie close to each other, and the votes for a three, made by the same strokes, should point all over the place. How well a network has learned that differs, and you can look.",
        { view: "routing", step: -1, zoom: null, spot: ".plane-card" },
      ],
      [
        "The picture with the arrows shows it. Lay all arrows of one colour end to end, and you get their sum. If they agree, the chain runs straight and gets far. If they contradict each other, it wanders about and comes home. Each digit points its own way, and all have the same scale, so you may compare them by eye. EM and Heinsen’s routing ask for something that no arrow shows, how near votes lie to the pose.",
        { view: "routing", step: -1, zoom: null, spot: ".plane-card" },
      ],
    ],
  },
  {
    title: "Routing, round by round",
    paragraphs: [
      [
        "At first every small capsule gives the same share of its vote to every [class capsule]. A share is called a [coupling], and the shares of one small capsule sum to one. Each class capsule adds up what it was given. That is the first [iteration], and it already yields an answer, if often a poor one. The switch “Without routing” stops here. It does not show a network that was trained without routing, only this one, asked too early.",
        { view: "draw", ...opening, iterations: 1 },
      ],
      [
        "Then each small capsule compares. Does my vote for a seven fit what the others made of the seven? It moves its shares towards those with whom it agrees, and the class capsules add up again. After a few rounds most of the shares have found a home, or they have not; that depends on the network and on the picture. This back and forth is [routing].",
        { view: "routing", ...opening, step: 1, zoom: null, spot: ".tree-card" },
      ],
      [
        "The digit this page opens on was chosen because its answer changes on the way: before the last round another class is ahead, if not by much. Many pictures are decided in the first round, and routing only makes the answer firmer; for some networks that is the rule. You can also ask for more rounds than the network was trained with. More is not always better: it never learned what to do with them.",
        { view: "draw", ...opening },
      ],
      [
        "How decided the shares are can be put in one number, their [entropy]. If a small capsule gives everything to one class, it is zero. If it gives all ten the same, it is the logarithm of ten, about 2.3. In some networks it falls far; in others it hardly leaves the top while the answers are good all the same. Then the couplings matter less than the votes.",
        { view: "routing", step: -1, zoom: null, spot: ".story" },
      ],
    ],
  },
  {
    title: "Down to one multiplication",
    paragraphs: [
      [
        "Nothing here is more than multiplying and adding. Click a dot, and follow one small capsule. Its numbers times the matrix W: that is the vote. The vote times the pose, number by number, and the sum of it: that is their [agreement]. The agreements with all ten digits, turned into shares by a [softmax]: one of them is the coupling, which the lines show. The vote, times its coupling, goes into the sum of all votes, and from that sum the class gets the number that you saw in its bar.",
        { view: "routing", model: OPENING.model, step: 2, zoom: [13, 2, 7] },
      ],
    ],
  },
  {
    title: "Five ways to agree",
    paragraphs: [
      [
        "The idea has been put into formulas in several ways, and five of them run here. Dynamic routing takes the dot product of vote and pose, and lets the [length] of a pose say how sure it is; to [squash] it keeps it below one. EM routing sees a class as a cloud of votes and asks how tight the cloud is. Attention turns the question round and lets the classes compete for each part. Heinsen’s routing adds up what a class can use of the parts, less what it has to ignore. And one learns its couplings once and for all, some of them below zero, and does not iterate.",
        { view: "compare" },
      ],
    ],
  },
  {
    title: "What a capsule knows",
    paragraphs: [
      [
        "Does the winning capsule know what your digit looks like, or only its name? The [decoder] draws a picture from the pose of one class capsule, sixteen numbers and nothing else. If the drawing looks like yours, then slant, width and stroke must be in those numbers. Tweak lets you change them one by one. Some change one thing. Others change several at once, and have no name.",
        { view: "tweak" },
      ],
      [
        "The decoder also helps to be modest. Draw a heart. A network that has seen nothing but digits has to name one, and by its bars alone it may look sure of a nought. But what its capsule draws back is a nought, not your heart. Where the two are not alike (their [likeness] is low), this page says that it is not a digit. That is a rule of thumb of ours; it will err in both directions now and then.",
        { view: "draw", drawing: heart(), iterations: 0, step: -1 },
      ],
      [
        "Since every class capsule stands for itself, two of them can be active at once. Lay two digits over each other and shift them about. Strokes that cross belong to one digit or the other, and routing has to sort them. This network learned from pairs of different digits only: of two fives it will name one, and the page does not pretend that it saw a second.",
        { view: "overlap" },
      ],
    ],
  },
  {
    title: "What to take away",
    paragraphs: [
      [
        "A capsule says what it sees and how it lies. From that it predicts the whole. Where predictions meet, there is something; where they scatter, there is not; and a network can find out by sharing, adding and comparing. Whether this is how machines should see is an open question. Capsules are slower than ordinary layers and, on large photographs, have not caught up with them. But few ideas let you watch so closely how evidence turns into an answer.",
        { lesson: 0 },
      ],
    ],
  },
];

/** A heart as strokes: x, y in 0..255, as the pad keeps them. */
function heart() {
  const points = Array.from({ length: 49 }, (_, n) => {
    const t = (2 * Math.PI * n) / 48;
    const x = 16 * Math.sin(t) ** 3;
    const y = 13 * Math.cos(t) - 5 * Math.cos(2 * t) - 2 * Math.cos(3 * t) - Math.cos(4 * t);
    return [127 + 5.2 * x, 122 - 5.2 * y];
  });
  return { kind: "strokes", strokes: [Uint8Array.from(points.flat().map(Math.round))] };
}

/** Sets the view, and brings it, or the part spoken of, before the reader's eyes. */
function show(store, { spot = null, ...patch }) {
  store.set(patch);
  setTimeout(() => {
    const target = spot && [...document.querySelectorAll(`.stage ${spot}`)].find((e) => e.getClientRects().length);
    (target ?? byId("main")).scrollIntoView({ block: target ? "center" : "start" });
  }, 60); // views are drawn once a frame
}

export function mountArticle(store) {
  const sections = SECTIONS.map(({ title, paragraphs }) => [
    h("h3", {}, title),
    paragraphs.map(([text, patch], n) =>
      h(
        "p",
        {},
        ...prose(text),
        " ",
        h(
          "button",
          {
            type: "button",
            class: "show-me",
            "aria-label": `Show me: ${title}${n ? `, ${n + 1}` : ""}`,
            onclick: () => show(store, patch),
          },
          "Show me",
        ),
      ),
    ),
  ]);
  byId("main").append(h("article", { class: "article" }, h("h2", {}, "How parts agree on a whole"), sections.flat(2)));
}
