r"""Forward kernels of `_fit_triton`: fit the parents, describe them, normalise over them.

    a_ij = prior_j - 1/2 sum_d [(v - mu)^2 / sigma^2 + log sigma^2],   Z_i = log sum_j exp a_ij
    w_ij = gate_i exp(a_ij - Z_i),   n_j = sum_i w_ij,   weighted mean and spread by Welford's update
    logit_j = lambda [offset_j + n_j (slope_j - 1/2 sum_d log sigma^2)] + sum_i beta_ij w_ij,   prior = log sigmoid

`_normaliser` has a child per lane and walks over parents, `_moments` a parent per lane and walks over children: each
reduces along its walk. Walks are shared out and cut as `_fit_source` plans; parts merge by Chan's rule.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles as tiles
from .lanes import (
    AHEAD,
    HEAD,
    deviations,
    distance,
    less,
    load,
    load_chunks,
    load_table,
    mahalanobis,
    merged,
    pair_at,
    pose_at,
    repeat,
    save,
    step_at,
)
from .source import LANES, Source, walk_children, walk_tiles

CHILDREN = {"normaliser": 1, "child_sums": 1, "child_gradients": 1}  # a lane: they share what is read of a parent


class Rule(NamedTuple):
    """What makes a parent's logit of its fit. spread: whether log sigma^2 has a part in it, as in em."""

    offset: Tensor | None  # (B, J)
    slope: Tensor | None  # (J,)
    spread: bool

    def pointers(self, none: Tensor) -> tuple[Tensor, Tensor]:
        return none if self.offset is None else self.offset, none if self.slope is None else self.slope

    @property
    def options(self) -> dict[str, bool]:
        return {"OFFSET": self.offset is not None, "SLOPE": self.slope is not None, "SPREAD": self.spread}


def child_lanes(source: Source, kernel: str) -> int:
    """Children of a program, a warp."""
    return min(triton.next_power_of_2(source.sizes[1]), LANES * CHILDREN[kernel])


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def _describe(
    weight, benefit, mean, variance, offset, slope, shift, logit, table, scale, count, J: tl.constexpr, D: tl.constexpr,
    RUN: tl.constexpr, OFFSET: tl.constexpr, SLOPE: tl.constexpr, SPREAD: tl.constexpr, BENEFIT: tl.constexpr,
    SHIFT: tl.constexpr, TABLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logits, and for another iteration the table that its kernels read."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = x < count
    b, j = (x // J).to(tl.int64), x % J
    out = table + b * ((HEAD + 2 * D) * J) + j * RUN
    spread = tl.full((BLOCK,), 0.0, tl.float32)
    for d in tl.static_range(D):
        at = (b * D + d) * J + j
        var = tl.load(variance + at, mask=live, other=1.0)
        spread += 0.5 * tl.log(var)
        if TABLE:
            p = out + (HEAD + d // RUN * RUN) * J + d % RUN
            centre = tl.load(mean + at, mask=live, other=0.0)
            if SHIFT:
                centre -= tl.load(shift + d * J + j, mask=live, other=0.0)
            tl.store(p, centre, mask=live)
            tl.store(p + D * J, 1 / var, mask=live)
    each = tl.full((BLOCK,), 0.0, tl.float32)  # what a unit of weight adds
    if SLOPE:
        each += tl.load(slope + j, mask=live, other=0.0)
    if SPREAD:
        each -= spread
    a = tl.load(weight + x, mask=live, other=0.0) * each
    if OFFSET:
        a += tl.load(offset + x, mask=live, other=0.0)
    a = scale * a
    if BENEFIT:
        a += tl.load(benefit + x, mask=live, other=0.0)
    tl.store(logit + x, a, mask=live)
    if TABLE:
        tl.store(out, log_sigmoid(a) - spread, mask=live)


@triton.jit
def _normaliser(
    u, w, own, table, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    if K > 0:
        pose = load(u + pose_at(b, i, I, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX), 0, live, C * K, C * K)
    top = tl.full((BLOCK,), -3.0e38, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    row = table + b * ((HEAD + 2 * D) * J) + tl.arange(0, 1)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        centre = load_table(row + j * RUN, HEAD, None, D, J, RUN)
        if K > 0:
            uu, ww = pose, load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
            if OWN:
                centre = less(centre, load(own + j * (C * G * H) + i // R * H, G * H, live, D, H), D)
        else:
            uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
        f = deviations(uu, ww, centre, C, K, H)
        precision = load_table(row + j * RUN, HEAD + D, None, D, J, RUN)
        a = tl.load(row + j * RUN) - 0.5 * mahalanobis(f, precision, D)
        higher = tl.maximum(top, a)
        total = total * tl.exp(top - higher) + tl.exp(a - higher)
        top = higher
    tl.store(out + b * I + i, top + tl.log(total), mask=live)


@triton.jit
def scales(mean, precision, D: tl.constexpr):
    """1 / sigma, mu / sigma"""
    x, y = (), ()
    for d in tl.static_range(D):
        root = tl.sqrt(precision[d])
        x = x + (root,)
        y = y + (mean[d] * root,)
    return x, y


@triton.jit
def _moments(
    u, w, own, table, first, normaliser, gate, beta, out, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, ONE: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = C * H
    x = tl.arange(0, ROWS * SPLIT)[:, None]
    b = (tl.program_id(0) * ROWS + x // SPLIT).to(tl.int64)
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    there = j < J
    zero = tl.full((ROWS * SPLIT, PARENTS), 0.0, tl.float32)
    row = table + b * ((HEAD + 2 * D) * J) + j * RUN
    if DENSITY:
        live = (b < B) & there
        constant = tl.load(row, mask=live, other=0.0)
        root, centre = scales(load_table(row, HEAD, live, D, J, RUN), load_table(row, HEAD + D, live, D, J, RUN), D)
    n, score, mean, spread = zero, zero, repeat(zero, D), repeat(zero, D)
    none = repeat(0.0, D)
    if ONE:
        transform = load(w + j * H, J * H, there, K * H, H)
    lo = tl.program_id(2) * steps * SPLIT
    for t in tl.range(tl.minimum(steps, tl.cdiv(I - lo, SPLIT)), loop_unroll_factor=4 if D <= 4 else 1):
        i = step_at(lo, t, x, ROWS, SPLIT)
        here, known = (b < B) & (i < I), there & (i < I)
        live = here & there
        shift = none
        if K == 0:
            uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
        elif ONE:
            uu, ww = load(u + (b * I + i) * (C * K), 0, here, C * K, C * K), transform
        else:
            uu = load(u + pose_at(b, i, I, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX), 0, here, C * K, C * K)
            ww = load(w + i // R * (K * J * H) + j * H, J * H, known, K * H, H)
            if OWN:
                shift = less(none, load(own + i // R * (C * J * H) + j * H, J * H, known, D, H), D)
        v = deviations(uu, ww, shift, C, K, H)
        use = tl.load(gate + b * I + i, mask=here, other=0.0)
        if DENSITY:
            a = constant - 0.5 * distance(v, root, centre, D)
            z = tl.load(normaliser + b * I + i, mask=here, other=0.0)
            use = use * tl.exp(tl.where(live, a - z, -3.0e38))
        elif FIRST:
            use = use * tl.load(first + pair_at(i, j, J), mask=known, other=0.0)
        else:
            use = use * (1.0 / J) + zero
        if SCORE:
            score += use * tl.load(beta + pair_at(i, j, J), mask=known, other=0.0)
        total = n + use
        step = use / tl.where(total > 0, total, 1.0)
        keep = n * step
        m, s = (), ()
        for d in tl.static_range(D):
            delta = v[d] - mean[d]
            m = m + (mean[d] + step * delta,)
            s = s + (spread[d] + keep * delta * delta,)
        n, mean, spread = total, m, s
    if SPLIT > 1:  # Chan's rule
        total = tl.expand_dims(merged((n,), 1, ROWS, SPLIT)[0], 1)
        share = tl.reshape(n, (ROWS, SPLIT, PARENTS)) / tl.where(total > 0, total, 1.0)
        m, s = (), ()
        for d in tl.static_range(D):
            own_mean = tl.reshape(mean[d], (ROWS, SPLIT, PARENTS))
            centre_d = tl.sum(share * own_mean, 1)
            off = own_mean - tl.expand_dims(centre_d, 1)
            m = m + (centre_d,)
            s = s + (tl.sum(tl.reshape(spread[d], (ROWS, SPLIT, PARENTS)) + total * share * off * off, 1),)
        n, score = merged((n, score), 2, ROWS, SPLIT)
        mean, spread = m, s
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    live = (b < B) & there
    p = out + ((tl.program_id(2) * B + b) * (2 * D + 2)) * J + j
    tl.store(p, n, mask=live)
    tl.store(p + J, score, mask=live)
    save(p + 2 * J, J, live, mean, D)
    save(p + (2 + D) * J, J, live, spread, D)


@triton.jit
def _finish(
    parts, shift, weight, score, mean, variance, eps, count, chunks,
    J: tl.constexpr, D: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (b, d, j)
    live = x < count
    b, d, j = x // (D * J), x // J % D, x % J
    stride = (count // D) * (2 * D + 2)
    p = parts + b * ((2 * D + 2) * J) + j
    n = tl.full((BLOCK,), 0.0, tl.float32)
    benefit, total, spread, moved = n, n, n, n
    if SHIFT:
        moved = tl.load(shift + d * J + j, mask=live, other=0.0)
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        more = load_chunks(p + J, stride, k, chunks, live, AHEAD)
        m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            n += own[c]
            benefit += more[c]
            total += own[c] * m[c]
    divisor = tl.where(live, n + eps, 1.0)
    centre = (total + n * moved) / divisor
    within = centre - moved  # of votes without their bias, as chunks have them
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
        m2 = load_chunks(p + (2 + D + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            spread += m2[c] + own[c] * (m[c] - within) * (m[c] - within)
    tl.store(weight + b * J + j, n, mask=live & (d == 0))
    tl.store(score + b * J + j, benefit, mask=live & (d == 0))
    tl.store(mean + x, centre, mask=live)
    tl.store(variance + x, spread / divisor + eps, mask=live)


class Found(NamedTuple):
    """What an iteration finds, where it is kept."""

    mean: Tensor  # (B, D, J)
    variance: Tensor  # (B, D, J)
    logit: Tensor  # (B, J)
    weight: Tensor  # (B, J)


def moments(
    source: Source, parents: tuple[Tensor | None, ...], gate: Tensor, beta: Tensor | None, eps: float, out: Found
) -> Tensor | None:
    """Weight, mean and variance; sum_i beta w (B, J). parents: table, normaliser, first coupling."""
    b, i, j, r = source.sizes
    d = source.dim
    table, z, first = parents
    registers = 32 + (6 if source.own_by_parent is None else 8) * d
    walk = walk_tiles(source, 6) if source.tiled else walk_children(source, registers)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 2, j, device=gate.device)
    none = gate
    given = (*(_or(x, none) for x in (table, first, z, gate, beta)), parts, b, i, r, walk.steps)
    known = {"DENSITY": table is not None, "FIRST": first is not None, "SCORE": beta is not None}
    if source.tiled:
        tiles.wide_moments[grid](source.by_parent, *given, **source.options, **known)
    else:
        _moments[grid](
            *source.by_parents, *given, **walk.options, **source.options, **source.where, **known, ONE=source.one
        )
    score = torch.empty(b, j, device=gate.device)
    _finish[(triton.cdiv(b * d * j, 64),)](
        parts, _or(source.shift, parts), out.weight, score, out.mean, out.variance, eps, b * d * j, grid[2], J=j, D=d,
        SHIFT=source.shift is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return None if beta is None else score


def describe(
    source: Source, rule: Rule, out: Found, benefit: Tensor | None, scale: float, last: bool
) -> Tensor | None:
    """Logits; and unless these parents are the last, the forward table (B, (4 + 2 D) / RUN, J, RUN)."""
    b, d, j = out.mean.shape
    run, none = source.run, out.logit
    table = None if last else torch.empty(b, (HEAD.value + 2 * d) // run, j, run, device=none.device)
    _describe[(triton.cdiv(b * j, 64),)](
        out.weight, _or(benefit, none), out.mean, out.variance, *rule.pointers(none), _or(source.shift, none),
        out.logit, _or(table, none), scale, b * j, J=j, D=d, RUN=run, **rule.options, BENEFIT=benefit is not None,
        SHIFT=source.shift is not None, TABLE=not last, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return table


def normaliser(source: Source, table: Tensor, out: Tensor) -> Tensor:
    """Z_i = log sum_j exp a_ij, (B, I)."""
    b, i, _, r = source.sizes
    if source.tiled:
        tiles.wide_normaliser[(b * i,)](source.by_parent, table, out, b, i, r, **source.options)
        return out
    lanes = child_lanes(source, "normaliser")
    _normaliser[(b, triton.cdiv(i, lanes))](
        *source.by_children, table, out, i, r, G=source.groups, BLOCK=lanes, **source.options, **source.where,
        num_warps=1,
    )  # fmt: skip
    return out


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x
