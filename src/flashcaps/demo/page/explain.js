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
 * @property {string} look       what to look at where votes are arrows
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
    look: "The longer the thick arrow, the surer: its length, squashed, is the class capsule's own.",
  },
  em: {
    short: "EM",
    symbol: "r_ij",
    measure: "activation",
    present: "a_j = sigmoid(λ (β_a − Σ_h cost_jh))",
    agreement: "Σ_i r_ij V_ij · μ_j",
    idea: "A whole is a Gaussian cluster of votes; the tighter the cluster, the more active it is.",
    counts: "its activation counts how tight its cluster of votes is, not how large",
    look: "Look at how straight a chain runs rather than how far it gets: EM asks how near the votes of a class lie to each other.",
  },
  attention: {
    short: "Attention",
    symbol: "r_ij",
    measure: "score",
    present: "score_j = w · p_j + b",
    agreement: "p_j · v_ij",
    idea: "Wholes compete for each part by dot product, then normalise what they gathered.",
    counts: "its score is read from its pose, not from how much it was sent",
    look: "The direction counts, not the length: the sum is normalised, and the score is read from it.",
  },
  heinsen: {
    short: "Heinsen",
    symbol: "R_ij",
    measure: "score",
    present: "a_j = Σ_i β_ij^use D_ij^use − Σ_i β_ij^ign D_ij^ign",
    agreement: "Σ_i R_ij V_ij · μ_j",
    idea: "A whole scores what it uses of the parts, less what it has to ignore.",
    counts: "its score weighs every part it uses against those it ignores",
    look: "Look at how straight a chain runs rather than how far it gets: the score adds up what each part is worth to the class.",
  },
  discriminative: {
    short: "Discriminative",
    symbol: "b_ij",
    measure: "length",
    present: "s_j = squash(Σ_i b_ij û_{j|i})",
    agreement: "û_{j|i} · s_j",
    idea: "Signed coefficients are learned once and do not depend on the picture: no iterations.",
    counts: "its length counts how well votes agree, not how many there are",
    look: "The longer the thick arrow, the surer: its length, squashed, is the class capsule's own.",
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
  look: "",
};

/** @returns {Words} */
export function wordsFor(algorithm) {
  return WORDS[algorithm] ?? { ...UNKNOWN, short: algorithm };
}

export const ALGORITHMS = Object.keys(WORDS);
