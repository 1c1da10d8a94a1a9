"""What is measured: the layers and whole training steps of the table, at real and at toy sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flashcaps
from flashcaps import Routed
from flashcaps.functional import margin_loss, spread_loss
from flashcaps.nn.coefficients import ascend_coefficients, discriminative_layers
from flashcaps.nn.losses import reconstruction_loss

from .floors import Cost, layer_cost
from .public import public_style

BACKENDS = ("triton", "public", "matrix", "matrix compiled", "reference", "public compiled", "triton compiled")
NO_CAPSULES = "no capsules"  # the floor of a whole step
PRECISIONS = ("tf32", "bf16")

Layer = tuple[type, dict[str, Any]]  # a class and what it is called with, but the backend


@dataclass(frozen=True)
class Goal:
    """What a captured step should take, and what public code takes on an H200: ms and GB, eager and compiled."""

    ms: float | None = None
    mb: float | None = None
    public_ms: float | None = None
    public_gb: float | None = None
    compiled_ms: float | None = None


class LayerStep(nn.Module):
    """Capsule layers one after the other. Poses, activations -> the last layer's pose, and activation if it is new."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, pose: Tensor, activation: Tensor | None = None) -> tuple[Tensor, ...]:
        first, *above = self.layers
        routed = first(pose, activation)
        for layer in above:
            routed = layer(routed)
        in_pose = routed.activation is None or routed.kind == "length"
        return (routed.pose,) if in_pose else (routed.pose, routed.activation)


class WholeStep(nn.Module):
    """Images and labels through a network and its paper's loss. -> the loss"""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.ascends = model, bool(discriminative_layers(model))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        output = self.model(images, labels if self.model.decoder is not None else None)
        scores = output.scores.float()
        routing = self.model.name.split("_")[0]
        if self.ascends and torch.is_grad_enabled():
            ascend_coefficients(self.model, labels)
        if routing == "attention":
            return (F.cross_entropy(scores, labels),)
        if routing == "em":
            return (spread_loss(scores, labels, 0.9),)
        loss = margin_loss(scores, labels)
        if output.reconstruction is None:
            return (loss,)
        return (loss + 0.0005 * reconstruction_loss(output.reconstruction.float(), images),)


class NoCapsules(nn.Module):
    """In the place of all capsule layers: the first numbers of the primary capsules are the class capsules."""

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__()
        self.shape = (parents, dim)

    def forward(self, u: Tensor, activation: Tensor | None = None, **_: Any) -> Routed:
        parents, dim = self.shape
        pose = u.flatten(1)[:, : parents * dim].unflatten(1, self.shape)
        return Routed(pose, pose.mean(-1).sigmoid())


@dataclass(frozen=True)
class Workload:
    """layers: (class, arguments) each, or model: (name, overrides). inputs: the children's shape without the batch.

    seen: of each layer, the places that route on their own and the children each sees: what the floor counts.
    """

    name: str
    title: str
    batch: int
    inputs: tuple[int, ...]
    layers: tuple[Layer, ...] = ()
    model: tuple[str, dict[str, Any]] | None = None
    seen: tuple[tuple[int, int], ...] = ()
    goal: Goal = field(default=Goal())
    gated: bool = False  # children come with activations
    adam: bool = False  # a loop: the step ends with an optimiser's

    @property
    def whole(self) -> bool:
        return self.model is not None

    def build(self, backend: str) -> nn.Module:
        """The step on a backend, the same weights on each. What a backend cannot do it says."""
        torch.manual_seed(0)
        kind = backend.removesuffix(" compiled")
        name = "reference" if kind in ("public", NO_CAPSULES) else kind
        if self.model is None:
            layers = [layer(backend=name, **arguments) for layer, arguments in self.layers]
            step: nn.Module = LayerStep(layers)
            if kind == "public":
                public_style(step.layers)
            return step
        model: Any = flashcaps.create_model(self.model[0], backend=name, **self.model[1])
        if kind == "public":
            public_style(model.capsules.layers)
        if kind == NO_CAPSULES:
            top = model.capsules.layers[-1]
            model.capsules = NoCapsules(top.parents, top.out_dim)
        return WholeStep(model)

    def draw(self, device: str, dtype: torch.dtype, batch: int | None = None) -> tuple[Tensor, ...]:
        """One set of inputs."""
        b = self.batch if batch is None else batch
        if self.whole:
            images = torch.rand(b, *self.inputs, device=device)
            return images, torch.randint(0, 5, (b,), device=device)
        pose = F.normalize(torch.randn(b, *self.inputs, device=device), dim=-1).to(dtype).requires_grad_()
        if not self.gated:
            return (pose,)
        return pose, torch.rand(pose.shape[:-1], device=device).to(dtype).requires_grad_()

    def cost(self) -> Cost | None:
        """Bytes and operations, where all of them are capsule layers'."""
        if self.whole:
            return None
        total = Cost()
        with torch.device("meta"):  # shapes are all that is needed
            layers: Any = self.build("reference").layers
        for layer, (places, children) in zip(layers, self.seen, strict=True):
            total = total + layer_cost(layer, self.batch * places, children)
        return total


def dense(routing: str, children: int | None, in_dim: Any, parents: int, out_dim: Any, **more: Any) -> Layer:
    arguments = dict(routing=routing, in_capsules=children, in_dim=in_dim, out_capsules=parents, out_dim=out_dim)
    return flashcaps.DenseCapsules, {**arguments, **more}


def conv(routing: str, types: int, stride: int, **more: Any) -> Layer:
    arguments = dict(routing=routing, in_types=types, in_dim=16, out_types=types, out_dim=16, kernel=3, stride=stride)
    return flashcaps.ConvCapsules, {**arguments, "pose": "matrix", **more}


def vector_layer(name: str, routing: str, children: int, parents: int, batch: int, goal: Goal) -> Workload:
    """Children of 8 numbers, parents of 16: dynamic's and discriminative's class layer."""
    title = f"{routing} layer {children}x8 -> {parents}x16, B {batch}"
    layer = dense(routing, children, 8, parents, 16)
    return Workload(name, title, batch, (children, 8), (layer,), seen=((1, children),), goal=goal)


def em_stack(size: int, types: int, parents: int, batch: int, goal: Goal) -> Workload:
    """Two convolutional layers and a shared class layer on size x size places."""
    first = (size - 3) // 2 + 1
    last = first - 2
    top = dense("em", types, 16, parents, 16, pose="matrix", shared=True, coordinates=True)
    layers = (conv("em", types, 2), conv("em", types, 1), top)
    seen = ((first**2, 9 * types), (last**2, 9 * types), (1, last**2 * types))
    grids = " -> ".join(f"{n}x{n}x{types}" for n in (size, first, last))
    title = f"em {grids} -> {parents}, 3 it., B {batch}"
    return Workload("em_stack", title, batch, (types, size, size, 16), layers, seen=seen, goal=goal, gated=True)


def heinsen(name: str, title: str, batch: int, sizes: tuple[Any, ...], goal: Goal) -> Workload:
    """Any number of children -> parts -> classes. sizes: children, in_dim, parts, classes, out_dim"""
    children, in_dim, parts, classes, out_dim = sizes
    pose = {"pose": "matrix"} if in_dim == out_dim else {}
    layers = (
        dense("heinsen", None, in_dim, parts, out_dim, **pose),
        dense("heinsen", parts, out_dim, classes, out_dim, **pose),
    )
    return Workload(name, title, batch, (children, in_dim), layers, seen=((1, children), (1, parts)), goal=goal)


def network(name: str, title: str, batch: int, model: str, overrides: dict[str, Any], goal: Goal) -> Workload:
    image = flashcaps.create_model(model, **overrides).image
    return Workload(name, title, batch, image, model=(model, overrides), goal=goal)


def imagenet(routing: str, toy: bool, **more: Any) -> Workload:
    """Classes of 224 x 224 images over a backbone of stride 16: 32 types of 8 numbers at 14 x 14 places."""
    children, classes, batch = (8, 6, 2) if toy else (32 * 14 * 14, 1000, 64)
    layer = dense(routing, children, 8, classes, 16, **more)
    title = f"{routing} layer, ImageNet size, {children}x8 -> {classes}x16, B {batch}"
    return Workload(f"{routing}_imagenet", title, batch, (children, 8), (layer,), seen=((1, children),))


@cache
def table(toy: bool = False) -> dict[str, Workload]:
    """Every workload, most important first."""

    def small(size: int, toy_size: int) -> int:
        return toy_size if toy else size

    def b(batch: int) -> int:
        return small(batch, 2)

    cifar: dict[str, Any] = {"image": (3, 16, 16), "backbone": "conv"} if toy else {}
    mnist: dict[str, Any] = {"primary": {"types": 2}, "backbone": {"channels": 4}, "decoder": (8,)} if toy else {}
    found = [
        vector_layer("dynamic_mnist", "dynamic", small(1152, 12), 10, b(128), Goal(0.15, 100, 9.2, 1.7, 8.4)),
        vector_layer("dynamic_multimnist", "dynamic", small(3200, 20), 10, b(128), Goal(0.35, 200, 23.7, 4.6, 23.4)),
        vector_layer("dynamic_cifar100", "dynamic", small(2048, 16), small(100, 12), b(128),
                     Goal(1.5, 400, 161, 29, 148)),
        network("capsnet_mnist", "CapsNet MNIST, whole step, B 128", b(128), "capsnet_mnist", mnist,
                Goal(1.0, None, 12.0, None, 20.6)),
        network("attention_resnet_2", "attention ResNet CIFAR-10, 2 it., whole step, B 128", b(128),
                "attention_resnet_cifar10", {"iterations": 2, **cifar}, Goal(5, 2000, 69.5, 15.4)),
        network("attention_resnet_3", "attention ResNet CIFAR-10, 3 it., whole step, B 128", b(128),
                "attention_resnet_cifar10", {"iterations": 3, **cifar}, Goal(7, 2000, 144, 27)),
        em_stack(small(16, 8), small(32, 2), 10, b(64), Goal(15, 1500, 460, 40, 285)),
        heinsen("heinsen_norb", "heinsen 5184 -> 64 -> 5, 4 x 4, 3 it., B 20", b(20),
                (small(5184, 9), 16, small(64, 4), 5, 16), Goal(1.2, 300, 27, 5.8, 13.3)),
        heinsen("heinsen_sst", "heinsen SST 1480 -> 64 -> 5, 1 x 64 -> 1 x 2, B 20", b(20),
                (small(1480, 7), small(64, 6), small(64, 4), 5, 2), Goal(0.6, None, 18.6)),
        vector_layer("discriminative_mnist", "discriminative", small(1152, 12), 10, b(128), Goal()),
        network("discriminative_step", "CapsNet MNIST, discriminative routing, whole step, B 128", b(128),
                "discriminative_mnist", mnist, Goal()),
        network("em_smallnorb", "em_smallnorb, whole step, B 64", b(64), "em_smallnorb",
                {"primary": {"types": 2}, "image": (2, 18, 18)} if toy else {}, Goal()),
        imagenet("dynamic", toy),
        imagenet("attention", toy, iterations=2),
        imagenet("heinsen", toy),
    ]  # fmt: skip
    loop = replace(found[3], name="capsnet_mnist_adam", title="CapsNet MNIST, loop with fused Adam, B 128", adam=True)
    found.append(replace(loop, goal=Goal()))
    return {w.name: w for w in found}


@cache
def large(toy: bool = False) -> dict[str, Workload]:
    """Batches that public code cannot train on one GPU; the goal is less than 40 GB."""
    cifar: dict[str, Any] = {"image": (3, 16, 16), "backbone": "conv"} if toy else {}
    goal = Goal(mb=40_000)
    found = [
        network("attention_resnet_1024", "attention_resnet_cifar10, B 1024", 2 if toy else 1024,
                "attention_resnet_cifar10", cifar, goal),
        network("em_smallnorb_512", "em_smallnorb, B 512", 2 if toy else 512, "em_smallnorb",
                {"primary": {"types": 2}, "image": (2, 18, 18)} if toy else {}, goal),
    ]  # fmt: skip
    return {w.name: w for w in found}


def profiled(toy: bool = False) -> list[Workload]:
    """The three whole steps to look into."""
    return [table(toy)[name] for name in ("capsnet_mnist", "attention_resnet_2", "em_smallnorb")]
