"""What the kernels of `_fit_triton` share: poses, votes and parents as tuples of components.

A component is a tensor over lanes (children, or rows and parents); a pose of C x K numbers is C * K of them. So the
small products of poses and transforms unroll into multiply-adds in registers, and nothing is summed across lanes.

A parent is described by a table, (B, rows / RUN, J, RUN), RUN = 4 where that divides D, else 1:
    head       log of its prior and scale, and backward K
    rows       centre (D), 1 / sigma^2 (D), and backward A (D), Q (D) of `_fit_backward`
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ..common.patches_triton import child_at, place_at

AHEAD = tl.constexpr(8)  # chunks read ahead of their sum
HEAD = tl.constexpr(4)  # rows before a table's first


@triton.jit
def _vector(p, mask, WIDTH: tl.constexpr):
    """WIDTH contiguous components, read at once: the kernels are bound by how many loads they issue."""
    q, m = p, mask
    if WIDTH > 1:
        q = tl.expand_dims(p, -1) + tl.arange(0, WIDTH)
        if mask is not None:
            m = tl.expand_dims(mask, -1)
    if mask is None:
        x = tl.load(q).to(tl.float32)
    else:
        x = tl.load(q, mask=m, other=0.0).to(tl.float32)
    if WIDTH == 1:
        out = (x,)
    elif WIDTH == 2:
        out = tl.split(x)
    else:
        if len(p.shape) == 1:
            x = tl.reshape(x, (p.shape[0], 2, 2))
        else:
            x = tl.reshape(x, (p.shape[0], p.shape[1], 2, 2))
        even, odd = tl.split(x)
        a, c = tl.split(even)
        b, d = tl.split(odd)
        out = (a, b, c, d)
    return out


@triton.jit
def load(p, step, mask, N: tl.constexpr, RUN: tl.constexpr):
    """N components in fp32: runs of RUN contiguous ones, `step` elements from run to run."""
    WIDTH: tl.constexpr = 4 if RUN % 4 == 0 else 2 if RUN % 2 == 0 else 1
    x = ()
    for n in tl.static_range(N // RUN):
        for k in tl.static_range(RUN // WIDTH):
            y = _vector(p + n * step + k * WIDTH, mask, WIDTH)
            for w in tl.static_range(WIDTH):
                x = x + (y[w],)
    return x


@triton.jit
def load_table(p, row, mask, N: tl.constexpr, J: tl.constexpr, RUN: tl.constexpr):
    """N rows of a parent's table, from `row` on."""
    return load(p + row * J, J * RUN, mask, N, RUN)


@triton.jit
def load_chunks(p, step, k, chunks, mask, N: tl.constexpr):
    """Components of chunks k, k + 1, ..., all under way at once; 0 past the last."""
    x = ()
    for n in tl.static_range(N):
        x = x + (tl.load(p + (k + n) * step, mask=mask & (k + n < chunks), other=0.0),)
    return x


@triton.jit
def pose_at(
    b, i, I, WIDTH: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr,
    PX: tl.constexpr, KERNEL: tl.constexpr, ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """Address of the pose of child i of row b: where it lies in the image, or, OH = 0, in (B, I, WIDTH)."""
    if OH == 0:
        at = (b * I + i) * WIDTH
    else:
        at = place_at(b, OH, OW, SB, PY, PX) + child_at(i, KERNEL, ST, SY, SX)
    return at


@triton.jit
def step_at(lo, step, x, ROWS: tl.constexpr, SPLIT: tl.constexpr):
    """Where the lanes x (ROWS * SPLIT, 1) of a walk from `lo` on are at a step: of one shape with what they address, so
    that nothing changes lanes."""
    at = lo + step * SPLIT
    if ROWS * SPLIT > 1:
        at += x % SPLIT
    return at


@triton.jit
def pair_at(i, j, J: tl.constexpr):
    """Of rows i and parents j, i J + j. Were it known to be contiguous, lanes would read it in another order than all
    else, and all else would change lanes at every step."""
    return tl.max_contiguous(i * J + j, [1, 1])


@triton.jit
def save(p, step, mask, x, N: tl.constexpr):
    for n in tl.static_range(N):
        tl.store(p + n * step, x[n].to(p.dtype.element_ty), mask=mask)


@triton.jit
def gather(p, step, mask, x, N: tl.constexpr, RUN: tl.constexpr, AGAIN: tl.constexpr):
    """Save N components, runs of RUN, `step` elements from run to run; AGAIN: add them to what is there."""
    y = x
    if AGAIN:  # all are read before any is written, which would have each read wait for the last
        y = ()
        for n in tl.static_range(N):
            y = y + (x[n] + tl.load(p + n // RUN * step + n % RUN, mask=mask, other=0.0).to(tl.float32),)
    for n in tl.static_range(N):
        tl.store(p + n // RUN * step + n % RUN, y[n].to(p.dtype.element_ty), mask=mask)


@triton.jit
def repeat(x, N: tl.constexpr):
    y = ()
    for _ in tl.static_range(N):
        y = y + (x,)
    return y


@triton.jit
def scaled(factor, x, y, N: tl.constexpr):
    """factor x y"""
    z = ()
    for n in tl.static_range(N):
        z = z + (factor * x[n] * y[n],)
    return z


@triton.jit
def plus(x, factor, y, N: tl.constexpr):
    """x + factor y"""
    z = ()
    for n in tl.static_range(N):
        z = z + (x[n] + factor * y[n],)
    return z


@triton.jit
def less(x, y, N: tl.constexpr):
    """x - y"""
    z = ()
    for n in tl.static_range(N):
        z = z + (x[n] - y[n],)
    return z


@triton.jit
def merged(x, N: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr):
    """Sums of what the SPLIT parts of each row found: (ROWS * SPLIT, parents) -> (ROWS, parents)."""
    y = ()
    for n in tl.static_range(N):
        if SPLIT == 1:
            y = y + (x[n],)
        else:
            y = y + (tl.sum(tl.reshape(x[n], (ROWS, SPLIT, x[n].shape[1])), 1),)
    return y


@triton.jit
def deviations(u, w, centre, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr):
    """u W - centre: u (C, K), W (K, H), centre (C, H). K = 0: u is the vote itself."""
    f = ()
    for c in tl.static_range(C):
        for h in tl.static_range(H):
            if K == 0:
                x = u[c * H + h] - centre[c * H + h]
            else:
                x = u[c * K] * w[h] - centre[c * H + h]  # one multiply-add
            for k in tl.static_range(1, K):
                x += u[c * K + k] * w[k * H + h]
            f = f + (x,)
    return f


@triton.jit
def mahalanobis(f, precision, D: tl.constexpr):
    """sum_d f_d^2 / sigma_d^2"""
    x = precision[0] * f[0] * f[0]
    for d in tl.static_range(1, D):
        x += precision[d] * f[d] * f[d]
    return x


@triton.jit
def distance(v, root, centre, D: tl.constexpr):
    """The same of a vote itself, from 1 / sigma and mu / sigma: sum_d (v_d / sigma_d - mu_d / sigma_d)^2"""
    x = 0.0
    for d in tl.static_range(D):
        y = v[d] * root[d] - centre[d]
        x += y * y
    return x


@triton.jit
def benefit(constant, f, a, q, D: tl.constexpr):
    """dL / dw_ij = K + sum_d f (A + Q f)"""
    x = constant
    for d in tl.static_range(D):
        x += f[d] * (a[d] + q[d] * f[d])
    return x


@triton.jit
def vote_gradient(w, ga, f, precision, a, q, D: tl.constexpr, DENSITY: tl.constexpr):
    """dL / dv = w (A + 2 Q f) - dL/da f / sigma^2"""
    g = ()
    for d in tl.static_range(D):
        slope = 2 * w * q[d]
        if DENSITY:
            slope -= ga * precision[d]
        g = g + (w * a[d] + slope * f[d],)
    return g


@triton.jit
def add_pose_gradient(total, g, w, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr):
    """total (C, K) + g (C, H) W (K, H)^T"""
    out = ()
    for c in tl.static_range(C):
        for k in tl.static_range(K):
            x = total[c * K + k]
            for h in tl.static_range(H):
                x += g[c * H + h] * w[k * H + h]
            out = out + (x,)
    return out


@triton.jit
def add_weight_gradient(total, u, g, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr):
    """total (K, H) + u (C, K)^T g (C, H)"""
    out = ()
    for k in tl.static_range(K):
        for h in tl.static_range(H):
            x = total[k * H + h]
            for c in tl.static_range(C):
                x += u[c * K + k] * g[c * H + h]
            out = out + (x,)
    return out
