"""Each algorithm in words and formulas, in the symbols of its paper."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """title: its name. formula: one line per step of the update. agreement: what the agreement of a class is."""

    title: str
    formula: str
    agreement: str


WORDS: dict[str, Words] = {
    "dynamic": Words(
        "Dynamic routing",
        "c_ij = softmax_j(b_ij)\ns_j = Σ_i c_ij û_{j|i}\nv_j = squash(s_j)\nb_ij ← b_ij + û_{j|i} · v_j",
        "Σ_i w_ij cos(û_{j|i}, v_j) / Σ_i w_ij, w_ij = c_ij |u_i|",
    ),
    "em": Words(
        "EM routing",
        "r'_ij = r_ij a_i\nμ_j = Σ_i r'_ij V_ij / Σ_i r'_ij\nσ_j^2 = Σ_i r'_ij (V_ij − μ_j)^2 / Σ_i r'_ij\n"
        "a_j = sigmoid(λ (β_a − Σ_h (β_u + log σ_jh) Σ_i r'_ij))\n"
        "r_ij = a_j N(V_ij; μ_j, σ_j) / Σ_k a_k N(V_ik; μ_k, σ_k)",
        "Σ_i w_ij exp(−|V_ij − μ_j|^2 / 2s^2) / Σ_i w_ij, w_ij = r_ij a_i",
    ),
    "attention": Words(
        "Attention routing",
        "a_ij = p_j · v_ij / √D\nr_ij = softmax_j(a_ij)\np_j = LayerNorm(Σ_i r_ij v_ij)",
        "Σ_i w_ij cos(v_ij, p_j) / Σ_i w_ij, w_ij = r_ij",
    ),
    "heinsen": Words(
        "Heinsen routing",
        "R_ij = f(a_j) N(V_ij; μ_j, σ_j) / Σ_k f(a_k) N(V_ik; μ_k, σ_k)\nD_ij^use = f(a_i) R_ij\n"
        "D_ij^ign = f(a_i) − D_ij^use\na_j = Σ_i β_ij^use D_ij^use − Σ_i β_ij^ign D_ij^ign\n"
        "μ_j = Σ_i D_ij^use V_ij / Σ_i D_ij^use",
        "Σ_i w_ij exp(−|V_ij − μ_j|^2 / 2s^2) / Σ_i w_ij, w_ij = R_ij f(a_i)",
    ),
    "discriminative": Words(
        "Discriminative routing",
        "v_j = Σ_i b_ij û_{j|i}\ns_j = squash(v_j)",
        "Σ_i w_ij cos(û_{j|i}, s_j) / Σ_i w_ij, w_ij = |b_ij| |u_i|",
    ),
}

MEASURED = {
    "thickness": "stroke thickness",
    "skew": "slant",
    "width": "width",
    "height": "height",
    "area": "amount of ink",
}


def words_for(algorithm: str) -> Words:
    """Those of the five papers, or the bare name of an algorithm added later."""
    return WORDS.get(algorithm, Words(f"{algorithm.capitalize()} routing", "", ""))
