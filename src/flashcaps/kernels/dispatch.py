"""The one door to the kernels: children and weights in, parents out, by the form that suits them.

A layer calls `route` once. Here its children become votes (patches of a convolution, groups that share a transform,
coordinates, a bias), a form is chosen by rule of device, dtype and shape, and the algorithm runs: on explicit votes
("reference"), by matrix products on blocks of children that are recomputed in the backward pass ("matrix", anywhere),
or by kernels that keep votes in registers ("triton", CUDA devices).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..routing.checks import install_command, is_transformed
from ..routing.contract import Memory, Routed, Routing, Step, Tensors
from ..routing.math import OverPositions, Softmax, as_dtype, compute_dtype, no_autocast, over_parents
from .attend.triton import supported
from .attention import attention_routing
from .common.patches import patches
from .common.rows import HAS_TRITON
from .discriminative import discriminative_routing
from .dynamic import dynamic_routing
from .em import em_routing
from .heinsen import heinsen_routing
from .votes import Votes, Windows, add_bias, add_coordinates, centres, covered, group

BACKENDS = ("auto", "reference", "matrix", "triton")


class Twin(NamedTuple):
    """An algorithm on `Votes` that are never stored, and what its Triton kernels can do."""

    function: Callable[..., Routed]
    family: str | None = None  # whose Triton kernels it has: "attend" (dot products) or "fit" (Gaussians)
    adds_bias: bool = False  # kernels add the bias of votes themselves
    reads_images: tuple[str | None, ...] = ()  # with these input activations they find children in their image
    convolves: bool = False  # the first step is a convolution of that image, which a CPU computes as such


TWINS: dict[str, Twin] = {
    "dynamic": Twin(dynamic_routing, "attend"),
    "em": Twin(em_routing, "fit", reads_images=("probability",)),
    "attention": Twin(attention_routing, "attend", reads_images=(None,), convolves=True),
    "heinsen": Twin(heinsen_routing, "fit", adds_bias=True),
    "discriminative": Twin(discriminative_routing, "attend"),
}


class Window(NamedTuple):
    """How a convolutional layer looks at its image. over: see `ConvCapsules`."""

    kernel: int
    stride: int
    padding: int
    over: str


class Transform(NamedTuple):
    """From children to votes: a layer's weights, and how its children share them."""

    weight: Tensor  # (J, d, G, h)
    bias: Tensor | None  # (J, C, G, h), added to every vote
    rows: int  # C, of a pose
    window: Window | None = None  # of a convolutional layer
    coordinates: bool = False  # whether each child's place is added to its votes


def choose_backend(name: str, backend: str, explicit: bool = False) -> str:
    """What a layer is built with. "auto" stays, to be answered when votes come (`pick_form`); an algorithm without a
    fused twin, or one that needs `explicit` votes, gets "reference". A backend asked for by name is kept to: votes it
    cannot take are an error.
    """
    twin = None if explicit else TWINS.get(name)
    if backend == "auto":
        return "reference" if twin is None else "auto"
    if backend == "triton" and (twin is None or twin.family is None):
        raise ValueError(f"backend: {name!r} has no 'triton' kernel; use 'auto', 'matrix' or 'reference'")
    if backend == "triton" and not HAS_TRITON:
        raise ValueError(f"backend: 'triton' is not installed; {install_command(triton='triton')}, or use 'auto'")
    if backend == "triton" and not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        raise ValueError("backend: 'triton' needs a CUDA device, and there is none; use 'auto'")
    if backend == "matrix" and twin is None:
        raise ValueError(f"backend: {name!r} has no 'matrix' form; use 'auto' or 'reference'")
    return backend


def pick_form(name: str, votes: Votes | Windows, softmax: Softmax = over_parents) -> str:
    """What "auto" means for these votes: "triton" on a CUDA device where the algorithm has kernels that take them,
    else "matrix", else "reference". Transforms of torch.func know plain operators alone.
    """
    twin = TWINS.get(name)
    if twin is None or is_transformed():
        return "reference"
    if votes.weight.device.type != "cuda":
        return "matrix"
    return "matrix" if why_not_triton(twin, votes, softmax) else "triton"


def why_not_triton(twin: Twin, votes: Votes | Windows, softmax: Softmax) -> str | None:
    """Why the algorithm's kernels cannot take these votes; None where they can, and then they are the fastest form."""
    if twin.family is None or not HAS_TRITON:
        return "no kernels" if HAS_TRITON else "triton is not installed"
    if twin.family == "attend":
        return supported(votes, softmax)
    from .fit.triton import supported as fit_supported

    return fit_supported(votes, softmax)


def route(
    name: str,
    routing: Routing,
    transform: Transform,
    u: Tensor,
    activation: Tensor | None,
    learned: Tensors,
    *,
    backend: str = "auto",
    coupling: bool = False,
    record: bool = False,
    pose: Tensor | None = None,
    memory: Memory | None = None,
    output_norm: Callable[[Tensor, bool], Tensor] | None = None,
) -> Routed:
    """Children u (B, I, D), or (B, types, H, W, D), with activations of the same axes -> their parents.

    The result is in u's dtype; under autocast, too, routing runs in fp32. A convolution's places are part of the batch
    axis. pose: the parents' so far, for an algorithm that goes on from it. memory: is given the votes.
    output_norm: what activations go through; true: those of an earlier iteration, which leave no trace in it.
    """
    with no_autocast(u.device):
        twin = TWINS.get(name)
        votes, activation, softmax = _votes(routing, transform, u, activation, twin, backend, coupling or record)
        if activation is None and routing.input_activation is not None:
            activation = _present(votes, routing)
        elif activation is not None and routing.input_activation is None:
            assert isinstance(votes, Votes)  # an image has them in its poses by now
            votes, activation = Votes(votes.u * activation.view(*votes.u.shape[:3], 1, 1), votes.weight), None
        form = pick_form(name, votes, softmax) if backend == "auto" else backend
        common: dict[str, Any] = {"softmax": softmax, "record": record}
        if _bias_apart(transform, twin):
            assert transform.bias is not None
            if form == "triton":
                common["vote_bias"] = transform.bias.to(votes.weight.dtype)
            else:
                assert isinstance(votes, Votes)
                votes = add_bias(votes, transform.bias.to(votes.weight.dtype))
        if memory is not None:
            assert isinstance(votes, Votes)
            memory.votes = votes
        if pose is not None:
            common["pose"] = pose
        if form == "reference" or twin is None:
            assert isinstance(votes, Votes)
            routed = routing.run(type(routing).function, votes.explicit(), activation, learned, **common)
        else:
            if form == "triton":
                common["triton"] = True
            routed = routing.run(twin.function, votes, activation, learned, coupling=coupling, **common)
        if output_norm is not None and routed.activation is not None:
            routed = _normalised(routed, routed.activation, output_norm)
        return _finished(routed, u.dtype, coupling, routing.output_activation)


def _normalised(routed: Routed, activation: Tensor, output_norm: Callable[[Tensor, bool], Tensor]) -> Routed:
    """Activations through `output_norm`: the result's, and those of recorded iterations."""
    last, history = output_norm(activation, False), routed.history
    if history is not None:
        early = (Step(c, p, None if a is None else output_norm(a, True)) for c, p, a in history[:-1])
        history = (*early, Step(history[-1].coupling, history[-1].pose, last))
    return Routed(routed.pose, last, routed.coupling, routed.variance, history, routed.kind)


def make_votes(transform: Transform, u: Tensor) -> Votes:
    """The votes of children (B, I, D) or (B, types, H, W, D), gathered but not computed."""
    votes, _, _ = _votes(None, transform, u, None, None, "reference", True)
    assert isinstance(votes, Votes)
    return votes


def _votes(
    routing: Routing | None,
    transform: Transform,
    u: Tensor,
    activation: Tensor | None,
    twin: Twin | None,
    backend: str,
    gather: bool,
) -> tuple[Votes | Windows, Tensor | None, Softmax]:
    """Votes, activations (B, I) of the children behind them, and what normalises over their parents."""
    dtype = compute_dtype(u, transform.weight)
    u, weight = as_dtype(u, dtype), as_dtype(transform.weight, dtype)  # before patches overlap, and gradients are added
    activation = None if activation is None else as_dtype(activation, dtype)
    softmax: Softmax = over_parents
    yx = centres(u.shape[2], u.shape[3], u.device) if transform.coordinates else None
    if transform.window is not None:
        takes = None if routing is None else routing.input_activation
        kernel, stride, _, over = transform.window
        u, activation = _padded(u, activation, transform, takes)
        if over == "positions":
            h, w = u.shape[2:4]
            softmax = OverPositions(covered(h, w, kernel, stride, u.device), h * w, (h, w, kernel, stride))
        image = Windows(u, weight, transform.rows, kernel, stride)
        if not gather and _reads_image(image, transform, twin, takes, activation, backend, softmax):
            return image, activation, softmax
        if activation is not None:
            activation = patches(activation[..., None], kernel, stride).flatten(0, 2)[..., 0]
        u = patches(u, kernel, stride).flatten(0, 2)
    elif u.ndim == 5:
        u = u.flatten(1, 3)
        activation = None if activation is None else activation.flatten(1)
    votes = Votes(group(u, weight.shape[2], transform.rows), weight)
    if transform.bias is not None and not _bias_apart(transform, twin):
        votes = add_bias(votes, transform.bias.to(dtype))
    return votes if yx is None else add_coordinates(votes, yx), activation, softmax


def _padded(
    u: Tensor, activation: Tensor | None, transform: Transform, takes: str | None
) -> tuple[Tensor, Tensor | None]:
    """An image of capsules with absent ones around it. Where an activation only scales votes it joins the poses."""
    assert transform.window is not None
    p, scales = transform.window.padding, takes is None and transform.bias is None
    if activation is not None and scales:
        u, activation = u * activation[..., None], None  # before patches repeat it
    if p:
        if activation is None and not scales:
            activation = u.new_full(u.shape[:-1], math.inf if takes == "score" else 1.0)
        if activation is not None:
            activation = F.pad(activation, (p, p, p, p), value=-math.inf if takes == "score" else 0.0)
        u = F.pad(u, (0, 0, p, p, p, p))
    return u, activation


def _reads_image(
    image: Windows,
    transform: Transform,
    twin: Twin | None,
    takes: str | None,
    activation: Tensor | None,
    backend: str,
    softmax: Softmax,
) -> bool:
    """Whether children stay where they overlap in the image, so that no patch is copied."""
    if twin is None or takes not in twin.reads_images or transform.bias is not None:
        return False
    if activation is not None and takes is None:
        return False
    if image.image.device.type == "cpu" and backend in ("auto", "matrix"):
        return twin.convolves and softmax is over_parents and not is_transformed()
    asked = backend == "triton" or (backend == "auto" and image.image.is_cuda and not is_transformed())
    return asked and why_not_triton(twin, image, softmax) is None


def _bias_apart(transform: Transform, twin: Twin | None) -> bool:
    return transform.bias is not None and twin is not None and twin.adds_bias


def _present(votes: Votes | Windows, routing: Routing) -> Tensor:
    """The activation of children that are all there."""
    weight = votes.weight
    shape = votes.image.shape[:4] if isinstance(votes, Windows) else votes.size()[:2]
    sure = math.inf if routing.input_activation == "score" else 1.0
    return torch.full(shape, sure, dtype=weight.dtype, device=weight.device)


def _finished(routed: Routed, dtype: torch.dtype, coupling: bool, kind: str | None) -> Routed:
    """Poses and activations in the caller's dtype, variances in fp32, the coupling only if asked for."""
    pose, a, c, variance, history, _ = routed
    if history is not None:
        history = tuple(Step(c, p.to(dtype), None if x is None else x.to(dtype)) for c, p, x in history)
    a = None if a is None else as_dtype(a, dtype)
    return Routed(as_dtype(pose, dtype), a, c if coupling else None, variance, history, None if a is None else kind)
