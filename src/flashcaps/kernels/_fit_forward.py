r"""Forward kernels of `_fit_triton`: describe the parents, normalise over them, fit them.

    a_ij = prior_j - 1/2 sum_d [(v - mu)^2 / sigma^2 + log sigma^2],   Z_i = log sum_j exp a_ij
    w_ij = gate_i exp(a_ij - Z_i),   n_j = sum_i w_ij,   weighted mean and spread by Welford's update

`_normaliser` has a child per lane and walks over parents, `_moments` a parent per lane and walks over children: each
reduces along its walk. Walks are cut into chunks, whose moments `_finish` merges by Chan's rule.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._fit_lanes import AHEAD, HEAD, deviations, load, load_chunks, load_table, mahalanobis, repeat, save

LANES = 32  # a program is a warp: nothing crosses lanes, so nothing is gained by more
CHILDREN = {"normaliser": 1, "child_sums": 1, "child_gradients": 1}  # a lane: they share what is read of a parent
CHUNK_ELEMENTS = 1 << 15  # of W in a walk: programs on one multiprocessor then share it in their first-level cache


class Source(NamedTuple):
    """Where votes come from, in two layouts each; u None: the votes themselves, stored."""

    u: Tensor | None  # (B, G, R, C, K)
    by_parent: Tensor  # (G, K, J, H), or votes (B, I, J, D)
    by_child: Tensor  # (J, K, G, H), or votes (B, J, I, D)
    bias: Tensor | None = None  # (D, J): of every vote for a parent

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, I, J, R"""
        if self.u is None:
            b, i, j, _ = self.by_parent.shape
            return b, i, j, 1
        b, g, r, _, _ = self.u.shape
        return b, g * r, self.by_parent.shape[2], r

    @property
    def pose(self) -> tuple[int, int, int]:
        """C, K, H; K = 0 for stored votes, whose D is H."""
        if self.u is None:
            return 1, 0, self.by_parent.shape[3]
        return self.u.shape[3], self.u.shape[4], self.by_parent.shape[3]

    @property
    def dim(self) -> int:
        c, _, h = self.pose
        return c * h

    @property
    def options(self) -> dict[str, int]:
        """What kernels are compiled for."""
        c, k, h = self.pose
        return {"J": self.sizes[2], "C": c, "K": k, "H": h, "RUN": self.run}

    @property
    def groups(self) -> int:
        return 1 if self.u is None else self.u.shape[1]

    @property
    def one(self) -> bool:
        """Whether all children share one transform."""
        return self.u is not None and self.groups == 1

    @property
    def run(self) -> int:
        return 1 if self.dim % 4 else 4

    @property
    def poses(self) -> Tensor:
        """Something to point at where poses are not read."""
        return self.by_parent if self.u is None else self.u


class Walk(NamedTuple):
    """A tile of rows x parents, and how many steps each program walks."""

    rows: int
    parents: int
    steps: int

    def grid(self, rows: int, parents: int, length: int) -> tuple[int, int, int]:
        return triton.cdiv(rows, self.rows), triton.cdiv(parents, self.parents), triton.cdiv(length, self.steps)


def child_lanes(source: Source, kernel: str) -> int:
    """Children of a program, a warp."""
    return min(triton.next_power_of_2(source.sizes[1]), LANES * CHILDREN[kernel])


def walk_children(source: Source) -> Walk:
    """Chunks small enough to share W in cache and to fill a GPU, long enough to amortise what a walk begins with."""
    b, i, j, _ = source.sizes
    _, k, h = source.pose
    parents = min(triton.next_power_of_2(j), LANES)
    rows = LANES // parents
    programs = triton.cdiv(b, rows) * triton.cdiv(j, parents)
    steps = i if source.by_parent.shape[0] == 1 else max(CHUNK_ELEMENTS // max(j * k * h, 1), 16)
    busy = max(i * programs // 2048, 16)  # about 16 warps on each of a large GPU's multiprocessors
    return Walk(rows, parents, max(min(steps, busy, i), 1))


@triton.jit
def _describe(
    prior, mean, variance, bias, table, count, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr,
    BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = x < count
    b, j = x // J, x % J
    constant = tl.load(prior + x, mask=live, other=0.0).to(tl.float32)
    out = table + b * ((HEAD + 2 * D) * J) + j * RUN
    for d in tl.static_range(D):
        at = (b * D + d) * J + j
        var = tl.load(variance + at, mask=live, other=1.0)
        constant -= 0.5 * tl.log(var)
        p = out + (HEAD + d // RUN * RUN) * J + d % RUN
        centre = tl.load(mean + at, mask=live, other=0.0)
        if BIAS:
            centre -= tl.load(bias + d * J + j, mask=live, other=0.0)
        tl.store(p, centre, mask=live)
        tl.store(p + D * J, 1 / var, mask=live)
    tl.store(out, constant, mask=live)


@triton.jit
def _normaliser(
    u, w, table, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    if K > 0:
        pose = load(u + (b * I + i) * (C * K), 0, live, C * K, C * K)
    top = tl.full((BLOCK,), -3.0e38, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    row = table + b * ((HEAD + 2 * D) * J) + tl.arange(0, 1)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        if K > 0:
            uu, ww = pose, load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
        else:
            uu, ww = load(w + ((b * J + j) * I + i) * D, 0, live, D, D), ()
        f = deviations(uu, ww, load_table(row + j * RUN, HEAD, None, D, J, RUN), C, K, H)
        precision = load_table(row + j * RUN, HEAD + D, None, D, J, RUN)
        a = tl.load(row + j * RUN) - 0.5 * mahalanobis(f, precision, D)
        higher = tl.maximum(top, a)
        total = total * tl.exp(top - higher) + tl.exp(a - higher)
        top = higher
    tl.store(out + b * I + i, top + tl.log(total), mask=live)


@triton.jit
def _moments(
    u, w, table, first, normaliser, gate, beta, out, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, ROWS: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = C * H
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    here, there = b < B, j < J
    live = here & there
    zero = tl.full((ROWS, PARENTS), 0.0, tl.float32)
    row = table + b * ((HEAD + 2 * D) * J) + j * RUN
    if DENSITY:
        constant = tl.load(row, mask=live, other=0.0)
        centre = load_table(row, HEAD, live, D, J, RUN)
        precision = load_table(row, HEAD + D, live, D, J, RUN)
    n, score, mean, spread = zero, zero, repeat(zero, D), repeat(zero, D)
    none = repeat(0.0, D)
    if ONE:
        transform = load(w + j * H, J * H, there, K * H, H)
    lo = tl.program_id(2) * steps
    for i in tl.range(lo, tl.minimum(lo + steps, I), loop_unroll_factor=4 if D <= 4 else 1):
        if K == 0:
            uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
        elif ONE:
            uu, ww = load(u + (b * I + i) * (C * K), 0, here, C * K, C * K), transform
        else:
            uu = load(u + (b * I + i) * (C * K), 0, here, C * K, C * K)
            ww = load(w + i // R * (K * J * H) + j * H, J * H, there, K * H, H)
        v = deviations(uu, ww, none, C, K, H)
        use = tl.load(gate + b * I + i, mask=here, other=0.0)
        if DENSITY:
            a = constant - 0.5 * mahalanobis(deviations(v, (), centre, 1, 0, D), precision, D)
            z = tl.load(normaliser + b * I + i, mask=here, other=0.0)
            use = tl.where(live, use * tl.exp(a - z), 0.0)
        elif FIRST:
            use = use * tl.load(first + i * J + j, mask=there, other=0.0)
        else:
            use = use * (1.0 / J) + zero
        if SCORE:
            score += use * tl.load(beta + i * J + j, mask=there, other=0.0)
        total = n + use
        step = use / tl.where(total > 0, total, 1.0)
        keep = n * step
        m, s = (), ()
        for d in tl.static_range(D):
            delta = v[d] - mean[d]
            m = m + (mean[d] + step * delta,)
            s = s + (spread[d] + keep * delta * delta,)
        n, mean, spread = total, m, s
    p = out + ((tl.program_id(2) * B + b) * (2 * D + 2)) * J + j
    tl.store(p, n, mask=live)
    tl.store(p + J, score, mask=live)
    save(p + 2 * J, J, live, mean, D)
    save(p + (2 + D) * J, J, live, spread, D)


@triton.jit
def _finish(
    parts, bias, weight, score, mean, variance, eps, count, chunks,
    J: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (b, d, j)
    live = x < count
    b, d, j = x // (D * J), x // J % D, x % J
    stride = (count // D) * (2 * D + 2)
    p = parts + b * ((2 * D + 2) * J) + j
    n = tl.full((BLOCK,), 0.0, tl.float32)
    benefit, total, spread, shift = n, n, n, n
    if BIAS:
        shift = tl.load(bias + d * J + j, mask=live, other=0.0)
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        more = load_chunks(p + J, stride, k, chunks, live, AHEAD)
        m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            n += own[c]
            benefit += more[c]
            total += own[c] * m[c]
    divisor = tl.where(live, n + eps, 1.0)
    centre = (total + n * shift) / divisor
    within = centre - shift  # of votes without their bias, as chunks have them
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


def describe(source: Source, prior: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The forward table (B, (4 + 2 D) / RUN, J, RUN)."""
    b, d, j = mean.shape
    run = source.run
    table = torch.empty(b, (HEAD.value + 2 * d) // run, j, run, device=mean.device)
    grid = (triton.cdiv(b * j, 64),)
    _describe[grid](
        prior, mean, variance, _or(source.bias, table), table, b * j, J=j, D=d, RUN=run,
        BIAS=source.bias is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return table


def normaliser(source: Source, table: Tensor) -> Tensor:
    """Z_i = log sum_j exp a_ij, (B, I)."""
    b, i, _, r = source.sizes
    out = torch.empty(b, i, device=table.device)
    lanes = child_lanes(source, "normaliser")
    _normaliser[(b, triton.cdiv(i, lanes))](
        source.poses, source.by_child, table, out, i, r, G=source.groups, BLOCK=lanes, **source.options, num_warps=1
    )
    return out


def moments(
    source: Source, parents: tuple[Tensor | None, ...], gate: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight (B, J), mean and variance (B, D, J), score (B, J). parents: table, normaliser, first coupling."""
    b, i, j, r = source.sizes
    d = source.dim
    table, z, first = parents
    walk = walk_children(source)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 2, j, device=gate.device)
    none = gate
    _moments[grid](
        source.poses, source.by_parent, _or(table, none), _or(first, none), _or(z, none), gate, _or(beta, none), parts,
        b, i, r, walk.steps, ROWS=walk.rows, PARENTS=walk.parents, **source.options,
        DENSITY=table is not None, FIRST=first is not None, SCORE=beta is not None, ONE=source.one, num_warps=1,
    )  # fmt: skip
    weight, score = torch.empty(b, j, device=gate.device), torch.empty(b, j, device=gate.device)
    mean, variance = torch.empty(b, d, j, device=gate.device), torch.empty(b, d, j, device=gate.device)
    _finish[(triton.cdiv(b * d * j, 64),)](
        parts, _or(source.bias, parts), weight, score, mean, variance, eps, b * d * j, grid[2], J=j, D=d,
        BIAS=source.bias is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return weight, mean, variance, score


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x
