"""Inverted dot-product attention routing (attention). Its primary convolutions have no bias."""

from dataclasses import replace

from ..nn.backbones import BACKBONES, Conv
from .network import Capsules
from .specs import ConvCaps, Dense, Primary, Route

ATTENTION = Route("attention", iterations=2)
PRIMARY_4X4 = Primary(types=32, dim=16, kernel=1, bias=False)
PRIMARY_6X6 = Primary(types=32, dim=36, kernel=1, bias=False)
LAYERS_4X4 = (ConvCaps(32, 16, kernel=3, stride=2), ConvCaps(32, 16, kernel=3), Dense(dim=16))
LAYERS_6X6 = (ConvCaps(32, 36, kernel=3, stride=2), ConvCaps(32, 36, kernel=3), Dense(20, dim=36), Dense(dim=36))
STEM = Conv(256, kernel=3, stride=2, padding=1, standardise=True)
RESNET = BACKBONES["resnet"]
DIVERSE_STEM = Conv(1024, kernel=3, stride=2, padding=1)
DIVERSE_PRIMARY = Primary(types=16, dim=64, kernel=3, stride=2, bias=False)
DIVERSE_LAYERS = (ConvCaps(16, 64, kernel=3), Dense(dim=64))
WIDE_LAYERS = (ConvCaps(64, 64, kernel=3), Dense(dim=64))

MODELS: dict[str, Capsules] = {
    "attention_simple_cifar10": Capsules(
        (3, 32, 32), 10, ATTENTION, STEM, PRIMARY_4X4, LAYERS_4X4,
        about="attention, Table 8: one convolution, 4 x 4 poses"),
    "attention_simple_cifar100": Capsules(
        (3, 32, 32), 100, ATTENTION, replace(STEM, channels=128), PRIMARY_6X6, LAYERS_6X6,
        about="attention, Table 9: one convolution, 6 x 6 poses"),
    "attention_resnet_cifar10": Capsules(
        (3, 32, 32), 10, ATTENTION, RESNET, PRIMARY_4X4, LAYERS_4X4,
        about="attention, Table 1: a ResNet, 4 x 4 poses"),
    "attention_resnet_cifar100": Capsules(
        (3, 32, 32), 100, ATTENTION, RESNET, PRIMARY_6X6, LAYERS_6X6,
        about="attention, Table 1: a ResNet, 6 x 6 poses"),
    "attention_diverse_matrix": Capsules(
        (1, 36, 36), 10, ATTENTION, DIVERSE_STEM, DIVERSE_PRIMARY, DIVERSE_LAYERS,
        about="attention, Table 10: one or two digits, 36 x 36, 8 x 8 poses"),
    "attention_diverse_vector": Capsules(
        (1, 36, 36), 10, replace(ATTENTION, pose="vector"), DIVERSE_STEM, DIVERSE_PRIMARY, DIVERSE_LAYERS,
        about="attention, Table 11: one or two digits, 36 x 36, vector poses of 64"),
    "attention_diverse_wide": Capsules(
        (1, 36, 36), 10, ATTENTION, DIVERSE_STEM, replace(DIVERSE_PRIMARY, types=64), WIDE_LAYERS,
        about="attention, 6: 8 x 8 poses, as many parameters as with vectors (64 types reach them; the text gives no "
              "number)"),
}  # fmt: skip
