"""The parse tree of one image: which primary capsules are routed to which class, layer by layer, per iteration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nn.capsules import ConvCapsules
from ..routing import Step
from ..routing.votes import covered, patches
from .figure import DoesNotApply, Run, take
from .inside import LayerTrace, presence, receptive_fields, trace

EDGES = 24  # lines per class and layer


@dataclass(frozen=True)
class Tree:
    """levels: positions of nodes, (N, 2) as (x, y) in [0, 1], from the primary capsules up; dense layers are a column.
    edges[k] (E, 3): root, child and parent between levels k and k + 1. mass[k] (T, E): the share of everything routed
    to classes that goes along each edge. share (T, R): the total of each root."""

    roots: list[int]
    levels: list[Tensor]
    edges: list[Tensor]
    mass: list[Tensor]
    share: Tensor


def grow(run: Run, row: int, *, roots: int = 3, iterations: int | None = None) -> Tree:
    """The tree of example `row`, its roots the classes with the largest scores."""
    batch = take(run.examples(), torch.tensor([row]))
    fields = receptive_fields(run, batch)
    layers = trace(run, batch, iterations)
    steps = max(len(layer.steps) for layer in layers)
    weights = [torch.stack([node_weights(layer, layer.steps[min(t, len(layer.steps) - 1)], whole=k == 0)
                            for t in range(steps)]) for k, layer in enumerate(layers)]  # (T, children, parents) each
    if weights[-1].shape[2] < 2:
        raise DoesNotApply("at least two class capsules are needed; a child of a single one has no choice")
    classes = run.output.scores[row].topk(min(roots, weights[-1].shape[2])).indices.tolist()
    flows, share = flow(weights, classes)
    edges, mass = zip(*(strongest(x) for x in flows), strict=True)
    h, w = run.images().shape[2:]
    x, y = (fields[..., 2] + fields[..., 3] + 1) / (2 * w), (fields[..., 0] + fields[..., 1] + 1) / (2 * h)
    centres = torch.stack([x, y], -1).view(-1, 2)
    types = weights[0].shape[1] // len(centres)
    step = min(float(x.diff(dim=1).min()) if x.shape[1] > 1 else 0.1, 0.12)
    levels = [(centres + ring(types, 0.3 * step)[:, None]).flatten(0, 1), *(_places(layer) for layer in layers)]
    return Tree(classes, levels, list(edges), list(mass), share)


def ring(types: int, radius: float) -> Tensor:
    """Offsets of the capsules of each type around their place, (types, 2)."""
    angle = torch.arange(types) * (2 * torch.pi / types)
    return radius * torch.stack([angle.cos(), angle.sin()], 1) * (types > 1)


def node_weights(layer: LayerTrace, step: Step, whole: bool = False) -> Tensor:
    """Coupling times the child's presence in the first example, (children, parents).

    A node is a place, its types summed, where a layer has places; else a capsule. whole: every child of a dense layer
    is a node of its own.
    """
    c, a = step.coupling[0].abs(), presence(layer)[0]
    if not isinstance(layer.layer, ConvCapsules):
        w = a.reshape(-1, 1) * c  # (I, J)
        return w if a.ndim == 1 or whole else w.view(a.shape[0], -1, w.shape[1]).sum(0)
    k, stride, p = layer.layer.kernel, layer.layer.stride, layer.layer.padding
    a = F.pad(a, (p, p, p, p))
    h, w_ = a.shape[1:]
    seen = patches(a[None, ..., None], k, stride)[0, ..., 0]  # (H', W', T * k * k)
    use = (c.sum(1).permute(1, 2, 0) * seen).unflatten(2, (-1, k * k)).sum(2).flatten(0, 1)  # (P, k * k)
    child = covered(h, w_, k, stride, a.device)
    table = torch.zeros(len(use), h * w_, device=a.device).scatter_add(1, child, use)
    return table.view(-1, h, w_)[:, p : h - p, p : w_ - p].flatten(1).T


def flow(weights: list[Tensor], classes: list[int]) -> tuple[list[Tensor], Tensor]:
    """The mass along every edge, from the classes down, (T, R, children, parents) per layer, and the roots' shares."""
    top = weights[-1]
    shares = top / top.sum((1, 2), keepdim=True).clamp(min=1e-12)
    flows = [torch.zeros(len(top), len(classes), *top.shape[1:], device=top.device)]
    for r, k in enumerate(classes):
        flows[0][:, r, :, k] = shares[:, :, k]
    for w in reversed(weights[:-1]):
        part = w / w.sum(1, keepdim=True).clamp(min=1e-12)  # of each parent, over its children
        flows.insert(0, part[:, None] * flows[0].sum(3)[:, :, None, :])
    return flows, flows[-1].sum((2, 3))


def strongest(flows: Tensor, limit: int = EDGES) -> tuple[Tensor, Tensor]:
    """flows (T, R, children, parents) -> the edges that carry most in any iteration, (E, 3), and their mass (T, E)."""
    t, r, n, m = flows.shape
    flat = flows.view(t, r, n * m)
    best = flat.amax(0).topk(min(limit, n * m), dim=1).indices  # (R, limit)
    mass = flat.gather(2, best.expand(t, -1, -1)).flatten(1)
    root = torch.arange(r, device=best.device)[:, None].expand_as(best)
    edges = torch.stack([root, best // m, best % m], -1).flatten(0, 1)
    used = mass.amax(0) > 0
    return edges[used].cpu(), mass[:, used].cpu()


def _places(layer: LayerTrace) -> Tensor:
    """Positions of the parents: their grid, or a column."""
    pose = layer.out.pose
    if pose.ndim == 5:
        h, w = pose.shape[2:4]
        y, x = torch.meshgrid((torch.arange(h) + 0.5) / h, (torch.arange(w) + 0.5) / w, indexing="ij")
        return torch.stack([x, y], -1).view(-1, 2)
    n = pose.shape[1]
    return torch.stack([torch.full((n,), 0.5), (torch.arange(n) + 0.5) / n], -1)
