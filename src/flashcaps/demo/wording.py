"""Each algorithm in words and formulas, in the symbols of its paper."""

from __future__ import annotations

from typing import NamedTuple

from ..routing import ROUTING


class Formulas(NamedTuple):
    """update: one line per step. agreement: of the votes for a class."""

    update: str
    agreement: str


FORMULAS: dict[str, Formulas] = {
    "dynamic": Formulas(
        "c_ij = softmax_j(b_ij)\ns_j = Σ_i c_ij û_{j|i}\nv_j = squash(s_j)\nb_ij ← b_ij + û_{j|i} · v_j",
        "Σ_i w_ij cos(û_{j|i}, v_j) / Σ_i w_ij, w_ij = c_ij |u_i|",
    ),
    "em": Formulas(
        "r'_ij = r_ij a_i\nμ_j = Σ_i r'_ij V_ij / Σ_i r'_ij\nσ_j^2 = Σ_i r'_ij (V_ij − μ_j)^2 / Σ_i r'_ij\n"
        "a_j = sigmoid(λ (β_a − Σ_h (β_u + log σ_jh) Σ_i r'_ij))\n"
        "r_ij = a_j N(V_ij; μ_j, σ_j) / Σ_k a_k N(V_ik; μ_k, σ_k)",
        "Σ_i w_ij exp(−|V_ij − μ_j|^2 / 2s^2) / Σ_i w_ij, w_ij = r_ij a_i",
    ),
    "attention": Formulas(
        "a_ij = p_j · v_ij / √D\nr_ij = softmax_j(a_ij)\np_j = LayerNorm(Σ_i r_ij v_ij)",
        "Σ_i w_ij cos(v_ij, p_j) / Σ_i w_ij, w_ij = r_ij",
    ),
    "heinsen": Formulas(
        "R_ij = f(a_j) N(V_ij; μ_j, σ_j) / Σ_k f(a_k) N(V_ik; μ_k, σ_k)\nD_ij^use = f(a_i) R_ij\n"
        "D_ij^ign = f(a_i) − D_ij^use\na_j = Σ_i β_ij^use D_ij^use − Σ_i β_ij^ign D_ij^ign\n"
        "μ_j = Σ_i D_ij^use V_ij / Σ_i D_ij^use",
        "Σ_i w_ij exp(−|V_ij − μ_j|^2 / 2s^2) / Σ_i w_ij, w_ij = R_ij f(a_i)",
    ),
    "discriminative": Formulas(
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


def title_of(algorithm: str) -> str:
    return ROUTING[algorithm].title or f"{algorithm.capitalize()} routing"


def formulas_of(algorithm: str) -> Formulas:
    """The formulas of an algorithm; without any, the first line of its function's docstring."""
    first = (ROUTING[algorithm].function.__doc__ or "").strip().partition("\n")[0]
    return FORMULAS.get(algorithm, Formulas(first, ""))
