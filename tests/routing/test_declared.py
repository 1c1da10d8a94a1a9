"""What the papers' algorithms declare: what activations mean, what is learned and how that begins; and hand on."""

from typing import Any

import pytest

from flashcaps.functional import inverse_temperature
from flashcaps.routing import Routing, Sizes
from flashcaps.routing.attention import Attention
from flashcaps.routing.contract import Learned
from flashcaps.routing.discriminative import Discriminative
from flashcaps.routing.dynamic import Dynamic
from flashcaps.routing.em import EM
from flashcaps.routing.heinsen import Heinsen

from ..cases import CASES, assert_routed, lists

SIZES, ANY = Sizes(6, 4, 8), Sizes(None, 4, 8)
NONE, LENGTH, SURE, SCORE = (None, None), (None, "length"), ("probability", "probability"), ("score", "score")
TABLE = Learned((6, 4), per_child=True)
BETAS = {"beta_u": Learned((4,)), "beta_a": Learned((4,))}
NORM = {"weight": Learned((8,), 1.0), "bias": Learned((8,))}


@pytest.mark.parametrize(("algorithm", "sizes", "activations", "learned"), [
    (Dynamic(), SIZES, LENGTH, {}),
    (Dynamic(prior=True, bias=True), SIZES, LENGTH, {"logits": TABLE, "bias": Learned((4, 8), 0.1)}),
    (Dynamic(prior=True), ANY, LENGTH, {"logits": Learned((4,))}),
    (EM(), SIZES, SURE, BETAS),
    (Attention(), SIZES, NONE, NORM),
    (Attention(norm=False, activation=True), SIZES, SURE, BETAS),
    (Attention(norm=False, initial="learned"), SIZES, NONE, {"initial": Learned((4, 8))}),
    (Attention(norm=False, initial="random"), SIZES, NONE, {"initial": Learned((4, 8), state=True, random=True)}),
    (Heinsen(), SIZES, SCORE, {"beta_use": TABLE, "beta_ignore": TABLE}),
    (Heinsen(), ANY, SCORE, {"beta_use": Learned((4,)), "beta_ignore": Learned((4,))}),
    (Heinsen(tied=True), SIZES, SCORE, {"beta_use": TABLE}),
    (Discriminative(), SIZES, LENGTH, {"coefficients": Learned((6, 4), 0.25, per_child=True, state=True)}),
])  # fmt: skip
def test_declarations(algorithm: Routing, sizes: Sizes, activations: tuple, learned: dict[str, Learned]) -> None:
    assert (algorithm.input_activation, algorithm.output_activation) == activations
    assert {name: x._replace(parents=None) for name, x in algorithm.learned(sizes).items()} == learned


RELATIVE = {"inverse_temperature": 1.0, "eps": 0.3, "share": 4 / 3}


@pytest.mark.parametrize(("algorithm", "case", "options"), [
    (Dynamic(2, leaky=True), "dynamic, priors and bias", {"iterations": 2, "leaky": True}),
    (EM(2, eps=0.3), "em", {"inverse_temperature": inverse_temperature(2), "iterations": 2, "eps": 0.3}),
    (EM(inverse_temperature=0.7), "em", {"inverse_temperature": 0.7}),
    (EM(1, eps=0.3, relative=True), "em", RELATIVE | {"iterations": 1, "sharpness": [1 / 2]}),
    (EM(3, eps=0.3, relative=True), "em", RELATIVE | {"iterations": 3, "sharpness": [1 / 4, 2 / 4, 3 / 4]}),
    (Discriminative(), "discriminative", {}),
])  # fmt: skip
def test_an_algorithm_hands_its_options_on(algorithm: Routing, case: str, options: dict[str, Any]) -> None:
    """relative: lambda (beta_a - n / n_0 mean_h(beta_u + log sigma_h)), tau rising to 1 / D."""
    tensors = CASES[case].draw(2, 4, 3, 2)
    learned = {name: x for name, x in tensors.items() if name not in ("votes", "activation")}
    routed = algorithm.run(algorithm.function, tensors["votes"], tensors.get("activation"), learned)
    assert_routed(routed, CASES[case].oracle(**lists(tensors), **options))
