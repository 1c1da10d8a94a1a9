"""Gradients of custom operators as custom operators.

A forward operator takes its tensors first and its options after them, and only its first output has a gradient:

    @gradient_of(forward, tensors=3)
    def forward_backward(grad, given, kept, *options) -> list[Tensor | None]

gives the gradients of `given`, the tensors of forward, None for one that is None; those of the last few may come
stacked. kept: what forward returned beside its first output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor


def empty_gradients(grad: Tensor, given: Sequence[Tensor | None], *_: Any) -> list[Tensor]:
    """Contiguous memory for the gradient of each tensor, of no elements where there is none."""
    return [grad.new_empty(0) if x is None else x.new_empty(x.shape) for x in given]


def gradient_of(forward: Any, tensors: int, fake: Callable[..., Any] = empty_gradients) -> Callable[..., Any]:
    """Make a function the gradient of `forward`, which takes so many tensors; fake: memory like what it returns."""

    def register(function: Callable[..., Sequence[Tensor | None]]) -> Any:
        def filled(grad: Tensor, *rest: Any) -> list[Tensor]:
            return [grad.new_empty(0) if g is None else g for g in function(grad, *rest)]

        signature = inspect.signature(function).replace(return_annotation=list[Tensor])
        filled.__signature__ = signature  # type: ignore[attr-defined]
        backward = torch.library.custom_op(f"flashcaps::{function.__name__}", filled, mutates_args=())
        backward.register_fake(fake)

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            ctx.options = inputs[tensors:]
            ctx.save_for_backward(*inputs[:tensors], *([] if isinstance(output, Tensor) else output[1:]))

        def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
            given, kept = list(ctx.saved_tensors[:tensors]), list(ctx.saved_tensors[tensors:])
            found = [] if grad is None else backward(grad, given, kept, *ctx.options)
            if 0 < len(found) < tensors:
                found = [*found[:-1], *found[-1].unbind()]
            of_tensors = (None if x is None or g is None else g.to(x.dtype) for x, g in zip_longest(given, found))
            return *of_tensors, *(None for _ in ctx.options)

        forward.register_autograd(differentiate, setup_context=keep)
        return backward

    return register
