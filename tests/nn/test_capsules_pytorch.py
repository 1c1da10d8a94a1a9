"""Capsule layers as PyTorch modules: gradients, compilation, export, autocast, copies, checkpoints, torch.func."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, grad, vmap

from flashcaps import ROUTING, CapsuleStack, ConvCapsules, DenseCapsules, PrimaryCapsules
from flashcaps.nn.capsules import CapsuleLayer

from ..conftest import TOLERANCE, assert_near
from ..layer_cases import LayerCase, assert_same, cases, combination, ids, outputs, quick, run_layer, takes_any_number
from .test_capsules import layer

BOTH = cases(forms=("dense", "conv, positions"), options=False)
SEVERAL = cases(forms=("dense, matrix", "shared", "conv", "conv, positions"), options=False)
SMALL: dict[str, tuple[type[CapsuleLayer], tuple[int, ...], dict[str, Any]]] = {
    "dense": (DenseCapsules, (2, 2, 4), dict(in_capsules=2, in_dim=(2, 2), out_capsules=2, out_dim=(2, 1))),
    "any": (DenseCapsules, (1, 3, 2), dict(in_capsules=None, in_dim=2, out_capsules=2, out_dim=2)),
    "shared": (
        DenseCapsules,
        (1, 2, 1, 2, 2),
        dict(in_capsules=2, in_dim=2, out_capsules=2, out_dim=2, shared=True, coordinates=True),
    ),
    "conv, positions": (
        ConvCapsules,
        (1, 1, 2, 2, 2),
        dict(in_types=1, in_dim=2, out_types=2, out_dim=2, kernel=2, padding=1, stride=2, over="positions"),
    ),
}
MILD = {"em": {"inverse_temperature": 0.5, "eps": 0.1}, "heinsen": {"eps": 0.1}, "attention": {"activation": True}}


# ---- gradients


@pytest.mark.parametrize(
    ("routing", "form"), [(r, f) for r in ROUTING for f in SMALL if f != "any" or takes_any_number(r)]
)
def test_gradients(routing: str, form: str) -> None:
    """Analytic against numerical: every output by poses, activations and every tensor the layer learns."""
    kind, shape, sizes = SMALL[form]
    made = kind(routing, backend="matrix", vote_bias=True, **sizes, **MILD.get(routing, {})).double().eval()
    if made.routing.stepwise or made.routing.iterations > 2:
        made.set_iterations(2)
    names = [name for name, _ in made.named_parameters()]
    inputs = [torch.randn(shape, dtype=torch.float64), torch.rand(shape[:-1], dtype=torch.float64)]
    inputs += [0.7 * torch.randn_like(x) for x in made.parameters()]

    def function(u: Tensor, activation: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        routed = functional_call(made, dict(zip(names, learned, strict=True)), (u, activation), {"coupling": True})
        return tuple(x for _, x in outputs(routed) if x.requires_grad)

    assert gradcheck(function, [x.requires_grad_() for x in inputs], check_undefined_grad=False, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("case", SEVERAL, ids=ids)
def test_gradients_are_finite_for_poses_of_zero(case: LayerCase, backend: str) -> None:
    u, a = case.draw(dtype=torch.float32)
    routed, gradients = run_layer(case.build(backend, torch.float32), torch.zeros_like(u), a, coupling=True)
    for name, x in [*outputs(routed), *gradients.items()]:
        assert x.isfinite().all(), name


@pytest.mark.parametrize("case", cases(forms=("dense", "conv", "conv, positions")) + cases(forms=("any",)), ids=ids)
def test_gradients_of_gradients(case: LayerCase) -> None:
    """A gradient that can be differentiated is the same one, and its own gradients are the reference's."""
    u, a = case.draw()
    found = []
    for backend in ("reference", "matrix"):
        made, x = case.build(backend), u.clone().requires_grad_()
        wanted = [x, *made.parameters()]
        once = torch.autograd.grad(combination(made(x, a)), wanted, create_graph=True, materialize_grads=True)
        twice = torch.autograd.grad(sum(g.sin().sum() for g in once), wanted, materialize_grads=True)
        found.append([*once, *twice])
    for expected, actual in zip(*found, strict=True):
        assert_near(actual.detach(), expected.detach())


@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_many_gradients_at_once(case: LayerCase) -> None:
    """`is_grads_batched`, as vectorised Jacobians and Hessians use it, gives what a call for each gives."""
    u, a = case.draw()
    x = u.requires_grad_()
    routed = case.build("auto")(x, a)
    (slope,) = torch.autograd.grad(combination(routed), x, create_graph=True)
    for y in (routed.pose, slope):
        v = torch.randn(3, *y.shape, dtype=y.dtype)
        each = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in v]
        assert_near(torch.autograd.grad(y, x, v, retain_graph=True, is_grads_batched=True)[0], torch.stack(each))


# ---- compile, export, autocast


@pytest.mark.parametrize(("backend", "form"), [
    ("aot_eager", "conv, positions"),  # all that a dense layer traces, and patches
    pytest.param("inductor", "dense", marks=pytest.mark.slow),
    pytest.param("inductor", "conv, positions", marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("routing", ROUTING)
def test_compiles_whole_in_training(routing: str, backend: str, form: str) -> None:
    torch._dynamo.reset()
    case = quick(routing, form)
    u, a = case.draw(dtype=torch.float32)
    plain = case.build("matrix", torch.float32)
    plain.hidden = False
    expected = run_layer(plain, u, a)
    u = u.requires_grad_()
    routed = torch.compile(plain, fullgraph=True, backend=backend)(u, a)
    gradients = torch.autograd.grad(combination(routed), [u, plain.weight])
    assert_near(routed.pose, expected[0].pose.double())
    for actual, name in zip(gradients, ("u", "weight"), strict=True):
        assert_near(actual, expected[1][name].double(), TOLERANCE[torch.float32].gradient, name)


@pytest.mark.parametrize(("form", "backend"), [("dense", "reference"), ("conv, positions", "matrix")])
@pytest.mark.parametrize("routing", ROUTING)
def test_exports_with_any_batch(routing: str, form: str, backend: str) -> None:
    case = quick(routing, form)
    made = case.build(backend, torch.float32).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(made, case.draw(3, torch.float32), dynamic_shapes=({0: batch}, {0: batch}))
    for size in (2, 5):
        u, a = case.draw(size, torch.float32)
        assert_near(program.module()(u, a).pose, made(u, a).pose.double())


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("routing", list(filter(takes_any_number, ROUTING)))
def test_compiles_and_exports_with_any_number_of_children(routing: str, backend: str) -> None:
    """As one graph, whose numbers of examples and children are both free."""
    torch._dynamo.reset()
    made = quick(routing, "any").build(backend, torch.float32).eval()
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("children")}
    program = torch.export.export(made, (torch.randn(3, 5, 3),), dynamic_shapes=(free,))
    for run in (program.module(), torch.compile(made, fullgraph=True, dynamic=True, backend="aot_eager")):
        for size in ((3, 5, 3), (2, 7, 3), (4, 9, 3)):
            u = torch.randn(size)
            assert_near(run(u).pose, made(u).pose.double())


@pytest.mark.parametrize("routing", ROUTING)
def test_layers_of_a_stack_are_sharded(routing: str, tmp_path: Path) -> None:
    """From the meta device, as `fully_shard` is used; it gathers weights in hooks of every layer."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with torch.device("meta"):
            layers = [DenseCapsules(routing, in_capsules=n, in_dim=4, out_capsules=3, out_dim=4) for n in (5, 3)]
            stack, u = CapsuleStack(layers), torch.ones(2, 5, 4, device="cpu")
        plain = copy.deepcopy(stack)
        for part in (*stack.layers, stack):
            fully_shard(part)
        for model in (stack, plain):
            model.to_empty(device="cpu")
            torch.manual_seed(0)
            for layer in model.layers:
                layer.reset_parameters()
            combination(model(u)).backward()
        for sharded, p in zip(stack.parameters(), plain.parameters(), strict=True):
            assert torch.equal(sharded.full_tensor(), p)
            assert torch.equal(sharded.grad.full_tensor(), p.grad)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_autocast_changes_nothing(case: LayerCase) -> None:
    """Routing runs in fp32 whatever the context; poses keep the caller's dtype."""
    made = case.build("matrix", torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        u, a = case.draw(dtype=dtype)
        expected = run_layer(made, u, a)
        actual = run_layer(made, u, a, torch.autocast("cpu", torch.bfloat16))
        assert actual[0].pose.dtype == dtype
        assert_same(actual, expected, torch.float64)


# ---- copies and checkpoints


@pytest.mark.parametrize("routing", ROUTING)
def test_copies(routing: str) -> None:
    case = LayerCase(routing, "dense")
    made = case.build("matrix", torch.float32)
    u, a = case.draw(dtype=torch.float32)
    run_layer(made, u, a)  # whatever a training step leaves behind must not stand in the way
    expected = made(u, a)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin.memory is None or twin.memory.votes is None
        assert torch.equal(twin(u, a).pose, expected.pose)
        with torch.no_grad():
            twin.weight.zero_()
        assert torch.equal(made(u, a).pose, expected.pose)
        assert repr(twin) == repr(made)


@pytest.mark.parametrize("case", cases(forms=("dense",)) + cases(forms=("any", "conv"), options=False), ids=ids)
def test_state_dict_round_trip(case: LayerCase) -> None:
    made, other = case.build(seed=0), case.build("matrix", seed=1)
    u, a = case.draw()
    assert not torch.equal(other(u, a).pose, made(u, a).pose)
    assert list(other.state_dict()) == list(made.state_dict())
    other.load_state_dict(made.state_dict())
    assert_near(other(u, a).pose, made(u, a).pose)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("routing", [None, *ROUTING])
def test_loading_refuses_weights_that_are_not_finite(routing: str | None, bad: float) -> None:
    """Of primary capsules (None), and of layers of every algorithm."""
    part = PrimaryCapsules(1, 2, 3, kernel=2) if routing is None else LayerCase(routing, "dense").build()
    model = nn.Sequential(nn.Identity(), part)
    for key in model.state_dict():
        state = copy.deepcopy(model.state_dict())
        state[key].view(-1)[0] = bad
        with pytest.raises(ValueError, match=rf"^{key}: expected finite"):
            model.load_state_dict(state)
        assert all(x.isfinite().all() for x in model.state_dict().values())


def test_loading_takes_extra_state_and_weights_without_numbers() -> None:
    class Counted(DenseCapsules):
        def get_extra_state(self) -> dict[str, int]:
            return {"seen": 3}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.seen = state["seen"]

    made = Counted(**SMALL["dense"][2])
    made.load_state_dict(made.state_dict())
    made.load_state_dict(copy.deepcopy(made).to("meta").state_dict(), assign=True)
    assert made.seen == 3
    assert made.weight.is_meta


@pytest.mark.parametrize("case", cases("em", "heinsen", forms=("dense",), options=False), ids=ids)
def test_nan_activation_is_not_taken_for_large_poses(case: LayerCase) -> None:
    u, a = case.draw()
    assert a is not None
    a.view(-1)[0] = float("nan")
    assert case.build().eval()(u, a).pose.isnan().any()


# ---- transforms of torch.func


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_per_example_gradients(case: LayerCase, backend: str) -> None:
    """vmap of grad: what one backward pass per example would give."""
    made = case.build(backend)
    u, a = case.draw()
    learned, state = dict(made.named_parameters()), dict(made.named_buffers())

    def loss(parameters: dict[str, Tensor], *example: Tensor | None) -> Tensor:
        one = tuple(None if x is None else x[None] for x in example)
        routed = functional_call(made, (parameters, state), one)
        return sum(((k + x.double()) ** 2).sum() for k, (_, x) in enumerate(outputs(routed)))

    places = None, 0, None if a is None else 0
    found = vmap(grad(loss), places)(learned, u, a)
    for b in range(len(u)):
        made.zero_grad()
        loss(learned, u[b], None if a is None else a[b]).backward()
        for name, p in learned.items():
            assert_near(found[name][b], torch.zeros_like(p) if p.grad is None else p.grad)


@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_forward_mode(case: LayerCase) -> None:
    """Tangents are the transposed reverse mode's: w . (J t) = (J^T w) . t."""
    made = case.build("auto")
    u, a = case.draw()
    tangent = torch.randn_like(u)
    with forward_ad.dual_level():
        pose, moved = forward_ad.unpack_dual(made(forward_ad.make_dual(u, tangent), a).pose)
    assert_near((moved * pose).sum().detach(), (grad(lambda u: made(u, a).pose.square().sum() / 2)(u) * tangent).sum())


# ---- the backend is visible, and never silently another


def test_backend_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for routing in ROUTING:
        with pytest.raises(ValueError, match=r"^backend: .*triton.*use 'auto'"):
            layer(routing, backend="triton")
