"""Matrix capsules with EM routing (em)."""

from dataclasses import replace

from ..nn.backbones import BACKBONES, Conv
from .network import Capsules
from .specs import ConvCaps, Dense, Primary, Route

# The scale of costs and densities in which em learns, with the measurements: docs/algorithms/em.md.
SCALE = {"relative": True, "norm_activation": True, "beta_u": -1.0}
EM3 = Route("em", iterations=3, options=SCALE)
EM2 = Route("em", iterations=2, options=SCALE)  # where the attention paper finds it best
PRIMARY = Primary(types=32, dim=16, kernel=1, batch_norm=True)
LAYERS = (ConvCaps(32, 16, kernel=3, stride=2), ConvCaps(32, 16, kernel=3), Dense(children="type"))
NORB_STEM = Conv(32, kernel=5, stride=2, norm="before", standardise=True)
CIFAR_STEM = Conv(256, kernel=4, stride=2, padding=1, norm="before")
SIMPLE = Capsules((3, 32, 32), 10, EM2, CIFAR_STEM, PRIMARY, LAYERS,
                  about="attention, Table 6: EM routing, one convolution")
RESNET = replace(SIMPLE, backbone=BACKBONES["resnet"], about="attention, Table 1: EM routing, a ResNet")

MODELS: dict[str, Capsules] = {
    "em_smallnorb": Capsules(
        (2, 32, 32), 5, EM3, NORB_STEM, PRIMARY, LAYERS, about="em, smallNORB: stereo pairs, 32 x 32 crops"),
    "em_cifar10": SIMPLE,
    "em_cifar100": replace(SIMPLE, classes=100, about="attention, Table 7: EM routing, one convolution"),
    "em_resnet_cifar10": RESNET,
    "em_resnet_cifar100": replace(RESNET, classes=100),
}  # fmt: skip
