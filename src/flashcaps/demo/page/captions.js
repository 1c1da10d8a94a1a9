/** Sentences made from what was measured in this picture. A change is only said where the numbers as printed differ. */

import { number, percent, spoken } from "./dom.js";
import { wordsFor } from "./explain.js";
import { blankShare, front, leaders, shares, standing } from "./measures.js";
import { recognised } from "./pairs.js";

/** "its share rises from 10.0 % to 13.2 %": the only way in which captions speak of a change. */
export function change(name, from, to, print = number) {
  const [a, b] = [print(from), print(to)];
  return a === b ? `${name} stays at ${b}` : `${name} ${to > from ? "rises" : "falls"} from ${a} to ${b}`;
}

const short = (value) => number(value, 2);
export const measureOf = ({ route, model }) => route?.routing.measure ?? wordsFor(model.algorithm).measure;
const ORDER = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];

/** What to look at, first of all. */
export function lead(answer) {
  const { route, model } = answer;
  const { steps, signed } = route.routing;
  const names = leaders(answer).map((k) => model.classes[k]);
  if (signed) return `This network does not iterate: its couplings were learned once. It says ${names[0]}.`;
  const fronts = steps.map(front);
  if (steps.length === 1) {
    const { by, clear } = fronts[0];
    return `Without routing, that is with one iteration of the same network, ${clear ? `${names[0]} is ahead by ${short(by)}` : "no class stands out"}.`;
  }
  if (names.every((name) => name === names[0]) && fronts[0].clear) {
    const k = fronts[0].k;
    const own = change(`its ${measureOf(answer)}`, steps[0].activation[k], steps.at(-1).activation[k], short);
    return `Look at ${names[0]}: it leads after each of the ${steps.length} iterations, and ${own}.`;
  }
  const turns = fronts.flatMap(({ by, clear }, t) => {
    if (!clear) return t && !fronts[t - 1].clear ? [] : [`Iteration ${t + 1}: no class stands out.`];
    return [`Iteration ${t + 1}: ${names[t]} is ahead by ${short(by)}.`];
  });
  const another = fronts.some(({ k, clear }) => clear && k !== fronts.at(-1).k);
  return `Watch it ${another ? "change" : "make up"} its mind. ${turns.join(" ")}`;
}

/** How sure the network is, and whether it is a digit at all. */
export function verdict(answer) {
  const { model } = answer;
  const name = spoken(recognised(answer).map((k) => model.classes[k]));
  const { likeness, lead: ahead, digit } = standing(answer);
  if (digit === "no") {
    const why =
      likeness === null
        ? "no class stands out"
        : `what capsule ${name} draws back is not what you drew (likeness ${short(likeness)})`;
    return `Not a digit, as far as it can tell: nearest to ${name}, but ${why}.`;
  }
  if (digit === "perhaps") return `Perhaps ${name}: it hesitates.`;
  return `It says ${name}: ${ahead > 0.5 ? "sure" : "fairly sure"}, ${short(ahead)} ahead of the next${likeness === null ? "" : `, and it draws your digit back (likeness ${short(likeness)})`}.`;
}

/** How far routing went: how decided the couplings are in the end. */
export function decided({ route }) {
  const { steps, signed } = route.routing;
  if (signed) return "Its coefficients are the same for every picture.";
  const undecided = steps.at(-1).entropy / Math.log(steps[0].flow[0].length);
  return `In the end its couplings are ${percent(undecided, 0)} as undecided as an even split (their entropy).`;
}

/** What one iteration did. */
export function story(answer, step) {
  const { route, model } = answer;
  const { routing } = route;
  const { steps } = routing;
  const classes = recognised(answer);
  const now = steps[step];
  const given = shares(now);
  const led = model.classes[leaders(answer)[step]];
  if (routing.signed) {
    const each = classes.map((k) => `capsule ${model.classes[k]} collects ${percent(given[k])} of their weight`);
    return [
      `These coefficients were learned and are the same for every picture. They are signed: solid lines speak for a class, dashed ones against it. On this picture ${spoken(each)}.`,
    ];
  }
  const sentences = [];
  if (step === 0) {
    const uneven = Math.max(...given.map((v) => Math.abs(v - 1 / given.length)));
    sentences.push(
      uneven < 5e-4
        ? `Every small capsule gives each of the ${given.length} classes the same share, ${percent(1 / given.length)}.`
        : `The couplings begin with learned shares, from ${percent(Math.min(...given))} to ${percent(Math.max(...given))}.`,
    );
  } else {
    const before = steps[step - 1];
    const was = shares(before);
    for (const k of classes) {
      const name = `capsule ${model.classes[k]}`;
      sentences.push(
        `The share of all votes that ${change(`${name} gets`, was[k], given[k], percent)}, and ${change(`its ${measureOf(answer)}`, before.activation[k], now.activation[k])}.`,
      );
    }
    sentences.push(
      `The [entropy] of the couplings ${change("", before.entropy, now.entropy).trim()}. An even split has ${number(Math.log(given.length))}.`,
    );
    const rank = [...given].sort((a, b) => b - a).indexOf(given[classes[0]]);
    if (rank > 0 && step === steps.length - 1)
      sentences.push(
        `Its share is only the ${ORDER[rank] ?? `${rank + 1}th`} largest: ${wordsFor(model.algorithm).counts}.`,
      );
  }
  sentences.push(
    `Ahead after this iteration: ${led}, with ${short(Math.max(...now.activation))}, ${short(front(now).by)} more than the next.`,
  );
  return sentences;
}

/** Is the class ahead the one that votes agree with most, as the algorithm compares them? */
export function closest(answer, step) {
  const now = answer.route.routing.steps[step];
  const order = now.agreement.map((_, k) => k).sort((a, b) => now.agreement[b] - now.agreement[a]);
  const name = (k) => answer.model.classes[k];
  const { k, clear } = front(now);
  if (!clear) return `Largest for ${name(order[0])}; no class stands out.`;
  if (order[0] === k) return `Largest for ${name(k)}, which is ahead.`;
  return `Largest for ${name(order[0])}; for ${name(k)}, which is ahead, ${ORDER[order.indexOf(k)]}: ${wordsFor(answer.model.algorithm).counts}.`;
}

/** What the arrows show of the class ahead, in all dimensions; or that they cannot show what the algorithm asks. */
export function agreementSays(answer, step) {
  const { model, route } = answer;
  const words = wordsFor(model.algorithm);
  const name = (k) => model.classes[k];
  if (words.near)
    return `How far arrows get is not what ${words.short} asks: it asks how near votes lie to the pose. That agreement is in the chart below: ${closest(answer, step).replace("L", "l")}`;
  const chains = route.routing.plane.chains[step];
  const order = chains.map((_, k) => k).sort((a, b) => chains[b].share - chains[a].share);
  const counts = (k) => percent(chains[k].share, 0);
  const [first, next] = order;
  const best = `Of the way that its arrows go, most counts in the end for ${name(first)}: ${counts(first)}. Next is ${name(next)} with ${counts(next)}.`;
  const { k, clear } = front(route.routing.steps[step]);
  if (!clear) return `${best} No class stands out.`;
  if (k === first) return `${best} ${name(k)} is also the class ahead.`;
  return `${best} Ahead is ${name(k)}, ${ORDER[order.indexOf(k)]} with ${counts(k)}: ${words.counts}.`;
}

/** Why lines leave blank paper, where they do. */
export function blankPaper(answer, step) {
  const { route, model } = answer;
  if (route.routing.signed || !route.routing.presence || step === 0) return "";
  const k = recognised(answer)[0];
  const { share, blank, inked } = blankShare(answer, step, k);
  if (share < 0.4) return "";
  return `${percent(share, 0)} of what capsule ${model.classes[k]} gains comes from places with no ink in their middle. Capsules over blank paper are active, too (${short(blank)} on average, ${short(inked)} over ink), and their votes count: that there is no stroke is evidence about a digit as well.`;
}
