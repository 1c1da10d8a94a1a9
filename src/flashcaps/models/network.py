"""The one capsule network: backbone -> primary capsules -> capsule layers -> head, and a decoder."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Never

from torch import Tensor, nn

from ..nn.backbones import Backbone, Image, output_shape
from ..nn.capsules import DenseCapsules, PrimaryCapsules
from ..nn.heads import Decoder
from ..nn.stack import CapsuleStack
from ..routing import Routed
from . import overrides
from .base import Model, Output, init_weights
from .specs import ConvCaps, Dense, Primary, Route
from .timm import Timm


class CapsuleNetwork(Model):
    """images (B, C, H, W), chosen (B,) or (B, M) class indices or None -> Output."""

    def __init__(self, backbone: nn.Module, primary: PrimaryCapsules, capsules: CapsuleStack, head: nn.Module,
                 decoder: Decoder | None = None) -> None:
        super().__init__()
        self.backbone, self.primary, self.capsules, self.head, self.decoder = backbone, primary, capsules, head, decoder

    def forward(self, images: Tensor, chosen: Tensor | None = None, **unknown: Never) -> Output:
        if unknown:
            asked = ", ".join(f"{key}={unknown[key]!r}" for key in unknown)
            raise TypeError(f"{', '.join(unknown)}: a model takes images and chosen; call model.route(images, {asked})")
        routed = self.route(images)
        return Output(self.head(routed), routed, None if chosen is None else self.reconstruct(routed, chosen))

    if TYPE_CHECKING:
        __call__ = forward

    def route(self, images: Tensor, *, coupling: bool = False, record: bool = False) -> Routed:
        """The class capsules of images, on request with the coupling of the last layer and its history."""
        self.check_images(images)
        u = self.primary(self.backbone(images))
        return self.capsules(u.pose, u.activation, coupling=coupling, record=record)

    def reconstruct(self, routed: Routed, chosen: Tensor | None = None) -> Tensor:
        """Draw the chosen classes (B,) -> (B, C, H, W), or each of (B, M) -> (B, M, C, H, W). None: the predicted."""
        if self.decoder is None:
            raise ValueError("chosen: this model has no decoder to reconstruct with; build it with decoder=True")
        if chosen is None:
            chosen = self.head(routed).argmax(1)
        if chosen.ndim == 1:
            return self.decoder(routed, chosen)
        b, m = chosen.shape
        pose = routed.pose.repeat_interleave(m, 0)  # (B * M, J, D)
        return self.decoder(Routed(pose), chosen.flatten()).unflatten(0, (b, m))


@dataclass(frozen=True)
class Capsules:
    """A capsule network as numbers. The last of `layers` is the class layer.

    decoder: widths of its hidden layers, or None. start: as in `init_weights`. about: "paper, table: what it is".
    """

    changes: ClassVar[dict[str, overrides.Change]] = overrides.CAPSULES

    image: Image
    classes: int
    route: Route
    backbone: Backbone | nn.Module
    primary: Primary
    layers: tuple[ConvCaps | Dense, ...]
    decoder: tuple[int, ...] | None = None
    start: str = "default"
    about: str = field(default="", repr=False)

    def build(self) -> CapsuleNetwork:
        given = isinstance(self.backbone, nn.Module | Timm)  # its weights stay as they are
        backbone = self.backbone if isinstance(self.backbone, nn.Module) else self.backbone.build(self.image[0])
        primary, grid = self.primary.build(output_shape(backbone, self.image), self.route)
        pose = self.route.kind([self.primary.dim, *(spec.dim for spec in self.layers)])
        layers = []
        for spec in self.layers:
            if isinstance(spec, Dense) and spec.capsules is None:
                spec = replace(spec, capsules=self.classes)
            layer, grid = spec.build(grid, self.route, pose)
            layers.append(layer)
        decoder = None if self.decoder is None else Decoder(grid.types, grid.dim, self.image, self.decoder)
        network = CapsuleNetwork(backbone, primary, self.route.stack(layers), self.route.head(grid.dim), decoder)
        init_weights(self.start, None if given else backbone, primary, decoder)
        network.image, network.classes = self.image, self.classes
        first = next(layer for layer in layers if isinstance(layer, DenseCapsules))
        network.any_size = first.shared or first.groups is None
        return network
