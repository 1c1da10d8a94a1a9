/** Plain words and symbols for each routing algorithm. */

/**
 * @typedef {object} Words
 * @property {string} short      name on a chip
 * @property {string} symbol     what the papers call the coupling
 * @property {string} measure    what says that a class capsule is there
 * @property {string} present    the formula of that
 * @property {string} idea       one sentence
 * @property {string} counts     what the answer is read from, where another class has more
 * @property {string} where      what the symbols of the update mean
 * @property {boolean} [near]    agreement is a distance, not a dot product
 */

/** @type {Record<string, Words>} */
const WORDS = {
  dynamic: {
    short: "Dynamic",
    symbol: "c_ij",
    measure: "length",
    present: "v_j = squash(s_j) = |s_j|^2 / (1 + |s_j|^2) · s_j / |s_j|",
    idea: "A part sends more to the whole whose pose its vote points along.",
    counts: "its length is that of the sum, where votes that agree add up and others cancel",
    where: "i is a small capsule, j a class, û_{j|i} the vote, c_ij the coupling, b_ij its logit, s_j the sum, v_j the pose",
  },
  em: {
    short: "EM",
    symbol: "r_ij",
    measure: "activation",
    present: "a_j = sigmoid(λ (β_a − Σ_h cost_jh))",
    idea: "A whole is a Gaussian cluster of votes; the tighter the cluster, the more active it is.",
    counts: "its activation also asks how near its votes lie to each other",
    where: "i is a small capsule, j a class, V_ij the vote, r_ij the coupling, a_i how much of i is there, μ_j the pose, σ_j how far votes lie from it, h one of its numbers, a_j the activation; β and λ are learned or set",
    near: true,
  },
  attention: {
    short: "Attention",
    symbol: "r_ij",
    measure: "score",
    present: "score_j = w · p_j + b",
    idea: "Wholes compete for each part by dot product, then normalise what they gathered.",
    counts: "its score is read from its pose, not from how much it was sent",
    where: "i is a small capsule, j a class, v_ij the vote, p_j the pose of the iteration before, a_ij the agreement, r_ij the coupling",
  },
  heinsen: {
    short: "Heinsen",
    symbol: "R_ij",
    measure: "score",
    present: "a_j = Σ_i β_ij^use D_ij^use − Σ_i β_ij^ign D_ij^ign",
    idea: "A whole scores what it uses of the parts, less what it has to ignore.",
    counts: "its score weighs every part it uses against those it ignores",
    where: "i is a small capsule, j a class, V_ij the vote, R_ij the coupling, μ_j the pose, σ_j how far votes lie from it, a_i and a_j scores, f the logistic function, D what is used and what is ignored; β is learned",
    near: true,
  },
  discriminative: {
    short: "Discriminative",
    symbol: "b_ij",
    measure: "length",
    present: "s_j = squash(Σ_i b_ij û_{j|i})",
    idea: "Signed coefficients are learned once and do not depend on the picture: no iterations.",
    counts: "its length is that of the sum, where votes that agree add up and others cancel",
    where: "i is a small capsule, j a class, û_{j|i} the vote, b_ij the learned coefficient, v_j the sum, s_j the pose",
  },
};

const UNKNOWN = {
  short: "Routing",
  symbol: "c_ij",
  measure: "activation",
  present: "",
  idea: "",
  counts: "",
  where: "",
};

/** @returns {Words} */
export function wordsFor(algorithm) {
  return WORDS[algorithm] ?? { ...UNKNOWN, short: algorithm };
}

export const ALGORITHMS = Object.keys(WORDS);
