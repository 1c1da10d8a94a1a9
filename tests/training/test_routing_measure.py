"""The measure of routing, against loops over children and against networks with fewer iterations; the change of routing
logits while a model trains, against plain sums."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashcaps
from flashcaps.functional import squash
from flashcaps.models import create_model
from flashcaps.nn.trace import decisions, presence, trace_layers
from flashcaps.routing import ROUTING
from flashcaps.training.batches import Batch, Held
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.routing_measure import (
    has_routing_logits,
    logit_change,
    measure_routing,
    probe_due,
    probe_logits,
)

from ..conftest import Say
from ..fake_data import small_recipe, write_idx


def held_images(images: Tensor, targets: Tensor, rule: str = "top1") -> Held:
    return Held(lambda index: Batch(images[index], targets[index]), len(images), 4, rule)


def network(routing: str, **overrides: Any) -> Any:
    """An untrained network of four classes whose votes are large, so that routing decides something."""
    torch.manual_seed(0)
    given = {"image": (1, 20, 20), "classes": 4, "routing": routing, "hidden": [5], "decoder": False}
    model: Any = flashcaps.create_model("capsnet_tiny", **given, **overrides).eval()
    for layer in model.capsules.layers:
        layer.weight.data *= 30 if routing == "dynamic" else 3
        for value in layer.learned.values():
            torch.nn.init.normal_(value)
    return model


def by_hand(couplings: list[float]) -> tuple[float, float]:
    """Largest share times J, and entropy over ln J, of one child."""
    shares = [abs(c) / sum(map(abs, couplings)) for c in couplings]
    entropy = -sum(p * math.log(p) for p in shares if p > 0)
    return max(shares) * len(shares), entropy / math.log(len(shares))


@torch.no_grad()
@pytest.mark.parametrize("over", ["types", "positions"])
@pytest.mark.parametrize(("kernel", "stride", "padding", "side"), [(3, 2, 1, 4), (2, 3, 0, 6)])
def test_a_child_of_a_convolution_decides_in_every_window_or_once(
    over: str, kernel: int, stride: int, padding: int, side: int
) -> None:
    types, parents = 2, 3
    layer = flashcaps.ConvCapsules("em", in_types=types, in_dim=4, out_types=parents, out_dim=4, kernel=kernel,
                                   stride=stride, padding=padding, over=over).double()  # fmt: skip
    u, a = torch.randn(2, types, side, side, 4).double(), torch.rand(2, types, side, side).double()
    (trace,) = trace_layers(flashcaps.CapsuleStack([layer]), u, a)
    c = trace.steps[-1].coupling  # (B, types k k, J, H', W')
    expected: dict[Any, list[float]] = {}
    for b, t, y, x, dy, dx in product(range(2), range(types), range(2), range(2), range(kernel), range(kernel)):
        row, column = y * stride + dy - padding, x * stride + dx - padding
        if 0 <= row < side and 0 <= column < side:
            window = () if over == "positions" else (y, x)
            own = c[b, (t * kernel + dy) * kernel + dx, :, y, x].tolist()
            expected.setdefault((b, t, row, column, *window), []).extend(own)
    found = decisions(trace, c)
    weight = torch.tensor([a[key[:4]] for key in expected])
    assert float(found[2].sum()) == pytest.approx(float(weight.sum()))
    for values, wanted in zip(found[:2], zip(*map(by_hand, expected.values()), strict=True), strict=True):
        assert float((values * found[2]).sum()) == pytest.approx(float((torch.tensor(wanted) * weight).sum()))
    windows = {1, 2, 4} if kernel > stride and over == "positions" else {1}  # that a child is in, if in any
    assert {len(x) // parents for x in expected.values()} == windows


@pytest.mark.parametrize("routing", ROUTING)
@torch.no_grad()
def test_every_algorithm_layer_by_layer_and_iteration_by_iteration(routing: str) -> None:
    model, images = network(routing), torch.rand(12, 1, 20, 20)
    stack, iterated = model.capsules, routing != "discriminative"
    if iterated:
        stack.iterations = 3
        for layer in stack.layers:
            layer.set_iterations(1 if stack.concurrent else 3)
    answers = []
    for t in range(1, 4 if iterated else 2):  # the class layer with fewer iterations, on the same children
        if stack.concurrent:
            stack.iterations = t
        elif iterated:
            stack.layers[-1].set_iterations(t)
        answers.append(model(images).scores.argmax(1))
    targets = answers[-1].clone()
    targets[:3] = answers[0][:3]
    targets[3] = (targets[3] + 1) % 4
    found = measure_routing(model.train(), held_images(images, targets), batch=3)
    assert model.training
    assert found.wrong == tuple(int((x != targets).sum()) for x in answers)
    assert found.changed == sum(len({int(x[n]) for x in answers}) > 1 for n in range(12))
    first, last = answers[0] == targets, answers[-1] == targets
    assert (found.righted, found.spoiled) == (int((~first & last).sum()), int((first & ~last).sum()))
    assert found.fixed is not iterated
    assert (found.changed > 0) is iterated  # or the network decides nothing, and the test nothing
    sizes = [(x.routing, x.parents, len(x.largest)) for x in found.layers]
    assert sizes == [(routing, parents, len(answers)) for parents in (5, 4)]

    model.eval()
    u = model.primary(model.backbone(images))
    below, top = trace_layers(stack, u.pose, u.activation)
    here = u.pose.flatten(1, 3).norm(dim=-1) if routing in ("dynamic", "discriminative") else torch.ones(12, 1)
    if u.activation is not None:
        here = u.activation.flatten(1).sigmoid() if routing == "heinsen" else u.activation.flatten(1)
    for t, step in enumerate(below.steps):
        rows = [[by_hand(child) for child in image] for image in step.coupling.tolist()]
        table = torch.tensor(rows, dtype=torch.float64)  # (B, I, 2)
        weight = here.double().expand(table.shape[:2])
        wanted = (table * weight[..., None]).sum((0, 1)) / weight.sum()
        assert (found.layers[0].largest[t], found.layers[0].entropy[t]) == pytest.approx(tuple(wanted.tolist()), 1e-4)
    won, there = answers[-1], presence(top).flatten(1)[..., None]
    for t, step in enumerate(top.steps):
        votes = (there * step.coupling.abs()).sum(1)
        share = votes / votes.sum(1, keepdim=True)
        more = [share[won == k, k].mean() - share[won != k, k].mean() for k in range(4) if 0 < (won == k).sum() < 12]
        assert found.attracted[t] == pytest.approx(4 * float(torch.stack(more).mean()) if more else 0, abs=1e-5)


@torch.no_grad()
def test_em_answers_by_what_its_activations_go_through() -> None:
    """Its E-steps and batch norm belong to three iterations, so a network with fewer is another one."""
    model = network("em", iterations=3, options={"relative": True, "norm_activation": True})
    images = torch.rand(6, 1, 20, 20)
    model.train()(images)  # statistics of the batch norm
    model.eval()
    before = {name: x.clone() for name, x in model.named_buffers()}
    steps = model.train().route(images, record=True).history
    moved = {name: x for name, x in model.named_buffers() if "output_norm" in name}
    once = network("em", iterations=3, options={"relative": True, "norm_activation": True})
    once.load_state_dict(model.state_dict() | before)
    once.train()(images)
    torch.testing.assert_close(moved, {n: x for n, x in once.named_buffers() if n in moved})  # recorded or not
    assert all(0 <= float(x.activation.min()) <= float(x.activation.max()) <= 1 for x in steps)
    model.eval()
    found = measure_routing(model, held_images(images, model(images).scores.argmax(1)))
    assert found.wrong[-1] == 0


@torch.no_grad()
def test_two_classes_an_image_are_one_answer() -> None:
    model, images = network("heinsen"), torch.rand(20, 1, 20, 20)
    targets = torch.zeros(20, 4)
    targets[:, :2] = 1
    found = measure_routing(model, held_images(images, targets, "top2"))
    top = model.capsules.layers[-1]
    pairs = []
    for t in (1, 2, 3):
        top.set_iterations(t)
        pairs.append([set(x) for x in model(images).scores.topk(2).indices.tolist()])
    assert found.wrong == tuple(sum(x != {0, 1} for x in row) for row in pairs)
    assert found.changed == sum(not x == y == z for x, y, z in zip(*pairs, strict=True))


def test_what_cannot_be_measured_is_an_error() -> None:
    plain, held = flashcaps.create_model("cnn_mnist"), held_images(torch.rand(1, 1, 20, 20), torch.zeros(1))
    with pytest.raises(ValueError, match="model: expected a capsule network"):
        measure_routing(plain, held)
    with pytest.raises(ValueError, match="held: expected at least one example"):
        measure_routing(network("dynamic"), held_images(torch.rand(0, 1, 20, 20), torch.zeros(0)))


def test_the_command_prints_and_keeps_it(tmp_path: Path, say: Say) -> None:
    root, run = write_idx(tmp_path / "data"), tmp_path / "small"
    train(small_recipe("steps=3"), RunOptions("cpu", str(run), str(root)))
    words = ["evaluate", str(run), "--routing", "--data", str(root), "--device", "cpu"]
    said = say(*words, "--keep", tmp_path).done()
    kept = json.loads((run / "result.json").read_text())
    routing = kept["routing"]
    assert routing["wrong"][-1] == round(kept["value"] / 100 * kept["examples"])
    assert json.loads((tmp_path / "routing" / "small.json").read_text())["routing"] == routing
    assert "capsule layer 1: dynamic, 10 parents" in said.out
    assert f"{routing['layers'][0]['largest'][2]:.3f}" in said.out
    assert f"changes between iterations in {routing['changed']} of 40" in said.out
    assert json.loads(say(*words, "data.test=3", "--json").out)["routing"]["examples"] == 40
    assert "--routing: expected one run" in say(*words, "--ensemble").err


SMALL = {"backbone": {"channels": 4}, "primary": {"types": 2}, "decoder": False}


@pytest.fixture
def model() -> Any:
    return create_model("capsnet_tiny", **SMALL)


@pytest.fixture
def batch(model: Any) -> Batch:
    return Batch(torch.rand(20, *model.image), torch.zeros(20, dtype=torch.int64))


@torch.no_grad()
def test_logit_change_is_the_difference_of_summed_agreements(model: Any, batch: Batch) -> None:
    model.eval()
    layer, own = model.capsules.layers[-1], model.capsules.layers[-1].routing.iterations
    votes = layer.votes(model.primary(model.backbone(batch.inputs)))
    b, expected = torch.zeros(votes.shape[:3]), []
    for _ in range(5):
        v = squash((b.softmax(-1)[..., None] * votes).sum(1))
        change = (votes * v[:, None]).sum(-1)
        expected.append(float(change.abs().mean()))
        b = b + change
    assert logit_change(model, batch, 5).tolist() == pytest.approx(expected, rel=1e-4)
    assert layer.routing.iterations == own


def test_probing_changes_nothing_and_takes_the_first_images(model: Any, batch: Batch) -> None:
    before = torch.get_rng_state(), {name: x.clone() for name, x in model.state_dict().items()}
    change = probe_logits(model.train(), batch)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(torch.equal(x, before[1][name]) for name, x in model.state_dict().items())
    first = Batch(batch.inputs[:16], batch.targets[:16])
    with torch.no_grad():
        assert change == pytest.approx(logit_change(model.eval(), first, 6).tolist(), rel=1e-5)


def test_logits_are_probed_early_and_of_dynamic_routing_alone(model: Any) -> None:
    assert [step for step in range(1, 101) if probe_due(step)] == [1, 2, 5, 10, 20, 50, 100]
    assert has_routing_logits(model)
    assert not has_routing_logits(create_model("capsnet_tiny", routing="em", **SMALL))
    assert not has_routing_logits(create_model("cnn_diverse_pool"))
