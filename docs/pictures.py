"""Draw the pictures of the documentation from real runs: python docs/pictures.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from PIL import Image

from flashcaps.data.random import draws
from flashcaps.data.synthetic_norb.render import Views, render
from flashcaps.data.synthetic_norb.toys import CATEGORIES, assemble
from flashcaps.functional import dynamic_routing

IMAGES = Path(__file__).parent / "images"
COLOURS = ["#0072B2", "#D55E00", "#009E73"]  # colour-blind safe
NAMES = ["face", "house", "boat"]
SEED = 104  # of the parts that agree on nothing
PARTS = ["left eye", "right eye", "nose", "mouth", "roof", "door", "window", "noise"]


def votes() -> torch.Tensor:
    """Eight parts vote for where three wholes should be: four agree on a face, three on a house, one on nothing."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(1, 8, 3, 2, generator=generator) * 0.9
    for parts, whole, where in (((0, 1, 2, 3), 0, (1.6, 1.2)), ((4, 5, 6), 1, (-1.5, 1.3))):
        for i in parts:
            x[0, i, whole] = torch.tensor(where) + 0.12 * torch.randn(2, generator=generator)
    return x


def routing_picture() -> None:
    routed = dynamic_routing(votes(), iterations=4, record=True)
    assert routed.history is not None
    plt.rcParams.update({"font.size": 11, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.7), sharey=True)
    for t, (axis, step) in enumerate(zip(axes, routed.history, strict=True)):
        c, length = step.coupling[0], step.pose[0].norm(dim=-1)
        for i in range(8):
            for j in range(3):
                axis.plot([0, 1], [7 - i, 5.6 - 2.1 * j], color=COLOURS[j], lw=6 * float(c[i, j]) ** 1.2, alpha=0.75,
                          solid_capstyle="round", zorder=1)
            axis.scatter(0, 7 - i, s=60, color="#555555", zorder=2)
            if t == 0:
                axis.text(-0.08, 7 - i, PARTS[i], ha="right", va="center")
        for j in range(3):
            axis.scatter(1, 5.6 - 2.1 * j, s=120 + 900 * float(length[j]), color=COLOURS[j], zorder=2)
            axis.text(1.17, 5.6 - 2.1 * j, f"{NAMES[j]}\n{float(length[j]):.2f}", ha="left", va="center")
        axis.set_title(f"iteration {t + 1}")
        axis.set_xlim(-0.15 if t else -0.62, 1.5)
        axis.set_ylim(-0.7, 7.7)
        axis.axis("off")
    figure.tight_layout(w_pad=0.5)
    figure.savefig(IMAGES / "routing.png", dpi=110, facecolor="white")


def votes_picture() -> None:
    """The votes for the face and where routing puts it; beside it, squash."""
    x = votes()
    routed = dynamic_routing(x, iterations=4)
    shares = routed.coupling[0, :, 0]
    centre = (shares[:, None] * x[0, :, 0]).sum(0) / shares.sum()  # before squash, where the votes are
    plt.rcParams.update({"font.size": 11, "font.family": "DejaVu Sans"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(1.25, 1))
    left.scatter(*x[0, :, 0].T, s=40 + 500 * shares, color=COLOURS[0], alpha=0.55, lw=0)
    for k, (name, at) in enumerate(zip(PARTS, x[0, :, 0].tolist(), strict=True)):
        agrees = k < 4
        offset = ((14, -5), (-72, -4), (-12, -24), (14, -4))[k] if agrees else (10, -4)
        left.annotate(name, at, textcoords="offset points", xytext=offset, color="#1c1f24" if agrees else "#6b7280")
    left.plot(*centre, "x", color="#1c1f24", ms=9, mew=2)
    left.set(xlabel="first number of the face's pose", ylabel="second number", title="votes for the face")
    left.margins(0.22)
    lengths = torch.linspace(0, 4, 200)
    right.plot(lengths, lengths**2 / (1 + lengths**2), color=COLOURS[1], lw=2.5)
    right.axhline(1, color="#6b7280", lw=1, ls=":")
    right.set(xlabel="length of the sum of votes", ylabel="length of the capsule", title="squash")
    right.set(xlim=(0, 4), ylim=(0, 1.08))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "votes.png", dpi=110, facecolor="white")


def toys_picture(size: int = 88) -> None:
    """All toys of synthetic-NORB, a row per category and a column per instance, each from another side and in another
    light."""
    rows = []
    for c, category in enumerate(CATEGORIES):
        row = []
        for instance in range(10):
            view = (instance % 5) * 108 + instance * 30 + instance % 6  # lighting changes fastest, elevation slowest
            elevation, azimuth, lighting = view // 108, view // 6 % 18, view % 6
            key = draws(0, torch.tensor([(10 * c + instance) * 9 * 108 + view]), 1)[:, 0]
            angles = torch.tensor([20.0 * azimuth]), torch.tensor([30 + 5.0 * elevation])
            toy = assemble(category, instance, seed=0)
            row.append(render(toy, Views(*angles, torch.tensor([lighting]), key), size)[0, 0])
        rows.append(torch.cat(row, dim=1))
    Image.fromarray(torch.cat(rows).numpy()).save(IMAGES / "synthetic_norb.png", optimize=True)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    routing_picture()
    votes_picture()
    toys_picture()
