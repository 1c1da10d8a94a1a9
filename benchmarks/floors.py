"""What a step costs at least: bytes through memory and operations of each unit, over the rates this device reaches.

Each input is read and each output written once per pass; votes are counted as arithmetic, never as bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cost:
    """Of one forward + backward: bytes moved, operations in matrix products and outside of them."""

    moved: float = 0.0
    products: float = 0.0
    other: float = 0.0

    def __add__(self, more: Cost) -> Cost:
        return Cost(self.moved + more.moved, self.products + more.products, self.other + more.other)

    def floor_ms(self, rates: dict[str, float], precision: str) -> float:
        """The slowest unit's time, as if all ran at once."""
        unit = "bf16" if precision == "bf16" else "tf32"
        return 1e3 * max(self.moved / rates["bytes"], self.products / rates[unit], self.other / rates["fp32"])


def layer_cost(layer: Any, batch: int, children: int, element: int = 4) -> Cost:
    """Of a capsule layer on a batch (times the places of a convolution) of `children` each."""
    j, d, g, h = layer.weight.shape
    c, d = layer.rows, d + (0 if layer.bias is None else 1)
    votes = float(batch * children * j)
    product = 2 * votes * c * d * h  # one product of c_ij u_i, or of a parent's vector, with W_ij
    iterations = layer.routing.iterations
    u, w, v = batch * children * c * d, j * d * g * h, batch * j * c * h
    moved = element * (3.0 * (u + w) + 2 * v)  # read forward, read backward, gradient written; pose and its gradient
    if layer.name in ("em", "heinsen"):
        # votes forward, and backward again with the gradients of poses and weights; 6 operations an element of a vote
        # for moments and density, 9 for their gradients, a multiply and an add each
        return Cost(moved, 4 * product * iterations, 2 * votes * c * h * 15 * iterations)
    coupled = 0 if layer.name == "discriminative" else iterations - 1  # steps with an agreement
    plain = 1 if layer.name == "discriminative" else iterations - coupled
    # plain: s, and the gradients of poses and weights; coupled: agreement, s, and backward the four of both factors
    return Cost(moved, product * (3 * plain + 6 * coupled), 12 * votes * coupled)


def timed(run: Any, repeats: int, device: str) -> float:
    """Seconds of one call, the best of three rounds."""
    run()
    best = float("inf")
    for _ in range(3):
        _wait(device)
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        _wait(device)
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure_rates(device: str) -> dict[str, float]:
    """What a copy, matrix products and multiply-adds reach here, on random numbers."""
    large = device == "cuda"
    n, repeats = (1 << 28, 10) if large else (1 << 22, 2)
    x, y = torch.randn(n, device=device), torch.empty(n, device=device)
    rates = {"bytes": 2 * x.nbytes / timed(lambda: y.copy_(x), repeats, device)}
    m = 8192 if large else 256
    before = torch.get_float32_matmul_precision()

    def products(a: Tensor, b: Tensor, precision: str) -> float:
        torch.set_float32_matmul_precision(precision)
        return 2.0 * m**3 / timed(lambda: a @ b, repeats, device)

    a, b = torch.randn(2, m, m, device=device)
    rates["tf32"] = products(a, b, "high")
    rates["bf16"] = products(a.bfloat16(), b.bfloat16(), "high")
    rates["fp32"] = products(a, b, "highest")  # without matrix units: what multiply-adds reach
    torch.set_float32_matmul_precision(before)
    return rates
