"""Which capsules a class capsule came from: the parse tree of one image per iteration, still and as a GIF, and the
tokens and transformer layers that a sentence's class used (heinsen's credit assignment)."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.votes import covered, patches
from ..nn.capsules import ConvCapsules
from ..nn.trace import LayerTrace, iterations_of, presence
from ..routing import Step
from .figure import DoesNotApply, Drawn, Run, take
from .style import BLUE, FAINT, GREEN, INK, MUTED, RED, bare, rgba, styled, subplots

EDGES = 24  # lines per class and layer
ROOTS = (BLUE, RED, GREEN)  # colours of the classes that a tree shows
WIDEST = 4.5  # of a line, points
STEP = 1.3  # from one level to the next


@dataclass(frozen=True)
class Tree:
    """levels: places of nodes in the drawing, (N, 2), from the primary capsules, over the image at [0, 1], up.
    edges[k] (E, 3): root, child and parent between levels k and k + 1. mass[k] (T, E): the share of everything routed
    to classes that goes along each edge. share (T, R): the total of each root."""

    roots: list[int]
    levels: list[Tensor]
    edges: list[Tensor]
    mass: list[Tensor]
    share: Tensor


def grow(run: Run, row: int, iterations: int | None = None) -> Tree:
    """The tree of example `row`. Its roots are the classes with the largest scores."""
    batch = take(run.examples(), torch.tensor([row]))
    fields = run.receptive_fields()
    layers = run.trace(batch, iterations)
    steps = max(len(layer.steps) for layer in layers)
    weights = [torch.stack([node_weights(layer, layer.steps[min(t, len(layer.steps) - 1)], whole=k == 0)
                            for t in range(steps)]) for k, layer in enumerate(layers)]  # (T, children, parents) each
    if weights[-1].shape[2] < 2:
        raise DoesNotApply("at least two class capsules are needed; a child of a single one has no choice")
    classes = run.output.scores[row].topk(min(len(ROOTS), weights[-1].shape[2])).indices.tolist()
    flows, share = flow(weights, classes)
    edges, mass = zip(*(strongest(x) for x in flows), strict=True)
    h, w = run.images().shape[2:]
    x, y = (fields[..., 2] + fields[..., 3] + 1) / (2 * w), 1 - (fields[..., 0] + fields[..., 1] + 1) / (2 * h)
    centres = torch.stack([x, y], -1).view(-1, 2)
    types = weights[0].shape[1] // len(centres)
    step = min(float(x.diff(dim=1).min()) if x.shape[1] > 1 else 0.1, 0.12)
    lowest = (centres + ring(types, 0.3 * step)[:, None]).flatten(0, 1)
    levels = [lowest, *(places(layer, k + 1) for k, layer in enumerate(layers))]
    return Tree(classes, levels, list(edges), list(mass), share)


def ring(types: int, radius: float) -> Tensor:
    """Offsets of the capsules of each type around their place, (types, 2)."""
    angle = torch.arange(types) * (2 * torch.pi / types)
    return radius * torch.stack([angle.cos(), -angle.sin()], 1) * (types > 1)


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


def places(layer: LayerTrace, level: int) -> Tensor:
    """Where a layer's parents are drawn, (N, 2): a smaller grid than the image, or a column."""
    pose = layer.out.pose
    h, w = pose.shape[2:4] if pose.ndim == 5 else (pose.shape[1], 1)
    y, x = torch.meshgrid((torch.arange(h) + 0.5) / h, (torch.arange(w) + 0.5) / w, indexing="ij")
    height = 0.6 if w > 1 else 1.0
    return torch.stack([STEP * level + 0.25 + 0.5 * (x - 0.5), 0.5 + height * (0.5 - y)], -1).view(-1, 2)


@styled
def parse_tree(run: Run) -> Drawn:
    """The parse tree of one image: which primary capsules go to which class, thickness = coupling, per iteration."""
    row = clear_row(run)
    tree = grow(run, row)
    steps = len(tree.share)
    shown = list(range(steps)) if steps <= 3 else [0, 1, steps - 1]
    across = len(shown) if len(tree.levels) == 2 else 1
    down = len(shown) // across
    wide = 2.6 * (STEP * (len(tree.levels) - 1) + 0.6)
    fig, axes = subplots(0.78 * wide * across, 0.78 * 3.35 * down, down, across)
    for axis, t in zip(axes, shown, strict=True):
        draw_tree(axis, run, tree, row)(t)
        axis.set_title(f"iteration {t + 1}")
    return Drawn({"row": row, **vars(tree)}, fig, _caption(run, tree, row))


@styled
def animation(run: Run, iterations: int = 5, between: int = 5) -> Drawn:
    """Routing as it converges, on one image: a moving parse tree (GIF)."""
    from PIL import Image

    row = clear_row(run)
    tree = grow(run, row, iterations)
    fig, (axis,) = subplots(2.6 * (STEP * (len(tree.levels) - 1) + 0.6), 3.2)
    show = draw_tree(axis, run, tree, row)
    frames, waits = [], []
    own = iterations_of(run.stack())
    for k in range((len(tree.share) - 1) * between + 1):
        t, part = divmod(k, between)
        show(t, part / between)
        mark = " (where this model stops)" if t + 1 == own else ""
        axis.set_title(f"iteration {t + 1}{mark}")
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=80)
        if k == 0:
            fig.set_layout_engine("none")
        frames.append(Image.open(buffer).convert("RGB").quantize(64))
        waits.append(900 if part == 0 else 90)
    waits[-1] = 2000
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=waits, loop=0)
    text = _caption(run, tree, row) + f" The model itself stops after {own}."
    return Drawn({"row": row, **vars(tree), "gif": out.getvalue(), "frames": len(frames)}, fig, text)


def clear_row(run: Run) -> int:
    """The correctly answered example with the closest best two scores, so that routing has something to decide."""
    best = run.output.scores.topk(min(2, run.output.scores.shape[1]), 1).values
    gap = best[:, 0] - best[:, -1]
    return int(torch.where(run.right, gap, gap.new_tensor(torch.inf)).argmin())


def draw_tree(axis: Any, run: Run, tree: Tree, row: int) -> Callable[..., None]:
    """Draws image, nodes and lines of a tree; show(t, part) sets widths, sizes and labels, `part` of the way from
    iteration t to the next."""
    from matplotlib.collections import LineCollection

    image = run.images()[row]
    axis.imshow(rgba(image).numpy(), extent=(0, 1, 0, 1), interpolation="nearest", aspect="auto", zorder=0)
    axis.axis("off")
    h, w = image.shape[1:]
    axis.set(xlim=(-0.02, STEP * (len(tree.levels) - 1) + 0.62), ylim=(-0.02, 1.02))
    axis.set_aspect(h / w)
    points = [level.clone() for level in tree.levels]
    y = 1 - (torch.arange(len(tree.roots)) + 0.5) / len(tree.roots)
    points[-1][tree.roots] = torch.stack([torch.full_like(y, STEP * (len(points) - 1) + 0.1), y], 1)  # a column
    for k, xy in enumerate(points[:-1]):
        used = tree.edges[k][:, 1].unique() if k == 0 and len(xy) > 200 else torch.arange(len(xy))
        axis.scatter(xy[used, 0], xy[used, 1], s=12 if k else 7, color=FAINT, edgecolor=MUTED, linewidth=0.5, zorder=3)
    lines = []
    for k, edges in enumerate(tree.edges):
        segments = torch.stack([points[k][edges[:, 1]], points[k + 1][edges[:, 2]]], 1)
        colours = [ROOTS[int(r)] for r in edges[:, 0]]
        lines.append(LineCollection(list(segments.numpy()), colors=colours, alpha=0.7, capstyle="round", zorder=2))
        axis.add_collection(lines[-1])
    top = points[-1][tree.roots]
    dots = [axis.scatter(*xy, color=ROOTS[r], zorder=4) for r, xy in enumerate(top)]
    labels = [axis.text(float(x) + 0.12, float(y), "", va="center", fontsize=12, color=INK) for x, y in top]

    def show(t: int, part: float = 0.0) -> None:
        def between(values: Tensor) -> Tensor:
            return values[t] + part * (values[min(t + 1, len(values) - 1)] - values[t])

        for line, mass in zip(lines, tree.mass, strict=True):
            line.set_linewidth((WIDEST * between(mass) / mass.max().clamp(min=1e-12)).tolist())
        for dot, label, k, share in zip(dots, labels, tree.roots, between(tree.share).tolist(), strict=True):
            dot.set_sizes([60 + 700 * share])
            label.set_text(f"{run.class_name(k)}  {100 * share:.1f} %")

    return show


def _caption(run: Run, tree: Tree, row: int) -> str:
    names = [run.class_name(k) for k in tree.roots]
    first, last = tree.share[0], tree.share[-1]
    said = ", ".join(f"{n} from {100 * float(a):.1f} to {100 * float(b):.1f} %"
                     for n, a, b in zip(names, first, last, strict=True))
    return (f"Lines go from the {len(tree.levels[0])} primary capsules, drawn in a ring around the centre of their "
            f"receptive field, to the {len(names)} classes with the largest scores. Thickness is coupling times "
            f"presence; only the strongest lines of each class are shown. Over {len(tree.share)} iterations the share "
            f"of each class in everything routed changes: {said}.")


@styled
def credit(run: Run, sentences: int = 3) -> Drawn:
    """Which tokens and transformer layers a sentence's class capsule used (heinsen)."""
    if run.model.image is not None:
        raise DoesNotApply("text is needed: hidden states of a transformer; this model reads images")
    batch = run.first(sentences)
    n, depth = batch.inputs.shape[1:3]
    answer = run.model(batch.inputs, batch.mask).scores.argmax(1)
    shares = credit_of(run.trace(batch))  # (B, n * l, K)
    table = shares[torch.arange(len(answer)), :, answer].view(-1, n, depth)
    fig, axes = subplots(10, 2.5 * len(table) + 0.2, len(table), 1)
    said, words = [], []
    for k, axis in enumerate(axes):
        length = int(batch.mask[k].sum()) if batch.mask is not None else n
        tokens = run.tokens[k][:length] if run.tokens else [f"token {t + 1}" for t in range(length)]
        words.append(tokens)
        axis.imshow(table[k, :length].T.cpu().numpy(), cmap="cividis", aspect="auto", origin="lower")
        bare(axis)
        axis.set_xticks(range(length), [t.strip("ĠÂ ") or "·" for t in tokens], rotation=50, ha="right", fontsize=10)
        axis.set_yticks([0, depth - 1], ["first", "last"])
        label = run.class_name(int(batch.targets[k]))
        axis.set(ylabel="layer", title=f"answer {run.class_name(int(answer[k]))}, label {label}")
        best = int(table[k, :length].sum(1).argmax())
        layer = int(table[k].sum(0).argmax())
        token_share, layer_share = 100 * float(table[k, best].sum()), 100 * float(table[k, :, layer].sum())
        said.append(f"sentence {k + 1} uses “{tokens[best]}” most ({token_share:.0f} % of its credit; an even share is "
                    f"{100 / length:.0f} %) and layer {layer} ({layer_share:.0f} %; even: {100 / depth:.0f} %)")
    axes[-1].set_xlabel("token")
    text = f"Brighter is used more; {'; '.join(said)}."
    return Drawn({"credit": table, "tokens": words, "answer": answer}, fig, text)


def credit_of(layers: list[LayerTrace]) -> Tensor:
    """The share of each primary capsule in each class, presence times coupling through all layers: (B, I, K)."""
    total: Tensor | None = None
    for layer in layers:
        use = presence(layer).flatten(1)[..., None] * layer.steps[-1].coupling.abs()  # (B, I, J)
        use = use / use.sum(1, keepdim=True).clamp(min=1e-12)
        total = use if total is None else total @ use
    assert total is not None
    return total
