"""What every capsule layer owes: gradients, compilation, precision, copies, checkpoints, clear errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call, grad, jacrev, vmap

from flashcaps import ROUTING, CapsuleStack, ConvCapsules, DenseCapsules, PrimaryCapsules
from flashcaps.kernels.dispatch import choose_backend
from flashcaps.nn.capsules import CapsuleLayer, pose_shape

from ..conftest import TOLERANCE, assert_near
from ..layer_cases import LayerCase, assert_same, cases, combination, ids, outputs, run_layer

BOTH = cases(forms=("dense", "conv, positions"), options=False)
FEW_ITERATIONS = {
    "dynamic": 2,
    "em": 1,
    "attention": 2,
    "heinsen": 1,
    "discriminative": 1,
}  # options that trace quickly
QUICK = [
    LayerCase(routing, form, FEW_ITERATIONS[routing]) for routing in ROUTING for form in ("dense", "conv, positions")
]
SMALL: dict[str, tuple[type[CapsuleLayer], tuple[int, ...], dict[str, Any]]] = {
    "dense": (DenseCapsules, (2, 2, 4), dict(in_capsules=2, in_dim=(2, 2), out_capsules=2, out_dim=(2, 1))),
    "any": (DenseCapsules, (1, 3, 2), dict(in_capsules=None, in_dim=2, out_capsules=2, out_dim=2)),
    "shared": (
        DenseCapsules,
        (1, 2, 1, 2, 2),
        dict(in_capsules=2, in_dim=2, out_capsules=2, out_dim=2, shared=True, coordinates=True),
    ),
    "conv": (ConvCapsules, (1, 1, 2, 3, 2), dict(in_types=1, in_dim=2, out_types=2, out_dim=2, kernel=2, over="types")),
    "conv, positions": (
        ConvCapsules,
        (1, 1, 2, 2, 2),
        dict(in_types=1, in_dim=2, out_types=2, out_dim=2, kernel=2, padding=1, stride=2, over="positions"),
    ),
}
MILD = {"em": {"inverse_temperature": 0.5, "eps": 0.1}, "heinsen": {"eps": 0.1}, "attention": {"activation": True}}


def layer(routing: str = "dynamic", **more: Any) -> DenseCapsules:
    return DenseCapsules(routing, **(dict(in_capsules=4, in_dim=3, out_capsules=2, out_dim=5) | more))


def conv(routing: str = "dynamic", **more: Any) -> ConvCapsules:
    return ConvCapsules(routing, **(dict(in_types=2, in_dim=3, out_types=2, out_dim=5, kernel=2) | more))


# ---- gradients


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("routing", list(ROUTING))
def test_gradients(routing: str, form: str, backend: str) -> None:
    """Analytic against numerical: every output by poses, activations and every tensor the layer learns."""
    if routing == "discriminative" and form == "any":
        form = "shared"
    kind, shape, sizes = SMALL[form]
    made = kind(routing, backend=backend, vote_bias=True, **sizes, **MILD.get(routing, {})).double()
    if made.routing.iterations > 2 or routing == "attention":
        made.set_iterations(2)
    names = [name for name, _ in made.named_parameters()]
    inputs = [torch.randn(shape, dtype=torch.float64), torch.rand(shape[:-1], dtype=torch.float64)]
    inputs += [0.7 * torch.randn_like(x) for x in made.parameters()]

    def function(u: Tensor, activation: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        routed = functional_call(made, dict(zip(names, learned, strict=True)), (u, activation), {"coupling": True})
        return tuple(x for _, x in outputs(routed) if x.requires_grad)

    made.eval()
    assert gradcheck(function, [x.requires_grad_() for x in inputs], check_undefined_grad=False, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("case", cases(options=False), ids=ids)
def test_gradients_are_finite_for_poses_of_zero(case: LayerCase, backend: str) -> None:
    u, a = case.draw(dtype=torch.float32)
    routed, gradients = run_layer(case.build(backend, torch.float32), torch.zeros_like(u), a, coupling=True)
    for name, x in [*outputs(routed), *gradients.items()]:
        assert x.isfinite().all(), name


# ---- compile, export, autocast


@pytest.mark.parametrize("case", QUICK, ids=ids)
def test_compiles_whole_in_training(case: LayerCase) -> None:
    torch._dynamo.reset()
    u, a = case.draw(dtype=torch.float32)
    plain = case.build("matrix", torch.float32)
    plain.hidden = False
    expected = run_layer(plain, u, a)
    u = u.requires_grad_()
    routed = torch.compile(plain, fullgraph=True, backend="aot_eager")(u, a)
    gradients = torch.autograd.grad(combination(routed), [u, plain.weight])
    assert_near(routed.pose, expected[0].pose.double())
    for actual, name in zip(gradients, ("u", "weight"), strict=True):
        assert_near(actual, expected[1][name].double(), TOLERANCE[torch.float32].gradient, name)


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=ids)
def test_compiles_to_the_same_numbers(case: LayerCase) -> None:
    torch._dynamo.reset()
    plain = case.build("matrix", torch.float32).eval()
    u, a = case.draw(dtype=torch.float32)
    actual = run_layer(torch.compile(plain, fullgraph=True), u, a)
    expected = run_layer(plain, u, a)
    assert_near(actual[0].pose, expected[0].pose.double())
    assert_near(actual[1]["u"], expected[1]["u"].double(), TOLERANCE[torch.float32].gradient)


def test_primary_capsules_compile_whole() -> None:
    torch._dynamo.reset()
    primary = PrimaryCapsules(3, 2, 4, kernel=3, form="sigmoid")
    x = torch.randn(2, 3, 5, 5)
    routed, expected = torch.compile(primary, fullgraph=True, backend="aot_eager")(x), primary(x)
    assert_near(routed.pose, expected.pose.double())
    assert_near(routed.activation, expected.activation.double())


@pytest.mark.parametrize("case", QUICK, ids=ids)
def test_exports(case: LayerCase) -> None:
    made = case.build("matrix", torch.float32).eval()
    u, a = case.draw(3, torch.float32)
    program = torch.export.export(made, (u, a))
    assert_near(program.module()(u, a).pose, made(u, a).pose.double())


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("routing", list(ROUTING))
def test_exports_with_any_batch(routing: str, backend: str) -> None:
    case = LayerCase(routing, "dense", FEW_ITERATIONS[routing])
    made = case.build(backend, torch.float32).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(made, case.draw(3, torch.float32), dynamic_shapes=({0: batch}, {0: batch}))
    for size in (2, 5):
        u, a = case.draw(size, torch.float32)
        assert_near(program.module()(u, a).pose, made(u, a).pose.double())


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


def test_autocast_of_primary_capsules_into_a_layer() -> None:
    primary, made = PrimaryCapsules(3, 2, 3, kernel=3), layer(in_capsules=18)
    with torch.autocast("cpu", torch.bfloat16):
        u = primary(torch.randn(2, 3, 5, 5)).pose
        routed = made(u)
    assert u.dtype == routed.pose.dtype == torch.float32  # squashed, and routed, in fp32: nothing is cast in between
    assert_near(routed.pose, made(u.float()).pose.double())


# ---- copies and checkpoints


@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_copies(case: LayerCase) -> None:
    made = case.build("matrix", torch.float32)
    u, a = case.draw(dtype=torch.float32)
    run_layer(made, u, a)  # whatever a training step leaves behind must not stand in the way
    expected = made(u, a)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(twin(u, a).pose, expected.pose)
        with torch.no_grad():
            twin.weight.zero_()
        assert torch.equal(made(u, a).pose, expected.pose)
        assert repr(twin) == repr(made)


@pytest.mark.parametrize("case", cases(forms=("dense", "any", "conv")), ids=ids)
def test_state_dict_round_trip(case: LayerCase) -> None:
    made, other = case.build(seed=0), case.build("matrix", seed=1)
    u, a = case.draw()
    assert not torch.equal(other(u, a).pose, made(u, a).pose)
    assert list(other.state_dict()) == list(made.state_dict())
    other.load_state_dict(made.state_dict())
    assert_near(other(u, a).pose, made(u, a).pose)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_loading_refuses_weights_that_are_not_finite(case: LayerCase, bad: float) -> None:
    model = nn.Sequential(nn.Identity(), case.build())
    for key in model.state_dict():
        state = copy.deepcopy(model.state_dict())
        state[key].view(-1)[0] = bad
        with pytest.raises(ValueError, match=rf"^{key}: expected finite"):
            model.load_state_dict(state)
        assert all(x.isfinite().all() for x in model.state_dict().values())


def test_loading_refuses_primary_weights_that_are_not_finite() -> None:
    primary = PrimaryCapsules(1, 2, 3, kernel=2)
    state = copy.deepcopy(primary.state_dict())
    state["pose.weight"][0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"pose\.weight: expected finite"):
        primary.load_state_dict(state)


# ---- transforms of torch.func


@pytest.mark.parametrize("case", BOTH, ids=ids)
def test_per_example_gradients(case: LayerCase) -> None:
    """vmap of grad: what one backward pass per example would give."""
    made = case.build("auto")
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


def test_transforms_leave_nothing_for_the_coefficients_to_follow() -> None:
    """Not even of a hidden layer, whose coefficients need a gradient."""
    stack = CapsuleStack([layer("discriminative", out_dim=3), layer("discriminative", in_capsules=2)], concurrent=False)
    u = torch.randn(3, 4, 3)
    assert jacrev(lambda x: stack(x).pose)(u).shape == (3, 2, 5, 3, 4, 3)
    assert all(x.memory.votes is None for x in stack.layers)


# ---- the backend is visible, and never silently another


def test_backend_is_visible() -> None:
    for routing in ROUTING:
        assert layer(routing).backend == "auto"
        for backend in ("matrix", "reference"):
            assert layer(routing, backend=backend).backend == backend
            assert f"backend={backend!r}" in repr(layer(routing, backend=backend))


def test_backend_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for routing in ROUTING:
        with pytest.raises(ValueError, match=r"^backend: .*triton.*use 'auto'"):
            layer(routing, backend="triton")
    with pytest.raises(ValueError, match=r"^backend: 'mine' has no 'matrix' form"):
        choose_backend("mine", "matrix")
    assert choose_backend("mine", "auto") == "reference"


# ---- errors at the boundary: argument, expectation, what came, remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(routing="dynamik"), r"^routing: expected one of .*'em'.*got 'dynamik'; did you mean 'dynamic'\?"),
        (dict(backend="matrx"), r"^backend: .*got 'matrx'; did you mean 'matrix'\?"),
        (dict(pose="vektor"), r"^pose: .*did you mean 'vector'\?"),
        (dict(pose="matrix"), r"^in_dim: expected a square.*got 3; give \(rows, columns\)"),
        (dict(in_dim=0), r"^in_dim: expected at least 1, got 0"),
        (dict(in_dim=(2, 0), out_dim=(2, 5)), r"^in_dim: "),
        (dict(out_dim=-1), r"^out_dim: expected at least 1, got -1"),
        (dict(in_dim=(2, 3), out_dim=(3, 3)), r"^out_dim: expected 2 rows .*got 3"),
        (dict(in_capsules=0), r"^in_capsules: expected at least 1"),
        (dict(out_capsules=0), r"^out_capsules: expected at least 1"),
        (dict(out_capsules=None), r"^out_capsules: None .*in_capsules=None"),
        (dict(coordinates=True), r"^coordinates: .*shared=True"),
        (dict(in_capsules=None, shared=True), r"^in_capsules: "),
        (dict(iterations=0), r"^iterations: expected at least 1, got 0"),
        (dict(routing="discriminative", in_capsules=None), r"^in_capsules: discriminative"),
        (dict(routing="discriminative", penalty="l3"), r"^penalty: .*got 'l3'"),
        (dict(routing="attention", initial="zeros"), r"^initial: .*did you mean 'zero'\?"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(in_types=0), r"^in_types: expected at least 1, got 0"),
        (dict(out_types=0), r"^out_types: expected at least 1, got 0"),
        (dict(kernel=0), r"^kernel: expected at least 1, got 0"),
        (dict(stride=0), r"^stride: expected at least 1, got 0"),
        (dict(padding=-1), r"^padding: expected at least 0, got -1"),
        (dict(over="position"), r"^over: .*did you mean 'positions'\?"),
        (dict(iterations=-1), r"^iterations: expected at least 1, got -1"),
    ],
)
def test_arguments_of_a_convolution_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv(**arguments)


def test_unknown_options_are_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"^iteration: .*dynamic.*did you mean 'iterations'\?"):
        layer(iteration=2)
    with pytest.raises(TypeError, match=r"^leaky: .*em routing.*inverse_temperature"):
        conv("em", leaky=True)


X = torch.randn(2, 4, 3)
GRID = torch.randn(2, 2, 3, 3, 3)


@pytest.mark.parametrize(
    ("made", "inputs", "message"),
    [
        (layer(), (X[0],), r"^u: expected \(B, I, D\) with D = 3, got \(4, 3\)"),
        (layer(), (X[..., :2],), r"^u: expected \(B, I, D\) with D = 3, got \(2, 4, 2\)"),
        (layer(), (X[:, :3],), r"^u: expected 4 capsules, got 3 .*in_capsules=None"),
        (layer(in_capsules=None), (X[:, :0],), r"^u: axis I .*empty"),
        (layer(), (X.long(),), r"^u: expected a floating-point tensor, got torch.int64; convert it with .float"),
        (layer(), (X.to("meta"),), r"^u: on meta, but the layer is on cpu; move"),
        (layer("em"), (X, X[..., 0].to("meta")), r"^activation: .*meta"),
        (layer(), (X, X), r"^activation: expected \(2, 4\), one per capsule, got \(2, 4, 3\)"),
        (layer(), (X, torch.ones(2, 4, dtype=torch.int32)), r"^activation: expected a floating-point tensor"),
        (layer(in_capsules=2, shared=True), (X,), r"^u: expected \(B, types, H, W, D\) with D = 3, got \(2, 4, 3\)"),
        (layer(in_capsules=3, shared=True), (GRID,), r"^u: expected 3 types, got 2"),
        (layer(in_capsules=2, shared=True), (GRID[:, :, :0],), r"^u: axis I .*empty"),
        (conv(), (X,), r"^u: expected \(B, types, H, W, D\) with D = 3, got \(2, 4, 3\)"),
        (conv(in_types=3), (GRID,), r"^u: expected 3 types, got 2"),
        (conv(kernel=4), (GRID,), r"^u: 3 x 3 places.*kernel 4"),
        (conv(), (GRID.int(),), r"^u: expected a floating-point tensor"),
        (conv(), (GRID.to("meta"),), r"^u: on meta, but the layer is on cpu"),
        (conv("em"), (GRID, GRID[..., 0].to("meta")), r"^activation: .*meta"),
        (conv(), (GRID, GRID), r"^activation: expected \(2, 2, 3, 3\)"),
    ],
)
def test_inputs_are_checked(made: CapsuleLayer, inputs: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(*inputs)


@pytest.mark.parametrize("made", [layer(), conv()], ids=["dense", "conv"])
def test_inputs_that_are_no_tensors_are_named(made: CapsuleLayer) -> None:
    with pytest.raises(TypeError, match=r"^u: expected a torch.Tensor, got list"):
        made([[1.0]])


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize(
    ("kind", "u", "pose"),
    [
        (layer, X, torch.randn(2, 5)),
        (layer, X, torch.randn(2, 3, 5)),
        (conv, GRID, torch.randn(2, 2, 5)),
        (conv, GRID, torch.randn(2, 2, 2, 1, 5)),
    ],
)
def test_step_checks_its_pose(kind: Any, u: Tensor, pose: Tensor, backend: str) -> None:
    with pytest.raises(ValueError, match=r"^pose: expected"):
        kind("attention", backend=backend).step(u, pose)


def test_only_attention_steps() -> None:
    for routing in ROUTING:
        if routing != "attention":
            with pytest.raises(TypeError, match=rf"^step: {routing} routing has no single step"):
                layer(routing).step(X)


def test_pose_shape() -> None:
    assert pose_shape("in_dim", 6, "vector") == (1, 6)
    assert pose_shape("in_dim", 16, "matrix") == (4, 4)
    assert pose_shape("in_dim", (2, 5), "matrix") == (2, 5)
