"""See inside a trained model: every figure of the papers, and some beyond them.

    run = open_run("runs/tiny-0")
    data, figure, caption = FIGURES["reconstructions"](run)

Each figure is a function of a `Run` that gives its data, a matplotlib figure and a caption about this very model.
"""

from collections.abc import Callable

from ..plugins import Registry
from .adversarial import adversarial
from .architecture import architecture
from .comparisons import ablation, convergence, diverse, error_curves, iterations, novel_viewpoints, training_loss
from .cost import cost, step_time
from .drawings import borrowed_decoder, dimensions, perturbations, reconstructions, segmentation
from .figure import DoesNotApply, Drawn, Run, open_run
from .parse_tree import animation, credit, parse_tree
from .report import compare, write_figure, write_figures
from .routing import agreement, margin, routing_logits, sparsity, vote_distances
from .style import darken
from .viewpoints import pose_azimuth, pose_elevation, pose_trajectories

FIGURES: Registry[Callable[..., Drawn]] = Registry("flashcaps.figures", {
    "architecture": architecture,
    "reconstructions": reconstructions,
    "perturbations": perturbations,
    "dimensions": dimensions,
    "segmentation": segmentation,
    "parse_tree": parse_tree,
    "animation": animation,
    "agreement": agreement,
    "vote_distances": vote_distances,
    "routing_logits": routing_logits,
    "margin": margin,
    "iterations": iterations,
    "training_loss": training_loss,
    "convergence": convergence,
    "error_curves": error_curves,
    "cost": cost,
    "step_time": step_time,
    "ablation": ablation,
    "diverse": diverse,
    "pose_trajectories": pose_trajectories,
    "pose_azimuth": pose_azimuth,
    "pose_elevation": pose_elevation,
    "novel_viewpoints": novel_viewpoints,
    "credit": credit,
    "sparsity": sparsity,
    "borrowed_decoder": borrowed_decoder,
    "adversarial": adversarial,
})  # fmt: skip

__all__ = ["FIGURES", "DoesNotApply", "Drawn", "Run", "compare", "darken", "open_run", "write_figure", "write_figures"]
