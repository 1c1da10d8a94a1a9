"""A first guess that is wrong is answered with the call that was meant."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch

import flashcaps
from flashcaps.functional import em_routing, margin_loss

IMAGES = torch.rand(2, 1, 28, 28)
POSES, LABELS = torch.rand(2, 6, 4), torch.tensor([0, 1])


def layer(routing: str, **options: object) -> flashcaps.DenseCapsules:
    return flashcaps.DenseCapsules(routing, in_capsules=6, in_dim=4, out_capsules=3, out_dim=4, **options)


def model(name: str = "capsnet_tiny") -> flashcaps.models.Model:
    return flashcaps.create_model(name)


CONV = {"in_types": 8, "in_dim": 16, "out_types": 4, "out_dim": 9}
FLAT = "DenseCapsules(in_capsules=1152, in_dim=8, out_capsules=10, out_dim=16)"
GUESSES: dict[str, tuple[Callable[[], object], str]] = {
    "positional": (lambda: flashcaps.DenseCapsules(1152, 8, 10, 16), FLAT),
    "named, positional": (lambda: flashcaps.DenseCapsules("em", 1152, 8, 10, 16), FLAT.replace("(", "(routing='em', ")),
    "kernel_size": (lambda: flashcaps.ConvCapsules(**CONV, kernel_size=3), "out_dim=9, kernel=3)"),
    "primary": (lambda: flashcaps.PrimaryCapsules(9, 4, 8, kernel_size=5), "(in_channels=9, types=4, dim=8, kernel=5)"),
    "in_features": (lambda: flashcaps.DenseCapsules(in_features=8, out_features=16),
                    "in_features is in_dim here, out_features is out_dim here; call it as "
                    "DenseCapsules(in_capsules=..., in_dim=8, out_capsules=..., out_dim=16)"),
    "larger": (lambda: model()(torch.rand(2, 1, 32, 32)), "expected (B, 1, 28, 28), got (2, 1, 32, 32); resize them, "
               "or build the model for them, by create_model(..., image=(1, 32, 32)), in a recipe "
               "model.image=[1, 32, 32]"),
    "larger, plain": (lambda: model("cnn_mnist")(torch.rand(2, 1, 32, 32)), "image=(1, 32, 32)"),
    "bytes": (lambda: model()((255 * IMAGES).byte()), "got torch.uint8; give images.float() / 255"),
    "0 to 255": (lambda: model()(255 * IMAGES), "from 0 to 1, or standardised"),
    "logits in em": (lambda: layer("em")(POSES, torch.full((2, 6), 3.0)), "from 0 to 1, got 3 to 3; give logits as"),
    "logits in em_routing": (lambda: em_routing(torch.rand(2, 6, 3, 4), -torch.ones(2, 6), beta_u=torch.zeros(3),
                                                beta_a=torch.zeros(3), inverse_temperature=1.0), "got -1 to -1"),
    "no activation": (lambda: margin_loss(layer("attention")(POSES).activation, LABELS),
                      "cross_entropy_loss(SharedLinear(out_dim)(routed), targets)"),
    "coupling": (lambda: model()(IMAGES, coupling=True), "call model.route(images, coupling=True)"),
}  # fmt: skip


@pytest.mark.parametrize("guess", GUESSES)
def test_the_answer_is_the_right_call(guess: str) -> None:
    call, answer = GUESSES[guess]
    with pytest.raises((TypeError, ValueError), match=re.escape(answer)):
        call()


def test_the_right_calls_pass() -> None:
    model()(3 * torch.randn_like(IMAGES))  # standardised
    model("em_smallnorb")(torch.rand(2, 2, 40, 40))  # its layers share transforms over places: any size
    model("resnet18_cifar10")(torch.rand(2, 3, 40, 40))


@pytest.mark.parametrize("rate", [1e-5, 0.0])
@pytest.mark.parametrize("ascends", [True, False])
def test_coefficients_that_never_move_are_told_once(ascends: bool, rate: float) -> None:
    capsules = layer("discriminative", rate=rate)
    optimiser = torch.optim.SGD(capsules.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            for _ in range(2):  # parts of a batch: weights rest in between
                loss = margin_loss(capsules(POSES).activation, LABELS)
                if ascends:
                    flashcaps.ascend_coefficients(capsules, LABELS)
                loss.backward()
            optimiser.step()
    expected = 0 if ascends or not rate else 1
    assert ["flashcaps.ascend_coefficients(model, labels)" in str(w.message) for w in told] == [True] * expected
