"""The networks without capsules that the papers compare theirs to."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor, nn

from ..nn.backbones import Backbone, Chain, Conv, Image, ResNet, output_shape
from . import overrides
from .base import Model, Output
from .sentiment import Pooled

CIFAR_BODY = Chain((
    Conv(1024, kernel=3, stride=2, padding=1, standardise=True),
    Conv(1024, kernel=3, stride=2, padding=1, norm="after", pool="average"),
    Conv(1024, kernel=3, stride=2, padding=1, norm="after", pool="average"),
))
DIVERSE_BODY = (
    Conv(1024, kernel=3, stride=2, padding=1),
    Conv(1024, kernel=3, stride=2, norm="after"),
    Conv(1024, kernel=3, norm="after"),
)
TOYS_BODY = Chain((
    *(Conv(n, kernel=3, padding=1, norm="before", pool="max") for n in (32, 64, 64, 128)),
    Conv(128, kernel=3, padding=1, norm="before", pool="global"),
))
MNIST_BODY = Chain((Conv(256, kernel=5, padding=2), Conv(256, kernel=5, padding=2), Conv(128, kernel=5, padding=2)))
PAIRS_BODY = Chain((Conv(512, kernel=9, padding=4, pool="max"), Conv(256, kernel=5, padding=2, pool="max")))
AFFNIST_BODY = Chain((
    Conv(256, kernel=5, padding=2, pool="max"),
    Conv(256, kernel=5, padding=2, pool="max"),
    Conv(128, kernel=5, padding=2),
))
RESNET18 = ResNet(((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2)), pool=True)


class PlainNetwork(Model):
    """images (B, C, H, W) -> Output with logits (B, K) and no capsules."""

    def __init__(self, body: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.body, self.classifier, self.decoder = body, classifier, None

    def forward(self, images: Tensor, chosen: Tensor | None = None) -> Output:
        self.check_images(images)
        if chosen is not None:
            raise ValueError("chosen: a plain network has no decoder to reconstruct with; leave it None")
        return Output(self.classifier(self.body(images).flatten(1)), None)


@dataclass(frozen=True)
class Plain:
    """A backbone, fully connected layers with ReLU, dropout before the last, one logit per class."""

    changes: ClassVar[dict[str, overrides.Change]] = overrides.PLAIN

    image: Image
    classes: int
    body: Backbone
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0
    about: str = field(default="", repr=False)

    def build(self) -> PlainNetwork:
        body = self.body.build(self.image[0])
        sizes = [math.prod(output_shape(body, self.image)), *self.hidden]
        layers: list[nn.Module] = []
        for n, m in zip(sizes, self.hidden, strict=False):
            layers += [nn.Linear(n, m), nn.ReLU(inplace=True)]
        if self.dropout:
            layers.append(nn.Dropout(self.dropout))
        network = PlainNetwork(body, nn.Sequential(*layers, nn.Linear(sizes[-1], self.classes)))
        network.image, network.classes = self.image, self.classes
        network.any_size = math.prod(output_shape(body, self.image)[1:]) == 1  # pooled
        return network


CNN_CIFAR = Plain((3, 32, 32), 10, CIFAR_BODY, about="attention, Table 2: three convolutions, 1,024 wide")
RESNET_CIFAR = Plain((3, 32, 32), 10, RESNET18, about="attention, Table 1: ResNet-18 with a 3 x 3 stem")
POOL = "a linear map of the last layer's mean over tokens"
MIX = "layers mixed by learned weights, mean over tokens, linear map"

MODELS: dict[str, Plain | Pooled] = {
    "cnn_mnist": Plain(
        (1, 28, 28), 10, MNIST_BODY, hidden=(328, 192), dropout=0.5,
        about='dynamic, 5: the baseline of Table 1, three 5 x 5 convolutions, "same" padding'),
    "cnn_multimnist": Plain(
        (1, 36, 36), 10, PAIRS_BODY, hidden=(1024,),
        about='dynamic, 6: the baseline of Table 1, two convolutions with pooling, "same" padding'),
    "cnn_affnist": Plain(
        (1, 40, 40), 10, AFFNIST_BODY, hidden=(832, 192), dropout=0.5,
        about="dynamic, 5.2: max pooling and dropout, about as large as capsnet_affnist (the text gives no number)"),
    "cnn_cifar10": CNN_CIFAR,
    "cnn_cifar100": replace(CNN_CIFAR, classes=100, about="attention, Table 3: three convolutions, 1,024 wide"),
    "cnn_smallnorb": Plain(
        (2, 32, 32), 5, TOYS_BODY,
        about="em, smallNORB: a CNN about as large as its capsules and heinsen's; any image of 16 x 16 or more"),
    "cnn_diverse_pool": Plain(
        (1, 36, 36), 10, Chain((*DIVERSE_BODY, Conv(640, kernel=1, activation="none", pool="global"))),
        about="attention, Table 12: one or two digits, 36 x 36; pooled over places"),
    "cnn_diverse_fc": Plain(
        (1, 36, 36), 10, Chain((*DIVERSE_BODY, Conv(640, kernel=6, activation="none"))),
        about="attention, 6: the pooling of cnn_diverse_pool learned, one 6 x 6 transform over all places"),
    "resnet18_cifar10": RESNET_CIFAR,
    "resnet18_cifar100": replace(RESNET_CIFAR, classes=100),
    "pool_sst5": Pooled(5, mixed=False, about=f"heinsen, Tables 3-4: sentiment in five grades; {POOL}"),
    "pool_sst2": Pooled(2, mixed=False, about=f"heinsen, Tables 3-4: sentiment, good or bad; {POOL}"),
    "mix_sst5": Pooled(5, mixed=True, about=f"heinsen, Tables 3-4: sentiment in five grades; {MIX}"),
    "mix_sst2": Pooled(2, mixed=True, about=f"heinsen, Tables 3-4: sentiment, good or bad; {MIX}"),
}  # fmt: skip
