"""Schedules by hand; optimisers against torch's own, Muon's steps against a singular value decomposition."""

import math

import pytest
import torch

from flashcaps import DenseCapsules
from flashcaps.training.optim import Muon, RAdam, Rates, make_optimiser, orthogonalise, scheduled, set_rates
from flashcaps.training.recipe import Optimiser, Schedule

from ..fake_data import CPU, small_step

STAIRS, SMOOTH = Schedule("exponential", every=2000), Schedule("exponential", every=2000, smooth=True, floor=1e-6)
STEPS, COSINE = Schedule("steps", factor=0.1, milestones=(150, 250)), Schedule("cosine", warmup=0.1)


@pytest.mark.parametrize(("spec", "rates"), [
    (STAIRS, {1999: 0.001, 2000: 0.00096, 6500: 0.001 * 0.96**3}),
    (SMOOTH, {6500: 0.001 * 0.96**3.25, 400_000: 1e-6}),  # whose floor is above 0.001 * 0.96**200
    (STEPS, {0: 0.001, 1499: 0.001, 1500: 0.0001, 2499: 0.0001, 2500: 0.00001}),  # of epochs, ten steps each
    (COSINE, {0: 0.001 / 100, 49: 0.0005, 100: 0.001, 550: 0.0005, 999: 0}),
    (Schedule("constant"), {77: 0.001}),
])  # fmt: skip
def test_rates_by_hand(spec: Schedule, rates: dict[int, float]) -> None:
    for step, rate in rates.items():
        assert scheduled(spec, 0.001, step, 1000, 10).lr == pytest.approx(rate, rel=1e-12, abs=0 if rate else 1e-8)


def test_one_cycle_of_rate_and_momentum() -> None:
    spec, peak = Schedule("one_cycle", warmup=0.1, start_lr=1e-5, momentum=(0.999, 0.8991)), 0.1 * 1001

    def at(step: int) -> Rates:
        return scheduled(spec, 5e-4, step, 1001, 100)

    assert at(0) == Rates(1e-5, 0.999)
    up = at(50)
    assert up.lr == pytest.approx(1e-5 + 50 / peak * 4.9e-4)
    assert up.momentum == pytest.approx(0.999 - 50 / peak * 0.0999)
    top = at(101)
    assert top.lr == pytest.approx(5e-4, rel=1e-4)
    assert top.momentum == pytest.approx(0.8991, rel=1e-4)
    middle = at(550)  # half way back: the mean of both ends
    assert middle.lr == pytest.approx((1e-5 + 5e-4) / 2, rel=1e-3)
    end = at(1000)
    assert end.lr == pytest.approx(1e-5)
    assert end.momentum == pytest.approx(0.999)
    assert scheduled(Schedule("one_cycle", warmup=0.1), 0.1, 30, 100, 10).momentum is None


def weights() -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size)) for size in [(6, 4), (3, 7), (5,), (6, 4)]]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_radam_is_torchs(decay: float) -> None:
    ours, theirs = weights(), weights()
    a, b = RAdam(ours, 0.01, weight_decay=decay), torch.optim.RAdam(theirs, 0.01, weight_decay=decay)
    for step in range(12):  # plain momentum first, adaptive from the sixth step on
        for params, optimiser in ((ours, a), (theirs, b)):
            for p in params:
                p.grad = torch.sin(p.detach() * (step + 1))
            optimiser.step()
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_radam_with_a_moving_momentum_by_hand() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimiser = make_optimiser([p], Optimiser("radam", lr=0.1, betas=(0.9, 0.999)), CPU)
    m, x = 0.0, 1.0
    for t, (rate, beta) in enumerate([(0.1, 0.9), (0.2, 0.8), (0.05, 0.95)], start=1):
        set_rates(optimiser, Rates(rate, beta), CPU)
        p.grad = torch.tensor([0.5 * t])
        optimiser.step()
        m = beta * m + (1 - beta) * 0.5 * t
        x -= rate * m / (1 - beta**t)
        assert p.item() == pytest.approx(x, rel=1e-5)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_optimisers_of_torch_have_the_numbers_of_the_recipe(kind: str) -> None:
    """Adam and SGD add the decay to the gradient, AdamW takes it from the weight; SGD with Nesterov's momentum. The
    rate of the first step is the recipe's, then those of a schedule come."""
    spec = Optimiser(kind, lr=0.1, betas=(0.7, 0.8), eps=0.3, weight_decay=0.2, momentum=0.9, nesterov=True)
    x, m, v = 1.0, 0.0, 0.0
    p = torch.nn.Parameter(torch.tensor([x]))
    optimiser = make_optimiser([p], spec, CPU)
    for t, (g, rate) in enumerate(((2.0, 0.1), (-1.0, 0.0), (0.5, 0.2)), 1):
        if t > 1:
            set_rates(optimiser, Rates(rate), CPU)
        p.grad = torch.tensor([g])
        optimiser.step()
        if kind == "adamw":
            x *= 1 - rate * 0.2
        else:
            g += 0.2 * x
        if kind == "sgd":
            m = 0.9 * m + g
            x -= rate * (g + 0.9 * m)
        else:
            m, v = 0.7 * m + 0.3 * g, 0.8 * v + 0.2 * g * g
            x -= rate * m / (1 - 0.7**t) / (math.sqrt(v / (1 - 0.8**t)) + 0.3)
        assert p.item() == pytest.approx(x, rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 5, 9), (3, 8, 8), (2, 12, 4)])
def test_orthogonalised(shape: tuple[int, ...]) -> None:
    """Singular vectors stay; singular values come near 1, those far under the largest as well."""
    x = torch.randn(shape)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    y = orthogonalise(x).float()
    inside = u.mT @ y @ v.mT
    values = inside.diagonal(dim1=1, dim2=2)
    assert ((values > 0.5) & (values < 1.3)).all()
    assert (inside - torch.diag_embed(values)).abs().max() < 0.15
    assert float(s.max() / s.min()) > 1.5


def test_muon_is_torchs_and_adamw_for_vectors() -> None:
    ours, theirs = weights(), weights()
    muon = make_optimiser(ours, Optimiser("muon", 0.02, (0.8, 0.95), eps=1e-3, weight_decay=0.3, momentum=0.9), CPU)
    matrices = [p for p in theirs if p.ndim == 2]
    other = torch.optim.Muon(matrices, 0.02, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([theirs[2]], 0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    for step in range(4):
        torch.manual_seed(step)
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimiser in (muon, other, adamw):
            optimiser.step()
    set_rates(muon, Rates(0.0), CPU)
    muon.step()  # which moves nothing
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, atol=2e-3 if p.ndim == 2 else 1e-6, rtol=0)  # steps of 0.01 in bf16


def test_a_convolution_is_a_matrix_of_its_outputs_in_any_memory_order() -> None:
    g = torch.randn(4, 3, 2, 2)
    moved = []
    for weight in (torch.zeros(4, 12), torch.zeros(4, 3, 2, 2),
                   torch.zeros(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)):  # fmt: skip
        p = torch.nn.Parameter(weight)
        p.grad = g.view(weight.shape).contiguous(
            memory_format=torch.contiguous_format if weight.is_contiguous() else torch.channels_last
        )
        Muon([p], 0.1).step()
        moved.append(p.detach().reshape(4, 12))
    assert torch.equal(moved[0], moved[1])
    torch.testing.assert_close(moved[0], moved[2], atol=1e-3, rtol=0)


def test_transforms_of_capsules_are_the_matrix_of_their_map() -> None:
    """(J h) x (d G): it takes the numbers of all children to the sum of their votes."""
    layer = DenseCapsules(in_capsules=5, in_dim=3, out_capsules=2, out_dim=4)
    u = torch.randn(1, 5, 3)
    flat = torch.nn.Parameter(layer.weight.detach().permute(0, 3, 1, 2).reshape(2 * 4, 3 * 5))
    torch.testing.assert_close(flat @ u[0].t().flatten(), layer.votes(u).sum((0, 1)).flatten())
    layer.weight.grad = torch.randn_like(layer.weight)
    flat.grad = layer.weight.grad.permute(0, 3, 1, 2).reshape(2 * 4, 3 * 5)
    spec = Optimiser("muon", lr=0.1, momentum=0.9, weight_decay=0.2, transforms=True)
    for params in ([layer.weight], [flat]):
        make_optimiser(params, spec, CPU, [layer.weight]).step()
    assert torch.equal(layer.weight.permute(0, 3, 1, 2).reshape(2 * 4, 3 * 5), flat)


def test_a_step_knows_the_transforms_of_its_model() -> None:
    for asked in (False, True):
        step, _ = small_step("optimiser.kind=muon", f"optimiser.transforms={str(asked).lower()}")
        found = [p for group in step.optimiser.param_groups if group["kind"] == "transforms" for p in group["params"]]
        weight = step.model.get_submodule("capsules.layers.0").weight
        assert len(found) == asked
        assert all(p is weight for p in found)
