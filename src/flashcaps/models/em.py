"""Matrix capsules with EM routing (em)."""

from ..nn.backbones import BACKBONES, Conv
from .network import Capsules
from .specs import ConvCaps, Dense, Primary, Route

# The scale of costs and densities in which em learns, with the measurements: docs/algorithms/em.md.
SCALE = {"relative": True, "norm_activation": True, "beta_u": -1.0}
EM3 = Route("em", iterations=3, options=SCALE)
EM2 = Route("em", iterations=2, options=SCALE)  # where the attention paper finds it best
PRIMARY = Primary(types=32, dim=16, kernel=1, batch_norm=True)
LAYERS = (ConvCaps(32, 16, kernel=3, stride=2), ConvCaps(32, 16, kernel=3), Dense(children="type"))
CIFAR_STEM = Conv(256, kernel=4, stride=2, padding=1, norm="before")


def em_smallnorb() -> Capsules:
    """em, smallNORB: stereo pairs, 32 x 32 crops."""
    stem = Conv(32, kernel=5, stride=2, norm="before", standardise=True)
    return Capsules((2, 32, 32), 5, EM3, stem, PRIMARY, LAYERS)


def em_cifar10() -> Capsules:
    """attention, Table 6: EM routing, one convolution."""
    return Capsules((3, 32, 32), 10, EM2, CIFAR_STEM, PRIMARY, LAYERS)


def em_cifar100() -> Capsules:
    """attention, Table 7: EM routing, one convolution."""
    return Capsules((3, 32, 32), 100, EM2, CIFAR_STEM, PRIMARY, LAYERS)


def em_resnet_cifar10() -> Capsules:
    """attention, Table 1: EM routing, a ResNet."""
    return Capsules((3, 32, 32), 10, EM2, BACKBONES["resnet"], PRIMARY, LAYERS)


def em_resnet_cifar100() -> Capsules:
    """attention, Table 1: EM routing, a ResNet."""
    return Capsules((3, 32, 32), 100, EM2, BACKBONES["resnet"], PRIMARY, LAYERS)
