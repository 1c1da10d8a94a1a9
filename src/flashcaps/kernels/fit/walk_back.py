"""The way back through a routing: iterations from the last to the first, and what their gradients come to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..common.patches import Window, fold, gather_patches, windowed
from . import gradients as backward
from . import pairs as pairs
from .forward import Found, Rule
from .gradients import Fitted, Parents, Sums
from .share import logit_gradient, shared
from .source import IMAGE, LANES, Source, source_of, votes_of

FULL = 2048  # warps: two for every one that is resident on a large GPU
VOTES = 1  # times the poses: how much of stored votes is made at once for their gradient


class Inputs(NamedTuple):
    """Tensors that gradients are of."""

    u: Tensor  # (B, G, R, C, K), or an image (examples, types, height, width, C K)
    weight: Tensor  # (J, K, G, H)
    bias: Tensor | None  # (J, C, G, H): of votes
    gate: Tensor  # (B, I); with an image, (examples, types, height, width)
    share: Tensor | None  # (B, I): of each child, the first time, of a softmax over positions; None: equal ones
    first: Tensor | None  # (I, J): the first couplings; None: 1 / J
    beta: Tensor | None  # (I, J)
    offset: Tensor | None  # (B, J)
    slope: Tensor | None  # (J,)

    def rows(self, rows: slice) -> Inputs:
        """What is given of some rows, where they are not in an image."""
        share, offset = (None if x is None else x[rows] for x in (self.share, self.offset))
        return self._replace(u=self.u[rows], gate=self.gate[rows], share=share, offset=offset)


class Options(NamedTuple):
    """window: kernel and stride of an image, or empty. grid: of a softmax over positions, or empty."""

    scales: list[float]  # of logits, one for each iteration
    spread: bool
    grid: list[int]
    window: list[int]
    eps: float
    gated: bool = False  # whether the gate's gradient is asked for

    def window_of(self, u: Tensor) -> Window | None:
        return windowed(u, *self.window)[1] if self.window else None

    def gate_of(self, gate: Tensor) -> Tensor:
        """(B, I), of patches where it is an image."""
        return gather_patches(gate[..., None], *self.window).view(-1, self.children(gate)) if self.window else gate

    def children(self, gate: Tensor) -> int:
        """I"""
        return gate.shape[1] * self.window[0] ** 2 if self.window else gate.shape[1]

    def weighted(self, gate: Tensor, share: Tensor | None, z: Tensor | None) -> Tensor:
        """gate (B, I) times the share that a softmax over positions gives: of Z, the first time the one given."""
        if z is None and share is not None:
            return gate * share
        return shared(gate, z, self.grid) if self.grid else gate


class Given(NamedTuple):
    """What the forward pass left, and the gradients of what it gave."""

    found: list[Found]
    normalisers: Tensor  # (T - 1, B, I)
    gradients: list[Parents]

    def rows(self, rows: slice) -> Given:
        found = [Found(*(y[rows] for y in x)) for x in self.found]
        gradients = [Parents(*(None if y is None else y[rows] for y in x)) for x in self.gradients]
        return Given(found, self.normalisers[:, rows], gradients)


class Trail(NamedTuple):
    """What the gradient of stored votes needs of every iteration, in one place each; T: their number.

    Where votes are made when they are needed, an iteration is done with it, and there is one for all.
    """

    table: Tensor  # (T, B, (4 + 4 D) / RUN, J, RUN)
    score: Tensor  # (T, B, J)
    sums: Tensor  # (T, B, I)
    gates: Tensor | None  # (T, B, I), with a softmax over positions
    shares: Tensor | None  # (T - 1, B, I): gradient of Z


def gradients_of(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """In the order of `Inputs`, None where there is no such tensor."""
    if o.window:
        return _by_examples(x, o, given)
    source, sums = source_of(x.u, x.weight, x.bias), Sums()
    trail = walk_back(source, x, o, given, sums)
    g_u, g_bias = sums.u, sums.own
    if source.u is None:
        own = source.shift is None
        del source
        g_u, g_weight, g_bias = _of_stored_votes(x, o, given, trail, own)
    else:
        g_u, g_weight = g_u if g_u is None else g_u.view(x.u.shape), _of_weight(sums.weight, x.weight)
    if sums.shift is not None:
        g_bias = sums.shift.sum(0).t()[None]
    if g_bias is not None and x.bias is not None:
        g_bias = backward.summed(g_bias).reshape(x.bias.shape).to(x.bias.dtype).contiguous()
    first, beta = (None if y is None else backward.summed(y) for y in (sums.first, sums.beta))
    g_slope = None if sums.slope is None else sums.slope.sum(0)
    g_gate = sums.gate if o.gated else x.gate.new_empty(0)
    return [g_u, g_weight, g_bias, g_gate, sums.share, first, beta, sums.offset, g_slope]


def walk_back(source: Source, x: Inputs, o: Options, given: Given, sums: Sums) -> Trail:
    """All iterations; what they share is added to `sums`."""
    rule, steps, prior = Rule(x.offset, x.slope, o.spread), len(o.scales), None
    trail, wanted = _trail(source, steps, o.grid), list(given.gradients)
    for t in reversed(range(steps)):
        z = given.normalisers[t - 1] if t else None
        gate = o.weighted(x.gate, x.share, z)
        below = given.found[t - 1] if t else None
        fitted = Fitted(below, given.found[t], z, gate, None if t else x.first, x.beta, o.scales[t], o.eps)
        at = t if source.u is None else 0
        step = backward.begin(source, rule, fitted, wanted.pop(), prior, (trail.table[at], trail.score[at]), sums)
        s, over = trail.sums[at], bool(o.grid) and t > 0
        alone = source.u is None or over  # s is needed before, or without, the gradient of poses
        needed = t > 0 or o.gated or x.share is not None
        if alone and needed:
            backward.child_sums(step, s)
        g_z = None
        if z is not None and over:
            g_z, sums.gate = logit_gradient(z, x.gate, s, o.grid, o.gated, sums.gate)
        if source.u is not None:
            backward.child_gradients(step, s, g_z, sums=needed and not alone)
        if g_z is None:
            _of_gate(sums, x, o, s)
        below_them = backward.parent_gradients(step, s, g_z)
        _of_transforms(step, s, g_z)
        if trail.gates is not None and trail.shares is not None:
            trail.gates[t].copy_(gate)
            if g_z is not None:
                trail.shares[t - 1].copy_(g_z)
        del step, fitted, g_z, gate
        if below_them is not None:
            prior, g_mean, g_variance = below_them
            mean, variance, logit = wanted[-1]
            wanted[-1] = Parents(added(mean, g_mean), added(variance, g_variance), logit)
            del below_them, g_mean, g_variance
    return trail


def _trail(source: Source, steps: int, grid: list[int]) -> Trail:
    b, i, j, _ = source.sizes
    kept, device = (steps if source.u is None else 1), source.by_parent.device
    table, score = backward.new_table(source, kept), torch.empty(kept, b, j, device=device)
    several = bool(grid) and source.u is None
    gates, shares = (torch.empty(n, b, i, device=device) if several else None for n in (kept, kept - 1))
    return Trail(table, score, torch.empty(kept, b, i, device=device), gates, shares)


def _of_transforms(step: backward.Step, s: Tensor, g_z: Tensor | None) -> None:
    """Of W, and of what belongs to a child and a parent."""
    source = step.source
    if source.u is None or source.one or source.sizes[3] > 1:
        backward.pair_gradients(step)
    if source.u is not None and not source.one:
        backward.weight_gradients(step, s, g_z)


def _of_gate(sums: Sums, x: Inputs, o: Options, s: Tensor) -> None:
    """Of an iteration whose shares, if any, are not of Z."""
    if x.share is not None:
        sums.share = x.gate * s
    if o.gated and o.grid and x.share is None:
        sums.gate = shared(s, None, o.grid, sums.gate)
    elif o.gated:
        own = s if x.share is None else s * x.share
        sums.gate = own.clone() if sums.gate is None else sums.gate.add_(own)


def added(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    """x + y; None: zero."""
    return y if x is None else x if y is None else x + y


def _of_weight(sums: Tensor | None, weight: Tensor) -> Tensor:
    """(J, K, G, H) of the sums of chunks, or of chunks and examples."""
    assert sums is not None
    return backward.summed(sums).view(weight.shape).to(weight.dtype)


def examples_at_once(x: Inputs, steps: int, places: int) -> int:
    """Examples that go backward together: as many as have room for tables, parts and patches in what image, transforms,
    parents and their gradients leave, within twice their bytes, of the parents and Z that are kept of all examples.
    Where those leave next to nothing the layer is a small one on top of others, and has as many as fill a GPU."""
    (j, k, i, h), (b, _, _, _, width) = x.weight.shape, x.u.shape
    d = width // k * h
    row = i * (width + 6) + (8 * d + 8) * j  # elements that a row of parents needs on its way back
    kept = b * places * ((2 * steps + 1) * d * j + (steps - 1) * i)
    room = IMAGE * x.u.numel() + 0.9 * x.weight.numel() + 0.5 * b * places * d * j - kept
    if room < x.u.numel() / 4:
        return max(FULL * LANES // (i * places), 1)
    return max(int(room / (row * places)), 1)


def _by_examples(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """The same of an image, a few examples at a time, whose patches' gradients fold back into its own."""
    window = o.window_of(x.u)
    assert window is not None
    g_u, g_gate = torch.empty_like(x.u), x.gate.new_empty(x.gate.shape if o.gated else 0)
    g_offset = None if x.offset is None else torch.empty_like(x.offset)
    g_slope, weight, source = None, None, source_of(x.u, x.weight, None, window)
    some = examples_at_once(x, len(o.scales), window.places)
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
        if sums.slope is not None:
            g_slope = sums.slope.sum(0) if g_slope is None else g_slope.add_(sums.slope.sum(0))
        weight = sums.weight
        del sums, part
    return [g_u, _of_weight(weight, x.weight), None, g_gate, None, None, None, g_offset, g_slope]


def _of_stored_votes(
    x: Inputs, o: Options, given: Given, trail: Trail, own: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of u, weight and, if groups have their own, bias: votes are made again, a few examples at a time, and
    their gradient takes their place. What there is of votes at once is of the size of the poses."""
    (b, g, r, c, k), (j, _, _, h) = x.u.shape, x.weight.shape
    by_group = x.weight.float().permute(2, 1, 0, 3).reshape(g, k, j * h)
    g_u, g_weight, g_bias = torch.empty_like(x.u), torch.zeros_like(by_group), None
    some = max(min(VOTES * b * c * k // (j * c * h), b), 1)
    for lo in range(0, b, some):
        u = x.u[lo : lo + some]
        v = votes_of(u, x.weight, x.bias if own else None)
        _turn(v, lo, x, o, given, trail)
        v = v.view(-1, g, r, j, c, h)
        by_row = v.permute(1, 0, 2, 4, 3, 5).reshape(g, -1, j * h)  # no copy where votes had none
        g_u[lo : lo + some] = (by_row @ by_group.mT).view(g, -1, r, c, k).transpose(0, 1)
        g_weight.baddbmm_(u.float().transpose(0, 1).reshape(g, -1, k).mT, by_row)
        if own and x.bias is not None:
            g_bias = added(g_bias, v.sum((0, 2)).permute(1, 2, 0, 3))
        del v, by_row
    g_weight = g_weight.view(g, k, j, h).permute(2, 1, 0, 3).to(x.weight.dtype).contiguous()
    return g_u, g_weight, None if g_bias is None else g_bias[None]


def _turn(v: Tensor, lo: int, x: Inputs, o: Options, given: Given, trail: Trail) -> None:
    """Votes of the examples from `lo` on into their gradients."""
    n, i, j, d = v.shape
    parents = min(LANES, 1 << (j - 1).bit_length())
    rows, none = 4 * LANES // parents, trail.table
    first, beta, shares = (none if y is None else y for y in (x.first, x.beta, trail.shares))
    pairs.vote_gradients[(n, -(-i // rows), -(-j // parents))](
        v, trail.table, first, given.normalisers, x.gate if trail.gates is None else trail.gates, beta, trail.score,
        trail.sums, shares, lo, x.u.shape[0], i, J=j, D=d, RUN=1 if d % 4 else 4, T=len(o.scales),
        FIRST=x.first is not None, SCORE=x.beta is not None, SHARED=trail.gates is not None, ROWS=rows,
        PARENTS=parents, num_warps=4,
    )  # fmt: skip
