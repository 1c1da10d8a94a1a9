"""Pictures of a run: its learning curve, and inputs beside their reconstructions."""

from pathlib import Path
from typing import Any

from ..routing.checks import install_command
from .batches import Held
from .evaluate import evaluating

SHOWN = 12  # images beside their reconstructions


def _figure(width: float, height: float) -> Any:
    """An empty figure, or None without matplotlib. Without pyplot it needs no screen and need not be closed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def draw_curve(folder: Path, metrics: list[dict[str, Any]]) -> str:
    """curve.png: loss, and error on training and held-out data, by step. Returns the reason if it cannot be drawn."""
    figure = _figure(9, 3.4)
    if figure is None:
        return f"no curve.png, which needs matplotlib: {install_command(plots='matplotlib')}"
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
    figure.savefig(folder / "curve.png", dpi=120)
    return ""


def draw_reconstructions(folder: Path, model: Any, held: Held) -> None:
    """reconstructions.png: test images above what the decoder draws from the predicted class capsule."""
    if getattr(model, "decoder", None) is None:
        return
    batch = held.some(SHOWN)
    with evaluating(model):
        output, rows = model(batch.inputs), [batch.inputs]
        if batch.targets.ndim == 1:
            rows.append(model.reconstruct(output.routed))
        else:
            rows += list(model.reconstruct(output.routed, output.scores.topk(2, 1).indices).unbind(1))
    figure = _figure(SHOWN, len(rows) + 0.2)
    if figure is None:
        return
    axes = figure.subplots(len(rows), SHOWN, squeeze=False)
    for row, images in zip(axes, rows, strict=True):
        for ax, image in zip(row, images.float().cpu(), strict=False):
            picture = image.permute(1, 2, 0) if len(image) == 3 else image[0]
            ax.imshow(picture.clamp(0, 1).numpy(), cmap=None if len(image) == 3 else "gray", vmin=0, vmax=1)
    for ax in axes.flat:
        ax.axis("off")
    figure.savefig(folder / "reconstructions.png", dpi=120)
