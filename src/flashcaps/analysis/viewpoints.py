"""Class capsules as the viewpoint changes: trajectories and changes of their pose vectors (heinsen, Fig. 4, 6, 7)."""

from typing import Any

import torch
from torch import Tensor

from ..data import Split, to_float
from ..data.augment import center_crop
from .figure import DoesNotApply, Drawn, Run
from .style import BLUE, MUTED, figure, grid, styled, subplots

DEGREES = {"azimuth": 10, "elevation": 5}  # of one unit of the label
FIRST = {"azimuth": 0, "elevation": 30}


@styled
def pose_trajectories(run: Run, toy: int = 0) -> Drawn:
    """MDS trajectories of a class capsule's pose vectors as elevation or azimuth changes (heinsen, Fig. 4)."""
    import matplotlib

    fig, axes = subplots(9.4, 4.2, 1, 2)
    data: dict[str, Any] = {}
    said = []
    for axis, what in zip(axes, ("elevation", "azimuth"), strict=True):
        angles, poses, toys = turned(run, what, only=toy)  # (1, V, P, d)
        v, p, d = poses.shape[1:]
        flat = poses[0].reshape(v * p, d)
        points = mds(torch.cdist(flat, flat)).view(v, p, 2)
        data[what] = {"angle": angles, "pose": poses[0], "points": points, "toy": toys[0]}
        colours = matplotlib.colormaps["viridis_r"](torch.linspace(0.12, 1, v).tolist())
        for line, colour in zip(points.cpu(), colours, strict=True):
            axis.plot(line[:, 0], line[:, 1], "o-", color=tuple(colour), linewidth=1.5, markersize=4)
        ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": MUTED, "markeredgewidth": 2}
        for end in (0, -1):
            place = points[end, 0].tolist()
            axis.plot(*place, "o", **ring)
            axis.annotate(f"{angles[end]}°", place, xytext=(10, 8), textcoords="offset points", fontsize=11)
        axis.margins(0.12)
        axis.set(title=f"{what} {angles[0]} to {angles[-1]} degrees", xlabel="first MDS axis", ylabel="second MDS axis")
        true, kept = (torch.cdist(x.double(), x.double()).square().sum() for x in (flat.cpu(), points.view(v * p, 2)))
        path = poses[0].diff(dim=0).norm(dim=-1).sum(0).mean() / poses[0].norm(dim=-1).mean().clamp(min=1e-9)
        said.append(f"in {what} pose vectors move {float(path):.2f} times their norm, and the plane keeps "
                    f"{100 * float(kept / true.clamp(min=1e-12)):.0f} % of all squared distances")
    label, instance = data["azimuth"]["toy"]
    text = (f"The {run.class_name(label)} capsule while toy {instance} is turned: each line joins its "
            f"{data['azimuth']['pose'].shape[1]} pose vectors in one image; the first has a ring at both ends. Light "
            f"to dark is the first to the last angle; {'; '.join(said)}.")
    return Drawn(data, fig, text)


@styled
def pose_azimuth(run: Run) -> Drawn:
    """Distance, norm and cosine of each pose vector against azimuth (heinsen, Fig. 6)."""
    return _changes(run, "azimuth")


@styled
def pose_elevation(run: Run) -> Drawn:
    """Distance, norm and cosine of each pose vector against elevation (heinsen, Fig. 7)."""
    return _changes(run, "elevation")


def _changes(run: Run, what: str) -> Drawn:
    angles, poses, toys = turned(run, what)
    values = changes(poses)  # each (toys, V, P)
    count = poses.shape[2]
    fig = figure(max(2.4 * count, 4) + 0.6, 6.2)
    axes = fig.subplots(3, count, squeeze=False, sharex=True, sharey="row")
    names = {"distance": "distance / first norm", "norm": "norm / first norm", "cosine": "cosine with first"}
    for row, (key, name) in zip(axes, names.items(), strict=True):
        for p, axis in enumerate(row):
            lines = values[key][:, :, p].cpu()
            axis.plot(angles, lines.T, color=MUTED, linewidth=0.7, alpha=0.55)
            axis.plot(angles, lines.mean(0), color=BLUE, linewidth=3.5)
            grid(axis)
        row[0].set_ylabel(name)
        if key != "cosine":  # a few outliers must not flatten the rest
            row[0].set_ylim(0, 1.05 * float(values[key].quantile(0.995)) + 1e-9)
    for p, axis in enumerate(axes[0]):
        axis.set_title(f"pose vector {p + 1}")
    for axis in axes[-1]:
        axis.set_xlabel(f"{what}, degrees")
    mean = {key: values[key].mean((0, 2)) for key in values}
    far = int(mean["distance"].argmax())
    text = (f"The label's capsule of {len(toys)} toys (thin; bold is the mean) as only {what} changes. On average a "
            f"pose vector is farthest from its first value at {angles[far]} degrees "
            f"({float(mean['distance'][far]):.2f} of its norm) and {float(mean['distance'][-1]):.2f} at the last; "
            f"its norm stays between {float(mean['norm'].min()):.2f} and {float(mean['norm'].max()):.2f} of the first, "
            f"and its cosine with it falls to {float(mean['cosine'].min()):.2f}.")
    return Drawn({"angle": angles, "toys": toys, **values}, fig, text)


def changes(poses: Tensor) -> dict[str, Tensor]:
    """poses (toys, V, P, d) -> distance to the first and norm, over the first's norm, and cosine: (toys, V, P)."""
    first = poses[:, :1]
    size = first.norm(dim=-1).clamp(min=1e-9)
    return {"distance": (poses - first).norm(dim=-1) / size, "norm": poses.norm(dim=-1) / size,
            "cosine": torch.cosine_similarity(poses, first.expand_as(poses), dim=-1)}


def turned(run: Run, what: str, only: int | None = None) -> tuple[list[int], Tensor, list[tuple[int, int]]]:
    """(angles, poses (toys, V, P, d) of the label's capsule, toys): only `what` changes along V."""
    layer, split = run.layer(), run.split
    if split is None or not {"azimuth", "elevation", "instance", "lighting"} <= set(split.info):
        raise DoesNotApply("images of toys with azimuth and elevation are needed: smallnorb or synthetic_norb")
    toys = sorted(set(zip(split.labels.tolist(), split.info["instance"].tolist(), strict=True)))
    toys = toys if only is None else [toys[only % len(toys)]]
    angles, rows = sequences(split, what, toys)
    images = split.images[rows.flatten()]
    images = to_float(center_crop(images, run.crop) if run.crop else images)
    found = [run.model(x).routed for x in images.split(100)]
    pose = torch.cat([routed.pose for routed in found if routed is not None])
    mine = pose[torch.arange(len(pose)), split.labels[rows.flatten()]]  # (toys * V, D)
    return angles, mine.view(*rows.shape, layer.rows, -1), toys


def sequences(split: Split, what: str, toys: list[tuple[int, int]]) -> tuple[list[int], Tensor]:
    """(angles in degrees, rows (toys, V)): the other viewpoint label and the lighting at their middle value."""
    other = "elevation" if what == "azimuth" else "azimuth"
    fixed = {name: split.info[name].unique()[len(split.info[name].unique()) // 2] for name in (other, "lighting")}
    steps = split.info[what].unique()
    if len(steps) < 2:
        raise DoesNotApply(f"at least two values of {what} are needed; the test set has {len(steps)}")
    same = (split.info[other] == fixed[other]) & (split.info["lighting"] == fixed["lighting"])
    rows = []
    for label, instance in toys:
        mine = (same & (split.labels == label) & (split.info["instance"] == instance)).nonzero()[:, 0]
        found = mine[split.info[what][mine].argsort(stable=True)]
        if len(found) != len(steps):
            raise DoesNotApply(f"every {what} of every toy is needed once; toy {instance} of class {label} lacks some")
        rows.append(found)
    return [FIRST[what] + DEGREES[what] * int(s) for s in steps], torch.stack(rows)


def mds(distances: Tensor) -> Tensor:
    """Classical multidimensional scaling: (N, N) distances -> the (N, 2) points that keep them best."""
    n = len(distances)
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    gram = -0.5 * centre @ distances.double().cpu().square() @ centre
    values, vectors = torch.linalg.eigh(gram)
    return (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(1)
