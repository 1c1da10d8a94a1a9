"""Does every algorithm give the same here, whatever computes it? A small layer, each backend against the reference."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .capsule_layer import BACKENDS
from .layers import DenseCapsules
from .routing import ROUTING

TOLERANCE = 1e-3  # of the largest element; TF32 products stay within it


class Comparison(NamedTuple):
    algorithm: str
    backend: str
    output: float  # largest differences, as shares of the largest element
    gradient: float

    @property
    def ok(self) -> bool:
        return self.output <= TOLERANCE and self.gradient <= TOLERANCE  # false for NaN


def compare_backends(device: torch.device | str = "cpu") -> list[Comparison]:
    """Outputs and weight gradients of a 96 x 8 -> 10 x 16 layer, for every algorithm and every backend it has."""
    rows = []
    for name in ROUTING:
        reference = _run(name, "reference", device)
        for backend in BACKENDS:
            if backend in ("auto", "reference"):
                continue
            if backend == "triton" and torch.device(device).type != "cuda":
                continue  # elsewhere there is only its interpreter, which is for tests
            try:
                other = _run(name, backend, device)
            except ValueError:  # this algorithm has no such form, or it cannot run here
                continue
            output, gradient = (_off(a, b) for a, b in zip(other, reference, strict=True))
            rows.append(Comparison(name, backend, output, gradient))
    return rows


def _run(name: str, backend: str, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = DenseCapsules(name, in_capsules=96, in_dim=8, out_capsules=10, out_dim=16, backend=backend).to(device)
    u = torch.randn(4, 96, 8).to(device)
    pose = layer(u).pose
    (pose * torch.randn(4, 10, 16).to(device)).sum().backward()
    assert layer.weight.grad is not None
    return pose.detach(), layer.weight.grad


def _off(x: torch.Tensor, expected: torch.Tensor) -> float:
    return float((x - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
