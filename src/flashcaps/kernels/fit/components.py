"""Device functions the kernels share: poses, votes and parents as tuples of components.

A component is a tensor over lanes (children, or rows and parents); a pose of C x K numbers is C * K of them. So the
small products of poses and transforms unroll into multiply-adds in registers, and nothing is summed across lanes.

A parent is described by a table, (B, rows / RUN, J, RUN), RUN = 4 where that divides D, else 1:
    head       log prior - 1/2 sum_d log sigma^2, and backward K
    rows       centre mu (D), precision 1 / sigma^2 (D), and backward A (D), Q (D), all of `backward_kernels`

Kernels take the constants OH, ..., SX of `common.patches.Window`, which say where children lie in an image; all are 0
where poses are (B, I, C K).
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ..common.patches_triton import child_at, place_at

AHEAD = tl.constexpr(8)  # chunks read ahead of their sum
HEAD = tl.constexpr(4)  # rows before a table's first
LOWEST = tl.constexpr(-3.0e38)  # not -inf: a difference of two would be NaN


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


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
def load_pose(
    u, b, i, I, mask, WIDTH: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr,
    PX: tl.constexpr, KERNEL: tl.constexpr, ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """The pose of child i of row b, from the image where it lies, or, OH = 0, from (B, I, WIDTH)."""
    if OH == 0:
        at = (b * I + i) * WIDTH
    else:
        at = place_at(b, OH, OW, SB, PY, PX) + child_at(i, KERNEL, ST, SY, SX)
    return load(u + at, 0, mask, WIDTH, WIDTH)


@triton.jit
def walk_lanes(ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr):
    """Lanes (ROWS * SPLIT, PARENTS) of a program that walks: their number, row and parent, and a zero for each."""
    x = tl.arange(0, ROWS * SPLIT)[:, None]
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    return x, tl.program_id(0) * ROWS + x // SPLIT, j, tl.full((ROWS * SPLIT, PARENTS), 0.0, tl.float32)


@triton.jit
def step_at(lo, step, x, ROWS: tl.constexpr, SPLIT: tl.constexpr):
    """Where the lanes x (ROWS * SPLIT, 1) of a walk that begins at `lo` are at a step. The result has the shape of what
    it addresses, so that no value moves between lanes."""
    at = lo + step * SPLIT
    if ROWS * SPLIT > 1:
        at += x % SPLIT
    return at


@triton.jit
def pair_at(i, j, J: tl.constexpr):
    """i J + j, for rows i and parents j. The hint hides that it is contiguous: the compiler would otherwise read it in
    an order of lanes of its own, and move all other values between lanes at every step."""
    return tl.max_contiguous(i * J + j, [1, 1])


@triton.jit
def store(p, step, mask, x, N: tl.constexpr):
    for n in tl.static_range(N):
        tl.store(p + n * step, x[n].to(p.dtype.element_ty), mask=mask)


@triton.jit
def accumulate(p, step, mask, x, N: tl.constexpr, RUN: tl.constexpr, AGAIN: tl.constexpr):
    """Stores N components, runs of RUN, `step` elements from run to run; AGAIN: adds them to what is there."""
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
    """f = u W - centre: u (C, K), W (K, H), centre (C, H). K = 0: u is the vote itself."""
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
def child_deviations(
    pose, w, own, row, b, i, j, I, R, live, G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """A child per lane: f of children i and one parent j, and their transforms (J, K, G, H); stored votes have none."""
    D: tl.constexpr = C * H
    if K > 0:
        uu, ww = pose, load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
    else:
        uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
    centre = load_table(row, HEAD, None, D, J, RUN)
    if OWN:
        centre = less(centre, load(own + j * (C * G * H) + i // R * H, G * H, live, D, H), D)
    return deviations(uu, ww, centre, C, K, H), ww


@triton.jit
def parent_deviations(
    u, w, own, transform, centre, b, i, j, I, R, here, known, live, J: tl.constexpr, C: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, OWN: tl.constexpr, ONE: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """A parent per lane: f of child i of row b, and its pose. here, known, live: where there is the child, where the
    transform (G, K, J, H), of which ONE serves all children, and where both."""
    D: tl.constexpr = C * H
    middle = centre
    if K == 0:
        uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
    else:
        uu = load_pose(u, b, i, I, here, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX)
        if ONE:
            ww = transform
        else:
            ww = load(w + i // R * (K * J * H) + j * H, J * H, known, K * H, H)
        if OWN:
            middle = less(centre, load(own + i // R * (C * J * H) + j * H, J * H, known, D, H), D)
    return deviations(uu, ww, middle, C, K, H), uu


@triton.jit
def mahalanobis(f, precision, D: tl.constexpr):
    """sum_d f_d^2 / sigma_d^2"""
    x = precision[0] * f[0] * f[0]
    for d in tl.static_range(1, D):
        x += precision[d] * f[d] * f[d]
    return x


@triton.jit
def logit_slopes(
    x, j, live, weight, logit, slope, g_logit, g_prior, g_score, g_offset, g_slope, scale, OFFSET: tl.constexpr,
    SLOPE: tl.constexpr, GIVEN: tl.constexpr, PRIOR: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Of parents j, at x in (B, J): weight n, the gradient g of logits and its part scale g slope of K.

    The gradient of a logit is GIVEN, or that of the PRIOR it makes, or both; g_score takes it.
    """
    n = tl.load(weight + x, mask=live, other=0.0)
    g = tl.full(x.shape, 0.0, tl.float32)
    k = g
    if GIVEN:
        g += tl.load(g_logit + x, mask=live, other=0.0)
    if PRIOR:
        g += tl.load(g_prior + x, mask=live, other=0.0) * tl.sigmoid(-tl.load(logit + x, mask=live, other=0.0))
    tl.store(g_score + x, g, mask=live)
    if OFFSET:
        accumulate(g_offset + x, 0, live, (scale * g,), 1, 1, AGAIN)
    if SLOPE:
        k += scale * g * tl.load(slope + j, mask=live, other=0.0)
        accumulate(g_slope + x, 0, live, (scale * g * n,), 1, 1, AGAIN)
    return n, g, k
