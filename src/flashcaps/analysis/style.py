"""The common style of all figures: colour-blind safe, light or dark, readable at half size."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor

from ..routing import ROUTING
from ..routing.checks import import_extra
from ..training.evaluate import evaluating
from .figure import Drawn, Run

P = ParamSpec("P")

INK, PAPER, MUTED, FAINT = "#1c1f24", "#ffffff", "#6b7280", "#d5d9e0"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)  # Okabe and Ito's, apart for every kind of colour vision
MARKERS = ("o", "s", "^", "D", "v", "P")
GAP = 2  # pixels between pictures side by side
LINES = ("-", "--", "-.", ":", (0, (1, 3)), (0, (5, 4)))
IN_THE_DARK = {INK: "#e7eaf0", PAPER: "#14171c", MUTED: "#9aa3b2", FAINT: "#343a45", BLUE: "#4aa8e0", SKY: "#9fd3f5"}

RC: dict[Any, Any] = {
    "font.size": 12, "axes.titlesize": 12, "axes.labelsize": 12, "legend.fontsize": 11, "font.family": "DejaVu Sans",
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": MUTED,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": "auto", "grid.color": FAINT,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": False, "legend.frameon": False,
    "lines.linewidth": 2, "lines.solid_capstyle": "round", "axes.axisbelow": True, "svg.hashsalt": "flashcaps",
}  # fmt: skip


def colour_of(algorithm: str) -> str:
    """The colour of an algorithm by its place in `ROUTING`; grey for a plain network."""
    return COLOURS[list(ROUTING).index(algorithm) % len(COLOURS)] if algorithm in ROUTING else MUTED


def look_of(k: int) -> dict[str, Any]:
    """Colour and line style of the k-th line of an axis."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": LINES[k % len(LINES)]}


def figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches. Not pyplot's: it needs no screen, and nobody has to close it."""
    return import_extra("matplotlib.figure", "plots", "a figure").Figure(figsize=(width, height), layout="constrained")


def subplots(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, list[Any]]:
    """An empty figure and the list of its axes, row by row."""
    fig = figure(width, height)
    return fig, list(fig.subplots(rows, columns, squeeze=False, **options).flat)


def styled(function: Callable[Concatenate[Run, P], Drawn]) -> Callable[Concatenate[Run, P], Drawn]:
    """Draw a figure in the common style, with the model in evaluation mode and without gradients."""

    @functools.wraps(function)
    def inner(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> Drawn:
        with import_extra("matplotlib", "plots", "a figure").rc_context(RC), evaluating(run.model):
            drawn = function(run, *args, **kwargs)
            drawn.figure.draw_without_rendering()  # ticks take their colours when they are first drawn
            drawn.figure.set_layout_engine("none")
        return drawn

    return inner


def darken(figure: Any) -> Any:
    """The same figure for a dark page, in place."""
    from matplotlib.collections import Collection
    from matplotlib.colors import to_hex, to_rgba, to_rgba_array

    def swap(colour: Any) -> Any:
        return to_rgba(IN_THE_DARK.get(to_hex(colour), colour), alpha=colour[3])

    for artist in figure.findobj():
        for what in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, put = getattr(artist, f"get_{what}", None), getattr(artist, f"set_{what}", None)
            if get is None or put is None or (what == "color" and hasattr(artist, "get_facecolor")):
                continue
            swapped = [swap(colour) for colour in to_rgba_array(get())]
            if swapped:
                put(swapped if isinstance(artist, Collection) else swapped[0])
    return figure


def rgba(pictures: Tensor) -> Tensor:
    """(..., C, H, W) in [0, 1] -> (..., H, W, 4): grey for one channel, the left one of a stereo pair, else colours."""
    x = pictures.detach().float().cpu().clamp(0, 1)
    x = x if x.shape[-3] == 3 else x[..., :1, :, :].expand(*x.shape[:-3], 3, *x.shape[-2:])
    return torch.cat([x, torch.ones_like(x[..., :1, :, :])], -3).movedim(-3, -1)


def tiles(axis: Any, pictures: Tensor, columns: Sequence[str] = (), rows: Sequence[str] = ()) -> None:
    """pictures (R, C, channels, H, W) as one image, names above its columns and beside its rows."""
    r, c, _, h, w = pictures.shape
    x = F.pad(rgba(pictures), (0, 0, 0, GAP, 0, GAP))  # transparent between the pictures
    whole = x.transpose(1, 2).reshape(r * (h + GAP), c * (w + GAP), 4)[:-GAP, :-GAP]
    axis.imshow(whole.numpy(), interpolation="nearest")
    bare(axis)
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    if columns:
        axis.set_xticks([j * (w + GAP) + (w - 1) / 2 for j in range(c)], columns)
    if rows:
        axis.set_yticks([i * (h + GAP) + (h - 1) / 2 for i in range(r)], rows)


def bare(axis: Any) -> None:
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def grid(*axes: Any) -> None:
    for axis in axes:
        axis.grid(True, axis="y", linewidth=0.8)


def label_curves(axis: Any, x: str, y: str, log: bool = False) -> None:
    """Names of the axes, a grid and a legend. log: a logarithmic y axis with 0.2, 0.5, 1 instead of powers of ten."""
    axis.set(xlabel=x, ylabel=y)
    if log:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(import_extra("matplotlib.ticker", "plots", "a figure").LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
    grid(axis)
    axis.legend()
