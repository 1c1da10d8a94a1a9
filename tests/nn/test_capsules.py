"""Primary and dense capsules: what goes where."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashcaps import ROUTING, ConvCapsules, DenseCapsules, PrimaryCapsules
from flashcaps.functional import squash

from ..conftest import assert_near
from ..layer_cases import LayerCase, cases, ids

DOUBLE = {"dtype": torch.float64}


# ---- primary capsules


def primary(**more: Any) -> PrimaryCapsules:
    return PrimaryCapsules(**(dict(in_channels=3, types=4, dim=5, kernel=3) | more)).double()


def test_pose_of_one_capsule_at_one_place() -> None:
    """Numbers of a capsule come from its own channels at its own place; a plain view(B, -1, dim) mixes places."""
    layer = primary(form="sigmoid", stride=2)
    x = torch.randn(2, 3, 9, 7, **DOUBLE)
    channels = layer.pose(x)  # (B, types * dim, H, W)
    pose = layer(x).pose
    assert pose.shape == (2, 4, 4, 3, 5)
    for t in range(4):
        for row in range(4):
            for column in range(3):
                assert_near(pose[:, t, row, column], channels[:, t * 5 : (t + 1) * 5, row, column], 0.0)
    assert not torch.equal(pose.reshape(2, -1, 5), channels.reshape(2, -1, 5))


def test_flattened_as_types_rows_columns() -> None:
    layer = DenseCapsules("dynamic", in_capsules=4 * 2 * 3, in_dim=5, out_capsules=2, out_dim=2).double()
    pose = primary()(torch.randn(2, 3, 4, 5, **DOUBLE)).pose
    one_by_one = [pose[:, t, y, x] for t in range(4) for y in range(2) for x in range(3)]
    assert_near(layer(pose).pose, layer(torch.stack(one_by_one, 1)).pose, 0.0)


def test_squash_form() -> None:
    layer, x = primary(form="squash"), torch.randn(2, 3, 5, 5, **DOUBLE)
    raw = layer.pose(x).view(2, 4, 5, 3, 3).permute(0, 1, 3, 4, 2)
    routed = layer(x)
    assert_near(routed.pose, squash(raw))
    assert routed.activation is None
    assert routed.pose.norm(dim=-1).max() < 1


def test_original_form_divides_by_32_and_adds_a_tenth_before_squash() -> None:
    layer, x = primary(original=True), torch.randn(2, 3, 5, 5, **DOUBLE)
    raw = layer.pose(x).view(2, 4, 5, 3, 3).permute(0, 1, 3, 4, 2)
    assert_near(layer(x).pose, squash(raw / 32 + 0.1))


def test_sigmoid_form() -> None:
    layer, x = primary(form="sigmoid"), torch.randn(2, 3, 5, 5, **DOUBLE)
    routed = layer(x)
    assert_near(routed.activation, layer.activation(x).sigmoid())
    assert routed.activation.shape == (2, 4, 3, 3)


def test_score_form_gives_logits() -> None:
    layer, x = primary(form="score"), torch.randn(2, 3, 5, 5, **DOUBLE)
    routed = layer(x)
    assert_near(routed.activation, layer.activation(x))
    assert_near(routed.pose, layer.pose(x).view(2, 4, 5, 3, 3).permute(0, 1, 3, 4, 2))


def test_norm_form_normalises_each_pose() -> None:
    routed = primary(form="norm")(torch.randn(2, 3, 5, 5, **DOUBLE))
    assert routed.activation is None
    assert_near(routed.pose.mean(-1), 0.0)
    assert_near(routed.pose.var(-1, correction=0), 1.0, 1e-3)


def test_batch_norm_before_each_convolution() -> None:
    layer = primary(form="score", batch_norm=True)
    for part in (layer.pose, layer.activation):
        assert [type(m) for m in part] == [nn.BatchNorm2d, nn.Conv2d]
        assert part[0].num_features == 3


def test_primary_sizes() -> None:
    """dynamic, MNIST: 256 channels to 32 types of 8, kernel 9, stride 2: 20 x 20 to 6 x 6 and 5,308,672 parameters."""
    layer = PrimaryCapsules(256, 32, 8, kernel=9, stride=2)
    assert sum(p.numel() for p in layer.parameters()) == 256 * 256 * 81 + 256
    assert layer(torch.randn(1, 256, 20, 20)).pose.shape == (1, 32, 6, 6, 8)
    assert not [name for name, _ in primary(bias=False).named_parameters() if name.endswith("bias")]
    assert primary(padding=1)(torch.randn(2, 3, 5, 5, **DOUBLE)).pose.shape == (2, 4, 5, 5, 5)


@pytest.mark.parametrize("form", ["squash", "sigmoid", "norm", "score"])
@pytest.mark.parametrize("batch", [0, 1])
def test_primary_takes_small_batches_and_channels_last(form: str, batch: int) -> None:
    layer, x = primary(form=form), torch.randn(batch, 3, 5, 5, **DOUBLE)
    routed = layer(x)
    assert routed.pose.shape == (batch, 4, 3, 3, 5)
    assert_near(layer(x.contiguous(memory_format=torch.channels_last)).pose, routed.pose)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.randn(3, 5, 5), r"^features: expected \(B, channels, H, W\), got \(3, 5, 5\)"),
        (torch.zeros(2, 3, 5, 5, dtype=torch.uint8), r"^features: expected a floating-point tensor, got torch.uint8"),
        (torch.randn(2, 4, 5, 5), r"^features: .*3.*\(2, 4, 5, 5\)"),
        (torch.randn(2, 3, 2, 5), r"^features: .*kernel"),
        (torch.randn(2, 3, 5, 5, device="meta"), r"^features: .*meta"),
    ],
)
def test_primary_checks_its_input(features: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrimaryCapsules(3, 4, 5, kernel=3)(features)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(form="sigmod"), r"^form: .*did you mean 'sigmoid'\?"),
        (dict(types=0), r"^types: expected at least 1, got 0"),
        (dict(dim=0), r"^dim: expected at least 1, got 0"),
        (dict(kernel=0), r"^kernel: expected at least 1, got 0"),
    ],
)
def test_primary_checks_its_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        primary(**arguments)


def test_repr() -> None:
    assert repr(PrimaryCapsules(3, 4, 5, kernel=3)) == (
        "PrimaryCapsules(\n"
        "  types=4, dim=5, form='squash'\n"
        "  (pose): Conv2d(3, 20, kernel_size=(3, 3), stride=(1, 1))\n"
        ")"
    )
    dense = DenseCapsules("discriminative", in_capsules=2, in_dim=3, out_capsules=4, out_dim=5, shared=True)
    assert repr(dense) == (
        "DenseCapsules(\n"
        "  2 x 3 -> 4 x 5, Discriminative(iterations=1, rate=1e-05, strength=0.001, penalty='l2'), "
        "backend='auto', shared\n"
        "  (learned): ParameterDict()\n"
        ")"
    )
    conv = ConvCapsules(
        "em", in_types=2, in_dim=4, out_types=3, out_dim=4, kernel=3, pose="matrix", backend="reference"
    )
    assert repr(conv).splitlines()[1] == (
        "  2 x 4 -> 3 x 4, kernel=3, stride=1, padding=0, over='positions', "
        "EM(iterations=3, inverse_temperature=None, eps=1e-08), backend='reference'"
    )


# ---- what the algorithms keep in a layer


@pytest.mark.parametrize(
    ("routing", "options", "parameters"),
    [
        ("dynamic", {}, 7 * 5 * 3 * 2),
        ("dynamic", {"bias": True, "prior": True}, 7 * 5 * 3 * 2 + 5 * 2 + 7 * 5),
        ("em", {}, 7 * 5 * 3 * 2 + 5 + 5),
        ("attention", {}, 7 * 5 * 3 * 2 + 2 + 2),
        ("attention", {"norm": False}, 7 * 5 * 3 * 2),
        ("attention", {"activation": True, "initial": "learned"}, 7 * 5 * 3 * 2 + 4 + 10 + 5 * 2),
        ("attention", {"initial": "random"}, 7 * 5 * 3 * 2 + 4),
        ("heinsen", {}, 7 * 5 * 3 * 2 + 7 * 5 * 2 + 2 * 7 * 5),
        ("heinsen", {"tied": True, "vote_bias": False}, 7 * 5 * 3 * 2 + 7 * 5),
        ("discriminative", {}, 7 * 5 * 3 * 2),
    ],
)
def test_parameters(routing: str, options: dict[str, Any], parameters: int) -> None:
    layer = DenseCapsules(routing, in_capsules=7, in_dim=3, out_capsules=5, out_dim=2, **options)
    assert sum(p.numel() for p in layer.parameters()) == parameters


def test_start_of_the_transforms() -> None:
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
    conv = ConvCapsules("attention", in_types=16, in_dim=16, out_types=32, out_dim=16, kernel=3, pose="matrix")
    assert conv.weight.std().item() == pytest.approx(math.sqrt(32 / (4 * 16 * 9)), rel=0.02)
    assert weight("em", out_dim=9).std().item() == pytest.approx(1 / 4, rel=0.02)  # no identity from 16 to 9
    turned = weight("em", pose="matrix").detach() - torch.eye(4)[:, None]
    assert turned.mean().item() == pytest.approx(0, abs=0.01)
    assert turned.std().item() == pytest.approx(0.1, rel=0.02)


def test_start_of_what_algorithms_learn() -> None:
    """Of every algorithm, with all it can learn."""
    options = {"dynamic": {"prior": True, "bias": True}, "attention": {"activation": True, "initial": "learned"}}
    starts = {"dynamic": {"logits": 0, "bias": 0.1}, "em": {"beta_u": 0, "beta_a": 0},
              "attention": {"weight": 1, "bias": 0, "beta_u": 0, "beta_a": 0, "initial": 0},
              "heinsen": {"beta_use": 0, "beta_ignore": 0}, "discriminative": {"coefficients": 0.2}}
    for routing, expected in starts.items():
        layer = DenseCapsules(routing, in_capsules=7, in_dim=3, out_capsules=5, out_dim=2, **options.get(routing, {}))
        found = dict(layer.learned.items()) | dict(layer.named_buffers())
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], torch.full_like(found[name], value)), (routing, name)


def test_em_passes_on_what_its_children_agree_on_from_the_start() -> None:
    torch.manual_seed(0)
    layer = DenseCapsules("em", in_capsules=200, in_dim=16, out_capsules=10, out_dim=16)
    pose = torch.randn(3, 1, 16)
    parents = layer(pose.expand(3, 200, 16), torch.ones(3, 200)).pose
    torch.testing.assert_close(parents, pose.expand_as(parents), rtol=0, atol=0.15)


# ---- dense capsules


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("case", cases(options=False), ids=ids)
def test_absent_activation_means_every_capsule_is_present(case: LayerCase, backend: str) -> None:
    layer = case.build(backend)
    u, _ = case.draw()
    sure = math.inf if ROUTING[case.routing]().input_activation == "score" else 1.0
    assert_near(layer(u).pose, layer(u, torch.full(u.shape[:-1], sure, **DOUBLE)).pose)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize("form", ["dense", "shared", "conv", "conv, positions"])
@pytest.mark.parametrize("routing", ["dynamic", "attention", "discriminative"])
def test_activations_weigh_the_poses_of_children_where_an_algorithm_takes_none(
    routing: str, form: str, backend: str
) -> None:
    layer, (u, _) = LayerCase(routing, form).build(backend), LayerCase(routing, form).draw()
    a = torch.rand(u.shape[:-1], **DOUBLE)
    if form != "shared":  # whose coordinates are weighed, too
        assert_near(layer(u, a).pose, layer(u * a[..., None]).pose)
    assert (layer(u, a).pose - layer(u).pose).abs().max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"vote_bias": True}])
@pytest.mark.parametrize("routing", ["dynamic", "attention", "discriminative"])
def test_padding_is_absent_capsules(routing: str, options: dict[str, Any]) -> None:
    """Whether activations are given or not, a capsule outside the image casts no vote."""
    layer = ConvCapsules(routing, in_types=2, in_dim=3, out_types=2, out_dim=2, kernel=3, padding=1, **options).double()
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    u = torch.randn(2, 2, 4, 4, 3, **DOUBLE)
    assert_near(layer(u).pose, layer(u, torch.ones(2, 2, 4, 4, **DOUBLE)).pose)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_children_that_share_a_transform_share_a_prior(backend: str) -> None:
    sizes = dict(in_dim=3, out_capsules=3, out_dim=4, prior=True, backend=backend)
    shared = DenseCapsules("dynamic", in_capsules=2, shared=True, **sizes).double()
    apart = DenseCapsules("dynamic", in_capsules=12, **sizes).double()
    nn.init.normal_(shared.learned["logits"])
    with torch.no_grad():
        apart.weight.copy_(shared.weight.repeat_interleave(6, 2))
        apart.learned["logits"].copy_(shared.learned["logits"].repeat_interleave(6, 0))
    u = torch.randn(2, 2, 3, 2, 3, **DOUBLE)
    assert_near(shared(u).pose, apart(u).pose)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("backend", ["reference", "matrix"])
@pytest.mark.parametrize(("routing", "absent", "sure"), [("em", 0.0, 1.0), ("heinsen", -math.inf, math.inf)])
def test_padding_is_children_that_are_not_there(
    routing: str, absent: float, sure: float, backend: str, given: bool
) -> None:
    sizes = dict(in_types=2, in_dim=4, out_types=2, out_dim=4, kernel=3, backend=backend)
    padded, plain = (ConvCapsules(routing, **sizes, padding=p).double() for p in (1, 0))
    for p in padded.parameters():
        nn.init.normal_(p)
    plain.load_state_dict(padded.state_dict())
    u = torch.randn(2, 2, 4, 4, 4, **DOUBLE)
    a = torch.rand(2, 2, 4, 4, **DOUBLE) if given else torch.full((2, 2, 4, 4), sure, **DOUBLE)
    around = F.pad(u, (0, 0, 1, 1, 1, 1)), F.pad(a, (1, 1, 1, 1), value=absent)
    expected, found = plain(*around), padded(u, a if given else None)
    assert_near(found.pose, expected.pose)
    assert_near(found.activation, expected.activation)


@pytest.mark.parametrize("routing", list(ROUTING))
def test_coupling_and_history_only_when_asked(routing: str) -> None:
    for backend in ("reference", "matrix"):
        case = LayerCase(routing, "dense")
        layer, (u, a) = case.build(backend), case.draw()
        assert layer(u, a).coupling is None
        assert layer(u, a).history is None
        assert layer(u, a, coupling=True).coupling.shape == (2, 7, 5)
        assert len(layer(u, a, record=True).history) == layer.routing.iterations


def test_as_many_parents_as_children_are_identical_unless_told_apart() -> None:
    """Taken literally, parameters without i and j make all outputs the same; a softened one-to-one start does not."""
    sizes = dict(in_capsules=None, in_dim=3, out_capsules=None, out_dim=4)
    u, score = torch.randn(2, 5, 3, **DOUBLE), torch.randn(2, 5, **DOUBLE)
    for backend in ("reference", "matrix"):
        literal = DenseCapsules("heinsen", **sizes, backend=backend).double()
        told = DenseCapsules("heinsen", **sizes, backend=backend, one_to_one=2.0).double()
        for learned in literal.learned.values():
            nn.init.normal_(learned)
        told.load_state_dict(literal.state_dict())
        routed = literal(u, score, coupling=True)
        assert routed.pose.shape == (2, 5, 4)
        assert_near(routed.pose, routed.pose[:, :1].expand(2, 5, 4))
        assert_near(routed.coupling, 1 / 5)
        first = told(u, score, record=True).history[0]
        assert_near(first.coupling[0], torch.softmax(2 * torch.eye(5, **DOUBLE), -1))
        assert (told(u, score).pose - told(u, score).pose[:, :1]).abs().max() > 1e-3
        assert literal(u[:, :2], score[:, :2]).pose.shape == (2, 2, 4)


def test_one_to_one_needs_as_many_parents_as_children() -> None:
    layer = DenseCapsules("heinsen", in_capsules=3, in_dim=2, out_capsules=2, out_dim=2, one_to_one=1.0)
    with pytest.raises(ValueError, match=r"^one_to_one: expected as many parents as children, got 2 and 3"):
        layer(torch.randn(1, 3, 2))


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_masked_children_do_not_count(backend: str) -> None:
    layer = LayerCase("heinsen", "any").build(backend)
    u = torch.randn(2, 5, 3, **DOUBLE, requires_grad=True)
    score = torch.randn(2, 5, **DOUBLE)
    score[0, 3:] = -math.inf
    score[1] = -math.inf
    routed = layer(u, score)
    alone = layer(u[:1, :3], score[:1, :3])
    assert_near(routed.pose[:1], alone.pose)
    assert_near(routed.activation[:1], alone.activation)
    (routed.pose.sum() + routed.activation.sum() + routed.variance.sum()).backward()
    assert all(x.isfinite().all() for x in (routed.pose, routed.activation, u.grad, layer.weight.grad))
