r"""Kernels of the forward pass, and the device functions that all kernels share.

Poses, votes and parents are tuples of components. A component is a tensor over lanes (children, or rows and parents); a
pose of C x K numbers is C * K of them. So the small products of poses and transforms unroll into multiply-adds in
registers, and nothing is summed across lanes. `normaliser` has a child per lane and walks over parents, `chunk_moments`
a parent per lane and walks over children: each reduces along its walk, and reads poses and transforms once. Walks are
shared out and cut as `plan` says. The mean and the spread follow Welford's update, and parts merge by Chan's rule, so
that no square of a large number is subtracted. Programs that walk leave parts, one for each chunk of what they walk
over; the last programs of a launch wait for them (`common.order_triton`) and finish: elements down a tile, parents
across it. Equations are in `forward`.

A parent is described by a table, (B, rows / RUN, J, RUN), RUN = 4 where that divides D, else 1:
    head       log prior - 1/2 sum_d log sigma^2, and backward K
    rows       centre mu (D), precision 1 / sigma^2 (D), and backward A (D), Q (D), all of `backward_kernels`

AT: constants of `common.patches.Window`, which say where children lie in an image; (0,) where poses are (B, I, C K).
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ..common.order_triton import arrive, wait_for
from ..common.patches_triton import child_at, place_at

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
def rows_at(row, j, d, J: tl.constexpr, RUN: tl.constexpr):
    """Where elements d of parents j are in a table, in the rows from `row` on."""
    return row * J + d // RUN * (RUN * J) + j * RUN + d % RUN


@triton.jit
def load_chunks(p, step, k, chunks, mask, N: tl.constexpr):
    """Components of chunks k, k + 1, ..., all under way at once; 0 past the last."""
    x = ()
    for n in tl.static_range(N):
        x = x + (tl.load(p + (k + n) * step, mask=mask & (k + n < chunks), other=0.0),)
    return x


@triton.jit
def load_pose(u, b, i, I, mask, WIDTH: tl.constexpr, AT: tl.constexpr):
    """The pose of child i of row b, of WIDTH elements."""
    if AT[0] == 0:
        at = (b * I + i) * WIDTH
    else:
        at = place_at(b, AT[0], AT[1], AT[2], AT[3], AT[4]) + child_at(i, AT[5], AT[6], AT[7], AT[8])
    return load(u + at, 0, mask, WIDTH, WIDTH)


@triton.jit
def child_lanes(u, I, WIDTH: tl.constexpr, BLOCK: tl.constexpr, AT: tl.constexpr):
    """A child per lane: row b, children i, which of them there are, and their poses; stored votes have none."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    pose = ()
    if WIDTH > 0:
        pose = load_pose(u, b, i, I, live, WIDTH, AT)
    return b, i, live, pose


@triton.jit
def walk_of(program, rows, J: tl.constexpr, ROWS: tl.constexpr, PARENTS: tl.constexpr):
    """Which rows, parents and chunk of a walk a program has, each counted by ROWS, PARENTS or 1."""
    high, groups = tl.cdiv(rows, ROWS), tl.cdiv(J, PARENTS)
    return program % high, program // high % groups, program // high // groups


@triton.jit
def walk_lanes(row, group, ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr):
    """Lanes (ROWS * SPLIT, PARENTS) of a program that walks: their number, row and parent, and a zero for each."""
    x = tl.arange(0, ROWS * SPLIT)[:, None]
    j = (group * PARENTS + tl.arange(0, PARENTS))[None, :]
    return x, row * ROWS + x // SPLIT, j, tl.full((ROWS * SPLIT, PARENTS), 0.0, tl.float32)


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
    u, w, own, transform, centre, b, j, there, lo, step, x, B, I, R, J: tl.constexpr, C: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, OWN: tl.constexpr, ONE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    AT: tl.constexpr,
):  # fmt: skip
    """A parent per lane, at a step of a walk over children: child i; where it is there, where its transform (G, K, J,
    H), or the ONE that serves all children, and where both; f of child i of row b, and its pose."""
    D: tl.constexpr = C * H
    i = step_at(lo, step, x, ROWS, SPLIT)
    here, known = (b < B) & (i < I), there & (i < I)
    live = here & there
    middle = centre
    if K == 0:
        uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
    else:
        uu = load_pose(u, b, i, I, here, C * K, AT)
        if ONE:
            ww = transform
        else:
            ww = load(w + i // R * (K * J * H) + j * H, J * H, known, K * H, H)
        if OWN:
            middle = less(centre, load(own + i // R * (C * J * H) + j * H, J * H, known, D, H), D)
    return i, here, known, live, deviations(uu, ww, middle, C, K, H), uu


@triton.jit
def mahalanobis(f, precision, D: tl.constexpr):
    """sum_d f_d^2 / sigma_d^2"""
    x = precision[0] * f[0] * f[0]
    for d in tl.static_range(1, D):
        x += precision[d] * f[d] * f[d]
    return x


@triton.jit
def parents_at(t, count, J: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Tile t of (B, J) parents: their place x, row b, number j (1, TILE); elements d (WIDTH, 1); which parents, and
    which elements of them, there are."""
    x, d = (t * TILE + tl.arange(0, TILE))[None, :], tl.arange(0, WIDTH)[:, None]
    return x, (x // J).to(tl.int64), x % J, d, x < count, (x < count) & (d < D)


@triton.jit
def finish_moments(
    program, programs, parts, chunks, offset, slope, shift, weight, logit, mean, variance, table, scale, offset_factor,
    slope_factor, tau, eps, more, count, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr, SCORE: tl.constexpr,
    OFFSET: tl.constexpr, SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Moments of all children from those of chunks, by Chan's rule, with eps as in `routing.math.weighted_moments`; the
    logits of these parents; and if there is `more`, what the next E-step reads of them."""
    for t in range(program, tl.cdiv(count, TILE), programs):
        x, b, j, d, there, live = parents_at(t, count, J, D, WIDTH, TILE)
        p, stride = parts + b * ((2 * D + 2) * J) + j, count * (2 * D + 2)
        n = tl.full((1, TILE), 0.0, tl.float32)
        total = tl.full((WIDTH, TILE), 0.0, tl.float32)
        benefit, each, spread, moved = n, n, total, total  # each: what a unit of weight adds to a logit
        if SHIFT:
            moved += tl.load(shift + j * D + d, mask=live, other=0.0)
        for k in range(0, chunks, AHEAD):
            own = load_chunks(p, stride, k, chunks, there, AHEAD)
            gain = load_chunks(p + J, stride, k, chunks, there, AHEAD if SCORE else 0)
            m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
            for c in tl.static_range(AHEAD):
                n += own[c]
                total += own[c] * m[c]
                if SCORE:
                    benefit += gain[c]
        divisor = tl.where(there, n + eps, 1.0)
        centre = (total + n * moved) / divisor
        within = centre - moved  # of votes without their bias, as chunks have them
        for k in range(0, chunks, AHEAD):
            own = load_chunks(p, stride, k, chunks, there, AHEAD)
            m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
            m2 = load_chunks(p + (2 + D + d) * J, stride, k, chunks, live, AHEAD)
            for c in tl.static_range(AHEAD):
                spread += m2[c] + own[c] * (m[c] - within) * (m[c] - within)
        var, at = spread / divisor + eps, (b * D + d) * J + j
        logs = tl.sum(tl.where(live, 0.5 * tl.log(var), 0.0), 0, keep_dims=True)
        tl.store(weight + x, n, mask=there)
        tl.store(mean + at, centre, mask=live)
        tl.store(variance + at, var, mask=live)
        if SLOPE:
            each += slope_factor * tl.load(slope + j, mask=there, other=0.0)
        if SPREAD:
            each -= logs
        a = n * each
        if OFFSET:
            a += offset_factor * tl.load(offset + (x if OFFSET == 2 else j), mask=there, other=0.0)
        a = scale * a + benefit
        tl.store(logit + x, a, mask=there)
        out = table + b * ((HEAD + 2 * D) * J)
        tl.store(out + j * RUN, log_sigmoid(a) - tau * logs, mask=there & (more > 0))
        tl.store(out + rows_at(HEAD, j, d, J, RUN), within, mask=live & (more > 0))
        tl.store(out + rows_at(HEAD + D, j, d, J, RUN), tau / var, mask=live & (more > 0))


@triton.jit
def normaliser(
    u, w, own, table, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr,
    AT: tl.constexpr,
):  # fmt: skip
    """Z_i of the E-step, one child per lane."""
    D: tl.constexpr = C * H
    b, i, live, pose = child_lanes(u, I, C * K, BLOCK, AT)
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    rows = table + b * ((HEAD + 2 * D) * J) + tl.arange(0, 1)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        row = rows + j * RUN
        f, _ = child_deviations(pose, w, own, row, b, i, j, I, R, live, G, J, C, K, H, RUN, OWN)
        precision = load_table(row, HEAD + D, None, D, J, RUN)
        a = tl.load(row) - 0.5 * mahalanobis(f, precision, D)
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
def distance(v, root, centre, D: tl.constexpr):
    """The Mahalanobis distance of a vote from 1 / sigma and mu / sigma: sum_d (v_d / sigma_d - mu_d / sigma_d)^2"""
    x = 0.0
    for d in tl.static_range(D):
        y = v[d] * root[d] - centre[d]
        x += y * y
    return x


@triton.jit
def chunk_moments(
    program, u, w, own, table, first, normaliser, gate, beta, out, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, ONE: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """Weight, score, mean and spread of a chunk of children: the M-step of one parent per lane."""
    D: tl.constexpr = C * H
    of_row, of_parent, chunk = walk_of(program, B, J, ROWS, PARENTS)
    x, b, j, zero = walk_lanes(of_row, of_parent, ROWS, SPLIT, PARENTS)
    b = b.to(tl.int64)
    there = j < J
    row = table + b * ((HEAD + 2 * D) * J) + j * RUN
    if DENSITY:
        live = (b < B) & there
        constant = tl.load(row, mask=live, other=0.0)
        root, centre = scales(load_table(row, HEAD, live, D, J, RUN), load_table(row, HEAD + D, live, D, J, RUN), D)
    n, score, mean, spread = zero, zero, repeat(zero, D), repeat(zero, D)
    none, transform = repeat(0.0, D), ()
    if ONE:
        transform = load(w + j * (K * H), H, there, K * H, H)
    lo = chunk * steps * SPLIT
    for t in tl.range(tl.minimum(steps, tl.cdiv(I - lo, SPLIT)), loop_unroll_factor=4 if D <= 4 else 1):
        i, here, known, live, v, _ = parent_deviations(
            u, w, own, transform, none, b, j, there, lo, t, x, B, I, R, J, C, K, H, OWN, ONE, ROWS, SPLIT, AT
        )
        use = tl.load(gate + b * I + i, mask=here, other=0.0)
        if DENSITY:
            a = constant - 0.5 * distance(v, root, centre, D)
            z = tl.load(normaliser + b * I + i, mask=here, other=0.0)
            use = use * tl.exp(tl.where(live, a - z, LOWEST))
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
    if SPLIT > 1:  # Chan's rule merges what the parts of a row found
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
    b = (of_row * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    live = (b < B) & there
    p = out + ((chunk * B + b) * (2 * D + 2)) * J + j
    tl.store(p, n, mask=live)
    tl.store(p + J, score, mask=live)
    store(p + 2 * J, J, live, mean, D)
    store(p + (2 + D) * J, J, live, spread, D)


@triton.jit(do_not_specialize=["more"])
def moments(
    u, w, own, table, first, normaliser, gate, beta, parts, counter, B, I, R, steps, offset, slope, shift, weight,
    logit, mean, variance, scale, offset_factor, slope_factor, tau, eps, more, J: tl.constexpr, C: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    PARENTS: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, OFFSET: tl.constexpr,
    SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    AHEAD: tl.constexpr, ONE: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """An M-step: programs that walk over chunks of children, then those that finish, in the place of the table read."""
    chunks = tl.cdiv(I, steps * SPLIT)
    walks = tl.cdiv(B, ROWS) * tl.cdiv(J, PARENTS) * chunks
    p = tl.program_id(0)
    if p < walks:
        chunk_moments(
            p, u, w, own, table, first, normaliser, gate, beta, parts, B, I, R, steps, J, C, K, H, RUN, OWN, ROWS,
            SPLIT, PARENTS, DENSITY, FIRST, SCORE, ONE, AT,
        )  # fmt: skip
        arrive(counter)
    else:
        wait_for(counter, walks)
        finish_moments(
            p - walks, tl.num_programs(0) - walks, parts, chunks, offset, slope, shift, weight, logit, mean, variance,
            table, scale, offset_factor, slope_factor, tau, eps, more, B * J, J, C * H, RUN, SCORE, OFFSET, SLOPE,
            SPREAD, SHIFT, WIDTH, TILE, AHEAD,
        )  # fmt: skip
