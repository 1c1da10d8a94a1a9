/** Plain words and symbols for each routing algorithm. */

/**
 * @typedef {object} Words
 * @property {string} short      name on a chip
 * @property {string} symbol     what the papers call the coupling
 * @property {string} measure    what says that a class capsule is there
 * @property {string} present    the formula of that
 * @property {string} agreement  the formula of agreement
 * @property {string} idea       one sentence
 * @property {string} counts     why a small share can win
 */

/** @type {Record<string, Words>} */
const WORDS = {
  dynamic: {
    short: "Dynamic",
    symbol: "c_ij",
    measure: "length",
    present: "v_j = squash(s_j) = |s_j|^2 / (1 + |s_j|^2) · s_j / |s_j|",
    agreement: "û_{j|i} · v_j",
    idea: "A part sends more to the whole whose pose its vote points along.",
    counts: "its length counts how well votes agree, not how many there are",
  },
  em: {
    short: "EM",
    symbol: "r_ij",
    measure: "activation",
    present: "a_j = sigmoid(λ (β_a − Σ_h cost_jh))",
    agreement: "Σ_i r_ij V_ij · μ_j",
    idea: "A whole is a Gaussian cluster of votes; the tighter the cluster, the more active it is.",
    counts: "its activation counts how tight its cluster of votes is, not how large",
  },
  attention: {
    short: "Attention",
    symbol: "r_ij",
    measure: "score",
    present: "score_j = w · p_j + b",
    agreement: "p_j · v_ij",
    idea: "Wholes compete for each part by dot product, then normalise what they gathered.",
    counts: "its score is read from its pose, not from how much it was sent",
  },
  heinsen: {
    short: "Heinsen",
    symbol: "R_ij",
    measure: "score",
    present: "a_j = Σ_i β_ij^use D_ij^use − Σ_i β_ij^ign D_ij^ign",
    agreement: "Σ_i R_ij V_ij · μ_j",
    idea: "A whole scores what it uses of the parts, less what it has to ignore.",
    counts: "its score weighs every part it uses against those it ignores",
  },
  discriminative: {
    short: "Discriminative",
    symbol: "b_ij",
    measure: "length",
    present: "s_j = squash(Σ_i b_ij û_{j|i})",
    agreement: "û_{j|i} · s_j",
    idea: "Signed coefficients are learned once and do not depend on the picture: no iterations.",
    counts: "its length counts how well votes agree, not how many there are",
  },
};

const UNKNOWN = {
  short: "Routing",
  symbol: "c_ij",
  measure: "activation",
  present: "",
  agreement: "",
  idea: "",
  counts: "",
};

/** @returns {Words} */
export function wordsFor(algorithm) {
  return WORDS[algorithm] ?? { ...UNKNOWN, short: algorithm };
}

export const ALGORITHMS = Object.keys(WORDS);

/** What dimension d of a model's poses stands for, the same everywhere; told apart where several stand for one thing. */
export function nameOf({ dimensions }, d) {
  const name = dimensions?.[d];
  const same = name ? dimensions.flatMap((other, n) => (other === name ? [n] : [])) : [];
  return same.length > 1 ? `${name} (${same.indexOf(d) + 1} of ${same.length})` : name;
}
