"""Which form takes which votes, by rule; and layers with backend="triton", in Triton's interpreter without a GPU."""

import importlib

import pytest
import torch
from torch._subclasses import FakeTensorMode

import flashcaps
from flashcaps.kernels import dispatch
from flashcaps.kernels.dispatch import TWINS, Twin, pick_form
from flashcaps.kernels.votes import Votes
from flashcaps.routing.math import OverPositions, over_parents

from ..layer_cases import LayerCase, assert_same, cases, ids, run_layer
from .operator_checks import poison_memory

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def votes(device: str, dtype: torch.dtype = torch.float32, dim: int = 8, shared: int = 1) -> Votes:
    with FakeTensorMode(allow_non_fake_inputs=True):
        u = torch.empty(2, 6, shared, 1, dim, device=device, dtype=dtype)
        return Votes(u, torch.empty(3, dim, 6, 4, device=device, dtype=dtype))


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("flashcaps.kernels.fit.triton")  # its kernels are interpreted in all other tests
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize("routing", TWINS)
def test_by_device_and_dtype_whatever_the_width(routing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_form(routing, votes("cpu"), over_parents) == "matrix"
    assert pick_form(routing, votes("cuda", torch.float64), over_parents) == "matrix"
    for dim in (8, 400):
        assert pick_form(routing, votes("cuda", dim=dim), over_parents) == "triton"
    monkeypatch.setattr(dispatch, "HAS_TRITON", False)
    assert pick_form(routing, votes("cuda"), over_parents) == "matrix"


@pytest.mark.usefixtures("no_interpreter")
def test_sharing_and_positions() -> None:
    """attend takes one child a transform and a softmax over parents alone; the fit takes both."""
    over_positions = OverPositions(torch.zeros(1, 1, dtype=torch.int64), 1, (1, 1, 1, 1))
    for routing, other in (("attention", "matrix"), ("em", "triton")):
        assert pick_form(routing, votes("cuda", shared=2), over_parents) == other
        assert pick_form(routing, votes("cuda"), over_positions) == other


def test_an_algorithm_without_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TWINS, "dynamic", Twin(TWINS["dynamic"].function))
    with pytest.raises(ValueError, match="'dynamic' has no 'triton' kernel"):
        flashcaps.DenseCapsules("dynamic", in_capsules=2, in_dim=3, out_capsules=2, out_dim=3, backend="triton")
    assert pick_form("dynamic", votes("cuda")) == "matrix"


# ---- layers

LAYERS = cases(*TWINS, forms=("dense", "conv, matrix"), options=False)
LAYERS += cases("em", "attention", forms=("conv",), options=False)
LAYERS += [LayerCase("em", "any", option=1), LayerCase("heinsen", "any")]


@pytest.mark.parametrize("case", LAYERS, ids=ids)
def test_layers_have_the_numbers_and_gradients_of_the_reference(
    case: LayerCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children with a transform each, in patches, and those of any number that share a transform and a bias. Three
    batches, the last from plans, whose memory is poisoned."""
    poison_memory(monkeypatch, "empty", "empty_strided")
    reference, layer = case.build("reference", torch.float32).double(), case.build("triton", torch.float32).to(DEVICE)
    for seed in (1, 2, 3):
        u, a = case.draw(dtype=torch.float32, seed=seed)
        expected = run_layer(reference, u.double(), None if a is None else a.double())
        actual = run_layer(layer, u.to(DEVICE), None if a is None else a.to(DEVICE))
        assert_same(actual, expected, torch.float32)


def test_votes_it_cannot_take_are_an_error() -> None:
    layer = flashcaps.DenseCapsules("em", in_capsules=2, in_dim=3, out_capsules=2, out_dim=3, backend="triton").double()
    with pytest.raises(ValueError, match="float64"):
        layer(torch.randn(1, 2, 3, dtype=torch.float64))
