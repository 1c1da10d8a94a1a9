"""dynamic's network with coefficients that belong to the layer (discriminative)."""

from dataclasses import replace

from .dynamic import CONV9, DECODER, PHOTO9, PRIMARY
from .network import Capsules
from .specs import Dense, Route

# As printed, coefficients climb an objective without a maximum: docs/algorithms/discriminative.md.
DISCRIMINATIVE = Route("discriminative", options={"bounded": True})
LEAKY9 = replace(PHOTO9, activation="leaky_relu")

MODELS: dict[str, Capsules] = {
    "discriminative_mnist": Capsules(
        (1, 28, 28), 10, DISCRIMINATIVE, CONV9, PRIMARY, (Dense(),), DECODER,
        about="discriminative, Table I: digits, 28 x 28"),
    "discriminative_fashion": Capsules(
        (1, 28, 28), 10, DISCRIMINATIVE, PHOTO9, PRIMARY, (Dense(),), DECODER,
        about="discriminative, Table I: clothes, 28 x 28"),
    "discriminative_cifar10": Capsules(
        (3, 32, 32), 10, DISCRIMINATIVE, LEAKY9, replace(PRIMARY, types=64), (Dense(),),
        about="discriminative, Table I: 64 primary types, LeakyReLU, no reconstruction"),
    "discriminative_multimnist": Capsules(
        (1, 36, 36), 10, DISCRIMINATIVE, CONV9, PRIMARY, (Dense(),), DECODER,
        about="discriminative, IV: two overlapping digits, 36 x 36"),
}  # fmt: skip
