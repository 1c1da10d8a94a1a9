"""Networks routed by agreement (dynamic), and those the attention paper compares itself to."""

from dataclasses import replace

from ..nn.backbones import BACKBONES, Conv
from .network import Capsules
from .specs import ConvCaps, Dense, Primary, Route

DYNAMIC = Route("dynamic", iterations=3)
CONV9 = Conv(256, kernel=9)
PHOTO9 = Conv(256, kernel=9, standardise=True)  # most of a photograph's power is a constant
PRIMARY = Primary(types=32, dim=8, kernel=9, stride=2)
RESNET_PRIMARY = Primary(types=32, dim=8, kernel=9, shares=512)  # of features that batch normalisation makes larger
DECODER = (512, 1024)


def capsnet_mnist() -> Capsules:
    """dynamic, Fig. 1: digits, 28 x 28."""
    return Capsules((1, 28, 28), 10, DYNAMIC, CONV9, PRIMARY, (Dense(),), DECODER)


def capsnet_multimnist() -> Capsules:
    """dynamic, Table 1: two overlapping digits, 36 x 36."""
    return Capsules((1, 36, 36), 10, DYNAMIC, CONV9, PRIMARY, (Dense(),), DECODER)


def capsnet_affnist() -> Capsules:
    """dynamic, 5.2: translated digits, 40 x 40."""
    return Capsules((1, 40, 40), 10, DYNAMIC, CONV9, PRIMARY, (Dense(),), DECODER)


def capsnet_cifar10() -> Capsules:
    """dynamic, 7: 24 x 24 crops, 64 primary types, leaky routing, as the authors' code has it: padded, standardised."""
    leaky = Route("dynamic", iterations=3, options={"leaky": True, "bias": True})
    stem, primary = replace(PHOTO9, padding=4), Primary(types=64, dim=8, kernel=9, stride=2, padding=4)
    return Capsules((3, 24, 24), 10, leaky, stem, primary, (Dense(),))


def capsnet_smallnorb() -> Capsules:
    """dynamic, 7: stereo pairs, 32 x 32 crops."""
    primary = replace(PRIMARY, shares=128)  # on each of half the classes a child has twice the weight
    return Capsules((2, 32, 32), 5, DYNAMIC, PHOTO9, primary, (Dense(),), DECODER)


def capsnet_svhn() -> Capsules:
    """dynamic, 7: house numbers, a smaller network."""
    primary = Primary(types=16, dim=6, kernel=9, stride=2)
    return Capsules((3, 32, 32), 10, DYNAMIC, replace(PHOTO9, channels=64), primary, (Dense(dim=8),), DECODER)


def capsnet_tiny() -> Capsules:
    """dynamic, Fig. 1: digits on a laptop, in a minute."""
    primary = Primary(types=8, dim=8, kernel=5, stride=2, shares=0)  # a kernel of 800 numbers survives PyTorch's start
    return Capsules((1, 28, 28), 10, DYNAMIC, Conv(32, kernel=5, stride=2), primary, (Dense(),), (128, 256))


def dynamic_simple_cifar10() -> Capsules:
    """attention, Table 4: dynamic routing, one convolution."""
    return Capsules((3, 32, 32), 10, DYNAMIC, PHOTO9, PRIMARY, (Dense(),))


def dynamic_simple_cifar100() -> Capsules:
    """attention, Table 5: dynamic routing, one convolution."""
    return Capsules((3, 32, 32), 100, DYNAMIC, PHOTO9, PRIMARY, (Dense(),))


def dynamic_resnet_cifar10() -> Capsules:
    """attention, Table 1: dynamic routing, a ResNet whose last blocks are 256 wide."""
    return Capsules((3, 32, 32), 10, DYNAMIC, BACKBONES["resnet_wide"], RESNET_PRIMARY, (Dense(),))


def dynamic_resnet_cifar100() -> Capsules:
    """attention, Table 1: dynamic routing, a ResNet whose last blocks are 256 wide."""
    return Capsules((3, 32, 32), 100, DYNAMIC, BACKBONES["resnet_wide"], RESNET_PRIMARY, (Dense(),))


def dynamic_diverse() -> Capsules:
    """attention, Fig. 5: one or two digits, 36 x 36, vector poses routed by agreement."""
    stem = Conv(1024, kernel=3, stride=2, padding=1)
    primary = Primary(types=16, dim=64, kernel=3, stride=2, shares=32)
    return Capsules((1, 36, 36), 10, DYNAMIC, stem, primary, (ConvCaps(16, 64, kernel=3), Dense(dim=64)))
