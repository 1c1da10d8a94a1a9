"""Which form takes which votes, by rule; and layers with backend="triton", in Triton's interpreter without a GPU."""

import importlib
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import flashcaps
from flashcaps.kernels import dispatch
from flashcaps.kernels.dispatch import TWINS, Twin, pick_form
from flashcaps.kernels.votes import Votes
from flashcaps.routing.math import OverPositions, over_parents

from ..conftest import TOLERANCE, assert_near

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
def test_by_device(routing: str) -> None:
    assert pick_form(routing, votes("cpu"), over_parents) == "matrix"
    assert pick_form(routing, votes("cuda"), over_parents) == "triton"


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize("routing", TWINS)
def test_what_the_kernels_cannot_take(routing: str) -> None:
    assert pick_form(routing, votes("cuda", torch.float64), over_parents) == "matrix"
    assert pick_form(routing, votes("cuda", dim=400), over_parents) == "triton"


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_wide_votes_have_kernels_of_their_own(routing: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        u, weight = torch.empty(2, 6, 1, 8, 8, device="cuda"), torch.empty(32, 8, 6, 8, device="cuda")
        assert pick_form(routing, Votes(u, weight), over_parents) == "triton"


@pytest.mark.usefixtures("no_interpreter")
def test_sharing_and_positions() -> None:
    """attend takes one child a transform and a softmax over parents alone; the fit takes both."""
    over_positions = OverPositions(torch.zeros(1, 1, dtype=torch.int64), 1, (1, 1, 1, 1))
    for routing, other in (("attention", "matrix"), ("em", "triton")):
        assert pick_form(routing, votes("cuda", shared=2), over_parents) == other
        assert pick_form(routing, votes("cuda"), over_positions) == other


@pytest.mark.usefixtures("no_interpreter")
def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "HAS_TRITON", False)
    assert pick_form("dynamic", votes("cuda"), over_parents) == "matrix"


def test_an_algorithm_without_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TWINS, "dynamic", Twin(TWINS["dynamic"].function))
    with pytest.raises(ValueError, match="'dynamic' has no 'triton' kernel"):
        flashcaps.DenseCapsules("dynamic", in_capsules=2, in_dim=3, out_capsules=2, out_dim=3, backend="triton")
    assert pick_form("dynamic", votes("cuda")) == "matrix"


# ---- layers


def run(routing: str, kind: str, backend: str, **options: Any) -> dict[str, torch.Tensor]:
    """Pose, activation and every gradient of a small layer, the same for every backend."""
    torch.manual_seed(0)
    if kind == "dense":
        layer: Any = flashcaps.DenseCapsules(
            routing, in_capsules=5, in_dim=4, out_capsules=3, out_dim=4, backend=backend, **options
        )
        u = torch.randn(2, 5, 4)
    elif kind == "any":
        layer = flashcaps.DenseCapsules(
            routing, in_capsules=None, in_dim=4, out_capsules=3, out_dim=4, pose="matrix", backend=backend, **options
        )
        u = torch.randn(2, 5, 4)
    else:
        layer = flashcaps.ConvCapsules(
            routing, in_types=2, in_dim=4, out_types=3, out_dim=4, kernel=2, pose="matrix", backend=backend, **options
        )
        u = torch.randn(2, 2, 3, 3, 4)
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    layer, u = layer.to(DEVICE), u.to(DEVICE).requires_grad_()
    if backend == "reference":
        layer, u = layer.double(), u.detach().double().requires_grad_()
    routed = layer(u)
    loss = routed.pose.sin().sum() + (0 if routed.activation is None else routed.activation.cos().sum())
    names = ["u", *(n for n, _ in layer.named_parameters())]
    grads = torch.autograd.grad(loss, [u, *layer.parameters()])
    return {"pose": routed.pose, **dict(zip(names, grads, strict=True))}


@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("routing", TWINS)
def test_same_numbers_and_gradients_as_the_reference(routing: str, kind: str) -> None:
    options = {} if routing == "discriminative" else {"iterations": 2}
    ours, reference = run(routing, kind, "triton", **options), run(routing, kind, "reference", **options)
    tolerance = TOLERANCE[torch.float32]
    for name, x in reference.items():
        assert_near(ours[name].double(), x, tolerance.output if name == "pose" else tolerance.gradient, name)


@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_children_that_share_their_transform_and_bias(routing: str) -> None:
    ours, reference = (run(routing, "any", backend, vote_bias=True) for backend in ("triton", "reference"))
    tolerance = TOLERANCE[torch.float32]
    for name, x in reference.items():
        assert_near(ours[name].double(), x, tolerance.output if name == "pose" else tolerance.gradient, name)


def test_votes_it_cannot_take_are_an_error() -> None:
    layer = flashcaps.DenseCapsules("em", in_capsules=2, in_dim=3, out_capsules=2, out_dim=3, backend="triton").double()
    with pytest.raises(ValueError, match="float64"):
        layer(torch.randn(1, 2, 3, dtype=torch.float64))
