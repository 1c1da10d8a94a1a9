"""One training step: batch -> forward -> backward -> optimiser -> average, eager or replayed from a CUDA graph."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..kernels.warm_up import compile_kernels
from ..nn import losses
from ..nn.capsules import CapsuleLayer
from ..nn.coefficients import ascend_together, coefficient_slopes, discriminative_layers
from .batches import Batch, ShuffledStream, Stream
from .capture import capture
from .distributed import GradientBuckets, Workers
from .evaluate import forward, is_right, score_threshold
from .guard import Guard
from .optim import Rates, make_optimiser, scheduled, set_rates
from .recipe import Loss, Recipe


def criterion(output: Any, batch: Batch, spec: Loss, margin: Tensor, weight: Tensor | None = None) -> Tensor:
    """The loss of a batch: of the recipe's kind, weighted by class, plus the weighted reconstruction error."""
    scores, targets = output.scores.float(), batch.targets
    if spec.kind == "margin":
        loss = losses.margin_loss(scores, targets, weight=weight)
    elif spec.kind == "spread":
        loss = losses.spread_loss(scores, targets, margin, weight=weight)
    elif spec.kind == "logit_cross_entropy":  # of probabilities, as em's classes have them
        loss = losses.cross_entropy_loss(scores.logit(1e-6), targets, weight=weight)
    elif spec.kind == "bce":
        loss = losses.binary_cross_entropy_loss(scores, targets, weight=weight)
    else:
        loss = losses.cross_entropy_loss(scores, targets, label_smoothing=spec.label_smoothing, weight=weight)
    if spec.reconstruction and batch.pictures is not None:
        loss = loss + spec.reconstruction * losses.reconstruction_loss(output.reconstruction.float(), batch.pictures)
    return loss


def class_weights(spec: Loss, stream: Stream, device: torch.device) -> Tensor | None:
    """(K,) from the recipe, or N / (K N_k) from the labels of the training data; None if classes are not weighted."""
    if not (spec.class_weights or spec.balanced):
        return None
    field = "loss.balanced" if spec.balanced else "loss.class_weights"
    if not isinstance(stream, ShuffledStream):
        raise ValueError(f"{field}: expected data with one label an example, got images composed of several")
    if spec.balanced:
        counts = losses.multi_hot(stream.labels, stream.classes).sum(0)
        return (len(stream.labels) / (stream.classes * counts.clamp_min(1))).to(device)
    if len(spec.class_weights) != stream.classes:
        raise ValueError(f"{field}: expected {stream.classes} numbers, one per class, got {len(spec.class_weights)}")
    return torch.tensor(spec.class_weights, device=device)


class TrainStep:
    """Everything that a step changes. Nothing in `advance` waits for the device; `read` does. On a GPU, `advance` is
    captured unless the recipe says otherwise, together with what processes exchange.

    totals: sum of the loss over images, wrong answers, images, since they were last read.
    """

    def __init__(self, model: nn.Module, stream: Stream, recipe: Recipe, rule: str, workers: Workers) -> None:
        self.model, self.stream, self.recipe, self.rule, self.workers = model, stream, recipe, rule, workers
        spec, device = recipe.train, workers.device
        if recipe.loss.reconstruction and getattr(model, "decoder", None) is None:
            raise ValueError(f"loss.reconstruction: {model.name} has no decoder; build it with one or set it to 0")
        if recipe.loss.reconstruction and isinstance(stream, ShuffledStream) and stream.labels.ndim == 2:
            raise ValueError("loss.reconstruction: expected 0 for images of several labels, which one capsule cannot "
                             f"draw, got {recipe.loss.reconstruction}")  # fmt: skip
        if rule != "top1" and recipe.loss.kind not in ("margin", "bce"):  # the others expect one class per image
            raise ValueError("loss.kind: expected margin or bce for examples of several classes, got "
                             f"{recipe.loss.kind}")  # fmt: skip
        self.total = spec.steps or spec.epochs * stream.steps
        self.network: Any = torch.compile(model) if spec.compile else model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.buckets = GradientBuckets(self.parameters) if dist.is_available() and dist.is_initialized() else None
        transforms = [m.weight for m in model.modules() if isinstance(m, CapsuleLayer)]
        self.optimiser = make_optimiser(self.parameters, recipe.optimiser, device, transforms)
        self.average = Average(model, spec.ema) if spec.ema else None
        self.guard = Guard(self.optimiser, [m.get_buffer("coefficients") for m in discriminative_layers(model)], device)
        self.class_weights = class_weights(recipe.loss, stream, device)
        self.margin = torch.zeros((), device=device)
        self.pace = torch.ones((), device=device)  # of discriminative routing's ascent
        self.totals = torch.zeros(3, dtype=torch.float64, device=device)
        self.run = self.advance
        if spec.capture and device.type == "cuda":
            self.run = capture(self.advance, otherwise=f"run {recipe.name} again with train.capture=false")

    def __call__(self, index: Tensor, noise: Tensor, step: int) -> None:
        self.prepare(step)
        self.run(index, noise)

    def prepare(self, step: int) -> None:
        """Writes what is scheduled for this step to where `advance` reads it."""
        self.guard.asked += 1
        rates = self.rates(step)
        set_rates(self.optimiser, rates, self.workers.device)
        self.pace.fill_(rates.lr / (self.recipe.optimiser.lr or 1.0))
        if self.recipe.loss.kind == "spread":
            linear = self.recipe.loss.spread_margin == "linear"
            self.margin.fill_(losses.spread_margin(step / self.total) if linear else losses.spread_margin_by_step(step))

    def rates(self, step: int) -> Rates:
        return scheduled(self.recipe.schedule, self.recipe.optimiser.lr, step, self.total, self.stream.steps)

    def advance(self, index: Tensor, noise: Tensor) -> None:
        """index (B,), noise (B, columns): the whole step, in `accumulate` parts."""
        spec = self.recipe.train
        self.optimiser.zero_grad(set_to_none=True)
        self.guard.remember()
        whole, slopes = torch.zeros((), device=self.workers.device), []
        parts = list(zip(index.chunk(spec.accumulate), noise.chunk(spec.accumulate), strict=True))
        for k, (i, u) in enumerate(parts):
            batch = self.stream.batch(i, u)
            scores, loss = self.loss_of(self.network, batch)
            slopes.append(coefficient_slopes(self.model, batch.targets))
            if self.buckets is not None and k == len(parts) - 1:
                self.buckets.begin()
            (loss / spec.accumulate).backward()
            self.count(loss.detach(), scores.detach(), batch.targets)
            whole += loss.detach()
        ascend_together(self.model, slopes, self.pace)
        if self.buckets is not None:
            self.buckets.finish(whole)
        self.guard.test(whole, [p.grad for p in self.parameters if p.grad is not None])
        if spec.clip:
            nn.utils.clip_grad_norm_(self.parameters, spec.clip)
        self.optimiser.step()
        if self.average is not None:
            self.average.update()

    def compile_kernels(self, index: Tensor, noise: Tensor, progress: Any) -> None:
        """Compiles the kernels of a step in several processes, before the first step on a GPU. Changes nothing else."""
        parts, trial = self.recipe.train.accumulate, copy.deepcopy(self.model)
        batch = self.stream.batch(index.chunk(parts)[0], noise.chunk(parts)[0])
        compile_kernels(lambda: self.loss_of(trial, batch)[1].backward(), progress)

    def loss_of(self, network: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """(scores (B, K), loss) of a forward pass."""
        half = self.recipe.train.precision == "bf16"
        # no cache of cast weights, which would outlive a captured graph
        with torch.autocast(self.workers.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            output = forward(network, batch, batch.chosen if self.recipe.loss.reconstruction else None)
        return output.scores, criterion(output, batch, self.recipe.loss, self.margin, self.class_weights)

    def count(self, loss: Tensor, scores: Tensor, targets: Tensor) -> None:
        right = is_right(scores, targets, self.rule, score_threshold(self.recipe.loss.kind)).sum()
        n = len(targets)
        self.totals += torch.stack([loss.double() * n, n - right.double(), torch.full_like(right, n).double()])

    def read(self) -> tuple[float, float, int]:
        """(mean loss, error in percent, images) over all processes since the last call. Waits for the device."""
        totals = self.workers.summed(self.totals)
        self.totals.zero_()
        loss, wrong, n = totals.tolist()
        return loss / max(n, 1), 100 * wrong / max(n, 1), int(n)

    @property
    def tested(self) -> nn.Module:
        """The weights that are evaluated: the average where there is one."""
        return self.model if self.average is None else self.average.model

    def state_dict(self) -> dict[str, Any]:
        average = None if self.average is None else self.average.model.state_dict()
        return {"model": self.model.state_dict(), "average": average, "optimiser": self.optimiser.state_dict(),
                "totals": self.totals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.model.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        for p, kept in self.optimiser.state.items():  # convolutions may have had another layout when it was saved
            same = {k: x for k, x in kept.items() if isinstance(x, Tensor) and x.shape == p.shape}
            kept |= {k: torch.empty_like(p, dtype=x.dtype).copy_(x) for k, x in same.items()}
        for group in self.optimiser.param_groups:  # the step reads rates on its own device
            group |= {k: x.to(self.workers.device) for k, x in group.items() if isinstance(x, Tensor)}
        if self.workers.rank == 0:  # only its totals were saved
            self.totals.copy_(state["totals"])


class Average:
    """An exponential moving average of a model's weights and floating buffers; `model` has them, ready to evaluate."""

    def __init__(self, source: nn.Module, decay: float) -> None:
        self.model, self.decay = copy.deepcopy(source).requires_grad_(False), decay
        pairs = list(zip(self.model.state_dict().values(), source.state_dict().values(), strict=True))
        self.averaged = [(a, x) for a, x in pairs if a.is_floating_point()]
        self.copied = [(a, x) for a, x in pairs if not a.is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """average <- decay average + (1 - decay) source; counters are copied."""
        torch._foreach_lerp_([a for a, _ in self.averaged], [x for _, x in self.averaged], 1 - self.decay)
        if self.copied:
            torch._foreach_copy_([a for a, _ in self.copied], [x for _, x in self.copied])
