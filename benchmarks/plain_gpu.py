"""Tiles of the products of equal couplings (`kernels.attend.uniform`), side by side on a CUDA device. One command:

    python -m benchmarks.attend_gpu --plain

Round k gives each of the three kernels its k-th candidate; all rounds are compiled at once, each in a process. A row is
a kernel's time under the profiler, its error against fp64 as ||x - y|| / ||y||, and what else ran (copies of weights,
sums of partial sums). What is best here belongs in `kernels/attend/plan.py`: FEW_ROWS and MANY_ROWS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from flashcaps.kernels.attend import plan
from flashcaps.kernels.attend.launch import Launch, sum_parts, tf32_gain

KERNELS = ("uniform_sum", "uniform_pose_gradient", "uniform_weight_gradient")
RUNS = 10


class Shape(NamedTuple):
    name: str
    sizes: plan.Sizes
    candidates: dict[str, list[plan.UniformTile]]
    copied: bool  # weights, first


def _tiles(*rows: tuple[int, ...]) -> list[plan.UniformTile]:
    return [plan.UniformTile(*row) for row in rows]


# rows, columns, parents' columns, warps, stages, programs of a multiprocessor
MANY = {
    "uniform_sum": _tiles(
        (128, 32, 128, 8, 3, 2), (128, 32, 128, 4, 3, 2), (64, 32, 128, 4, 3, 3), (64, 32, 128, 4, 4, 2),
        (128, 64, 128, 8, 2, 1), (128, 32, 128, 8, 4, 1), (64, 64, 128, 4, 2, 2), (256, 32, 128, 8, 3, 1),
    ),
    "uniform_pose_gradient": _tiles(
        (128, 64, 32, 4, 3, 2), (128, 64, 64, 4, 2, 2), (128, 32, 32, 4, 3, 3), (128, 64, 32, 8, 3, 2),
        (64, 64, 32, 4, 3, 4), (128, 128, 32, 8, 3, 1), (64, 128, 32, 4, 3, 2), (64, 64, 64, 4, 2, 3),
    ),
    "uniform_weight_gradient": _tiles(
        (32, 64, 128, 4, 3, 3), (32, 128, 128, 8, 3, 2), (64, 64, 128, 4, 2, 2), (32, 64, 128, 4, 4, 2),
        (64, 128, 128, 8, 2, 1), (32, 64, 64, 4, 3, 4), (32, 128, 64, 4, 3, 2), (32, 64, 128, 8, 3, 2),
    ),
}  # fmt: skip
SMALL = _tiles(
    (64, 64, 32, 2, 3, 4), (64, 64, 32, 4, 3, 4), (128, 64, 32, 4, 3, 2), (64, 32, 32, 2, 3, 8),
    (64, 64, 64, 4, 3, 2), (64, 128, 32, 4, 3, 2), (32, 64, 32, 2, 3, 4), (64, 64, 32, 2, 4, 3),
)  # fmt: skip
SHAPES = [
    Shape("attention 288x4x4 -> 32x4x4, B 6272", plan.Sizes(6272, 288, 32, 4, 4, 4), MANY, True),
    Shape("capsnet 1152x8 -> 10x16, B 128", plan.Sizes(128, 1152, 10, 1, 8, 16), dict.fromkeys(KERNELS, SMALL), False),
]
ROUNDS = len(SMALL)


def draw(n: plan.Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """u, weight, and the gradient of s."""
    sizes = (n.b, n.g, 1, n.c, n.d), (n.j, n.d, n.g, n.h), (n.b, n.j, n.c * n.h)
    return tuple(torch.randn(size, device="cuda") for size in sizes)  # type: ignore[return-value]


def use(shape: Shape, k: int) -> None:
    """Candidate k of each kernel from here on."""
    plan.uniform = lambda kernel, n: shape.candidates[kernel][k]
    plan.ROWS = 1 if shape.copied else 1 << 60


def products(u: Tensor, weight: Tensor, gs: Tensor) -> list[Tensor]:
    """s, gu and gW."""
    step = Launch(u, weight, None)
    s = sum_parts(step.forward(u.new_empty(0)), torch.float32)
    into = step.gradients(torch.float32, alone=True)
    step.backward(gs, u.new_empty(0), into, again=False)
    return [s, into[0], sum_parts(into[1], torch.float32)]


def expected(u: Tensor, weight: Tensor, gs: Tensor) -> list[Tensor]:
    """The same in fp64, by matrices (b c, i k) and (i k, j h)."""
    (b, g, _, c, d), (j, _, _, h) = u.shape, weight.shape
    rows = u.double()[:, :, 0].permute(0, 2, 1, 3).reshape(b * c, g * d)
    w = weight.double().permute(2, 1, 0, 3).reshape(g * d, j * h)
    grad = gs.double().view(b, j, c, h).permute(0, 2, 1, 3).reshape(b * c, j * h)
    s = (rows @ w).view(b, c, j, h).permute(0, 2, 1, 3).reshape(b, j, c * h)
    gu = (grad @ w.t()).view(b, c, g, d).permute(0, 2, 1, 3).reshape(u.shape)
    gw = (rows.t() @ grad).view(g, d, j, h).permute(2, 1, 0, 3)
    return [x / j for x in (s, gu, gw)]


def times(inputs: tuple[Tensor, Tensor, Tensor]) -> dict[str, float]:
    """us of each kernel of one run."""
    products(*inputs)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(RUNS):
            products(*inputs)
        torch.cuda.synchronize()
    return {e.key: e.self_device_time_total / RUNS for e in profile.key_averages() if e.self_device_time_total > 0}


def measure(shape: Shape) -> None:
    inputs = draw(shape.sizes)
    exact = expected(*inputs)
    found: dict[str, list[tuple[float, plan.UniformTile]]] = {kernel: [] for kernel in KERNELS}
    print(f"\n{shape.name}, tf32 (corrected by {tf32_gain(inputs[0]) - 1:.1e})")
    for k in range(ROUNDS):
        use(shape, k)
        try:
            results, us = products(*inputs), times(inputs)
        except Exception as error:  # a tile too large for this device is a row of its own
            print(f"  round {k}: {repr(error)[:150]}")
            continue
        rest = sum(us.values()) - sum(us.get(kernel, 0.0) for kernel in KERNELS)
        for kernel, x, y in zip(KERNELS, results, exact, strict=True):
            far, tile = float((x.double() - y).norm() / y.norm()), shape.candidates[kernel][k]
            taken = us.get(kernel, float("inf"))
            found[kernel].append((taken, tile))
            print(f"  {kernel:<23}{tuple(tile)!s:<28}{taken:>8.1f} us, off by {far:.0e}; rest {rest:.1f}")
    for kernel, rows in found.items():
        if rows:
            best, tile = min(rows)
            print(f"best {kernel:<23}{best:>8.1f} us  {tile}", flush=True)


def sweep() -> None:
    """Compile all rounds side by side, then time them one after the other."""
    torch.set_float32_matmul_precision("high")
    command = [sys.executable, "-m", "benchmarks.plain_gpu", "--warm"]
    for process in [subprocess.Popen([*command, str(k)]) for k in range(len(SHAPES) * ROUNDS)]:
        process.wait()
    for shape in SHAPES:
        measure(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, help="compile one round of one shape")
    args = parser.parse_args()
    if args.warm is None:
        return sweep()
    torch.set_float32_matmul_precision("high")
    shape = SHAPES[args.warm // ROUNDS]
    use(shape, args.warm % ROUNDS)
    try:
        products(*draw(shape.sizes))
        torch.cuda.synchronize()
    except Exception as error:  # met again where it is shown
        print(f"warm {args.warm}: {repr(error)[:150]}")


if __name__ == "__main__":
    main()
