"""The backward pass: iterations from the last to the first, and what their gradients come to.

Gradients of poses, transforms, biases and betas have one buffer each, to which every iteration adds. Tables, sums and
gradients of parents belong to one iteration and are freed with it. Equations are in `backward_kernels`.

Where votes are made in registers, all examples go backward together. Those of an image go a few at a time, because the
gradients of their patches take kernel^2 / stride^2 times the memory of the image. Stored votes, few or wide, are made
again a few examples at a time and overwritten by their gradients, so that they take no more memory than the poses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..common.patches import Window, fold
from ..common.replay import launch
from . import backward_kernels as kernels
from . import plan, wide
from .forward import Outputs, Parents, logit_options, pointer
from .forward_kernels import HEAD
from .plan import Inputs, Options, Source, by_group, by_rows, in_parts, source_of, votes_of, wide_parts
from .positions import normaliser_gradient, share_gate


class ParentGradients(NamedTuple):
    """Gradients of the parents an iteration found; None: zero."""

    mean: Tensor | None  # (B, D, J)
    variance: Tensor | None  # (B, D, J)
    logit: Tensor | None  # (B, J)


class Given(NamedTuple):
    """What the forward pass kept, and the gradients of the parents after each iteration."""

    outputs: Outputs
    gradients: list[ParentGradients]

    def rows(self, rows: slice) -> Given:
        gradients = [ParentGradients(*(None if y is None else y[rows] for y in x)) for x in self.gradients]
        return Given(self.outputs.rows(rows), gradients)


@dataclass
class Sums:
    """Gradients of what all iterations share, as far as they are summed; None: not begun."""

    u: Tensor | None = None  # (B, I, C K)
    weight: Tensor | None = None  # (chunks, J, K, G, H); one transform: (chunks * B, J, K, H)
    own: Tensor | None = None  # (chunks, J, C, G, H)
    beta: Tensor | None = None  # (chunks, I, J)
    first: Tensor | None = None  # (chunks, I, J)
    shift: Tensor | None = None  # (B, D, J)
    offset: Tensor | None = None  # (B, J)
    slope: Tensor | None = None  # (B, J)
    gate: Tensor | None = None  # (B, I)
    first_z: Tensor | None = None  # (B, I)


class Trail(NamedTuple):
    """What the gradient of stored votes needs of all T iterations.

    Where votes are made in registers, T is 1, and the iterations use the same buffers one after the other.
    """

    table: Tensor  # (T, B, (4 + 4 D) / RUN, J, RUN)
    score: Tensor  # (T, B, J)
    sums: Tensor  # (T, B, I)
    gates: Tensor | None  # (T, B, I), with a softmax over positions
    shares: Tensor | None  # (T - 1, B, I): gradient of Z

    @classmethod
    def of(cls, source: Source, steps: int, grid: list[int]) -> Trail:
        (b, i, j, _), stored = source.sizes, source.u is None
        kept, device = (steps if stored else 1), source.by_parent.device
        rows = (HEAD.value + 4 * source.dim) // source.run
        table, score = (torch.empty(kept, b, *x, device=device) for x in ((rows, j, source.run), (j,)))
        gates, shares = (torch.empty(n, b, i, device=device) if stored and grid else None for n in (kept, kept - 1))
        return cls(table, score, torch.empty(kept, b, i, device=device), gates, shares)

    def pointers(self, x: Inputs, normalisers: Tensor) -> tuple[Tensor, ...]:
        """Arguments of the kernels that take all iterations at once."""
        first, beta, shares = (pointer(y, self.table) for y in (x.first, x.beta, self.shares))
        return self.table, first, normalisers, pointer(self.gates, x.gate), beta, self.score, self.sums, shares

    def options(self, x: Inputs) -> dict[str, Any]:
        known = {"FIRST": x.first is not None, "SCORE": x.beta is not None, "SHARED": self.gates is not None}
        return {"T": len(self.table), **known}


class Step(NamedTuple):
    """What every backward kernel of an iteration reads, and where it adds what it finds."""

    source: Source
    inputs: Inputs
    below: Parents | None  # the parents it began with; None the first time
    z: Tensor | None  # (B, I)
    gate: Tensor  # (B, I): child's weight times its share
    table: Tensor  # (B, (4 + 4 D) / RUN, J, RUN)
    score: Tensor  # (B, J): gradient of logits
    s: Tensor  # (B, I)
    sums: Sums
    tau: float  # sharpness of the E-step it began with
    g_z: Tensor | None = None  # (B, I): gradient of Z, with a softmax over positions

    @property
    def first(self) -> Tensor | None:
        return self.inputs.first if self.below is None else None

    def pointers(self) -> tuple[Tensor, ...]:
        first, z, beta = (pointer(y, self.table) for y in (self.first, self.z, self.inputs.beta))
        return self.table, first, z, self.gate, beta, self.score

    def options(self) -> dict[str, Any]:
        known = {
            "DENSITY": self.below is not None,
            "FIRST": self.first is not None,
            "SCORE": self.inputs.beta is not None,
        }
        return {**self.source.options, **known}

    def sum_pointers(self) -> tuple[Tensor, ...]:
        return *self.pointers(), self.s, pointer(self.g_z, self.s)

    def sum_options(self) -> dict[str, Any]:
        return {**self.options(), "SHARED": self.g_z is not None}


def gradients_of(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """In the order of `Inputs`, None where there is no such tensor."""
    window = o.window_of(x.u)
    if window is not None:
        return _of_image(x, o, given, window)
    if in_parts(x, o):
        return _of_wide_votes(x, o, given)
    source, sums = source_of(x.u, x.weight, x.bias), Sums()
    trail = walk_back(source, x, o, given, sums)
    if source.u is None:
        own = source.shift is None
        del source
        g_u, g_weight, g_bias = _of_stored_votes(x, o, given, trail, own)
    else:
        assert sums.u is not None
        assert sums.weight is not None
        g_u, g_weight = sums.u.view(x.u.shape), summed(sums.weight).view(x.weight.shape).to(x.weight.dtype)
        g_bias = None if sums.own is None else summed(sums.own)
    if sums.shift is not None:
        g_bias = sums.shift.sum(0).t()
    first, beta = (None if y is None else summed(y) for y in (sums.first, sums.beta))
    g_slope = None if sums.slope is None else sums.slope.sum(0)
    g_gate = sums.gate if o.gated else x.gate.new_empty(0)
    return [g_u, g_weight, _like(x.bias, g_bias), g_gate, sums.first_z, first, beta, sums.offset, g_slope]


def summed(parts: Tensor) -> Tensor:
    """Over chunks; one is itself the sum."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def added(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    """x + y; None: zero."""
    return y if x is None else x if y is None else x + y


def _like(tensor: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if tensor is None or gradient is None:
        return None
    return gradient.reshape(tensor.shape).to(tensor.dtype).contiguous()


def _of_image(x: Inputs, o: Options, given: Given, window: Window) -> list[Tensor | None]:
    """A few examples at a time, whose patches' gradients fold back into those of the image."""
    g_u, g_gate = torch.empty_like(x.u), x.gate.new_empty(x.gate.shape if o.gated else 0)
    g_offset = None if x.offset is None else torch.empty_like(x.offset)
    g_slope, weight, source = None, None, source_of(x.u, x.weight, None, window)
    some = plan.examples_at_once(x, len(o.scales), window.places)
    for examples, rows in window.spans(x.u.shape[0], some):
        offset = None if x.offset is None else x.offset[rows]
        part = x._replace(u=x.u[examples], gate=o.gate_of(x.gate[examples]), offset=offset)
        sums = Sums(weight=weight)
        walk_back(source._replace(u=part.u, whole=x.u.numel()), part, o, given.rows(rows), sums)
        assert sums.u is not None
        fold(sums.u, g_u[examples], window)
        if sums.gate is not None:
            fold(sums.gate, g_gate[examples, ..., None], window)
        if g_offset is not None and sums.offset is not None:
            g_offset[rows] = sums.offset
        g_slope = added(g_slope, None if sums.slope is None else sums.slope.sum(0))
        weight = sums.weight
        del sums, part
    assert weight is not None
    g_weight = summed(weight).view(x.weight.shape).to(x.weight.dtype)
    return [g_u, g_weight, None, g_gate, None, None, None, g_offset, g_slope]


def _of_stored_votes(
    x: Inputs, o: Options, given: Given, trail: Trail, own: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of u, weight and, if groups have their own, bias."""
    (b, g, r, c, k), (j, _, _, h) = x.u.shape, x.weight.shape
    matrices = by_group(x.weight.float()).view(g, k, j * h)
    g_u, g_weight, g_bias = torch.empty_like(x.u), torch.zeros_like(matrices), None
    some, i, d, parents = plan.votes_at_once(x), g * r, c * h, plan.parent_lanes(j)
    rows, run = 4 * plan.LANES // parents, 1 if d % 4 else 4
    for lo in range(0, b, some):
        u = x.u[lo : lo + some]
        v = votes_of(u, x.weight, x.bias if own else None)
        launch(kernels.vote_gradients, (len(u), triton.cdiv(i, rows), triton.cdiv(j, parents)))(
            v, *trail.pointers(x, given.outputs.normalisers), lo, b, i, J=j, D=d, RUN=run, **trail.options(x),
            ROWS=rows, PARENTS=parents, num_warps=4,
        )  # fmt: skip
        v = v.view(-1, g, r, j, c, h)
        by_row = v.permute(1, 0, 2, 4, 3, 5).reshape(g, -1, j * h)  # no copy where votes had none
        g_u[lo : lo + some] = (by_row @ matrices.mT).view(g, -1, r, c, k).transpose(0, 1)
        g_weight.baddbmm_(by_rows(u).mT, by_row)
        if own and x.bias is not None:
            g_bias = added(g_bias, v.sum((0, 2)).permute(1, 2, 0, 3))
        del v, by_row
    return g_u, _weight_like(g_weight, x.weight), g_bias


def _of_wide_votes(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """Each part goes forward as votes and comes back as their gradients."""
    matrices = by_group(x.weight.float())
    (g, k, j, h), total = matrices.shape, Sums()
    g_weight = torch.zeros(g, k, j * h, device=matrices.device)
    g_u, g_first_z, g_offset = (None if y is None else torch.empty_like(y) for y in (x.u, x.first_z, x.offset))
    g_gate = x.gate.new_empty(x.gate.shape if o.gated else 0)
    of_rows = (g_first_z, g_offset, g_gate if o.gated else None)
    for rows, part, source in wide_parts(x, o, matrices):
        sums, past = Sums(beta=total.beta), given.rows(rows)
        trail, (b, i, _, r) = walk_back(source, part, o, past, sums), source.sizes
        votes = source.by_parent
        launch(wide.wide_vote_gradients, (b * i, source.tiles))(
            votes, *trail.pointers(part, past.outputs.normalisers.contiguous()), b, i, r, **source.options,
            **trail.options(part),
        )  # fmt: skip
        by_row = votes.view(g, -1, j * h)
        assert g_u is not None
        g_u[rows] = (by_row @ matrices.view(g, k, j * h).mT).view(g, b, r, -1, k).transpose(0, 1)
        g_weight.baddbmm_(by_rows(part.u).mT, by_row)
        for whole, found in zip(of_rows, (sums.first_z, sums.offset, sums.gate), strict=True):
            if whole is not None and found is not None:
                whole[rows] = found
        total.beta, total.first = sums.beta, added(total.first, sums.first)
        total.slope = added(total.slope, None if sums.slope is None else sums.slope.sum(0))
        total.shift = added(total.shift, None if sums.shift is None else sums.shift.sum(0))
        if x.bias is not None and source.shift is None:
            total.own = added(total.own, votes.sum((1, 2)))  # (G, C, J, H)
        del source, part, sums, past, trail, votes, by_row
    first, beta = (None if y is None else summed(y) for y in (total.first, total.beta))
    g_bias = None if total.own is None else total.own.permute(2, 1, 0, 3)
    g_bias = _like(x.bias, g_bias if total.shift is None else total.shift.t())
    return [g_u, _weight_like(g_weight, x.weight), g_bias, g_gate, g_first_z, first, beta, g_offset, total.slope]


def _weight_like(g_weight: Tensor, weight: Tensor) -> Tensor:
    """(G, K, J H) -> (J, K, G, H)"""
    j, k, g, h = weight.shape
    return g_weight.view(g, k, j, h).permute(2, 1, 0, 3).to(weight.dtype).contiguous()


def walk_back(source: Source, x: Inputs, o: Options, given: Given, sums: Sums) -> Trail:
    """All iterations; what they share is added to `sums`."""
    (found, normalisers), wanted, g_prior = given.outputs, list(given.gradients), None
    trail = Trail.of(source, len(o.scales), o.grid)
    for t in reversed(range(len(o.scales))):
        below, z = (found[t - 1], normalisers[t - 1]) if t else (None, x.first_z)
        gate, at = share_gate(x.gate, z, o.grid), t if source.u is None else 0
        step = Step(source, x, below, z, gate, trail.table[at], trail.score[at], trail.sums[at], sums,
                    o.tau(t - 1) if t else 1.0)  # fmt: skip
        slopes(step, o, o.scales[t], found[t], wanted.pop(), g_prior)
        over_positions = bool(o.grid) and z is not None
        alone = source.u is None or over_positions  # s is needed before, or without, the gradient of poses
        needed = t > 0 or o.gated or over_positions
        if alone and needed:
            child_gradients(step, poses=False, sums=True)
        if over_positions and z is not None:
            g_z, sums.gate = normaliser_gradient(z, x.gate, step.s, o.grid, o.gated, sums.gate)
            step = step._replace(g_z=g_z)
        if source.u is not None:
            child_gradients(step, poses=True, sums=needed and not alone)
        if o.gated and not over_positions:
            sums.gate = _add_gate(step.s, sums.gate, o.grid)
        below_them = parent_gradients(step)
        if source.u is None or source.one or source.sizes[3] > 1:
            pair_gradients(step)
        if source.u is not None and not source.one:
            weight_gradients(step)
        if trail.gates is not None and trail.shares is not None:
            trail.gates[t].copy_(gate)
            if t and step.g_z is not None:
                trail.shares[t - 1].copy_(step.g_z)
        if t == 0 and x.first_z is not None:
            sums.first_z = step.g_z
        del step, gate
        if below_them is not None:
            g_prior, g_mean, g_variance = below_them
            mean, variance, logit = wanted[-1]
            wanted[-1] = ParentGradients(added(mean, g_mean), added(variance, g_variance), logit)
            del below_them, g_mean, g_variance
    return trail


def _add_gate(s: Tensor, total: Tensor | None, grid: list[int]) -> Tensor:
    """The gate's gradient where each place of a grid has the same share of a child, or all of it."""
    if grid:
        return share_gate(s, None, grid, total)
    return s.clone() if total is None else total.add_(s)


def slopes(
    step: Step, o: Options, scale: float, above: Parents, given: ParentGradients, g_prior: Tensor | None
) -> None:
    """Writes an iteration's table, from the gradients of its parents and of the prior these give the next E-step."""
    source, sums, table, below = step.source, step.sums, step.table, step.below or above
    b, d, j = above.mean.shape
    given = ParentGradients(*(None if y is None else y.contiguous() for y in given))
    again = g_prior is not None
    if not again:
        make = lambda like, *shape: None if like is None else torch.empty(*shape, device=table.device)  # noqa: E731
        sums.offset, sums.slope = make(step.inputs.offset, b, j), make(step.inputs.slope, b, j)
        sums.shift = make(source.shift, b, d, j)
    optional = (step.inputs.slope, source.shift, given.logit, g_prior, given.mean, given.variance)
    out = (step.score, sums.offset, sums.slope, sums.shift)
    tensors = (
        above.logit, above.weight, above.mean, above.variance, below.logit, below.mean, below.variance,
        *(pointer(y, table) for y in (*optional, *out)), table, scale, o.eps, step.tau,
    )  # fmt: skip
    known = {
        "DENSITY": step.below is not None, **logit_options(step.inputs, o), "SHIFT": source.shift is not None,
        "GIVEN": given.logit is not None, "PRIOR": again, "MEAN": given.mean is not None,
        "VARIANCE": given.variance is not None, "AGAIN": again,
    }  # fmt: skip
    if source.tiled:
        launch(wide.wide_slopes, (b, source.tiles))(*tensors, **source.options, **known)
    else:
        size = {"J": j, "D": d, "RUN": source.run, "BLOCK": 64, "num_warps": 2}
        launch(kernels.slopes, (triton.cdiv(b * j, 64),))(*tensors, b * j, **size, **known)


def child_gradients(step: Step, poses: bool, sums: bool) -> None:
    """Gradient of the poses, like u, and s_i = sum_j p_ij dL/dw_ij, (B, I); without `sums` s is read."""
    source, found = step.source, step.sums
    b, i, _, r = source.sizes
    if source.tiled:
        launch(wide.wide_child_sums, (b * i,))(source.by_parent, *step.pointers(), step.s, b, i, r, **step.options())
        return
    lanes = plan.child_lanes(source)
    again = poses and found.u is not None
    if poses and source.u is not None and found.u is None:
        c, k, _ = source.pose
        found.u = torch.empty(b, i, c * k, dtype=source.u.dtype, device=step.s.device)
    launch(kernels.child_gradients, (b, triton.cdiv(i, lanes)))(
        *source.by_children, *step.sum_pointers(), pointer(found.u, step.s), i, r, G=source.groups, SUM=sums,
        POSES=poses, AGAIN=again, BLOCK=lanes, **step.sum_options(), AT=source.at, num_warps=1,
    )  # fmt: skip


def parent_gradients(step: Step) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of the prior (B, J), mean and variance (B, D, J) it began with; of the one transform there may be."""
    source, sums, device = step.source, step.sums, step.s.device
    (b, i, j, r), (_, k, h), d = source.sizes, source.pose, source.dim
    if step.below is None and not source.one:
        return None
    walk, bound = plan.parents_walk(source)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 1, j, device=device) if step.below is not None else step.s
    again = sums.weight is not None
    if source.one and sums.weight is None:
        sums.weight = torch.empty(grid[2] * b, j, k, h, device=device)
    given = (*step.sum_pointers(), parts)
    if source.tiled:
        launch(wide.wide_parent_gradients, grid)(source.by_parent, *given, b, i, r, walk.steps, **step.sum_options())
    else:
        launch(kernels.parent_gradients, grid)(
            *source.by_parents, *given, pointer(sums.weight, step.s), b, i, r, walk.steps, ONE=source.one, AGAIN=again,
            **walk.options, **step.sum_options(), AT=source.at, **bound,
        )  # fmt: skip
    if step.below is None:
        return None
    g_prior = torch.empty(b, j, device=device)
    g_mean, g_variance = torch.empty(b, d, j, device=device), torch.empty(b, d, j, device=device)
    launch(kernels.finish_parents, (triton.cdiv(b * d * j, 64),))(
        parts, step.below.variance, g_prior, g_mean, g_variance, pointer(sums.shift, parts), step.tau, b * d * j,
        grid[2], J=j, D=d, SHIFT=sums.shift is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return g_prior, g_mean, g_variance


def weight_gradients(step: Step) -> None:
    """Gradient of W, and of the bias there may be; where every child has its own, of betas and first couplings."""
    source, sums, device = step.source, step.sums, step.s.device
    (b, i, j, r), (c, k, h) = source.sizes, source.pose
    g, again = i // r, sums.weight is not None
    walk = plan.weights_walk(source, plan.weight_chunks(source) if sums.weight is None else len(sums.weight))
    grid = walk.grid(g, j, b * r)
    if sums.weight is None:
        sums.weight = torch.empty(grid[2], j, k, g, h, device=device)
        sums.own = None if source.own_by_parent is None else torch.empty(grid[2], j, c, g, h, device=device)
        if step.inputs.beta is not None and r == 1:
            sums.beta = torch.empty(grid[2], i, j, device=device)
    if step.first is not None and r == 1:
        sums.first = torch.empty(grid[2], i, j, device=device)
    launch(kernels.weight_gradients, grid)(
        *source.by_parents, *step.sum_pointers(), sums.weight,
        *(pointer(y, step.s) for y in (sums.own, sums.beta, sums.first)), b, i, r, walk.steps, PAIR=r == 1,
        AGAIN=again, **walk.options, **step.sum_options(), AT=source.at,
    )  # fmt: skip


def pair_gradients(step: Step) -> None:
    """Gradients of beta and of the first coupling, (I, J) each, where `weight_gradients` does not sum them."""
    source, sums, device = step.source, step.sums, step.table.device
    b, i, j, r = source.sizes
    if step.inputs.beta is None and step.first is None:
        return
    again = sums.beta is not None
    if step.inputs.beta is not None and sums.beta is None:
        sums.beta = torch.empty(1, i, j, device=device)
    if step.first is not None:
        sums.first = torch.empty(1, i, j, device=device)
    given = (*step.pointers(), pointer(sums.beta, step.table), pointer(sums.first, step.table), b, i, r)
    if source.tiled:
        launch(wide.wide_pair_gradients, (i, source.tiles))(source.by_parent, *given, AGAIN=again, **step.options())
        return
    parents = plan.parent_lanes(j)
    launch(kernels.pair_gradients, (i, triton.cdiv(j, parents)))(
        *source.by_parents, *given, PARENTS=parents, AGAIN=again, **step.options(), num_warps=1
    )
