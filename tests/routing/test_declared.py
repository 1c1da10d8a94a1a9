"""What the papers' algorithms declare: what their activations mean, what they learn and how that begins."""

import pytest

from flashcaps.routing import Routing, Sizes
from flashcaps.routing.attention import Attention
from flashcaps.routing.contract import Learned
from flashcaps.routing.discriminative import Discriminative
from flashcaps.routing.dynamic import Dynamic
from flashcaps.routing.em import EM
from flashcaps.routing.heinsen import Heinsen

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


def test_flags() -> None:
    assert (EM.over, Heinsen.vote_bias, Attention.stepwise) == ("positions", True, True)
