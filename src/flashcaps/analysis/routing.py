"""How votes are routed and what comes of it: distances of votes to a class capsule's mean (em slides, Fig. 2), the same
votes under every algorithm, whether logits settle (dynamic, Fig. A.1), the lengths that the margin loss sees, and how
sparse discriminative routing's coefficients are.
"""

import math
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ..models import create_model
from ..nn.losses import margin_loss, multi_hot
from ..nn.trace import decided, sums
from ..routing import ROUTING, Routing, Sizes, Step
from ..routing.discriminative import Discriminative, discriminative_routing, discriminative_update
from ..routing.math import over_parents
from ..training.routing_measure import PROBED_IMAGES, PROBED_ITERATIONS, logit_change
from .figure import DoesNotApply, Drawn, Run, take
from .style import BLUE, COLOURS, INK, LINES, MARKERS, MUTED, RED, colour_of, figure, grid, look_of, styled, subplots

VOTE_BINS, LENGTH_BINS = 24, 40
SMALL = 0.01  # share of the largest coefficient below which one counts as zero
SAME = 0.02  # difference of entropies below which two lines coincide


@styled
def vote_distances(run: Run, classes: int = 3) -> Drawn:
    """Histograms of vote distances to each class capsule's mean, weighted by assignment (em slides, Fig. 2).

    A correctly and a wrongly answered image; the label first, then the classes with the largest scores.
    """
    batch = run.examples()
    kinds = {"right": run.right, "wrong": ~run.right}
    rows = {kind: int(ok.nonzero()[0]) for kind, ok in kinds.items() if ok.any()}
    data: dict[str, Any] = {"rows": rows}
    for kind, row in rows.items():
        votes, top = run.class_votes(take(batch, torch.tensor([row])))
        if votes.shape[1] < 2:
            raise DoesNotApply("votes of several children are needed; the class layer has a single one")
        weights = torch.stack([step.coupling[0] for step in top.steps]).abs()  # discriminative's may be negative
        mine = (multi_hot(batch.targets, run.model.classes)[row] > 0.5).nonzero()[:, 0].tolist()
        order = run.output.scores[row].argsort(descending=True).tolist()
        data[kind] = {"distance": weighted_distances(votes[0], weights), "weight": weights, "label": mine,
                      "classes": (mine + [k for k in order if k not in mine])[:classes]}
    fig = _draw(run, data, rows)
    said = " ".join(f"{kind.capitalize()} answer: {_shrink(run, data[kind])}" for kind in rows)
    text = f"Votes near the mean agree. {said} The label's classes come first, then those with the largest scores."
    return Drawn(data, fig, text)


def weighted_distances(votes: Tensor, weights: Tensor) -> Tensor:
    """||V_ij - mean_j||, mean_j = sum_i c_ij V_ij / sum_i c_ij: votes (I, J, D), weights (T, I, J) -> (T, I, J)."""
    total = weights.sum(1).clamp(min=1e-12)
    mean = torch.einsum("tij,ijd->tjd", weights, votes) / total[..., None]
    return (votes[None] - mean[:, None]).norm(dim=-1)


def spread_of(distance: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean distance of each class's votes, (T, I, J) -> (T, J)."""
    return (distance * weight).sum(1) / weight.sum(1).clamp(min=1e-12)


def _draw(run: Run, data: dict[str, Any], rows: dict[str, int]) -> Any:
    steps = len(data[next(iter(rows))]["weight"])
    wide = max(len(data[kind]["classes"]) for kind in rows)
    fig = figure(2.6 * wide + 0.6, (1.15 * steps + 0.7) * len(rows) + 0.4)
    parts = fig.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, kind in zip(parts, rows, strict=True):
        distance, weight, classes = (data[kind][key] for key in ("distance", "weight", "classes"))
        axes = part.subplots(steps, len(classes), squeeze=False, sharex=True, sharey=True)
        top = float(distance[:, :, classes].quantile(0.98)) if distance.numel() < 10**7 else float(distance.max())
        colour = BLUE if kind == "right" else RED
        for t in range(steps):
            for axis, k in zip(axes[t], classes, strict=True):
                counts, edges = torch.histogram(distance[t, :, k].cpu(), VOTE_BINS, range=(0, top),
                                                weight=weight[t, :, k].cpu())
                axis.stairs(counts, edges, fill=True, color=colour)
                axis.axvline(float(spread_of(distance, weight)[t, k]), color=INK, linewidth=1)
            axes[t, 0].set_ylabel(f"iteration {t + 1}", fontsize=10)
        for axis, k in zip(axes[0], classes, strict=True):
            mark = " (label)" if k in data[kind]["label"] else ""
            axis.set_title(f"{run.class_name(k)}{mark}, {float(run.output.scores[rows[kind], k]):.2f}", fontsize=11)
        part.supxlabel("distance of a vote to the mean", fontsize=11)
        part.suptitle(f"{kind} answer", fontsize=12, fontweight="bold")
    return fig


def _shrink(run: Run, data: dict[str, Any]) -> str:
    spread, mass = spread_of(data["distance"], data["weight"]), data["weight"].sum(1)
    k = data["classes"][0]
    share = mass / mass.sum(1, keepdim=True).clamp(min=1e-12)
    return (f"votes for {run.class_name(k)} lie {float(spread[0, k]):.2f} from their mean in the first iteration and "
            f"{float(spread[-1, k]):.2f} in the last, with {100 * float(share[0, k]):.0f} % and then "
            f"{100 * float(share[-1, k]):.0f} % of all assignment.")


@styled
def agreement(run: Run, iterations: int = 5, images: int = 16) -> Drawn:
    """Coupling entropy and agreement of votes per iteration, all algorithms on the same votes."""
    batch = run.first(images)
    votes, _ = run.class_votes(batch, 1)
    if votes.shape[2] < 2:
        raise DoesNotApply("at least two class capsules are needed; a child of a single one has no choice")
    data: dict[str, Any] = {}
    for name in ROUTING:
        steps = route(ROUTING[name](iterations=iterations), votes, batch.targets)
        data[name] = {"entropy": torch.stack([entropy(s.coupling) for s in steps]),
                      "agreement": torch.stack([agree(votes, s.coupling) for s in steps])}
    fig, (left, right) = subplots(9.5, 3.9, 1, 2)
    for k, (name, values) in enumerate(data.items()):
        look: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "linestyle": LINES[k % len(LINES)]}
        for axis, key in ((left, "entropy"), (right, "agreement")):
            axis.plot(range(1, len(values[key]) + 1), values[key].cpu(), color=colour_of(name), label=name,
                      markersize=max(9 - 1.4 * k, 2), **look)
    left.set(xlabel="iteration", ylabel="entropy of a child's coupling", title="1: undecided, 0: one parent")
    left.set_ylim(-0.03, 1.05)
    right.set(xlabel="iteration", ylabel="agreement of votes", title="mean cosine of vote and capsule")
    right.legend(fontsize=10)
    for axis in (left, right):
        axis.set_xticks(range(1, iterations + 1))
    grid(left, right)
    return Drawn(data, fig, _agreed(run, data, iterations, len(batch.inputs)))


def _agreed(run: Run, data: dict[str, Any], iterations: int, images: int) -> str:
    ends = {n: (float(v["entropy"][-1]), float(v["agreement"][0]), float(v["agreement"][-1])) for n, v in data.items()}
    said = "; ".join(f"{n} {e:.2f} and {a:.2f} (at first {first:.2f})" for n, (e, first, a) in ends.items())
    text = (f"The votes of {run.model.name} for its classes on {images} test images, routed by each algorithm with its "
            f"initial parameters. Entropy and agreement after {iterations} iterations: {said}. The couplings of "
            f"{min(ends, key=lambda n: ends[n][0])} are the most decided. Discriminative coefficients belong to the "
            "layer: for them an iteration is one step of gradient ascent.")
    for a, b in combinations(data, 2):
        x, y = data[a]["entropy"], data[b]["entropy"]
        if len(x) == len(y) and (x - y).abs().max() < SAME:
            text += f" {a} and {b} coincide."
    return text


def route(algorithm: Routing, votes: Tensor, labels: Tensor) -> tuple[Step, ...]:
    """Every iteration of an algorithm on votes (B, I, J, D), its learned tensors at their initial values."""
    if isinstance(algorithm, Discriminative):
        return _ascent(votes, labels, algorithm.iterations)
    b, i, j, d = votes.shape
    learned = {name: votes.new_full(spec.shape, spec.start) for name, spec in algorithm.learned(Sizes(i, j, d)).items()}
    present = {"probability": 1.0, "score": math.inf}.get(algorithm.input_activation or "")
    activation = None if present is None else votes.new_full((b, i), present)
    routed = algorithm.run(algorithm.function, votes, activation, learned, softmax=over_parents, record=True)
    return routed.history or ()


def _ascent(votes: Tensor, labels: Tensor, iterations: int) -> tuple[Step, ...]:
    """Coefficients (I, J) belong to the layer and follow the labels: an iteration is one step of their ascent."""
    i, j = votes.shape[1:3]
    b = votes.new_full((i, j), 1 / j)
    steps: tuple[Step, ...] = ()
    for _ in range(iterations):
        steps += discriminative_routing(votes, b, record=True).history or ()
        move = discriminative_update(b, votes, labels, rate=1.0, strength=0.0) - b
        b = b + move * (0.5 / j / move.abs().mean().clamp(min=1e-12))  # half the initial coefficient on average
    return steps


def entropy(coupling: Tensor) -> Tensor:
    """Mean over children of -sum_j p log p / log J, p the child's |coupling| normalised. (B, I, J) -> ()"""
    return decided(*sums(coupling), coupling.shape[-1])[1].mean()


def agree(votes: Tensor, coupling: Tensor) -> Tensor:
    """Mean over votes, weighted by coupling, of their cosine with the capsule sum_i c_ij V_ij they form -> ()."""
    capsule = torch.einsum("bij,bijd->bjd", coupling, votes)
    cosine = torch.cosine_similarity(votes, capsule[:, None], dim=-1)
    weight = coupling.abs()
    return (cosine * weight).sum() / weight.sum().clamp(min=1e-12)


@styled
def routing_logits(run: Run, iterations: int = PROBED_ITERATIONS) -> Drawn:
    """Change of the routing logits by each iteration, over training, on a log scale (dynamic, Fig. A.1)."""
    if run.layer().name != "dynamic":
        raise DoesNotApply(f"logits b_ij that add up are dynamic routing's; the class layer's is {run.layer().name}")
    batch = run.first(PROBED_IMAGES)
    logged = [m for m in run.metrics if m["kind"] == "routing" and len(m["change"]) == iterations]
    probed = {m["step"]: torch.tensor(m["change"]) for m in logged}
    at = int(getattr(run.model, "config", {}).get("step", 0))
    measured = {}
    if run.recipe is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.recipe.train.seed)  # the weights that training started from
            start = create_model(run.model.name, **run.model.overrides).to(run.device).eval()
        measured[0] = logit_change(start, batch, iterations)
    last = measured[at] = logit_change(run.model, batch, iterations)
    # Stored weights may be averages, which lag behind those that were probed, so a curve is made of one or the other.
    table = {s: x for s, x in measured.items() if s == 0} | probed if probed else measured
    fig, (left, right) = subplots(9, 3.6, 1, 2, sharey=True)
    steps = list(table)
    for t in range(iterations):
        values = [float(table[s][t]) for s in steps]
        left.plot(steps, values, marker=MARKERS[t % len(MARKERS)], markersize=4, color=COLOURS[t % len(COLOURS)],
                  label=f"{t + 1}")
    left.set(xlabel="training step", ylabel="mean change of a logit", yscale="log", title="over training")
    if len(steps) > 3:
        left.set_xscale("symlog", linthresh=1)
        decades = [10**k for k in range(len(str(steps[-1])))]
        left.set_xticks([0, *decades], ["0", *(f"{s:,}" for s in decades)])
        left.set_xlim(-0.15, 1.4 * steps[-1])
    left.legend(title="iteration", ncols=2)
    right.plot(range(1, iterations + 1), last, "o-", color=COLOURS[0], label="this model")
    if len(measured) > 1:
        right.plot(range(1, iterations + 1), measured[0], "s--", color=COLOURS[1], label="before training")
    right.set(xlabel="iteration", title=f"at step {at:,}")
    right.legend()
    right.set_xticks(range(1, iterations + 1))
    grid(left, right)
    points = f"Points over training: {', '.join(f'step {s:,}' for s in steps)}."
    if len(steps) > 6:
        points = (f"{len(steps)} points over training, from step {steps[0]:,} to {steps[-1]:,}, {len(probed)} of them "
                  "on training images.")
    own = run.layer().routing.iterations
    ratio = float((last[-1] / last[0].clamp(min=1e-30)) ** (1 / max(iterations - 1, 1)))
    settles = "routing settles" if ratio < 0.95 else "within these, routing does not settle"
    text = (f"After training, iteration 1 changes a logit by {float(last[0]):.2g} on average and iteration "
            f"{iterations} by {float(last[-1]):.2g}, over {len(batch.inputs)} test images; the model routes "
            f"{own} times. Each iteration changes {ratio:.2f} times what the one before did: {settles}. {points}")
    return Drawn({"steps": steps, "change": torch.stack([table[s] for s in steps])}, fig, text)


@styled
def margin(run: Run) -> Drawn:
    """Margin loss as a function of length for present and absent classes, and this model's lengths."""
    if run.layer().routing.output_activation != "length":
        raise DoesNotApply(f"lengths are needed; the scores of {run.layer().name} routing are not lengths of capsules")
    x = torch.linspace(0, 1, 201)
    present, absent = (torch.stack([margin_loss(v.view(1, 1), torch.full((1, 1), t)) for v in x]) for t in (1.0, 0.0))
    there = multi_hot(run.examples().targets, run.model.classes) > 0.5
    scores = run.output.scores
    lengths = {"present": scores[there], "absent": scores[~there]}
    fig, (top, bottom) = subplots(7.5, 4.6, 2, 1, sharex=True, height_ratios=(1.3, 1))
    top.plot(x, present, color=BLUE, label="class is present")
    top.plot(x, absent, color=RED, linestyle="--", label="class is absent")
    top.set(ylabel="margin loss", ylim=(-0.02, 0.85))
    top.legend()
    for name, colour, step in (("present", BLUE, "-"), ("absent", RED, "--")):
        values = lengths[name].cpu()
        if len(values):
            share, edges = torch.histogram(values, LENGTH_BINS, range=(0, 1))
            bottom.stairs(100 * share / len(values), edges, color=colour, linestyle=step, linewidth=2)
    bottom.set(xlabel="length of the class capsule", ylabel="% of capsules")
    grid(top, bottom)
    for axis in (top, bottom):
        for edge in (0.1, 0.9):
            axis.axvline(edge, color=MUTED, linewidth=1, linestyle=":")
    free = {"present": lengths["present"] >= 0.9, "absent": lengths["absent"] <= 0.1}
    parts = [f"{100 * float(ok.float().mean()):.1f} % of the {name} classes' lengths are "
             f"{'0.9 or more' if name == 'present' else '0.1 or less'}" for name, ok in free.items() if len(ok)]
    means = ", ".join(f"{float(v.mean()):.2f} if {name}" for name, v in lengths.items() if len(v))
    text = (f"Above: the loss of a length. Below: this model's lengths over {len(scores)} test images; the mean is "
            f"{means}. Only lengths between the dotted lines have a loss: {' and '.join(parts)}, which have none.")
    return Drawn({"length": x, "present": present, "absent": absent, "lengths": lengths}, fig, text)


@styled
def sparsity(run: Run) -> Drawn:
    """Sparsity of discriminative routing's coefficients, l1 against l2."""
    layer: Any = run.layer()
    if layer.name != "discriminative":
        raise DoesNotApply(f"coefficients of discriminative routing are needed; the class layer's is {layer.name}")
    found = {layer.routing.penalty: layer.coefficients}
    for other in run.others():
        top: Any = other.layer()
        if top.name == "discriminative":
            found.setdefault(top.routing.penalty, top.coefficients)
    fig, (left, right) = subplots(9, 3.7, 1, 2)
    data = {}
    for k, (penalty, b) in enumerate(found.items()):
        sizes, share = curve(b)
        small = 100 * float((sizes < SMALL).float().mean())
        data[penalty] = {"coefficients": b, "size": sizes, "share": share, "small": small}
        left.plot(sizes.clamp(min=1e-5), share, label=f"{penalty} penalty", linewidth=2, **look_of(k))
        right.stairs(*torch.histogram(b.flatten().float().cpu(), 60), linewidth=2, **look_of(k))
    left.set(xscale="log", xlim=(1e-5, 1.2), xlabel="|b| over the largest", ylabel="% of coefficients below")
    left.axvline(SMALL, color=COLOURS[3], linewidth=1, linestyle=":")
    right.set(xlabel="coefficient b", ylabel="how many", yscale="log")
    left.legend()
    grid(left, right)
    negative = {p: float((d["coefficients"] < 0).float().mean()) for p, d in data.items()}
    said = "; ".join(f"{p}: {d['small']:.1f} % are below {SMALL:.0%} of the largest, {negative[p]:.0%} are negative"
                     for p, d in data.items())
    i, j = layer.coefficients.shape
    return Drawn(data, fig, f"The {i:,} x {j} coefficients of {run.model.name}. {said}.")


def curve(b: Tensor) -> tuple[Tensor, Tensor]:
    """|b| over its largest, in order, and the share of coefficients at or below each, in percent."""
    sizes = (b.abs() / b.abs().max().clamp(min=1e-12)).flatten().float().cpu().sort().values
    return sizes, torch.arange(1, len(sizes) + 1) * (100 / len(sizes))
