"""What capsule layers compute, primary, dense and convolutional, and how they answer wrong arguments."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashcaps import ROUTING, ConvCapsules, DenseCapsules, PrimaryCapsules, Routed
from flashcaps.functional import em_routing, squash

from ..conftest import DOUBLE, assert_near
from ..layer_cases import LayerCase, cases, ids, transforms

SCALED = [name for name in ROUTING if ROUTING[name].input_activation is None]  # activations multiply their poses
SCRAMBLED: dict[str, Any] = {"routing": "attention", "scrambled": True}


def layer(routing: str = "dynamic", **more: Any) -> DenseCapsules:
    return DenseCapsules(routing, **(dict(in_capsules=4, in_dim=3, out_capsules=2, out_dim=5) | more))


def conv(routing: str = "dynamic", **more: Any) -> ConvCapsules:
    return ConvCapsules(routing, **(dict(in_types=2, in_dim=3, out_types=2, out_dim=5, kernel=2) | more))


# ---- primary capsules


def primary(**more: Any) -> PrimaryCapsules:
    return PrimaryCapsules(**(dict(in_channels=3, types=4, dim=5, kernel=3) | more)).double()


def primary_and_raw(**more: Any) -> tuple[PrimaryCapsules, Tensor, Tensor]:
    """Primary capsules, features, and the convolution's numbers as poses (B, types, H, W, dim).

    Numbers of a capsule come from its own channels at its own place; a plain view(B, -1, dim) mixes places.
    """
    made, x = primary(stride=2, **more), torch.randn(2, 3, 9, 7, **DOUBLE)
    return made, x, made.pose(x).view(2, 4, 5, 4, 3).permute(0, 1, 3, 4, 2)


def test_squash_form_divides_by_its_shares_and_adds_its_shift() -> None:
    for more, shares in (({}, 4), ({"shares": 5, "shift": 0.1}, 5), ({"shares": 3, "batch_norm": True}, 3)):
        made, x, raw = primary_and_raw(form="squash", **more)
        routed, weight = made(x), next(p for p in made.pose.parameters() if p.ndim == 4)
        assert_near(routed.pose, squash(raw / shares + more.get("shift", 0.0)))
        assert routed.activation is None
        assert weight.std().item() == pytest.approx(0.08796, rel=0.1)  # of a normal of 0.1 cut at twice that
        assert not any(p.any() for name, p in made.pose.named_parameters() if name.endswith("bias"))
    made, x, raw = primary_and_raw(form="squash", shares=0)
    assert_near(made(x).pose, squash(raw))


def test_sigmoid_and_score_forms() -> None:
    """A score is a logit."""
    for form, kind in (("sigmoid", "probability"), ("score", "score")):
        made, x, raw = primary_and_raw(form=form)
        routed, logits = made(x), made.activation(x)
        assert_near(routed.pose, raw, 0.0)
        assert_near(routed.activation, logits.sigmoid() if form == "sigmoid" else logits)
        assert (routed.activation.shape, routed.kind) == ((2, 4, 4, 3), kind)


@pytest.mark.parametrize("form", ["squash", "sigmoid", "norm", "score"])
@pytest.mark.parametrize("batch", [0, 1])
def test_primary_takes_small_batches_and_channels_last(form: str, batch: int) -> None:
    made, x = primary(form=form), torch.randn(batch, 3, 5, 5, **DOUBLE)
    routed = made(x)
    assert routed.pose.shape == (batch, 4, 3, 3, 5)
    assert_near(made(x.contiguous(memory_format=torch.channels_last)).pose, routed.pose)


def test_repr() -> None:
    assert repr(PrimaryCapsules(3, 4, 5, kernel=3)) == (
        "PrimaryCapsules(\n"
        "  types=4, dim=5, form='squash'\n"
        "  (pose): Conv2d(3, 20, kernel_size=(3, 3), stride=(1, 1))\n"
        ")"
    )
    assert repr(layer("discriminative", shared=True)) == (
        "DenseCapsules(\n"
        "  4 x 3 -> 2 x 5, Discriminative(iterations=1, rate=1e-05, strength=0.001, penalty='l2', "
        "bounded=False), backend='auto', shared\n"
        "  (learned): ParameterDict()\n"
        ")"
    )
    assert repr(conv("em", in_dim=4, out_dim=4, pose="matrix", backend="reference")).splitlines()[1] == (
        "  2 x 4 -> 2 x 4, kernel=2, stride=1, padding=0, over='positions', "
        "EM(iterations=3, inverse_temperature=None, eps=1e-08, relative=False, sharpness=None, norm_activation=False, "
        "beta_u=0.0, beta_a=0.0), backend='reference'"
    )


# ---- initial values


def test_start_of_the_transforms_and_of_random_poses() -> None:
    sizes = dict(in_capsules=200, in_dim=16, out_capsules=10, out_dim=16)

    def weight(routing: str, **more: Any) -> Tensor:
        return DenseCapsules(routing, **(sizes | more)).weight

    for routing in ("dynamic", "discriminative"):  # a normal of 0.1 cut at two standard deviations
        assert weight(routing).abs().max() <= 0.2
        assert weight(routing).std().item() == pytest.approx(0.088, rel=0.02)
    assert weight("attention").std().item() == pytest.approx(math.sqrt(10 / (16 * 200)), rel=0.02)
    assert weight("attention", pose="matrix").std().item() == pytest.approx(math.sqrt(10 / (4 * 200)), rel=0.02)
    assert weight("attention", in_capsules=None).std().item() == pytest.approx(math.sqrt(10 / 16), rel=0.2)
    assert weight("heinsen", pose="matrix").std().item() == pytest.approx(1 / 4, rel=0.02)
    made = ConvCapsules("attention", in_types=16, in_dim=16, out_types=32, out_dim=16, kernel=3, pose="matrix")
    assert made.weight.std().item() == pytest.approx(math.sqrt(32 / (4 * 16 * 9)), rel=0.02)
    assert weight("em", out_dim=9).std().item() == pytest.approx(1 / 4, rel=0.02)  # no identity from 16 to 9
    turned = weight("em", pose="matrix").detach() - torch.eye(4)[:, None]
    assert turned.mean().item() == pytest.approx(0, abs=0.01)
    assert turned.std().item() == pytest.approx(0.1, rel=0.02)
    random = DenseCapsules("attention", **sizes, initial="random").get_buffer("initial")
    assert random.std().item() == pytest.approx(1, rel=0.2)


# ---- activations


@pytest.mark.parametrize("case", cases(forms=("dense", "shared", "conv", "conv, positions"), options=False), ids=ids)
def test_absent_activation_means_every_capsule_is_present(case: LayerCase) -> None:
    made, (u, _) = case.build("auto"), case.draw()
    sure = math.inf if made.routing.input_activation == "score" else 1.0
    assert_near(made(u).pose, made(u, torch.full(u.shape[:-1], sure, **DOUBLE)).pose)


@pytest.mark.parametrize("form", ["dense", "shared", "conv", "conv, positions"])
@pytest.mark.parametrize("routing", SCALED)
def test_activations_weigh_the_poses_of_children_where_an_algorithm_takes_none(routing: str, form: str) -> None:
    made, (u, _) = LayerCase(routing, form).build("auto"), LayerCase(routing, form).draw()
    a = torch.rand(u.shape[:-1], **DOUBLE)
    if form != "shared":  # whose coordinates are weighed, too
        assert_near(made(u, a).pose, made(u * a[..., None]).pose)
    assert (made(u, a).pose - made(u).pose).abs().max() > 1e-3


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("vote_bias", [True, False])
@pytest.mark.parametrize("routing", ROUTING)
def test_padding_is_children_that_are_not_there(routing: str, vote_bias: bool, given: bool) -> None:
    """Whether activations are given or not, a capsule outside the image casts no vote."""
    sizes = dict(in_types=2, in_dim=4, out_types=2, out_dim=4, kernel=3, vote_bias=vote_bias)
    padded, plain = (ConvCapsules(routing, **sizes, padding=p).double() for p in (1, 0))
    for p in padded.parameters():
        nn.init.normal_(p)
    plain.load_state_dict(padded.state_dict())
    absent, sure = (-math.inf, math.inf) if padded.routing.input_activation == "score" else (0.0, 1.0)
    u = torch.randn(2, 2, 4, 4, 4, **DOUBLE)
    a = torch.rand(2, 2, 4, 4, **DOUBLE) if given else torch.full((2, 2, 4, 4), sure, **DOUBLE)
    around = F.pad(u, (0, 0, 1, 1, 1, 1)), F.pad(a, (1, 1, 1, 1), value=absent)
    expected, found = plain(*around), padded(u, a if given else None)
    assert_near(found.pose, expected.pose)
    if expected.activation is not None:
        assert_near(found.activation, expected.activation)


def test_lengths_passed_on_by_hand_are_refused() -> None:
    """They would scale poses that have them already, and three such layers train to nothing. A layer compares once."""
    routed = layer(out_dim=3, out_capsules=4)(torch.randn(2, 4, 3))
    for routing in SCALED:
        with pytest.raises(ValueError, match="these are the lengths of u"):
            layer(routing)(routed.pose, routed.activation)
        layer(routing)(routed.pose, torch.rand(2, 4))  # other activations are what the argument is for
        layer(routing)(torch.zeros(2, 4, 3), torch.zeros(2, 4))  # absent, not lengths passed on
        layer(routing)(routed.pose[:0], routed.activation[:0])
    layer("em")(routed.pose, routed.activation)  # a probability, which em's poses have not
    made = layer()
    torch.compile(made, backend="eager", fullgraph=True)(routed.pose, routed.activation)  # no numbers while compiling
    torch.func.vmap(lambda u, a: made(u[None], a[None]).pose)(routed.pose, routed.activation)  # nor under vmap
    with pytest.raises(ValueError, match="the Routed given has its own"):
        layer()(routed, routed.activation)


def test_lengths_of_0_and_1_become_finite_scores() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        lengths = torch.tensor([[0.0, 1.0, 0.5]], dtype=dtype)
        routed = Routed(torch.zeros(1, 3, 3, dtype=dtype), lengths, kind="length")
        assert layer("heinsen").take(routed)[1].isfinite().all()


# ---- children or parents that share


def test_children_that_share_a_transform_share_a_prior() -> None:
    sizes = dict(out_capsules=3, out_dim=4, prior=True)
    shared = layer(in_capsules=2, shared=True, **sizes).double()
    apart = layer(in_capsules=12, **sizes).double()
    nn.init.normal_(shared.learned["logits"])
    with torch.no_grad():
        apart.weight.copy_(shared.weight.repeat_interleave(6, 2))
        apart.learned["logits"].copy_(shared.learned["logits"].repeat_interleave(6, 0))
    u = torch.randn(2, 2, 3, 2, 3, **DOUBLE)
    assert_near(shared(u).pose, apart(u).pose)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_as_many_parents_as_children_are_identical_unless_told_apart(backend: str) -> None:
    """Taken literally, parameters without i and j make all outputs the same; a softened one-to-one start does not."""
    sizes = dict(in_capsules=None, out_capsules=None, out_dim=4, backend=backend)
    u, score = torch.randn(2, 5, 3, **DOUBLE), torch.randn(2, 5, **DOUBLE)
    literal = layer("heinsen", **sizes).double()
    told = layer("heinsen", **sizes, one_to_one=2.0).double()
    for learned in literal.learned.values():
        nn.init.normal_(learned)
    told.load_state_dict(literal.state_dict())
    routed = literal(u, score, coupling=True)
    assert routed.pose.shape == (2, 5, 4)
    assert_near(routed.pose, routed.pose[:, :1].expand(2, 5, 4))
    assert_near(routed.activation, routed.activation[:, :1].expand(2, 5))
    assert_near(routed.coupling, 1 / 5)
    first = told(u, score, record=True).history[0]
    assert_near(first.coupling[0], torch.softmax(2 * torch.eye(5, **DOUBLE), -1))
    assert (told(u, score).pose - told(u, score).pose[:, :1]).abs().max() > 1e-3
    assert literal(u[:, :2], score[:, :2]).pose.shape == (2, 2, 4)


# ---- convolutions against the dense problem behind them


GEOMETRY = [(3, 1, 0), (3, 2, 0), (2, 1, 1), (3, 2, 1), (2, 3, 0)]  # kernel, stride, padding


def explicit(made: ConvCapsules, u: Tensor) -> tuple[Tensor, Tensor]:
    """The dense problem behind a convolution: votes (B, types H W, out_types H' W', D), and who can vote for whom."""
    b, types, height, width, _ = u.shape
    k, s, p, parents = made.kernel, made.stride, made.padding, made.parents
    rows, columns = (height + 2 * p - k) // s + 1, (width + 2 * p - k) // s + 1
    weight = transforms(made.weight).reshape(parents, types, k, k, *transforms(made.weight).shape[2:])
    votes = u.new_zeros(b, types, height, width, parents, rows, columns, made.out_dim)
    mask = torch.zeros(votes.shape[1:-1], dtype=torch.bool)
    for row in range(rows):
        for column in range(columns):
            for y in range(max(row * s - p, 0), min(row * s - p + k, height)):
                for x in range(max(column * s - p, 0), min(column * s - p + k, width)):
                    w = weight[:, :, y - row * s + p, x - column * s + p]  # (J, T, d, h)
                    pose = u[:, :, y, x].view(b, types, made.rows, -1)
                    votes[:, :, y, x, :, row, column] = torch.einsum("btcd,jtdh->btjch", pose, w).flatten(3)
                    mask[:, y, x, :, row, column] = True
    return votes.view(b, types * height * width, parents * rows * columns, -1), mask.view(types * height * width, -1)


def convolution(routing: str, geometry: tuple[int, int, int], **more: Any) -> tuple[ConvCapsules, Tensor, Tensor]:
    kernel, stride, padding = geometry
    sizes = dict(in_dim=4, out_types=3, out_dim=4, pose="matrix", kernel=kernel, stride=stride, padding=padding)
    made = conv(routing, **sizes, **more).double()
    return made, torch.randn(2, 2, 5, 4, 4, **DOUBLE), torch.rand(2, 2, 5, 4, **DOUBLE)


@pytest.mark.parametrize("geometry", GEOMETRY)
def test_em_normalises_over_every_parent_type_and_position(geometry: tuple[int, int, int]) -> None:
    options = {"inverse_temperature": (0.2, 0.5, 1.0), "eps": 0.01}
    made, u, a = convolution("em", geometry, **options)
    for x in made.learned.values():
        nn.init.normal_(x)
    votes, mask = explicit(made, u)
    places = mask.shape[1] // 3
    betas = {name: x.repeat_interleave(places) for name, x in made.learned.items()}
    expected = em_routing(votes, a.flatten(1), mask=mask, iterations=3, **options, **betas)
    routed = made(u, a)
    for name in ("pose", "activation", "variance"):
        actual = getattr(routed, name)
        assert_near(actual, getattr(expected, name).view(actual.shape), 1e-10, name)
    types, _, _ = convolution("em", geometry, over="types", **options)
    types.load_state_dict(made.state_dict())
    far = (types(u, a).pose - routed.pose).abs().max() > 1e-3
    assert bool(far) == (geometry[0] > geometry[1])  # where windows overlap


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_children_at_the_border_have_fewer_parents(backend: str) -> None:
    made, u, a = convolution("em", (3, 1, 0), iterations=1, backend=backend)
    coupling = made(u, a, coupling=True).coupling  # (B, types * 3 * 3, 3, 3, 2)
    coupling = coupling.view(2, 2, 3, 3, 3, 3, 2)  # B, types, ky, kx, J, row, column
    for ky, kx, row, column in ((0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0), (2, 1, 1, 0)):
        y, x = row + ky, column + kx
        covering = [(r, c) for r in range(3) for c in range(2) if r <= y < r + 3 and c <= x < c + 3]
        assert_near(coupling[:, :, ky, kx, :, row, column], 1 / (3 * len(covering)))


def masked_dynamic(votes: Tensor, mask: Tensor, axes: tuple[int, ...], leaky: bool) -> Tensor:
    """Procedure 1 among the parents (axes: those that compete) a child can vote for; votes (B, I, types, places, D)."""
    b = torch.zeros(votes.shape[:-1], **DOUBLE)
    for _ in range(3):
        e = b.exp() * mask
        c = e / (e.sum(axes, keepdim=True) + float(leaky)).clamp(min=1e-300)
        v = squash((c[..., None] * votes).sum(1))
        b = b + (votes * v[:, None]).sum(-1)
    return v


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize(("over", "axes"), [("types", (2,)), ("positions", (2, 3))])
@pytest.mark.parametrize("geometry", GEOMETRY)
def test_dynamic(geometry: tuple[int, int, int], over: str, axes: tuple[int, ...], leaky: bool) -> None:
    made, u, _ = convolution("dynamic", geometry, over=over, leaky=leaky)
    nn.init.normal_(made.weight)
    pose, (votes, mask) = made(u).pose, explicit(made, u)
    expected = masked_dynamic(votes.unflatten(2, (3, -1)), mask.unflatten(1, (3, -1)), axes, leaky)
    assert_near(pose, expected.view(pose.shape), 1e-10)


# ---- errors at the boundary: argument, expectation, what came, remedy


@pytest.mark.parametrize(("build", "arguments", "message"), [
    (primary, dict(form="sigmod"), r"^form: .*did you mean 'sigmoid'\?"),
    (primary, dict(types=0), r"^types: expected at least 1, got 0"),
    (primary, dict(dim=0), r"^dim: expected at least 1, got 0"),
    (primary, dict(kernel=0), r"^kernel: expected at least 1, got 0"),
    (layer, dict(routing="dynamik"), r"^routing: expected one of .*'em'.*got 'dynamik'; did you mean 'dynamic'\?"),
    (layer, dict(backend="matrx"), r"^backend: .*got 'matrx'; did you mean 'matrix'\?"),
    (layer, dict(pose="vektor"), r"^pose: .*did you mean 'vector'\?"),
    (layer, dict(pose="matrix"), r"^in_dim: expected a square.*got 3; give \(rows, columns\)"),
    (layer, dict(in_dim=0), r"^in_dim: expected at least 1, got 0"),
    (layer, dict(in_dim=(2, 0), out_dim=(2, 5)), r"^in_dim: "),
    (layer, dict(out_dim=-1), r"^out_dim: expected at least 1, got -1"),
    (layer, dict(in_dim=(2, 3), out_dim=(3, 3)), r"^out_dim: expected 2 rows .*got 3"),
    (layer, dict(in_capsules=0), r"^in_capsules: expected at least 1"),
    (layer, dict(out_capsules=0), r"^out_capsules: expected at least 1"),
    (layer, dict(out_capsules=None), r"^out_capsules: None .*in_capsules=None"),
    (layer, dict(coordinates=True), r"^coordinates: .*shared=True"),
    (layer, dict(in_capsules=None, shared=True), r"^in_capsules: "),
    (layer, dict(routing="discriminative", in_capsules=None), r"^in_capsules: discriminative"),
    (layer, dict(routing="discriminative", penalty="l3"), r"^penalty: .*got 'l3'"),
    (layer, dict(routing="attention", initial="zeros"), r"^initial: .*did you mean 'zero'\?"),
    (conv, dict(in_types=0), r"^in_types: expected at least 1, got 0"),
    (conv, dict(out_types=0), r"^out_types: expected at least 1, got 0"),
    (conv, dict(kernel=0), r"^kernel: expected at least 1, got 0"),
    (conv, dict(stride=0), r"^stride: expected at least 1, got 0"),
    (conv, dict(padding=-1), r"^padding: expected at least 0, got -1"),
    (conv, dict(over="position"), r"^over: .*did you mean 'positions'\?"),
    (layer, dict(iteration=2), r"^iteration: .*dynamic.*did you mean 'iterations'\?"),
    (conv, dict(routing="em", leaky=True), r"^leaky: .*em routing.*inverse_temperature"),
    (primary, dict(grouping="rows"), "^grouping: expected one of 'channels', 'places'"),
    (conv, SCRAMBLED | {"padding": 1}, "^scrambled: expected padding=0, over='types'"),
    (conv, SCRAMBLED | {"over": "positions"}, "^scrambled: expected padding=0, over='types'"),
    (conv, SCRAMBLED | {"routing": "heinsen"}, "^scrambled: expected padding=0, over='types'"),
    (layer, dict(over_children=True, leaky=True), "^over_children: expected leaky=False"),
    (layer, dict(over_children=True, backend="matrix"), "^backend: .*'dynamic' has no 'matrix' form"),
])  # fmt: skip
def test_arguments_are_checked(build: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build(**arguments)


X = torch.randn(2, 4, 3)
GRID = torch.randn(2, 2, 3, 3, 3)
PRIMARY = PrimaryCapsules(3, 4, 5, kernel=3)


@pytest.mark.parametrize(("made", "inputs", "message"), [
    (PRIMARY, (torch.randn(3, 5, 5),), r"^features: expected \(B, channels, H, W\), got \(3, 5, 5\)"),
    (PRIMARY, (torch.zeros(2, 3, 5, 5).byte(),), r"^features: expected a floating-point tensor, got torch.uint8"),
    (PRIMARY, (torch.randn(2, 4, 5, 5),), r"^features: .*3.*\(2, 4, 5, 5\)"),
    (PRIMARY, (torch.randn(2, 3, 2, 5),), r"^features: .*kernel"),
    (PRIMARY, (torch.randn(2, 3, 5, 5, device="meta"),), r"^features: .*meta"),
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
    (conv(**SCRAMBLED), (GRID, GRID[..., 0]), r"^activation: expected None with scrambled=True"),
    (layer(), ([[1.0]],), r"^u: expected a torch.Tensor, got list"),
    (conv(), ([[1.0]],), r"^u: expected a torch.Tensor, got list"),
    (layer("attention").step, (X, torch.randn(2, 3, 5)), r"^pose: expected"),
    (conv("attention").step, (GRID, torch.randn(2, 2, 2, 1, 5)), r"^pose: expected"),
])  # fmt: skip
def test_inputs_are_checked(made: Callable[..., Routed], inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        made(*inputs)


def test_couplings_over_children_sum_to_one_for_each_parent() -> None:
    """The numbers of options of public code are compared in tests/deploy/test_convert.py."""
    assert_near(layer(over_children=True)(X, coupling=True).coupling.sum(1), 1.0)
