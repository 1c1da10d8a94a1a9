"""Backbones: shapes, sizes, what the dry run leaves alone."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from flashcaps.nn.backbones import BACKBONES, Backbone, Chain, Conv, ResidualBlock, ResNet, output_shape

from ..conftest import assert_near


@pytest.mark.parametrize(("spec", "channels", "shape", "size"), [
    (BACKBONES["conv"], 3, (256, 16, 16), 3 * 9 * 256 + 256),
    (BACKBONES["conv9"], 3, (256, 24, 24), 3 * 81 * 256 + 256),
    (BACKBONES["resnet"], 3, (128, 16, 16), 1_340_224),
    (BACKBONES["resnet_wide"], 3, (256, 16, 16), 4_521_024),
    (BACKBONES["coordinates"], 2, (64, 1, 1), 2_376 + 5 * 37_056),
    (Chain((Conv(4, kernel=3, padding=1, pool="max"), Conv(6, kernel=1))), 2, (6, 16, 16), 76 + 30),
    (Chain((Conv(4, kernel=3), Conv(6, kernel=1, pool="global"))), 2, (6, 1, 1), 76 + 30),
])  # fmt: skip
def test_channels_places_and_size(spec: Backbone, channels: int, shape: tuple[int, int, int], size: int) -> None:
    """The numbers of coordinates are compared in tests/deploy/test_convert.py."""
    backbone = spec.build(channels)
    assert sum(p.numel() for p in backbone.parameters()) == size
    assert output_shape(backbone, (channels, 32, 32)) == shape
    assert spec.channels == shape[0]


def test_norm_comes_where_the_table_prints_it() -> None:
    def kinds(norm: str | None) -> list[type]:
        return [type(m) for m in Conv(4, kernel=3, norm=norm).build(2)]  # type: ignore[arg-type]

    assert kinds(None) == [nn.Conv2d, nn.ReLU]
    assert kinds("before") == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert kinds("after") == [nn.Conv2d, nn.ReLU, nn.BatchNorm2d]


def test_layers_are_called_one_by_one_on_a_cpu() -> None:
    """Numbers and modules as in `nn.Sequential`, so that forward hooks see every one."""
    backbone = ResNet(((4, 1, 1), (6, 1, 2))).build(3)
    leaves = [m for m in backbone.modules() if not list(m.children()) and not isinstance(m, nn.Identity)]
    called: list[nn.Module] = []
    for m in leaves:
        m.register_forward_hook(lambda m, *_: called.append(m))
    x = torch.randn(2, 3, 8, 8)
    stem, first, second = nn.Sequential(*backbone[:3]), backbone[3], backbone[4]  # type: ignore[index]
    y = stem(x)
    for block in (first, second):
        y = (block.body(y) + block.shortcut(y)).relu_()
    called.clear()
    assert torch.equal(backbone(x), y)
    assert set(called) == set(leaves)
    assert len(called) == len(leaves)


@pytest.mark.parametrize(("width", "stride", "same"), [(4, 1, True), (4, 2, False), (6, 1, False), (6, 2, False)])
def test_a_shortcut_is_a_convolution_where_the_shape_changes(width: int, stride: int, same: bool) -> None:
    """A block whose body is zero is its shortcut."""
    block, x = ResidualBlock(4, width, stride), torch.randn(2, 4, 6, 6)
    assert isinstance(block.shortcut, nn.Identity) == same
    nn.init.zeros_(block.body[-1].weight)
    assert_near(block(x), block.shortcut(x).relu())
    assert block(x).shape == (2, width, 6 // stride, 6 // stride)


def test_a_dry_run_leaves_statistics_modes_and_random_state_alone() -> None:
    backbone = Conv(4, kernel=3, norm="before").build(1)
    frozen = backbone[1].eval()  # type: ignore[index]
    before, seed = frozen.running_mean.clone(), torch.get_rng_state()
    output_shape(backbone, (1, 5, 5))
    assert torch.equal(frozen.running_mean, before)
    assert torch.equal(torch.get_rng_state(), seed)
    assert backbone.training
    assert not frozen.training


@pytest.mark.parametrize(("call", "message"), [
    (lambda: output_shape(BACKBONES["conv9"].build(1), (1, 5, 5)), r"image: \(1, 5, 5\).*does not pass"),
    (lambda: output_shape(nn.Flatten(), (1, 5, 5)), r"backbone: expected features \(B, C, H, W\)"),
    (lambda: Conv(4, kernel=3, activation="rellu").build(1), "activation: expected one of.*did you mean 'relu'"),
    (lambda: Conv(4, kernel=3, norm="batch").build(1), "norm: expected one of 'before', 'after'"),
    (lambda: Conv(4, kernel=3, pool="min").build(1), "pool: expected one of"),
])  # fmt: skip
def test_errors_name_the_argument_and_the_remedy(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
