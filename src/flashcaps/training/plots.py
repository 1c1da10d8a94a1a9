"""Pictures of a run: its learning curve, and inputs beside their reconstructions."""

from pathlib import Path
from typing import Any
from warnings import warn

from ..routing.checks import install_command
from .batches import Held
from .evaluate import evaluating
from .run_folder import read_metrics

SHOWN = 12  # images beside their reconstructions


def draw_pictures(folder: Path, model: Any, held: Held) -> None:
    """Writes curve.png and, if the model has a decoder, reconstructions.png. Without matplotlib, warns."""
    try:
        from matplotlib.figure import Figure  # without pyplot it needs no screen and need not be closed
    except ImportError:
        warn(f"no curve.png, which needs matplotlib: {install_command(plots='matplotlib')}", stacklevel=2)
        return
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    draw_curve(figure, read_metrics(folder))
    figure.savefig(folder / "curve.png", dpi=120)
    if getattr(model, "decoder", None) is not None:
        figure = Figure(layout="constrained")
        draw_reconstructions(figure, model, held)
        figure.savefig(folder / "reconstructions.png", dpi=120)


def draw_curve(figure: Any, metrics: list[dict[str, Any]]) -> None:
    """Loss, and error on training and held-out data, by step."""
    trained = [m for m in metrics if m["kind"] == "train"]
    held = [m for m in metrics if m["kind"] == "evaluation"]
    left, right = figure.subplots(1, 2)
    left.semilogy([m["step"] for m in trained], [max(m["loss"], 1e-12) for m in trained], color="tab:blue")
    left.set(xlabel="step", ylabel="training loss")
    right.plot([m["step"] for m in trained], [m["error"] for m in trained], color="tab:blue", label="training")
    if held:
        right.plot([m["step"] for m in held], [m["error"] for m in held], "o-", ms=3, color="tab:orange",
                   label=held[0]["split"])
    for m in metrics:
        if m["kind"] == "test":
            right.axhline(m["error"], color="tab:green", ls="--", label=f"test, {m['error']:.2f} %")
    right.set(xlabel="step", ylabel="error, %", yscale="symlog", ylim=(0, 100))
    right.legend(frameon=False)


def draw_reconstructions(figure: Any, model: Any, held: Held) -> None:
    """Test images above what the decoder draws from the predicted class capsule, or from the two best."""
    batch = held.some(SHOWN)
    with evaluating(model):
        output, rows = model(batch.inputs), [batch.inputs]
        if batch.targets.ndim == 1:
            rows.append(model.reconstruct(output.routed))
        else:
            rows += list(model.reconstruct(output.routed, output.scores.topk(2, 1).indices).unbind(1))
    figure.set_size_inches(SHOWN, len(rows) + 0.2)
    axes = figure.subplots(len(rows), SHOWN, squeeze=False)
    for row, images in zip(axes, rows, strict=True):
        for ax, image in zip(row, images.float().cpu(), strict=False):
            picture = image.permute(1, 2, 0) if len(image) == 3 else image[0]
            ax.imshow(picture.clamp(0, 1).numpy(), cmap=None if len(image) == 3 else "gray", vmin=0, vmax=1)
    for ax in axes.flat:
        ax.axis("off")
