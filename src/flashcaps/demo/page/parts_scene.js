/**
 * Four shapes and the three wholes they can be parts of: places, poses, votes. No DOM.
 *
 * An affine pose is [a, b, c, d, e, f], as SVG writes the matrix (a c e; b d f; 0 0 1). Units: half the width of a
 * house; y goes down. A piece is what a person can set of a part: [x, y, turn, size] in hundredths of a unit, degrees
 * and percent, whole numbers, so that a link brings back the very same votes.
 */

export const SHAPES = [
  { name: "triangle", path: "M-1 .5H1L0-.5Z", reach: 0.5 },
  { name: "rectangle", path: "M-1-.55H1V.55H-1Z", reach: 0.55 },
  { name: "circle", path: "M-.5 0a.5.5 0 1 0 1 0a.5.5 0 1 0-1 0Z", reach: 0.5 },
  { name: "circle", path: "M-.5 0a.5.5 0 1 0 1 0a.5.5 0 1 0-1 0Z", reach: 0.5 },
];

/** The same shapes are other things in other wholes. `extra` is what a whole has that is no part: it comes with it. */
export const WHOLES = [
  {
    name: "house",
    roles: ["roof", "wall", "attic window", "window"],
    places: [
      [0, -60, 0, 125],
      [0, 55, 0, 100],
      [0, -45, 0, 40],
      [45, 55, 0, 50],
    ],
    extra: "M-.65 1.1V.42H-.2V1.1M.5-.77V-1.15H.8V-.45",
  },
  {
    name: "boat",
    roles: ["hull", "sail", "left porthole", "right porthole"],
    places: [
      [0, 85, 180, 130],
      [10, -75, 90, 80],
      [-40, 45, 0, 28],
      [40, 45, 0, 28],
    ],
    extra: "M-.34-1.75V.2M-.34-1.75L-.75-1.62L-.34-1.48M-1.7 1.25q.28-.22.56 0t.56 0M.58 1.25q.28-.22.56 0t.56 0",
  },
  {
    name: "face",
    roles: ["nose", "mouth", "left eye", "right eye"],
    places: [
      [0, 10, 0, 40],
      [0, 85, 0, 50],
      [-55, -50, 0, 70],
      [55, -50, 0, 70],
    ],
    extra: "M-1.4.1a1.4 1.5 0 1 0 2.8 0a1.4 1.5 0 1 0-2.8 0ZM-.95-1.02q.4-.22.8 0M.15-1.02q.4-.22.8 0",
  },
];

const moved = (whole, dx) => WHOLES[whole].places.map(([x, y, turn, size]) => [x + dx, y, turn, size]);

/** Arrangements to begin from: the pieces, the whole to look at, and the wholes that are there. */
export const HOMES = {
  house: { title: "House", pieces: moved(0, 0), wholes: [0] },
  boat: { title: "Boat", pieces: moved(1, 0), wholes: [1] },
  face: { title: "Face", pieces: moved(2, 0), wholes: [2] },
  both: { title: "House and face", pieces: [...moved(0, -200), ...moved(2, 200)], wholes: [0, 2] },
};

/** What each slider may be set to: [lowest, highest]. */
export const LIMITS = [
  [-360, 360],
  [-220, 220],
  [-180, 180],
  [20, 250],
];

export const shapeOf = (part) => SHAPES[part % SHAPES.length];
export const roleOf = (part, whole) => WHOLES[whole].roles[part % SHAPES.length];

/** "triangle"; where there are several of a kind "circle 2". */
export function partName(part, count) {
  const all = Array.from({ length: count }, (_, n) => n).filter((n) => shapeOf(n).name === shapeOf(part).name);
  return all.length > 1 ? `${shapeOf(part).name} ${all.indexOf(part) + 1}` : shapeOf(part).name;
}

/** A turn in degrees, from -180 to 180. */
export const wrap = (turn) => (turn > 180 || turn < -180 ? ((((turn + 180) % 360) + 360) % 360) - 180 : turn);

/** A piece of whole numbers within its limits. */
export function tidy([x, y, turn, size]) {
  return [x, y, wrap(turn), size].map((value, n) => Math.max(LIMITS[n][0], Math.min(LIMITS[n][1], Math.round(value))));
}

export function multiply([a, b, c, d, e, f], [g, h, i, j, k, l]) {
  return [a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j, a * k + c * l + e, b * k + d * l + f];
}

export function invert([a, b, c, d, e, f]) {
  const det = a * d - b * c;
  return [d / det, -b / det, -c / det, a / det, (c * f - d * e) / det, (b * e - a * f) / det];
}

/** The pose of a piece: it is turned and scaled, then moved. */
export function poseOf([x, y, turn, size]) {
  const [s, t] = [size / 100, (turn * Math.PI) / 180];
  return [s * Math.cos(t), s * Math.sin(t), -s * Math.sin(t), s * Math.cos(t), x / 100, y / 100];
}

/** W_ij (parts of one set x wholes): from a part to the whole, the inverse of its place there. */
export const TRANSFORMS = SHAPES.map((_, i) => WHOLES.map(({ places }) => invert(poseOf(places[i]))));

/** V_ij = M_i W_ij, (parts x wholes): where each part says that each whole is. */
export function votesOf(pieces) {
  return pieces.map((piece, i) => TRANSFORMS[i % SHAPES.length].map((w) => multiply(poseOf(piece), w)));
}

/** How far vote `b` is from vote `a`: distance in units, turn in degrees, ratio of sizes. */
export function gap(a, b) {
  const turn = (m) => (Math.atan2(m[1], m[0]) * 180) / Math.PI;
  return {
    distance: Math.hypot(b[4] - a[4], b[5] - a[5]),
    turn: wrap(turn(b) - turn(a)),
    size: Math.hypot(b[0], b[1]) / Math.hypot(a[0], a[1]),
  };
}

/**
 * @typedef {object} Toy  what the view shows
 * @property {string} home      key of HOMES
 * @property {string} rule      the algorithm looked at
 * @property {number} whole     the whole whose votes are drawn
 * @property {number} part      the part with handles
 * @property {number} step      the iteration shown, from 0; -1 is the last
 * @property {number[][]} pieces
 */

/** @returns {Toy} */
export const atHome = (home) => ({
  home,
  rule: "dynamic",
  whole: HOMES[home].wholes[0],
  part: 0,
  step: -1,
  pieces: HOMES[home].pieces,
});

export const isHome = ({ home, pieces }) => String(pieces) === String(HOMES[home].pieces);

/** As text for a link. @param {Toy} toy */
export function writeToy(toy) {
  const { home, rule, whole, part, step } = toy;
  return [home, rule, whole, part, step, ...(isHome(toy) ? [] : toy.pieces.flat())].join(",");
}

/** A link's text; what it says wrongly is as at home. @returns {Toy | undefined} */
export function readToy(text, rules) {
  const [home, rule, ...rest] = text.split(",");
  if (!Object.hasOwn(HOMES, home)) return undefined;
  const toy = atHome(home);
  const [whole, part, step, ...flat] = rest.map((value) => Number.parseInt(value, 10));
  const count = toy.pieces.length;
  if (rules.includes(rule)) toy.rule = rule;
  if (whole >= 0 && whole < WHOLES.length) toy.whole = whole;
  if (part >= 0 && part < count) toy.part = part;
  if (step >= -1 && step < 99) toy.step = step;
  if (flat.length === 4 * count && flat.every(Number.isFinite)) {
    toy.pieces = toy.pieces.map((_, n) => tidy(flat.slice(4 * n, 4 * n + 4)));
  }
  return toy;
}
