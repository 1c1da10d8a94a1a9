"""Networks routed by agreement (dynamic), and those the attention paper compares itself to."""

from dataclasses import replace

from ..nn.backbones import BACKBONES, Conv
from .network import Capsules
from .specs import ConvCaps, Dense, Primary, Route

DYNAMIC = Route("dynamic", iterations=3)
LEAKY = Route("dynamic", iterations=3, options={"leaky": True, "bias": True})
CONV9 = Conv(256, kernel=9)
PHOTO9 = Conv(256, kernel=9, standardise=True)  # most of a photograph's power is a constant
PRIMARY = Primary(types=32, dim=8, kernel=9, stride=2)
NORB_PRIMARY = replace(PRIMARY, shares=128)  # with half the classes, a child has twice the weight on each
TINY_PRIMARY = Primary(types=8, dim=8, kernel=5, stride=2, shares=0)  # kernels of 800 numbers learn from this start
RESNET_PRIMARY = Primary(types=32, dim=8, kernel=9, shares=512)  # of features that batch normalisation makes larger
DIVERSE_PRIMARY = Primary(types=16, dim=64, kernel=3, stride=2, shares=32)
DECODER = (512, 1024)
MNIST = Capsules((1, 28, 28), 10, DYNAMIC, CONV9, PRIMARY, (Dense(),), DECODER,
                 about="dynamic, Fig. 1: digits, 28 x 28")
SIMPLE = Capsules((3, 32, 32), 10, DYNAMIC, PHOTO9, PRIMARY, (Dense(),),
                  about="attention, Table 4: dynamic routing, one convolution")
RESNET = replace(SIMPLE, backbone=BACKBONES["resnet_wide"], primary=RESNET_PRIMARY,
                 about="attention, Table 1: dynamic routing, a ResNet whose last blocks are 256 wide")

MODELS: dict[str, Capsules] = {
    "capsnet_mnist": MNIST,
    "capsnet_multimnist": replace(MNIST, image=(1, 36, 36), about="dynamic, Table 1: two overlapping digits, 36 x 36"),
    "capsnet_affnist": replace(MNIST, image=(1, 40, 40), about="dynamic, 5.2: translated digits, 40 x 40"),
    "capsnet_cifar10": Capsules(
        (3, 24, 24), 10, LEAKY, replace(PHOTO9, padding=4), replace(PRIMARY, types=64, padding=4), (Dense(),),
        about="dynamic, 7: 24 x 24 crops, 64 primary types, leaky routing, as the authors' code has it: padded, "
              "standardised"),
    "capsnet_smallnorb": Capsules(
        (2, 32, 32), 5, DYNAMIC, PHOTO9, NORB_PRIMARY, (Dense(),), DECODER,
        about="dynamic, 7: stereo pairs, 32 x 32 crops"),
    "capsnet_svhn": Capsules(
        (3, 32, 32), 10, DYNAMIC, replace(PHOTO9, channels=64), replace(PRIMARY, types=16, dim=6), (Dense(dim=8),),
        DECODER,
        about="dynamic, 7: house numbers, a smaller network"),
    "capsnet_tiny": Capsules(
        (1, 28, 28), 10, DYNAMIC, Conv(32, kernel=5, stride=2), TINY_PRIMARY, (Dense(),), (128, 256),
        about="dynamic, Fig. 1: digits on a laptop, in a minute"),
    "dynamic_simple_cifar10": SIMPLE,
    "dynamic_simple_cifar100": replace(
        SIMPLE, classes=100, about="attention, Table 5: dynamic routing, one convolution"),
    "dynamic_resnet_cifar10": RESNET,
    "dynamic_resnet_cifar100": replace(RESNET, classes=100),
    "dynamic_diverse": Capsules(
        (1, 36, 36), 10, DYNAMIC, Conv(1024, kernel=3, stride=2, padding=1), DIVERSE_PRIMARY,
        (ConvCaps(16, 64, kernel=3), Dense(dim=64)),
        about="attention, Fig. 5: one or two digits, 36 x 36, vector poses routed by agreement"),
}  # fmt: skip
