/** What the view of parts says: sentences made from the numbers that were computed for what lies on the stage. */

import { number, percent, spoken } from "./dom.js";
import { agreeing, routeParts, RULES } from "./parts_route.js";
import { gap, HOMES, isHome, partName, roleOf, SHAPES, WHOLES } from "./parts_scene.js";

/** What brightness and lines mean under each algorithm. */
export const MEANING = {
  dynamic:
    "Dynamic routing: a whole is a vector, and its brightness is the vector’s length. A part begins with nobody; each iteration it sends more of itself where its vote agrees with the sum of the votes sent so far.",
  em: "EM routing: a whole is a cloud, fitted to the votes it is sent, and its brightness is a probability: high where enough votes lie close together. Parts then go to the cloud they fit best.",
  attention:
    "Attention routing: wholes compete for each part by dot product. The algorithm has no activation of its own; trained networks read the pose with one more layer. Brightness here is the share of the parts that a whole gets, so a whole that loses one part of four keeps three quarters.",
  heinsen:
    "Heinsen’s routing: a whole earns for every part it uses and pays for every part it ignores. Brightness is the logistic function of that score. It looks at who is sent where, not at how exactly votes meet, so it switches rather than fades.",
  discriminative:
    "Discriminative routing: coefficients belong to the network and are the same for every picture, so the lines never move. Votes are added up; those that disagree cancel in part. Brightness is the length of the sum: it falls less, for nothing is sent elsewhere.",
};

const full = new Map(); // brightness at home, by algorithm and arrangement

/** How bright a whole is while its arrangement is as it began. */
export function lightAtHome(rule, home, whole) {
  const key = `${rule} ${home}`;
  if (!full.has(key)) full.set(key, routeParts(rule, HOMES[home].pieces).steps.at(-1).light);
  return full.get(key)[whole];
}

/** What to do next, and what will come of it: the turned part is routed before anything is promised. */
export function invitation({ toy, routed }) {
  const { home, whole, part, pieces, rule } = toy;
  const { name } = WHOLES[whole];
  const light = routed.steps.at(-1).light[whole];
  const away = pieces.map((_, i) => i).filter((i) => String(pieces[i]) !== String(HOMES[home].pieces[i]));
  if (!HOMES[home].wholes.includes(whole)) return `Move the parts until their votes for a ${name} meet.`;
  if (away.length && light < 0.9 * lightAtHome(rule, home, whole)) {
    return `Put the ${away.length > 1 ? "parts" : roleOf(away[0], whole)} back. Watch the ${name} light up.`;
  }
  const [x, y, turn, size] = pieces[part];
  const turned = pieces.map((piece, i) => (i === part ? [x, y, turn + 90, size] : piece));
  const then = routeParts(rule, turned).steps.at(-1).light[whole];
  const comes = then < 0.5 * light ? "go dark" : then < 0.95 * light ? "lose some light" : "stay as it is";
  return `Turn the ${roleOf(part, whole)}. Watch the ${name} ${comes}.`;
}

/** "turned by 90°, 1.5 times as large and 0.6 house widths away" */
function difference({ distance, turn, size }) {
  const said = [];
  if (Math.abs(turn) >= 1) said.push(`turned by ${Math.round(Math.abs(turn))}°`);
  if (size > 1.02 || size < 0.98) said.push(`${number(size, 1)} times as large`);
  if (distance >= 0.1) said.push(`${number(distance / 2, 1)} house widths away`);
  return spoken(said);
}

/** "the triangle", "circle 2"; at the head of a sentence "The triangle", "Circle 2". */
function named(part, count, first = false) {
  const name = partName(part, count);
  const said = /\d/.test(name) ? name : `the ${name}`;
  return first ? said[0].toUpperCase() + said.slice(1) : said;
}

/** What the votes for the whole looked at do. */
function agreement({ toy, routed }) {
  const { votes } = routed;
  const { name } = WHOLES[toy.whole];
  const group = agreeing(votes, toy.whole);
  const outside = votes.map((_, i) => i).filter((i) => !group.includes(i));
  if (group.length === 1) return `No two votes for the ${name} agree.`;
  const off = group.map((i) => gap(votes[group[0]][toy.whole], votes[i][toy.whole]));
  const same = off.every(
    ({ distance, turn, size }) => distance < 0.01 && Math.abs(turn) < 1 && Math.abs(size - 1) < 0.01,
  );
  const many = outside.length ? `${group.length} of ${votes.length}` : `All ${votes.length}`;
  const meet = `${many} votes for the ${name} ${same ? "are the same pose" : "nearly agree"}`;
  if (group.length >= SHAPES.length) return `${meet}.`;
  const other = outside.includes(toy.part) ? toy.part : outside[0];
  const how = difference(gap(votes[group[0]][toy.whole], votes[other][toy.whole]));
  return `${meet}; ${named(other, votes.length)} votes for another, ${how}.`;
}

/** Where the part in hand goes. */
function sent({ toy, coupling }) {
  const { name } = WHOLES[toy.whole];
  const who = named(toy.part, toy.pieces.length, true);
  const shares = coupling[toy.part];
  if (toy.rule === "discriminative")
    return `${who} counts ${number(shares[toy.whole], 2)} for the ${name}, wherever it lies.`;
  const goes = [`${percent(shares[toy.whole], 0)} of itself to the ${name}`];
  const best = shares.indexOf(Math.max(...shares));
  const nobody = 1 - shares.reduce((a, b) => a + b, 0);
  if (best !== toy.whole && shares[best] >= 0.05) goes.push(`${percent(shares[best], 0)} to the ${WHOLES[best].name}`);
  if (nobody >= 0.005) goes.push(`${percent(nobody, 0)} to nobody`);
  return `${who} sends ${spoken(goes)}.`;
}

/** The sentences under the stage. */
export function caption({ toy, routed, step }) {
  const { whole, rule, home } = toy;
  const { light, coupling } = routed.steps[step];
  const when = routed.steps.length > 1 ? ` after iteration ${step + 1} of ${routed.steps.length}` : "";
  const before = lightAtHome(rule, home, whole);
  const was = HOMES[home].wholes.includes(whole) && !isHome(toy);
  const shines = `Brightness of the ${WHOLES[whole].name}: ${number(light[whole], 2)}${was ? `, put together ${number(before, 2)}` : ""} (${RULES[rule].measure}${when}).`;
  return `${agreement({ toy, routed })} ${shines} ${sent({ toy, coupling })}`;
}
