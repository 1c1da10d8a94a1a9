"""Muon against torch's, its orthogonal steps against a singular value decomposition."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flashcaps.training.muon import Muon, orthogonalise
from flashcaps.training.optim import make_optimiser
from flashcaps.training.recipe import Optimiser


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


def weights() -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(size)) for size in [(6, 4), (3, 7), (5,), (6, 4)]]


def test_is_torchs_and_adamw_for_vectors() -> None:
    ours, theirs = weights(), weights()
    muon = Muon(ours, 0.02, momentum=0.9, betas=(0.8, 0.95), weight_decay=0.3)
    matrices = [p for p in theirs if p.ndim == 2]
    other = torch.optim.Muon(matrices, 0.02, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([theirs[2]], 0.02, betas=(0.8, 0.95), weight_decay=0.3)
    for step in range(4):
        torch.manual_seed(step)
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimiser in (muon, other, adamw):
            optimiser.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, atol=2e-3 if p.ndim == 2 else 1e-6, rtol=0)  # steps of 0.01 in bf16


def test_a_convolution_is_a_matrix_of_its_outputs_in_any_memory_order() -> None:
    torch.manual_seed(0)
    g = torch.randn(4, 3, 2, 2)
    moved = []
    for weight in (torch.zeros(4, 12), torch.zeros(4, 3, 2, 2),
                   torch.zeros(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)):  # fmt: skip
        p = nn.Parameter(weight)
        p.grad = g.view(weight.shape).contiguous(
            memory_format=torch.contiguous_format if weight.is_contiguous() else torch.channels_last
        )
        Muon([p], 0.1).step()
        moved.append(p.detach().reshape(4, 12))
    assert torch.equal(moved[0], moved[1])
    torch.testing.assert_close(moved[0], moved[2], atol=1e-3, rtol=0)


def test_nothing_changes_where_something_was_not_finite() -> None:
    params = weights()
    muon = Muon(params, 0.1)
    for p in params:
        p.grad = torch.randn_like(p)
    muon.step()
    before = [p.detach().clone() for p in params]
    kept = copy.deepcopy(muon.state_dict()["state"])
    muon.found_inf = torch.ones(())
    for p in params:
        p.grad = torch.full_like(p, float("nan"))
    muon.step()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    for k, state in muon.state_dict()["state"].items():
        assert all(torch.equal(state[name], kept[k][name]) for name in state)
    muon.found_inf = torch.zeros(())
    for p in params:
        p.grad = torch.ones_like(p)
    muon.step()
    assert all(not torch.equal(p, b) for p, b in zip(params, before, strict=True))


def test_made_from_a_recipe() -> None:
    spec = Optimiser("muon", lr=0.01, momentum=0.9, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2)
    made = make_optimiser(weights(), spec, torch.device("cpu"))
    assert isinstance(made, Muon)
    for group in made.param_groups:
        assert (group["lr"], group["momentum"], group["betas"], group["eps"], group["decay"]) == (
            0.01, 0.9, (0.8, 0.9), 1e-6, 0.2)  # fmt: skip
