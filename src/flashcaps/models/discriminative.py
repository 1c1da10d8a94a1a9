"""dynamic's network with coefficients that belong to the layer (discriminative)."""

from dataclasses import replace

from .dynamic import CONV9, DECODER, PHOTO9, PRIMARY
from .network import Capsules
from .specs import Dense, Primary, Route

# As printed, coefficients climb an objective without a maximum: docs/algorithms/discriminative.md.
DISCRIMINATIVE = Route("discriminative", options={"bounded": True})


def discriminative_mnist() -> Capsules:
    """discriminative, Table I: digits, 28 x 28."""
    return Capsules((1, 28, 28), 10, DISCRIMINATIVE, CONV9, PRIMARY, (Dense(),), DECODER)


def discriminative_fashion() -> Capsules:
    """discriminative, Table I: clothes, 28 x 28."""
    return Capsules((1, 28, 28), 10, DISCRIMINATIVE, PHOTO9, PRIMARY, (Dense(),), DECODER)


def discriminative_cifar10() -> Capsules:
    """discriminative, Table I: 64 primary types, LeakyReLU, no reconstruction."""
    stem = replace(PHOTO9, activation="leaky_relu")
    primary = Primary(types=64, dim=8, kernel=9, stride=2)
    return Capsules((3, 32, 32), 10, DISCRIMINATIVE, stem, primary, (Dense(),))


def discriminative_multimnist() -> Capsules:
    """discriminative, IV: two overlapping digits, 36 x 36."""
    return Capsules((1, 36, 36), 10, DISCRIMINATIVE, CONV9, PRIMARY, (Dense(),), DECODER)
