/** The page's own words: what each means, shown where the word stands. */

import { h } from "./dom.js";
import { inspectable } from "./inspect.js";

const MEANINGS = {
  capsule:
    "A small group of neurons that looks for one thing and answers with several numbers at once: whether the thing is there, and what it looks like.",
  "small capsule":
    "A capsule of the lower layer. It sees one window of the picture, and nobody told it what to look for there.",
  "class capsule": "A capsule of the upper layer. There is one for each digit.",
  pose: "The numbers of a capsule that say what its thing looks like: where it is, how it leans, how thick it is. Nobody names them beforehand; they are learned.",
  vote: "What a part expects the pose of a whole to be, judging by its own pose. A small capsule makes one for each digit. Written û or V: its own numbers times a matrix W, which networks learn.",
  agreement:
    "How well a vote fits the pose that all votes together have made: their dot product, or how near they lie.",
  coupling:
    "The share of its vote that a small capsule gives to one class capsule. Its shares sum to one. Written c, r or R.",
  routing:
    "Deciding which class capsule each small capsule belongs to: share out, add up, compare, share out anew, a few times over.",
  iteration: "One round of routing: share out the votes, add them up, see who agrees.",
  entropy:
    "How undecided the couplings are. Zero: each small capsule gives all to one class. The natural logarithm of the number of classes, 2.303 for ten: it gives every class the same.",
  activation: "A number between zero and one that says whether a capsule's thing is there.",
  length:
    "The length of a pose, seen as an arrow. In dynamic routing it says how surely the digit is there, and squashing keeps it below one.",
  squash: "To shorten an arrow to less than one and keep its direction: long ones end near one, short ones near zero.",
  softmax: "A way to turn any numbers into shares of one whole. A larger number gets a larger share.",
  decoder: "A small network that draws a picture from a pose and nothing else.",
  likeness:
    "How alike two pictures are: one where they show the same ink in the same places, zero where they share none.",
};

/** A word that explains itself when pointed at or reached with the Tab key. */
function term(name, text) {
  const word = h("button", { type: "button", class: "term" }, text);
  inspectable(word, () => ({ title: name[0].toUpperCase() + name.slice(1), note: MEANINGS[name] }));
  return word;
}

/**
 * Text in which [word] or [word|as written] explains itself.
 * @returns {(string | HTMLElement)[]}
 */
export function prose(text) {
  return text.split(/(\[[^\]]+\])/).map((piece) => {
    if (!piece.startsWith("[")) return piece;
    const [name, written = name] = piece.slice(1, -1).split("|");
    if (!MEANINGS[name]) throw new RangeError(`words: ${name} is not explained`);
    return term(name, written);
  });
}
