"""Convolutional capsules against the dense problem behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashcaps import ROUTING, ConvCapsules
from flashcaps.functional import dynamic_routing, em_routing, inverse_temperature, squash

from ..conftest import assert_near
from ..layer_cases import transforms

DOUBLE = {"dtype": torch.float64}
GEOMETRY = [(3, 1, 0), (3, 2, 0), (2, 1, 1), (3, 2, 1)]  # kernel, stride, padding


def explicit(layer: ConvCapsules, u: Tensor) -> tuple[Tensor, Tensor]:
    """The dense problem behind a convolution: votes (B, types H W, out_types H' W', D), and who can vote for whom."""
    b, types, height, width, _ = u.shape
    k, s, p, parents = layer.kernel, layer.stride, layer.padding, layer.parents
    rows, columns = (height + 2 * p - k) // s + 1, (width + 2 * p - k) // s + 1
    weight = transforms(layer.weight).reshape(parents, types, k, k, *transforms(layer.weight).shape[2:])
    votes = u.new_zeros(b, types, height, width, parents, rows, columns, layer.out_dim)
    mask = torch.zeros(votes.shape[1:-1], dtype=torch.bool)
    for row in range(rows):
        for column in range(columns):
            for y in range(max(row * s - p, 0), min(row * s - p + k, height)):
                for x in range(max(column * s - p, 0), min(column * s - p + k, width)):
                    w = weight[:, :, y - row * s + p, x - column * s + p]  # (J, T, d, h)
                    pose = u[:, :, y, x].view(b, types, layer.rows, -1)
                    votes[:, :, y, x, :, row, column] = torch.einsum("btcd,jtdh->btjch", pose, w).flatten(3)
                    mask[:, y, x, :, row, column] = True
    return votes.view(b, types * height * width, parents * rows * columns, -1), mask.view(types * height * width, -1)


def convolution(routing: str, geometry: tuple[int, int, int], **more: Any) -> tuple[ConvCapsules, Tensor, Tensor]:
    kernel, stride, padding = geometry
    layer = ConvCapsules(
        routing,
        in_types=2,
        in_dim=4,
        out_types=3,
        out_dim=4,
        kernel=kernel,
        stride=stride,
        padding=padding,
        pose="matrix",
        **more,
    ).double()
    return layer, torch.randn(2, 2, 5, 4, 4, **DOUBLE), torch.rand(2, 2, 5, 4, **DOUBLE)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("geometry", GEOMETRY)
def test_em_normalises_over_every_parent_type_and_position(geometry: tuple[int, int, int], backend: str) -> None:
    options = {"inverse_temperature": (0.2, 0.5, 1.0), "eps": 0.01}
    layer, u, a = convolution("em", geometry, backend=backend, **options)
    for x in layer.learned.values():
        nn.init.normal_(x)
    votes, mask = explicit(layer, u)
    places = mask.shape[1] // 3
    betas = {name: x.repeat_interleave(places) for name, x in layer.learned.items()}
    expected = em_routing(votes, a.flatten(1), mask=mask, iterations=3, **options, **betas)
    routed = layer(u, a)
    for name in ("pose", "activation", "variance"):
        actual = getattr(routed, name)
        assert_near(actual, getattr(expected, name).view(actual.shape), 1e-10, name)
    types, _, _ = convolution("em", geometry, over="types", backend=backend, **options)
    types.load_state_dict(layer.state_dict())
    assert (types(u, a).pose - routed.pose).abs().max() > 1e-3


def test_em_is_over_positions_and_the_others_over_types_unless_told() -> None:
    for routing in ROUTING:
        layer, _, _ = convolution(routing, (3, 1, 0))
        assert layer.over == ("positions" if routing == "em" else "types")


def test_inverse_temperature_of_an_em_layer() -> None:
    layer, u, a = convolution("em", (3, 1, 0))
    votes, mask = explicit(layer, u)
    betas = {name: x.repeat_interleave(mask.shape[1] // 3) for name, x in layer.learned.items()}
    expected = em_routing(votes, a.flatten(1), mask=mask, inverse_temperature=inverse_temperature(3), **betas)
    assert_near(layer(u, a).activation.flatten(1), expected.activation)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_children_at_the_border_have_fewer_parents(backend: str) -> None:
    layer, u, a = convolution("em", (3, 1, 0), iterations=1, backend=backend)
    coupling = layer(u, a, coupling=True).coupling  # (B, types * 3 * 3, 3, 3, 2)
    assert coupling.shape == (2, 18, 3, 3, 2)
    coupling = coupling.view(2, 2, 3, 3, 3, 3, 2)  # B, types, ky, kx, J, row, column
    for ky, kx, row, column in ((0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0), (2, 1, 1, 0)):
        y, x = row + ky, column + kx
        covering = [(r, c) for r in range(3) for c in range(2) if r <= y < r + 3 and c <= x < c + 3]
        assert_near(coupling[:, :, ky, kx, :, row, column], 1 / (3 * len(covering)))


def masked_dynamic(votes: Tensor, mask: Tensor, iterations: int, leaky: bool) -> Tensor:
    """Procedure 1 among the parents a child can vote for."""
    b = torch.zeros(votes.shape[:3], **DOUBLE)
    for _ in range(iterations):
        e = b.exp() * mask
        c = e / (e.sum(-1, keepdim=True) + float(leaky)).clamp(min=1e-300)
        v = squash((c[..., None] * votes).sum(1))
        b = b + (votes * v[:, None]).sum(-1)
    return v


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRY)
def test_dynamic_over_positions(geometry: tuple[int, int, int], leaky: bool, backend: str) -> None:
    layer, u, _ = convolution("dynamic", geometry, over="positions", leaky=leaky, backend=backend)
    nn.init.normal_(layer.weight)
    routed = layer(u)
    assert_near(routed.pose, masked_dynamic(*explicit(layer, u), 3, leaky).view(routed.pose.shape), 1e-10)


@pytest.mark.parametrize("geometry", GEOMETRY)
def test_dynamic_over_types_is_dense_at_every_place(geometry: tuple[int, int, int]) -> None:
    layer, u, _ = convolution("dynamic", geometry)
    nn.init.normal_(layer.weight)
    votes, mask = explicit(layer, u)
    pose = layer(u).pose
    rows, columns = pose.shape[2:4]
    votes, mask = votes.view(2, -1, 3, rows, columns, 4), mask.view(-1, 3, rows, columns)
    for row in range(rows):
        for column in range(columns):
            seen = mask[:, 0, row, column]
            assert_near(pose[:, :, row, column], dynamic_routing(votes[:, seen, :, row, column]).pose)


def test_any_input_size() -> None:
    layer, _, _ = convolution("attention", (3, 2, 1))
    for height, width in ((1, 1), (3, 8), (7, 2)):
        rows, columns = (height - 1) // 2 + 1, (width - 1) // 2 + 1
        assert layer(torch.randn(1, 2, height, width, 4, **DOUBLE)).pose.shape == (1, 3, rows, columns, 4)


@pytest.mark.parametrize("routing", list(ROUTING))
def test_shapes_of_a_convolution(routing: str) -> None:
    layer, u, a = convolution(routing, (3, 2, 1))
    routed = layer(u, a, coupling=True, record=True)
    assert routed.pose.shape == (2, 3, 3, 2, 4)
    assert routed.activation is None or routed.activation.shape == (2, 3, 3, 2)
    assert routed.coupling.shape == (2, 2 * 9, 3, 3, 2)
    for step in routed.history:
        assert (step.coupling.shape, step.pose.shape) == (routed.coupling.shape, routed.pose.shape)
