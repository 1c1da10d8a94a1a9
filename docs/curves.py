"""Draw how runs under results/ learned, from their logs, and how they stand attacks: python -m docs.curves"""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FormatStrFormatter, LogLocator

from flashcaps.analysis.adversarial import mean_curve
from flashcaps.analysis.figure import routed_by
from flashcaps.training.results import read_results

from .numbers import ATTACKED, DOCS, RESULTS

RUNS, PICTURE, ATTACKS = RESULTS / "runs", DOCS / "images" / "convergence.png", DOCS / "images" / "robustness.png"
EM_TRIAL, EM_PICTURE = RESULTS / "trials" / "em_h200_iterations.json", DOCS / "images" / "em_iterations.png"
COLOURS = ("#000000", "#0072B2", "#D55E00", "#56B4E9", "#E69F00")  # colour-blind safe
TABLE_II = {"dr": "dynamic", "l2": "l2", "l1": "l1", "l2_norec": "l2, no decoder", "l1_norec": "l1, no decoder"}
PANELS = {  # title -> label -> log
    title: {label: f"discriminative_{data}_{kind}/default-0.jsonl.gz" for kind, label in TABLE_II.items()}
    for title, data in (("Fashion-MNIST", "fashion"), ("MNIST", "mnist"))
}
plt.rcParams.update({"font.size": 11, "font.family": "DejaVu Sans"})


def by_epoch(log: Path) -> tuple[list[int], list[float]]:
    """Epochs from 1, and the mean error of the training steps of each, in percent."""
    points: dict[int, list[float]] = {}
    for line in gzip.decompress(log.read_bytes()).decode().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "train":
            points.setdefault(entry["epoch"] + 1, []).append(entry["error"])
    return sorted(points), [statistics.fmean(points[k]) for k in sorted(points)]


def draw(runs: Path = RUNS, picture: Path = PICTURE) -> None:
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 4), layout="constrained")
    for axis, (title, logs) in zip(axes, PANELS.items(), strict=True):
        for colour, (label, log) in zip(COLOURS, logs.items(), strict=True):
            axis.plot(*by_epoch(runs / log), color=colour, lw=1.8, label=label)
        axis.set(title=title, xlabel="epoch", ylabel="training error, %", yscale="log")
        for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            which(FormatStrFormatter("%g"))
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.grid(alpha=0.3, which="both")
    axes[0].legend()
    figure.savefig(picture, dpi=90, facecolor="white")
    plt.close(figure)


def draw_attacks(results: Path = RESULTS, picture: Path = ATTACKS) -> None:
    """Accuracy under attack, a data set a panel: capsules blue, networks without them black; PGD solid, FGSM dotted."""
    figure, axes = plt.subplots(1, len(ATTACKED), figsize=(11, 4), layout="constrained", sharey=True)
    records = read_results(results, "robustness")
    for axis, (data, title) in zip(axes, ATTACKED.items(), strict=True):
        for record in (r for r in records if r["data"] == data):
            colour = COLOURS[1 if routed_by(record["model"], {})[0] else 0]
            for attack, style in (("pgd", "o-"), ("fgsm", "o:")):
                points = mean_curve([record], attack)
                axis.plot(list(points), list(points.values()), style, color=colour, lw=1.8, ms=4,
                          label=f"{record['model']}, {attack.upper()}")
        axis.set(title=title, xlabel="largest change of a pixel, of 1", ylim=(0, 101))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=9)
    axes[0].set_ylabel("accuracy, %")
    figure.savefig(picture, dpi=90, facecolor="white")
    plt.close(figure)


def draw_iterations(trial: Path = EM_TRIAL, picture: Path = EM_PICTURE) -> None:
    """em's loss after 50 steps against its iterations, a line for each form of the E-step, a dot for each seed."""
    rows = [row for row in json.loads(trial.read_text())["rows"] if row["standardised"]]
    figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for colour, form in zip(COLOURS, dict.fromkeys(row["sharpness"] for row in rows), strict=True):
        points = {row["iterations"]: row["loss_50"] for row in rows if row["sharpness"] == form}
        means = [statistics.fmean(losses) for losses in points.values()]
        label = "1 (Procedure 1)" if form == "none" else form
        axis.plot(list(points), means, color=colour, lw=1.8, label=label)
        for iterations, losses in points.items():
            axis.plot([iterations] * len(losses), losses, "o", color=colour, ms=4)
    axis.set(xlabel="iterations", ylabel="loss after 50 steps", ylim=(0, None), xticks=range(1, 6))
    axis.grid(alpha=0.3)
    axis.legend(title="log density times", fontsize=9)
    figure.savefig(picture, dpi=90, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    draw()
    draw_attacks()
    draw_iterations()
