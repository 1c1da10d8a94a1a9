"""Triton kernels around `attend` in attention's iterations: partial sums added up, LayerNorm, and its gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.norm_triton import _standardised
from .squash import _sum_of_rows


@triton.jit
def finish(
    parts, gamma, beta, s, out, chunks, rows, scale, eps, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
    CT: tl.constexpr, NORM: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """s = sum of parts, written if STORE, and scale LayerNorm(s); rows (b, j)."""
    r = (tl.program_id(0) * RT + tl.arange(0, RT))[:, None]
    k = tl.arange(0, DP)[None, :]
    at, inside = r * D + k, (r < rows) & (k < D)
    x = _sum_of_rows(parts, at, inside, chunks, rows * D, CT)
    if STORE:
        tl.store(s + at, x, inside)
    if NORM:
        x, _ = _standardised(x, inside, eps, D)
        x = x * tl.load(gamma + k, k < D, 0.0).to(tl.float32) + tl.load(beta + k, k < D, 0.0).to(tl.float32)
    tl.store(out + at, (x * scale).to(out.dtype.element_ty), inside)


@triton.jit
def unfinish(
    parts, gamma, s, gs, sums, chunks, rows, tiles, scale, eps, D: tl.constexpr, DP: tl.constexpr,
    RT: tl.constexpr, CT: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """gs from the gradient of `finish`'s output, scale (sum of parts); sums (programs, 2, D): of gamma's and beta's
    gradients, each over the tiles that a program walks through.
    """
    k = tl.arange(0, DP)[None, :]
    of_gamma = tl.zeros((RT, DP), tl.float32)
    of_beta = tl.zeros((RT, DP), tl.float32)
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        r = (t * RT + tl.arange(0, RT))[:, None]
        at, inside = r * D + k, (r < rows) & (k < D)
        g = _sum_of_rows(parts, at, inside, chunks, rows * D, CT) * scale
        if NORM:
            x, rstd = _standardised(tl.load(s + at, inside, 0.0), inside, eps, D)
            of_gamma += g * x
            of_beta += g
            g *= tl.load(gamma + k, k < D, 0.0).to(tl.float32)
            g = rstd * (g - tl.sum(g, 1)[:, None] / D - x * (tl.sum(g * x, 1)[:, None] / D))
        tl.store(gs + at, g.to(gs.dtype.element_ty), inside)
    if NORM:
        p = sums + tl.program_id(0) * (2 * D) + tl.arange(0, DP)
        tl.store(p, tl.sum(of_gamma, 0), tl.arange(0, DP) < D)
        tl.store(p + D, tl.sum(of_beta, 0), tl.arange(0, DP) < D)
