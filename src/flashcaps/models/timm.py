"""Networks of timm as backbones by name, for capsules on top of a pretrained network."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..nn.backbones import Normalise
from ..routing.checks import import_extra

PREFIX = "timm:"


class LastMap(nn.Module):
    """The last feature map of a network, (B, C, H, W). Images in [0, 1] are normalised like those it was trained on.

    rebuild: what `create_model(..., backbone=)` takes to make the same network again.
    """

    def __init__(self, network: nn.Module, rebuild: dict[str, Any], channels: int) -> None:
        super().__init__()
        self.network, self.rebuild = network, rebuild
        config = getattr(network, "pretrained_cfg", None) or {}
        known = len(config.get("mean", ())) == channels
        self.normalise = Normalise(config["mean"], config["std"]) if known else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.normalise(images))[-1]


@dataclass(frozen=True)
class Timm:
    """A network of timm without its classifier, as numbers. pretrained: begin with its published weights."""

    timm: str
    pretrained: bool = True

    @property
    def channels(self) -> int:
        raise TypeError("backbone: a network of timm says its channels only when it is built")

    def build(self, in_channels: int) -> nn.Module:
        timm = import_extra("timm", "timm", f"backbone: {PREFIX}{self.timm} (or give any nn.Module)")
        network = timm.create_model(self.timm, pretrained=self.pretrained, features_only=True, in_chans=in_channels)
        return LastMap(network, {"timm": self.timm, "pretrained": self.pretrained}, in_channels)


def for_loading(overrides: dict[str, Any], backbone: nn.Module | None = None) -> dict[str, Any]:
    """Overrides for `load`: with the module given, and without fetching weights that the file replaces."""
    if backbone is not None:
        return overrides | {"backbone": backbone}
    stored = overrides.get("backbone")
    if isinstance(stored, str) and stored.startswith(PREFIX):
        stored = {"timm": stored.removeprefix(PREFIX)}
    if isinstance(stored, dict) and "timm" in stored:
        return overrides | {"backbone": stored | {"pretrained": False}}
    return overrides
