/** Each algorithm in the symbols of its paper, as a layer has it: {update: a line per step, agreement: of a class}. */

const cosine = (vote, pose, weight) => `Σ_i w_ij cos(${vote}, ${pose}) / Σ_i w_ij, w_ij = ${weight}`;
const near = (weight) => `Σ_i w_ij exp(−|V_ij − μ_j|^2 / 2s^2) / Σ_i w_ij, w_ij = ${weight}`;

const FORMULAS = {
  dynamic: ({ options, learned }) => ({
    update: [
      `c_ij = softmax_j(b_ij)${options.leaky ? ", one more parent “none” at 0" : ""}`,
      "s_j = Σ_i c_ij û_{j|i}" + (learned.bias ? " + bias_j" : ""),
      "v_j = squash(s_j)",
      "b_ij ← b_ij + û_{j|i} · v_j",
    ],
    agreement: cosine("û_{j|i}", "v_j", "c_ij |u_i|"),
  }),
  em: ({ options, output_norm: norm }) => {
    const cost = options.relative ? "n_j / n_0 mean_h(β_u + log σ_jh)" : "Σ_h (β_u + log σ_jh) Σ_i r'_ij";
    const sharp = options.relative || options.sharpness ? "^τ" : "";
    return {
      update: [
        "r'_ij = r_ij a_i" + (options.relative ? ", n_j = Σ_i r'_ij" : ""),
        "μ_j = Σ_i r'_ij V_ij / Σ_i r'_ij",
        "σ_j^2 = Σ_i r'_ij (V_ij − μ_j)^2 / Σ_i r'_ij",
        `a_j = sigmoid(λ (β_a − ${cost}))` + (norm ? ", normalised at the end" : ""),
        `r_ij = a_j N(V_ij; μ_j, σ_j)${sharp} / Σ_k a_k N(V_ik; μ_k, σ_k)${sharp}`,
      ],
      agreement: near("r_ij a_i"),
    };
  },
  attention: ({ options, dim }) => ({
    update: [
      `a_ij = p_j · v_ij${options.scale === dim ** -0.5 ? " / √D" : ` · ${options.scale}`}`,
      "r_ij = softmax_j(a_ij)",
      options.norm === false ? "p_j = Σ_i r_ij v_ij" : "p_j = LayerNorm(Σ_i r_ij v_ij)",
    ],
    agreement: cosine("v_ij", "p_j", "r_ij"),
  }),
  heinsen: () => ({
    update: [
      "R_ij = f(a_j) N(V_ij; μ_j, σ_j) / Σ_k f(a_k) N(V_ik; μ_k, σ_k)",
      "D_ij^use = f(a_i) R_ij",
      "D_ij^ign = f(a_i) − D_ij^use",
      "a_j = Σ_i β_ij^use D_ij^use − Σ_i β_ij^ign D_ij^ign",
      "μ_j = Σ_i D_ij^use V_ij / Σ_i D_ij^use",
    ],
    agreement: near("R_ij f(a_i)"),
  }),
  discriminative: () => ({
    update: ["v_j = Σ_i b_ij û_{j|i}", "s_j = squash(v_j)"],
    agreement: cosine("û_{j|i}", "s_j", "|b_ij| |u_i|"),
  }),
};

/** How a pose comes of the weighted sum of votes. */
const MADE = { dynamic: "squash", discriminative: "squash", em: "mean", heinsen: "mean" };
export const madeBy = ({ routing, options }) => MADE[routing] ?? (options.norm === false ? "sum" : "norm");

/** Which lines of the update belong to which stage of one vote's way. */
const STAGES = {
  dynamic: { agree: [3], share: [0], sum: [1, 2] },
  em: { share: [4], sum: [0, 1, 2], read: [3] },
  attention: { agree: [0], share: [1], sum: [2] },
  heinsen: { share: [0], sum: [1, 4], read: [2, 3] },
  discriminative: { sum: [0, 1] },
};

/** @param {any} layer  of a network's header */
export const formulasOf = (layer) => FORMULAS[layer.routing](layer);

/** The formulas of each stage: {agree, share, sum, read}, lines; the last is how a class's score is read. */
export function stagesOf({ head, measure }, layer) {
  const { update } = formulasOf(layer);
  const found = STAGES[layer.routing];
  const lines = (stage) => (found[stage] ?? []).map((n) => update[n]);
  const read = lines("read");
  if (head.type === "lengths") read.push("score_j = length of the pose");
  else if (head.type !== "activations") read.push("score_j = w · p_j + b");
  if (measure === "softmax of scores") read.push("shown: softmax_j(score_j)");
  if (measure === "logistic score") read.push("shown: 1 / (1 + exp(−score_j))");
  return { agree: lines("agree"), share: lines("share"), sum: lines("sum"), read };
}
