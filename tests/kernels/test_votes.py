"""Votes from poses and transforms, entry by entry."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps import ConvCapsules, DenseCapsules, Routed
from flashcaps.kernels.votes import BUDGET, children_per_block, patches, recompute
from flashcaps.routing.math import over_parents

from ..conftest import DOUBLE, assert_near
from ..layer_cases import LayerCase, make_votes, transforms


def every(*sizes: int) -> Iterator[tuple[int, ...]]:
    """Every index of a tensor of these sizes."""
    return itertools.product(*map(range, sizes))


@pytest.mark.parametrize("form", ["dense", "dense, matrix", "dense, rectangular", "any", "any, rectangular", "any, one",
                                  "shared, no place"])  # fmt: skip
def test_a_vote_is_the_pose_with_the_transform_on_the_right(form: str) -> None:
    """A vector pose is one row, so that its vote is W transposed times u. Children have a transform each, share one for
    any number of them, or one per type."""
    case = LayerCase("dynamic", form.removesuffix(", one"))
    layer, (u, _) = case.build(), case.draw()
    u = u[:, :1] if form == "any, one" else u
    votes, weight, poses = layer.votes(u), transforms(layer.weight), u.flatten(1, -2)
    share = poses.shape[1] // weight.shape[1]
    for b, i, j in every(*votes.shape[:3]):
        expected = poses[b, i].view(layer.rows, -1) @ weight[j, i // share]
        assert_near(votes[b, i, j].view(layer.rows, -1), expected)
    assert torch.equal(layer.votes(Routed(u)), votes)


@pytest.mark.parametrize("places", [(), (2, 1)])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("routing", ["dynamic", "heinsen"])
def test_vote_bias_of_a_layer_starts_at_zero_and_is_per_child_and_parent(
    routing: str, rows: int, places: tuple[int, ...]
) -> None:
    """Whether the algorithm's kernels add it themselves (heinsen's do) or not; places of one type share theirs."""
    sizes = dict(in_capsules=3, in_dim=(rows, 2), out_capsules=4, out_dim=(rows, 5), shared=bool(places))
    layer = DenseCapsules(routing, vote_bias=True, **sizes).double()
    assert transforms(layer.bias).shape == (4, 3, rows, 5)
    assert not layer.bias.any()
    plain = DenseCapsules(routing, vote_bias=False, **sizes).double()
    assert plain.bias is None
    torch.nn.init.normal_(layer.bias)
    plain.weight = layer.weight
    u, bias = torch.randn(2, 3, *places, 2 * rows, **DOUBLE), transforms(layer.bias).flatten(2).transpose(0, 1)
    assert_near(layer.votes(u), plain.votes(u) + bias.repeat_interleave(math.prod(places), 0))


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (1, 2), (1, 5)])
def test_a_layer_adds_coordinates_at_the_top_of_the_right_hand_column_of_its_votes(rows: int, columns: int) -> None:
    """Or to the first two elements of a vector."""
    sizes = dict(in_capsules=2, in_dim=(rows, 4), out_capsules=3, out_dim=(rows, columns), shared=True)
    plain, layer = (DenseCapsules("em", **sizes, coordinates=added).double() for added in (False, True))
    plain.load_state_dict(layer.state_dict())
    u = torch.randn(1, 2, 2, 3, 4 * rows, **DOUBLE)
    extra = (layer.votes(u) - plain.votes(u)).view(2, 2, 3, 3, rows, columns)  # types, H, W, J
    top, below = ((0, -1), (1, -1)) if rows > 1 else ((0, 0), (0, 1))
    for t, y, x, j in every(2, 2, 3, 3):
        expected = torch.zeros(rows, columns, **DOUBLE)
        expected[top], expected[below] = (y + 0.5) / 2, (x + 0.5) / 3
        assert_near(extra[t, y, x, j], expected, 1e-7)


def test_compiled_patches_are_the_same_without_unfold() -> None:
    """torch 2.13 compiles the gradient of two unfolds wrongly for CPUs."""
    called = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    u = torch.randn(2, 3, 7, 6, 4)
    for kernel, stride in ((3, 2), (2, 3)):
        torch._dynamo.reset()
        compiled = torch.compile(patches, fullgraph=True, backend=note)
        assert torch.equal(compiled(u, kernel, stride), patches(u, kernel, stride))
    assert called
    assert not [name for name in called if "unfold" in name]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 0), (3, 2, 1), (1, 1, 1)])
def test_votes_of_a_convolution(kernel: int, stride: int, padding: int) -> None:
    """The vote at place (y, x), offset (ky, kx), type t is pose[t, y s + ky - p, x s + kx - p] @ W, or 0 outside."""
    sizes = dict(in_types=2, in_dim=(2, 3), out_types=2, out_dim=(2, 2))
    layer = ConvCapsules("attention", **sizes, kernel=kernel, stride=stride, padding=padding).double()
    height, width = 5, 4
    u = torch.randn(2, 2, height, width, 6, **DOUBLE)
    rows, columns = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    votes = layer.votes(u).view(2, rows, columns, 2, kernel, kernel, 2, 2, 2)
    weight = transforms(layer.weight).reshape(2, 2, kernel, kernel, 3, 2)  # J, types, k, k, d, h
    for row, column, t, ky, kx, j in every(rows, columns, 2, kernel, kernel, 2):
        y, x = row * stride + ky - padding, column * stride + kx - padding
        inside = 0 <= y < height and 0 <= x < width
        pose = u[:, t, y, x].view(2, 2, 3) if inside else torch.zeros(2, 2, 3, **DOUBLE)
        assert_near(votes[:, row, column, t, ky, kx, j], pose @ weight[j, t, ky, kx])


def test_children_fit_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """But blocks are never so many that merging them takes more than a block, and each has a child."""
    few, many = (make_votes(torch.zeros(2, n, 1, 1, 3), torch.zeros(4, n, 3, 2)) for n in (50, 500))
    for budget, per_child, found in ((100, 10, (10, 22)), (1, 10, (7, 22)), (1, 0, (7, 22))):  # square roots, rounded
        monkeypatch.setitem(BUDGET, "cpu", budget)
        assert tuple(children_per_block(votes, per_child, over_parents) for votes in (few, many)) == found


def test_recompute_runs_again_in_the_backward_pass_only_if_there_is_one() -> None:
    calls = 0

    def square(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * x

    x = torch.tensor([3.0], requires_grad=True)
    with torch.no_grad():
        recompute(square, x)
    recompute(square, x.detach())
    assert calls == 2
    y = recompute(square, x)
    assert calls == 3
    y.backward()
    assert calls == 4
    assert x.grad is not None
    assert x.grad.item() == 6.0
