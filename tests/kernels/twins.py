"""A kernel beside its reference: outputs, every gradient, memory. Each kernel's test file runs `Twins` on its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashcaps import ConvCapsules, DenseCapsules
from flashcaps.kernels import votes as _blocks
from flashcaps.kernels.attend import matrix as _attend
from flashcaps.kernels.fit import matrix as _fit
from flashcaps.nn.capsules import CapsuleLayer

from ..layer_cases import OPTIONS, LayerCase, assert_same, combination, run_layer
from .common.test_norm import channels_last

TINY = {"cpu": 1, "cuda": 1}  # elements: every child, or every kernel's worth of them, is a block of its own


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if votes were on another device."""
    for module in (_attend, _fit):
        monkeypatch.setattr(module, "fits", lambda votes: False)


def assert_twins(case: LayerCase, u: Tensor, activation: Tensor | None, **asked: bool) -> None:
    """The matrix form equals the reference."""
    actual = run_layer(case.build("matrix"), u, activation, **asked)
    assert_same(actual, run_layer(case.build("reference"), u, activation, **asked))


def assert_same_as_reference(kind: type, shape: tuple[int, ...], options: dict[str, Any], gated: bool = False) -> None:
    """Kernels on poses of this shape equal the reference in float64. gated: activations are given."""
    layer = kind(backend="triton", **options)
    exact = kind(backend="reference", **options).double()
    exact.load_state_dict(layer.state_dict())
    u, activation = torch.randn(shape), torch.rand(shape[:-1]) if gated else None
    double = None if activation is None else activation.double()
    assert_same(run_layer(layer, u, activation), run_layer(exact, u.double(), double), torch.float32)


def strided(x: Tensor) -> Tensor:
    """The same numbers, every other element of a larger tensor."""
    y = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., ::2]
    return y.copy_(x)


class Largest(TorchDispatchMode):
    """The most elements any tensor made under it has memory for."""

    elements = 0

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return out


# In each: a batch of 8 (2 images of 4 places), about 500 children, 12 parents, 4 x 4 poses.
_dense = dict(in_dim=16, out_capsules=12, out_dim=16, pose="matrix")
_conv = dict(in_types=56, in_dim=16, out_types=12, out_dim=16, kernel=3, stride=2, pose="matrix")
BIG: dict[str, tuple[type[CapsuleLayer], tuple[int, ...], dict[str, Any]]] = {
    "dense": (DenseCapsules, (8, 512), dict(in_capsules=512, **_dense)),
    "any": (DenseCapsules, (8, 512), dict(in_capsules=None, **_dense)),
    "shared": (DenseCapsules, (8, 128, 2, 2), dict(in_capsules=128, shared=True, coordinates=True, **_dense)),
    "conv": (ConvCapsules, (2, 56, 5, 5), dict(over="types", **_conv)),
    "conv, positions": (ConvCapsules, (2, 56, 5, 5), dict(over="positions", **_conv)),
}


class Footprint(NamedTuple):
    """Elements of all votes, of the largest tensor made forward and backward, of all that the graph keeps."""

    votes: int
    largest: int
    kept: int


def footprint(routing: str, form: str, backend: str, **options: Any) -> Footprint:
    kind, shape, sizes = BIG[form]
    layer = kind(routing, backend=backend, **sizes, **OPTIONS[routing][0] | options)
    layer.hidden = True  # so that discriminative's coefficients, too, need what the graph keeps
    u = torch.randn(*shape, 16, requires_grad=True)
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = combination(layer(u))
        loss.backward()
    with torch.no_grad():
        routed = layer(u, coupling=True)
    assert routed.coupling is not None
    return Footprint(routed.coupling.numel() * 16, largest.elements, sum(kept.values()))


def assert_no_votes(routing: str, form: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix form makes no tensor near the size of all votes, nor keeps as much in pieces; the reference does."""
    reference = footprint(routing, form, "reference")
    assert min(reference.largest, reference.kept) >= reference.votes
    monkeypatch.setattr(_blocks, "BUDGET", {"cpu": budget, "cuda": budget})
    matrix = footprint(routing, form, "matrix")
    assert matrix.largest <= matrix.votes // 3, f"one tensor is too large: {matrix}"
    assert matrix.kept <= matrix.votes, f"the graph keeps too much: {matrix}"


class Twins:
    """Tests of one kernel. case: every form with every option; plain: every form; placed: those with places."""

    routing: str

    def test_same_as_reference(self, case: LayerCase) -> None:
        assert_twins(case, *case.draw())

    def test_same_couplings_and_history(self, case: LayerCase) -> None:
        assert_twins(case, *case.draw(seed=2), coupling=True, record=True)

    def test_same_in_many_blocks(self, case: LayerCase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_blocks, "BUDGET", TINY)
        assert_twins(case, *case.draw(), coupling=True)

    @pytest.mark.parametrize("budget", [_blocks.BUDGET, TINY], ids=["one block", "many"])
    def test_same_where_the_layout_is_not_a_cpus(
        self, case: LayerCase, budget: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On other devices and in compiled code blocks are recomputed by autograd."""
        elsewhere(monkeypatch)
        monkeypatch.setattr(_blocks, "BUDGET", budget)
        assert_twins(case, *case.draw())

    @pytest.mark.parametrize("batch", [0, 1])
    def test_same_for_small_batches(self, case: LayerCase, batch: int) -> None:
        assert_twins(case, *case.draw(batch), coupling=True, record=True)

    def test_same_for_strided_poses(self, plain: LayerCase) -> None:
        u, a = plain.draw()
        assert_twins(plain, strided(u), None if a is None else strided(a))

    def test_same_for_channels_last_features(self, placed: LayerCase) -> None:
        u, a = placed.draw()
        assert_twins(placed, torch.empty_like(channels_last(*u.shape), dtype=u.dtype).copy_(u), a)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_same_in_low_precision(self, case: LayerCase, dtype: torch.dtype) -> None:
        """As the float64 reference on the same, rounded, numbers."""
        u, a = case.draw(dtype=dtype)
        actual = run_layer(case.build("matrix", dtype), u, a)
        assert actual[0].pose.dtype == dtype
        assert actual[0].variance is None or actual[0].variance.dtype == torch.float32
        expected = case.build("reference", dtype).double()
        assert_same(actual, run_layer(expected, u.double(), None if a is None else a.double()), dtype)

    def test_votes_are_never_stored(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert_no_votes(self.routing, form, 1 << 15, monkeypatch)

    def test_votes_are_never_stored_when_one_child_exceeds_the_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert_no_votes(self.routing, "conv", 1 << 8, monkeypatch)
