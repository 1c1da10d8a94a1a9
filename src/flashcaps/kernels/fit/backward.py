"""The backward pass: iterations from the last to the first, and what their gradients come to.

Gradients of poses, transforms, biases and betas have one buffer each, to which every iteration adds. Tables, sums and
gradients of parents belong to one iteration and are freed with it. Equations are in `backward_kernels`.

Where votes are made in registers, all examples go backward together. Those of an image go a few at a time, because the
gradients of their patches take kernel^2 / stride^2 times the memory of the image. Stored votes, few or wide, are made
again a few examples at a time and overwritten by their gradients, so that they take no more memory than the poses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..common.patches import Window, fold
from ..common.replay import launch
from . import backward_kernels as kernels
from . import plan, wide
from .forward import COUNTER, Outputs, logit_options, pointer
from .forward_kernels import HEAD
from .plan import Inputs, Options, Source
from .positions import normaliser_gradient, share_gate, share_gates


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
    """Gradients of inputs, as far as they are summed; None: not begun. Chunks are still to be summed."""

    u: Tensor | None = None  # (B, I, C K)
    weight: Tensor | None = None  # (chunks, J, K, G, H); one transform: (chunks * B, J, K, H)
    own: Tensor | None = None  # (chunks, J, C, G, H)
    beta: Tensor | None = None  # (chunks, I, J)
    first: Tensor | None = None  # (chunks, I, J)
    shift: Tensor | None = None  # (B, J, D)
    logit: Tensor | None = None  # (2 or 1, B, J): of offset and slope
    gate: Tensor | None = None  # (B, I)
    first_z: Tensor | None = None  # (B, I)

    @classmethod
    def of(cls, x: Inputs, given: Given) -> Sums:
        b, d, j = given.outputs.parents[0].mean.shape
        terms = (x.offset is not None) + (x.slope is not None)
        shifted = x.bias is not None and x.bias.shape[2] == 1
        return cls(
            logit=torch.empty(terms, b, j, device=x.u.device) if terms else None,
            shift=torch.empty(b, j, d, device=x.u.device) if shifted else None,
        )

    def rows(self, rows: slice) -> Sums:
        """Where the iterations of some rows add what they find: to the same sums, and to rows of their own."""
        shift = None if self.shift is None else self.shift[rows]
        logit = None if self.logit is None else self.logit[:, rows]
        return Sums(weight=self.weight, beta=self.beta, shift=shift, logit=logit)

    def listed(self, x: Inputs, o: Options) -> list[Tensor | None]:
        """Of the tensors of `Inputs` up to beta, None where there is no such tensor; then `logit`."""
        shared = self.weight, self.own, self.beta, self.first, self.shift
        weight, own, beta, first, shift = (None if y is None else summed(y) for y in shared)
        g_u, g_weight = None if self.u is None else self.u.view(x.u.shape), _like(x.weight, weight)
        g_bias = _like(x.bias, own if shift is None else shift)
        g_gate = self.gate if o.gated else x.gate.new_empty(0)
        return [g_u, g_weight, g_bias, g_gate, self.first_z, first, beta, self.logit]


class Terms(NamedTuple):
    """What kernels read of an iteration; or, by a first axis T, of all iterations (Z and its gradient: T - 1)."""

    table: Tensor  # (B, (4 + 4 D) / RUN, J, RUN)
    first: Tensor | None  # (I, J): the first couplings, where the iteration begins with them
    z: Tensor | None  # (B, I)
    gate: Tensor  # (B, I): child's weight times its share
    beta: Tensor | None  # (I, J)
    score: Tensor  # (B, J): gradient of logits
    s: Tensor  # (B, I)
    g_z: Tensor | None = None  # (B, I): gradient of Z, with a softmax over positions

    @property
    def pointers(self) -> list[Tensor]:
        return [pointer(y, self.table) for y in self]

    @property
    def options(self) -> dict[str, bool]:
        return {"FIRST": self.first is not None, "SCORE": self.beta is not None}

    @property
    def sum_options(self) -> dict[str, bool]:
        """Of kernels that read s and the gradient of Z."""
        return {**self.options, "SHARED": self.g_z is not None}


class Step(NamedTuple):
    """An iteration on its way back: what every kernel reads, and where it adds what it finds."""

    source: Source
    terms: Terms
    density: bool  # whether it began with parents, as all but the first
    sums: Sums

    @property
    def options(self) -> dict[str, int]:
        return {**self.source.options, "DENSITY": self.density}


def gradients_of(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """As `Sums.listed` has them."""
    window = o.window_of(x.u)
    if window is not None:
        return _of_image(x, o, given, window)
    if plan.in_parts(x, o):
        return _of_wide_votes(x, o, given)
    source, sums = plan.source_of(x.u, x.weight, x.bias), Sums.of(x, given)
    trail = walk_back(source, x, o, given, sums)
    if source.u is None:
        own = x.bias if source.shift is None else None
        del source
        _of_stored_votes(x, trail, sums, own)
    return sums.listed(x, o)


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
    total, source = Sums.of(x, given), plan.source_of(x.u, x.weight, None, window)
    total.u, total.gate = torch.empty_like(x.u), torch.empty_like(x.gate) if o.gated else None
    some = plan.examples_at_once(x, len(o.scales), window.places)
    for examples, rows in window.spans(x.u.shape[0], some):
        part, sums = x._replace(u=x.u[examples], gate=o.gate_of(x.gate[examples])), total.rows(rows)
        walk_back(source._replace(u=part.u, whole=x.u.numel()), part, o, given.rows(rows), sums)
        assert sums.u is not None
        fold(sums.u, total.u[examples], window)
        if sums.gate is not None and total.gate is not None:
            fold(sums.gate, total.gate[examples, ..., None], window)
        total.weight = sums.weight
        del sums, part
    return total.listed(x, o)


def _of_stored_votes(x: Inputs, trail: Terms, sums: Sums, own: Tensor | None) -> None:
    """Gradients of u, weight and, if groups have their own, bias, to `sums`."""
    (b, g, r, c, _), matrices = x.u.shape, plan.by_group(x.weight.float())
    _, _, j, h = matrices.shape
    g_u, g_weight = torch.empty_like(x.u), torch.zeros_like(matrices)
    some, i, parents = plan.votes_at_once(x), g * r, plan.parent_lanes(j)
    lanes, run = 4 * plan.LANES // parents, 1 if c * h % 4 else 4
    for lo in range(0, b, some):
        u = x.u[lo : lo + some]
        rows = plan.by_rows(u)
        v = plan.votes_of(u, rows, matrices, own)
        launch(kernels.vote_gradients, (len(u), triton.cdiv(i, lanes), triton.cdiv(j, parents)))(
            v, *trail.pointers, lo, b, i, r, J=j, C=c, H=h, RUN=run, T=len(trail.table), **trail.sum_options,
            ROWS=lanes, PARENTS=parents, num_warps=4,
        )  # fmt: skip
        g_u[lo : lo + some] = _of_products(v, rows, matrices, g_weight)
        if own is not None:
            sums.own = added(sums.own, _of_biases(v))
        del v, rows
    sums.u, sums.weight = g_u, g_weight.permute(2, 1, 0, 3)[None]


def _of_wide_votes(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """Each part goes forward as votes and comes back as their gradients."""
    total, matrices = Sums.of(x, given), plan.by_group(x.weight.float())
    g_u, g_weight = torch.empty_like(x.u), torch.zeros_like(matrices)
    total.gate, total.first_z = (
        None if y is None else torch.empty_like(y) for y in (x.gate if o.gated else None, x.first_z)
    )
    for rows, part, source in plan.wide_parts(x, o, matrices):
        sums, votes, past = total.rows(rows), source.by_parent, given.rows(rows)
        trail, (b, i, _, r) = walk_back(source, part, o, past, sums), source.sizes
        trail = trail._replace(z=past.outputs.normalisers.contiguous())
        launch(wide.wide_vote_gradients, (b * i, source.tiles))(
            votes, *trail.pointers, b, i, r, **source.options, T=len(trail.table), **trail.sum_options
        )
        g_u[rows] = _of_products(votes, plan.by_rows(part.u), matrices, g_weight)
        for whole, found in ((total.gate, sums.gate), (total.first_z, sums.first_z)):
            if whole is not None and found is not None:
                whole[rows] = found
        total.beta, total.first = sums.beta, added(total.first, sums.first)
        if x.bias is not None and total.shift is None:
            total.own = added(total.own, _of_biases(votes))
        del source, part, sums, past, trail, votes
    total.u, total.weight = g_u, g_weight.permute(2, 1, 0, 3)[None]
    return total.listed(x, o)


def _of_products(votes: Tensor, rows: Tensor, matrices: Tensor, g_weight: Tensor) -> Tensor:
    """The gradient of poses (B, G, R, C, K) from that of votes (G, B, R, C, J, H); that of transforms, like `matrices`
    (G, K, J, H), is added to g_weight. rows: the poses, as `plan.by_rows` has them."""
    (g, b, r, c, _, _), by_row = votes.shape, votes.flatten(1, 3).flatten(2)
    g_weight.flatten(2).baddbmm_(rows.mT, by_row)
    return (by_row @ matrices.flatten(2).mT).view(g, b, r, c, -1).transpose(0, 1)


def _of_biases(votes: Tensor) -> Tensor:
    """The gradient of biases, (1, J, C, G, H), from that of votes (G, B, R, C, J, H)."""
    return votes.sum((1, 2)).permute(2, 1, 0, 3)[None]


def walk_back(source: Source, x: Inputs, o: Options, given: Given, sums: Sums) -> Terms:
    """All iterations; what they share is added to `sums`. Returns what the gradient of stored votes needs of all of
    them. Where votes are made in registers, T is 1, and the iterations use the same memory one after the other."""
    normalisers, last = given.outputs.normalisers, len(o.scales) - 1
    (b, i, j, _), stored, device = source.sizes, source.u is None, source.by_parent.device
    kept, rows = last + 1 if stored else 1, (HEAD.value + 4 * source.dim) // source.run
    table, score, s = (torch.empty(kept, b, *n, device=device) for n in ((rows, j, source.run), (j,), (i,)))
    gates = share_gates(x.gate, x.first_z, normalisers, o.grid)
    trail = Terms(table, x.first, normalisers, gates if o.grid else x.gate, x.beta, score, s)
    if stored and o.grid:
        trail = trail._replace(g_z=torch.empty(last, b, i, device=device))
    own, begun = list(zip(table, score, s, strict=True)), zip([x.first_z, *normalisers], gates, strict=True)
    each = [
        Terms(own[t % kept][0], None if t else x.first, z, gate, x.beta, *own[t % kept][1:])
        for t, (z, gate) in enumerate(begun)
    ]
    slopes = [slopes_of(source, x, o, t, given, terms.table, terms.score, sums) for t, terms in enumerate(each)]
    counters = torch.empty(last + 1, COUNTER, dtype=torch.int32, device=device)
    last_slopes(source, slopes[last], counters)
    for t, counter in reversed(list(enumerate(counters))):
        terms, z = each[t], each[t].z
        step = Step(source, terms, t > 0, sums)
        over_positions = bool(o.grid) and z is not None
        alone = stored or over_positions  # s is needed before, or without, the gradient of poses
        needed = t > 0 or o.gated or over_positions
        if alone and needed:
            child_gradients(step, poses=False, sums=True)
        if over_positions and z is not None:
            g_z, sums.gate = normaliser_gradient(z, x.gate, terms.s, o.grid, o.gated, sums.gate)
            step = step._replace(terms=terms._replace(g_z=g_z))
        if not stored:
            child_gradients(step, poses=True, sums=needed and not alone)
        if o.gated and not over_positions:
            sums.gate = _add_gate(terms.s, sums.gate, o.grid)
        if stored or source.one or source.sizes[3] > 1:
            pair_gradients(step)
        if not stored and not source.one:
            weight_gradients(step)
        if t or source.one:
            parent_gradients(step, slopes[max(t - 1, 0)], counter)  # last: the next table is in the place of this
        if t and trail.g_z is not None and step.terms.g_z is not None:
            trail.g_z[t - 1].copy_(step.terms.g_z)
        if t == 0 and x.first_z is not None:
            sums.first_z = step.terms.g_z
        del step, terms
    return trail


def _add_gate(s: Tensor, total: Tensor | None, grid: list[int]) -> Tensor:
    """The gate's gradient where each place of a grid has the same share of a child, or all of it."""
    if grid:
        return share_gate(s, None, grid, total)
    return s.clone() if total is None else total.add_(s)


class Slopes(NamedTuple):
    """Of an iteration: what `kernels.slopes` is given."""

    tensors: tuple[Any, ...]  # and numbers
    options: dict[str, int]


def slopes_of(
    source: Source, x: Inputs, o: Options, t: int, given: Given, table: Tensor, score: Tensor, sums: Sums
) -> Slopes:
    """Of iteration t, which is to write its table and the gradient of its logits (B, J)."""
    parents = given.outputs.parents
    above, below = parents[t], parents[max(t - 1, 0)]
    mean, variance, logit = (None if y is None else y.contiguous() for y in given.gradients[t])
    g_offset = None if x.offset is None or sums.logit is None else sums.logit[0]
    g_slope = None if x.slope is None or sums.logit is None else sums.logit[-1]
    optional = (x.slope, source.shift, logit, mean, variance, score, g_offset, g_slope, sums.shift)
    tensors = (
        above.logit, above.weight, above.mean, above.variance, below.logit, below.mean, below.variance,
        *(pointer(y, table) for y in optional), table, o.scales[t], *x.factors, o.eps, o.tau(t - 1) if t else 1.0,
        o.tau(t),
    )  # fmt: skip
    known = {
        **logit_options(x, o), "SHIFT": source.shift is not None, "GIVEN": logit is not None,
        "MEAN": mean is not None, "VARIANCE": variance is not None,
    }  # fmt: skip
    return Slopes(tensors, known)


def last_slopes(source: Source, slopes: Slopes, counters: Tensor) -> None:
    """Writes the table of the last iteration, and counters: 0."""
    b, _, j, _ = source.sizes
    _, ends = plan.finish(source, 1, 4)
    launch(kernels.last_slopes, (triton.cdiv(b * j, ends["TILE"]),))(
        counters, *slopes.tensors, b * j, COUNTERS=counters.numel(), J=j, D=source.dim, RUN=source.run,
        **slopes.options, **ends, num_warps=4,
    )  # fmt: skip


def child_gradients(step: Step, poses: bool, sums: bool) -> None:
    """Gradient of the poses, like u, and s_i = sum_j p_ij dL/dw_ij, (B, I); without `sums` s is read."""
    source, terms, found = step.source, step.terms, step.sums
    b, i, _, r = source.sizes
    if source.tiled:
        launch(wide.wide_child_sums, (b * i,))(
            source.by_parent, *terms.pointers[:7], b, i, r, **step.options, **terms.options
        )
        return
    lanes = plan.child_lanes(source)
    again = poses and found.u is not None
    if poses and source.u is not None and found.u is None:
        c, k, _ = source.pose
        found.u = torch.empty(b, i, c * k, dtype=source.u.dtype, device=terms.s.device)
    launch(kernels.child_gradients, (b, triton.cdiv(i, lanes)))(
        *source.by_children, *terms.pointers, pointer(found.u, terms.s), i, r, G=source.groups, SUM=sums, POSES=poses,
        AGAIN=again, BLOCK=lanes, **step.options, **terms.sum_options, AT=source.at, num_warps=1,
    )  # fmt: skip


def parent_gradients(step: Step, below: Slopes, counter: Tensor) -> None:
    """From gradients of the prior (B, J), mean and variance (B, D, J) that an iteration began with, the table of that
    below; the gradient of the one transform there may be. counter: 0."""
    source, terms, sums, device = step.source, step.terms, step.sums, step.terms.s.device
    (b, i, j, r), (_, k, h), d = source.sizes, source.pose, source.dim
    walk, bound = plan.parents_walk(source)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 1, j, device=device) if step.density else terms.s
    programs, ends = plan.finish(source, grid[2], walk.warps)
    again = sums.weight is not None
    if source.one and sums.weight is None:
        sums.weight = torch.empty(grid[2] * b, j, k, h, device=device)
    options = {**ends, **step.options, **terms.sum_options, **below.options}
    given, (walks, more) = (b, i, r, walk.steps, *below.tensors), (math.prod(grid), programs if step.density else 0)
    if source.tiled:
        launch(wide.wide_parent_gradients, (walks + more,))(
            source.by_parent, *terms.pointers, parts, counter, *given, **options
        )
    else:
        launch(kernels.parent_gradients, (walks + more,))(
            *source.by_parents, *terms.pointers, parts, pointer(sums.weight, terms.s), counter, *given, ONE=source.one,
            AGAIN=again, **walk.options, **options, AT=source.at, **bound,
        )  # fmt: skip


def weight_gradients(step: Step) -> None:
    """Gradient of W, and of the bias there may be; where every child has its own, of betas and first couplings."""
    source, terms, sums, device = step.source, step.terms, step.sums, step.terms.s.device
    (b, i, j, r), (c, k, h) = source.sizes, source.pose
    g, again = i // r, sums.weight is not None
    walk = plan.weights_walk(source, plan.weight_chunks(source) if sums.weight is None else len(sums.weight))
    grid = walk.grid(g, j, b * r)
    if sums.weight is None:
        sums.weight = torch.empty(grid[2], j, k, g, h, device=device)
        sums.own = None if source.own_by_parent is None else torch.empty(grid[2], j, c, g, h, device=device)
        if terms.beta is not None and r == 1:
            sums.beta = torch.empty(grid[2], i, j, device=device)
    if terms.first is not None and r == 1:
        sums.first = torch.empty(grid[2], i, j, device=device)
    launch(kernels.weight_gradients, grid)(
        *source.by_parents, *terms.pointers, sums.weight,
        *(pointer(y, terms.s) for y in (sums.own, sums.beta, sums.first)), b, i, r, walk.steps, PAIR=r == 1,
        AGAIN=again, **walk.options, **step.options, **terms.sum_options, AT=source.at,
    )  # fmt: skip


def pair_gradients(step: Step) -> None:
    """Gradients of beta and of the first coupling, (I, J) each, where `weight_gradients` does not sum them."""
    source, terms, sums = step.source, step.terms, step.sums
    b, i, j, r = source.sizes
    if terms.beta is None and terms.first is None:
        return
    again = sums.beta is not None
    if terms.beta is not None and sums.beta is None:
        sums.beta = torch.empty(1, i, j, device=terms.s.device)
    if terms.first is not None:
        sums.first = torch.empty(1, i, j, device=terms.s.device)
    given = (*terms.pointers[:6], pointer(sums.beta, terms.table), pointer(sums.first, terms.table), b, i, r)
    options = {**step.options, **terms.options, "AGAIN": again}
    if source.tiled:
        launch(wide.wide_pair_gradients, (i, source.tiles))(source.by_parent, *given, **options)
        return
    parents = plan.parent_lanes(j)
    launch(kernels.pair_gradients, (i, triton.cdiv(j, parents)))(
        *source.by_parents, *given, PARENTS=parents, **options, ONE=source.one, num_warps=1
    )
