"""What routing costs on this machine: memory and time against iterations, and time per 100 training steps."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from ..models import create_model
from ..nn.coefficients import ascend_coefficients
from ..nn.losses import margin_loss, reconstruction_loss
from ..nn.trace import iterated, iterations_of, keeps_couplings
from ..routing import ROUTING
from ..training.batches import Batch
from ..training.evaluate import forward
from .figure import DoesNotApply, Drawn, Run
from .style import INK, MARKERS, colour_of, grid, styled, subplots

IMAGES = 16
LIMIT_S = 30.0  # seconds of measuring: a large model on a small machine gets fewer points


@styled
def cost(run: Run, iterations: tuple[int, ...] = (1, 2, 3, 5)) -> Drawn:
    """Memory and time against iterations, all algorithms in this model (attention, Fig. 4).

    Memory is what a forward pass keeps for the backward pass, parameters left out.
    """
    batch = run.first(IMAGES)
    data = measured(run, batch, iterations)
    fig, axes = subplots(9.5, 3.8, 1, 2)
    for k, (name, points) in enumerate(data.items()):
        for axis, which, scale in ((axes[0], 0, 1000 / len(batch.inputs)), (axes[1], 1, 1.0)):
            axis.plot(list(points), [p[which] * scale for p in points.values()], marker=MARKERS[k % len(MARKERS)],
                      color=colour_of(name), label=name)
    axes[0].set(xlabel="routing iterations", ylabel="ms per image, forward + backward", ylim=(0, None))
    axes[1].set(xlabel="routing iterations", ylabel="MiB kept for backward", ylim=(0, None))
    axes[0].legend(fontsize=10)
    for axis in axes:
        axis.set_xticks(range(1, max(iterations) + 1))
    grid(*axes)
    own = data[run.layer().name]
    first, last = own[min(own)], own[max(own)]
    sizes = {name: points[max(own)][1] for name, points in data.items() if max(own) in points}
    best = min(sizes, key=lambda n: sizes[n])
    text = (f"{run.model.name} with each algorithm in its place, {len(batch.inputs)} images at once on this machine's "
            f"{run.device.type}. Its own, {run.layer().name}: {first[0] * 1000:.0f} ms and {first[1]:.1f} MiB with "
            f"{min(own)}, {last[0] * 1000:.0f} ms and {last[1]:.1f} MiB with {max(own)} iterations. Least memory with "
            f"{max(own)}: {best} ({sizes[best]:.1f} MiB).")
    return Drawn({"cost": data}, fig, text)


def measured(run: Run, batch: Batch, iterations: tuple[int, ...]) -> dict[str, dict[int, tuple[float, float]]]:
    """(seconds, MiB) of each algorithm and number of iterations, the model's own first, within LIMIT_S."""
    models, start = variants(run), time.perf_counter()
    data: dict[str, dict[int, tuple[float, float]]] = {}
    names = sorted(models, key=lambda n: n != run.layer().name)
    for t in iterations:
        for name in names:
            if data and time.perf_counter() - start > LIMIT_S:
                return data
            if t > 1 and keeps_couplings(ROUTING[name]()):
                continue
            with iterated(models[name].capsules, t):
                data.setdefault(name, {})[t] = (seconds(models[name], batch), kept_bytes(models[name], batch) / 2**20)
    return data


@styled
def step_time(run: Run, repeats: int = 2) -> Drawn:
    """Training time per 100 steps, all algorithms in this model (discriminative, Fig. 4)."""
    batch = run.first(min(run.recipe.train.batch if run.recipe else IMAGES, 64))
    size = len(batch.inputs)
    times: dict[str, float] = {}
    counts, start = {}, time.perf_counter()
    for name, model in variants(run).items():
        if times and time.perf_counter() - start > LIMIT_S:
            break
        times[name], counts[name] = 100 * step_seconds(model, batch, repeats), iterations_of(model.capsules)
    fig, (axis,) = subplots(7.5, 0.5 * len(times) + 1.2)
    names = sorted(times, key=lambda n: -times[n])
    bars = axis.barh([f"{n}, {counts[n]}" for n in names], [times[n] for n in names], height=0.6,
                     color=[colour_of(n) for n in names])
    axis.bar_label(bars, [f" {times[n]:.1f} s" for n in names], color=INK)
    axis.set(xlabel=f"seconds per 100 steps of {size} images", ylabel="routing, iterations")
    axis.margins(x=0.15)
    fastest = min(times, key=lambda n: times[n])
    text = (f"Whole training steps of {run.model.name} on {size} images, measured here (the fastest of {repeats}). "
            f"{fastest} is fastest with {times[fastest]:.1f} s; "
            + ", ".join(f"{n} takes {times[n] / times[fastest]:.2f} times that" for n in names if n != fastest) + ".")
    return Drawn({"seconds": times, "iterations": counts}, fig, text)


def variants(run: Run) -> dict[str, Any]:
    """The model with every algorithm that can replace its own, with new weights."""
    run.stack()
    found: dict[str, Any] = {}
    kept = {k: v for k, v in run.model.overrides.items() if k not in ("routing", "options", "pose", "concurrent")}
    with torch.random.fork_rng(devices=[]):
        for name in ROUTING:
            own = run.model.overrides if name == run.layer().name else kept | {"routing": name}
            try:
                found[name] = create_model(run.model.name, **own).to(run.device)
            except (ValueError, TypeError):  # a coefficient per child, for example, where any number may come
                continue
    if not found:
        raise DoesNotApply(f"{run.model.name} cannot be built again from its name")
    return found


def run_once(model: Any, batch: Batch) -> Tensor:
    """The loss of a batch: margin, and reconstruction if there is a decoder."""
    output = forward(model, batch, None if model.decoder is None else batch.chosen)
    loss = margin_loss(output.scores, batch.targets)
    if output.reconstruction is not None and batch.pictures is not None:
        loss = loss + reconstruction_loss(output.reconstruction, batch.pictures)
    return loss


def seconds(model: Any, batch: Batch) -> float:
    """Forward and backward pass, the faster of two, or one that takes seconds."""
    first = _timed(lambda: run_once(model, batch).backward(), batch)
    return first if first > 2 else min(first, _timed(lambda: run_once(model, batch).backward(), batch))


def step_seconds(model: Any, batch: Batch, repeats: int) -> float:
    """One training step: forward, update of coefficients, backward, optimiser."""
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimiser.zero_grad()
        loss = run_once(model.train(), batch)
        ascend_coefficients(model, batch.targets)
        loss.backward()
        optimiser.step()

    first = _timed(step, batch)  # allocates the optimiser's state
    return first if first > 5 else min(_timed(step, batch) for _ in range(repeats))


def _timed(work: Any, batch: Batch) -> float:
    cuda = batch.inputs.device.type == "cuda"
    with torch.enable_grad():
        torch.cuda.synchronize() if cuda else None
        start = time.perf_counter()
        work()
        torch.cuda.synchronize() if cuda else None
    return time.perf_counter() - start


def kept_bytes(model: nn.Module, batch: Batch) -> int:
    """Bytes a forward pass keeps for the backward pass, every storage once, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        store = x.untyped_storage()
        if store.data_ptr() not in own:
            seen[store.data_ptr()] = store.nbytes()
        return x

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = run_once(model, batch)
    total = sum(seen.values())
    del loss  # alive until here, so that no address is reused and counted twice
    return total
