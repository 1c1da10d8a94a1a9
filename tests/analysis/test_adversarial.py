"""Attacks: closed forms, bounds, and gradients that pass through routing."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flashcaps
from flashcaps import ROUTING
from flashcaps.analysis import DoesNotApply
from flashcaps.analysis.adversarial import Plan, adversarial, climb, fgsm, gap, make_record, objective, pgd, robustness
from flashcaps.models.base import Output
from flashcaps.training.batches import Batch
from flashcaps.training.recipe import Loss, read_recipe
from flashcaps.training.results import keep, read_results
from tests.analysis.conftest import small_run
from tests.fake_data import fake_split

module = importlib.import_module("flashcaps.analysis.adversarial")  # the package has the figure by that name


class Linear(nn.Module):
    """scores = W x, for which every attack is known."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, images: Tensor) -> Output:
        return Output(images.flatten(1) @ self.weight.T, None)


@pytest.fixture
def linear() -> tuple[Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(12, 1, 3, 3, generator=generator) * 0.4 + 0.3  # far enough from 0 and 1 not to be clipped
    model = Linear(torch.randn(2, 9, generator=generator))
    return model, images, model(images).scores.argmax(1)


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Batch]:
    """A few dozen steps on bars in noise, enough to be right nearly always."""
    torch.manual_seed(0)
    split = fake_split(120, 4, (1, 20, 20))
    batch = Batch(split.images / 255, split.labels)
    small: dict[str, Any] = {"decoder": False, "backbone": {"channels": 8}, "primary": {"types": 2}}
    model = flashcaps.create_model("capsnet_tiny", image=(1, 20, 20), classes=4, **small)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for k in range(40):
        rows = torch.arange(k * 30, k * 30 + 30) % 120
        optimiser.zero_grad()
        flashcaps.functional.margin_loss(model(batch.inputs[rows]).scores, batch.targets[rows]).backward()
        optimiser.step()
    return model.eval(), batch


def test_the_gap_is_the_highest_wrong_score_less_the_true_one_and_epsilons_go_by_the_images() -> None:
    scores = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.3, 0.8]])
    assert torch.allclose(gap(scores, torch.tensor([0, 1])), torch.tensor([-0.5, 0.5]))
    assert (Plan().at(1), Plan().at(3), Plan((0.0, 0.5)).at(3)) == (module.DIGITS, module.PICTURES, (0.0, 0.5))


def test_attacks_on_a_linear_model_have_a_closed_form(linear: Any) -> None:
    """With two classes every objective increases along sign(w_other - w_true). PGD ends in the same corner as FGSM if
    no point on its way fools the model."""
    model, images, targets = linear
    w = model.weight.detach()
    direction = (w[1 - targets] - w[targets]).sign().view_as(images)
    for name in ("gap", "cross_entropy"):
        attacked = fgsm(model, images, targets, 0.1, loss=objective(name))
        assert torch.allclose(attacked, images + 0.1 * direction)
    epsilon = 1e-3
    attacked = pgd(model, images, targets, epsilon, steps=20)
    safe = gap(model(attacked).scores, targets) < 0
    assert safe.sum() >= 6
    assert torch.allclose(attacked[safe], fgsm(model, images, targets, epsilon)[safe], atol=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.03, 0.5])
def test_changes_stay_in_the_ball_and_in_the_picture(trained: Any, epsilon: float) -> None:
    model, batch = trained
    images, targets = batch.inputs[:20], batch.targets[:20]  # many pixels are exactly 1
    for attacked in (fgsm(model, images, targets, epsilon), pgd(model, images, targets, epsilon, steps=4, step=0.3)):
        assert attacked.min() >= 0
        assert attacked.max() <= 1
        assert (attacked - images).abs().max() <= epsilon + 1e-6
        assert not attacked.requires_grad


def test_pgd_returns_the_first_point_that_fools_and_its_start_depends_on_the_seed(trained: Any) -> None:
    model, batch = trained
    images, targets = batch.inputs[:8], batch.targets[:8]
    assert torch.equal(pgd(model, images, (targets + 1) % 4, 0.1, steps=3), images)  # a wrong label
    once, again, other = (pgd(model, images, targets, 0.02, steps=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_epsilon_0_is_the_clean_accuracy_and_pgd_is_no_weaker_than_fgsm(trained: Any) -> None:
    model, batch = trained
    labels = batch.targets.clone()
    labels[:6] = (labels[:6] + 1) % 4  # some are wrong to begin with
    found = robustness(model, Batch(batch.inputs, labels), Plan((0.0, 0.1, 0.2, 0.3), steps=10, batch=50))
    accuracy = {(row["attack"], row["epsilon"]): row["accuracy"] for row in found["rows"]}
    with torch.no_grad():
        clean = 100 * float((model(batch.inputs).scores.argmax(1) == labels).double().mean())
    assert accuracy["fgsm", 0.0] == accuracy["pgd", 0.0] == pytest.approx(clean)
    assert clean > 85
    for e in (0.1, 0.2, 0.3):
        assert accuracy["pgd", e] <= accuracy["fgsm", e]
    assert accuracy["pgd", 0.3] < 0.5 * clean  # the attack works
    assert found["flat"] == 0
    assert found["examples"] == 120


def test_the_training_loss_has_no_gradient_where_the_gap_has_one() -> None:
    """The margin loss of a well answered image is 0, and so is its gradient; that is no robustness."""

    class Sure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.01))

        def forward(self, images: Tensor) -> Output:
            x = self.scale * images.flatten(1).mean(1)
            return Output(torch.stack([0.95 + x, 0.05 + x * x], 1), None)

    batch = Batch(torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64))
    names = ("trained", "gap")
    flat = {name: robustness(Sure(), batch, Plan((0.1,), 1, name), Loss("margin"))["flat"] for name in names}
    assert flat == {"trained": 100.0, "gap": 0.0}


@pytest.mark.parametrize("routing", ROUTING)
@torch.no_grad()
def test_gradients_pass_through_every_routing(routing: str) -> None:
    """The slope along the gradient, by finite differences of the whole model, is the gradient's norm."""
    small: dict[str, Any] = {"decoder": False, "backbone": {"channels": 6}, "primary": {"types": 2, "dim": 16}}
    model = flashcaps.create_model("capsnet_tiny", image=(1, 16, 16), classes=3, routing=routing, **small)
    model = model.double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)  # heinsen's betas start at 0, where its scores are constant
    images, targets = torch.rand(3, 1, 16, 16, dtype=torch.float64), torch.tensor([0, 1, 2])
    grad, _ = climb(model, images, targets, lambda scores, targets: gap(scores.double(), targets))
    assert bool((grad.flatten(1).abs().amax(1) > 0).all())
    step = 1e-5 * grad / grad.norm()
    ends = [gap(model(images + sign * step).scores, targets).sum() for sign in (1, -1)]
    assert float(ends[0] - ends[1]) / 2e-5 == pytest.approx(float(grad.norm()), rel=1e-3)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda m, x, t: fgsm(m, x, t, -0.1), ValueError, "epsilon: expected"),
    (lambda m, x, t: pgd(m, x, t, 0.1, steps=0), ValueError, "steps: expected at least 1, got 0"),
    (lambda m, x, t: fgsm(m, (x * 255).byte(), t, 0.1), ValueError, "images: expected floats"),
    (lambda m, x, t: pgd(m, x, torch.eye(4)[t], 0.1), DoesNotApply, "one class each"),
    (lambda m, x, t: objective("gaps"), ValueError, "did you mean 'gap'"),
    (lambda m, x, t: objective("trained"), ValueError, "needs a checkpoint that names its recipe"),
])  # fmt: skip
def test_wrong_arguments_are_named(trained: Any, call: Any, error: type[Exception], message: str) -> None:
    model, batch = trained
    with pytest.raises(error, match=message):
        call(model, batch.inputs[:4], batch.targets[:4])


@pytest.mark.parametrize(("name", "kind"), [("gap", "margin"), ("cross_entropy", "margin"), ("trained", "margin"),
                                            ("trained", "spread"), ("trained", "cross_entropy")])  # fmt: skip
def test_an_image_does_not_depend_on_its_batch(trained: Any, name: str, kind: Any) -> None:
    model, batch = trained
    loss = objective(name, Loss(kind))
    wrong = (batch.targets + 1) % 4
    alone, together = (climb(model, batch.inputs[:n], wrong[:n], loss)[0][0] for n in (1, 9))
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-7)
    assert alone.abs().max() > 0


def test_a_record_says_what_made_it_and_the_figure_measures_the_rest(tmp_path: Path, monkeypatch: Any) -> None:
    run = replace(small_run(12, decoder=False), recipe=read_recipe("tiny", ["epochs=1"]), name="tiny-0")
    record = make_record(run, Plan((0.0, 0.1), steps=2), "flashcaps attack runs/tiny-0")
    assert keep(record, tmp_path / "robustness") == tmp_path / "robustness" / "tiny" / "epochs=1-0.json"
    assert read_results(tmp_path, "robustness") == [record]
    assert {"recipe", "variant", "seed", "hardware", "versions", "commit", "command", "parameters"} <= set(record)
    assert (record["steps"], record["loss"], record["trained_with"]) == (2, "gap", "margin")
    cnn = record | {"recipe": "cnn", "variant": "default", "model": "cnn_smallnorb"}
    elsewhere = record | {"recipe": "elsewhere", "data": "cifar10"}
    run.robustness = [record, record | {"seed": 1}, cnn, elsewhere]
    with monkeypatch.context() as patch:
        patch.setattr(module, "robustness", None)  # nothing is measured
        data, figure, caption = adversarial(run)
    assert list(data["curves"]) == ["tiny epochs=1", "cnn"]
    assert list(data["curves"]["cnn"]["pgd"]) == [0.0, 0.1]
    assert [line.get_linestyle() for line in figure.axes[0].lines] == ["-", "--"]
    assert "2 seeds" in caption
    run.robustness = [cnn]
    monkeypatch.setattr(module, "QUICK", Plan((0.0, 0.2), steps=1, batch=6))
    data, _, caption = adversarial(run)
    assert list(data["curves"]) == ["tiny-0", "cnn"]
    assert "tiny-0 (6 images)" in caption
