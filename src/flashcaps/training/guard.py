"""Steps with NaN or Inf are detected on the device, skipped, and reported at the next check.

A step whose loss, gradients or coefficients hold NaN or Inf changes neither weights nor optimiser, and no step after it
does until the loop checks, where it waits for the device anyway. The weights are then as they were before the bad
batch. Batch statistics and averaged weights do change, but no state is saved in between. Loss and gradients are tested
after they were averaged over all processes, so that all processes skip and stop at the same step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .checkpoint import list_states, write_atomic

if TYPE_CHECKING:
    from .step import TrainStep

REPORT = "nonfinite.json"


class NonFinite(RuntimeError):
    """Training met NaN or Inf and stopped before it could spread."""


class Guard:
    """tripped: 0 or 1, which optimisers read as `found_inf`; at 1 they change nothing. asked, applied: steps since the
    last check.

    The coefficients of discriminative routing are no parameters, so the guard restores them if a step is not applied.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, coefficients: Sequence[Tensor], device: torch.device) -> None:
        self.tripped = torch.zeros((), device=device)
        self.applied = torch.zeros((), device=device, dtype=torch.int64)
        self.asked = 0
        self.coefficients = list(coefficients)
        self.before = [c.clone() for c in self.coefficients]
        optimiser.found_inf = self.tripped  # type: ignore[attr-defined]

    def remember(self) -> None:
        """Keeps the coefficients as they are before the forward pass."""
        for kept, c in zip(self.before, self.coefficients, strict=True):
            kept.copy_(c)

    def test(self, loss: Tensor, grads: Iterable[Tensor]) -> None:
        """Is called before the optimiser's step; trips if any tensor has an element that is not finite."""
        largest = torch._foreach_norm([*grads, *self.coefficients, loss], math.inf)
        bad = ~torch.stack([x.float() for x in largest]).isfinite().all()
        self.tripped.copy_(torch.maximum(self.tripped, bad))
        self.applied += self.tripped == 0
        for kept, c in zip(self.before, self.coefficients, strict=True):
            c.copy_(torch.where(self.tripped > 0, kept, c))

    def check(self) -> int | None:
        """The number of steps since the last check that were applied before a bad one; None if none was bad."""
        asked, applied, self.asked = self.asked, int(self.applied), 0
        self.applied.zero_()
        return None if asked == applied else applied

    @property
    def healthy(self) -> bool:
        """Whether no step was bad so far. Waits for the device."""
        return not bool(self.tripped)


def first_bad(named: Iterable[tuple[str, Any]]) -> str:
    """The name of the first tensor with NaN or Inf, and how many it holds; "" for none. Others may be no tensors."""
    for name, x in named:
        if isinstance(x, Tensor) and x.is_floating_point() and not bool(x.isfinite().all()):
            return f"{name} holds {int((~x.isfinite()).sum()):,} NaN or Inf of {x.numel():,}"
    return ""


def diagnose(step: TrainStep, index: Tensor, noise: Tensor) -> str:
    """One line on the origin of NaN or Inf in this process's batch, for which the step is repeated, but not applied."""
    if bad := first_bad(step.model.named_parameters()):  # not buffers, whose statistics the bad batch has changed
        return f"weights: {bad}; the step before made it"
    batch = step.stream.batch(index, noise)
    finite = batch.inputs.flatten(1).isfinite().all(1)
    if not bool(finite.all()):
        return f"input: NaN or Inf in {int((~finite).sum())} of {len(finite)} examples, first {int(index[~finite][0])}"
    found: list[str] = []  # modules that return NaN or Inf for finite input, as they end: the innermost is first

    def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        bad = first_bad(("its output", x) for x in tree_leaves(output))
        if bad and not first_bad(("its input", x) for x in tree_leaves(inputs)):
            found.append(f"{name} ({type(module).__name__}): {bad}, from finite input")

    with ExitStack() as hooks:
        for name, module in list(step.model.named_modules())[1:]:  # without the model itself
            hooks.enter_context(module.register_forward_hook(partial(note, name)))
        scores, loss = step.loss_of(step.model, batch)
    value = float(loss.detach())
    if found or not math.isfinite(value):
        cause = found[0] if found else first_bad([("scores", scores)]) or f"the loss is {value:g}"
        return f"forward: {cause}"
    step.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if bad := first_bad((name, p.grad) for name, p in step.model.named_parameters()):
        return f"backward: the gradient of {bad}, though the loss is {value:.4g}"
    bad = first_bad(step.model.named_buffers())
    return bad and f"statistics: {bad}, of finite batches"


def raise_non_finite(step: TrainStep, at: int, folder: Path) -> None:
    """Writes nonfinite.json (step, every process's indices, cause, last good state) and raises NonFinite."""
    epoch, k = divmod(at, step.stream.steps)
    plan = step.stream.plan(epoch)
    found = step.workers.gathered((diagnose(step, plan.index[k], plan.noise[k]), plan.index[k].tolist()))
    causes = [f"process {r}: {text}" if len(found) > 1 else text for r, (text, _) in enumerate(found) if text]
    diagnosis = (causes or ["not met again when the batch was repeated: a random layer, or the hardware"])[0]
    state = next((path.name for path in list_states(folder)), "")
    good = f"the last good state is {folder / state}" if state else "no state was saved before it"
    lr = step.rates(at).lr
    if step.workers.rank == 0:
        report = {"step": at, "epoch": epoch, "diagnosis": diagnosis, "lr": lr, "state": state,
                  "indices": [indices for _, indices in found]}
        write_atomic(folder / REPORT, json.dumps(report) + "\n")
    raise NonFinite(
        f"NaN or Inf at step {at} (learning rate {lr:g}): {diagnosis}; the step was not taken, its examples are in "
        f"{folder / REPORT}, {good}; try a lower optimiser.lr or train.clip=1"
    )
