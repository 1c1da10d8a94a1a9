"""Custom operators whose host work is replayed (`common.replay`), and operators that are their gradients.

A forward operator takes its tensors first, then its options, and only its first output has a gradient:

    @gradient_of(forward, tensors=3)
    def forward_backward(grad, given, kept, *options) -> list[Tensor | None]

returns the gradients of `given`, forward's tensors, with None where a tensor is None. The gradients of the last few may
come stacked in one tensor. kept: what forward returned besides its first output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .replay import recording, replayed

is_compiling, dispatch_modes = torch.compiler.is_compiling, torch._C._len_torch_dispatch_stack
transform, trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
# Tensor subclasses are not among them: those, and anything unforeseen, go through torch's dispatcher.
PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None), bool, int, float, list, tuple, torch.Size, torch.dtype))


class Eager:
    """A function whose host work is replayed, for calls that `is_plain` allows. changed: the tensors that it writes to,
    by position.
    """

    def __init__(self, function: Callable[..., Any], changed: Sequence[int] = ()) -> None:
        self.function, self.run, self.changed = function, replayed(function), changed
        self.apply: Callable[..., Any] | None = None
        self.listed = False  # whether it returns a list, of which autograd knows nothing

    def __call__(self, *given: Any) -> Any:
        if self.changed:
            torch.autograd.graph.increment_version([given[k] for k in self.changed])
        if self.apply is None or not torch.is_grad_enabled():
            return self.run(*given)
        found = self.apply(*given)
        return list(found) if self.listed else found

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        run, listed = self.run, self.listed

        class Gradient(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                found = run(*given)
                setup_context(ctx, given, found)
                return tuple(found) if listed else found

            @staticmethod
            def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
                if torch.is_grad_enabled():
                    return once_differentiable(Gradient.backward)(ctx, *gradients)
                found = backward(ctx, *([list(gradients)] if listed else gradients))
                return tuple([None if type(x) is list else x for x in found])  # those of lists have no meaning here

        self.apply = super(torch.autograd.Function, Gradient).apply  # skips its checks for torch.func: calls are plain


class Operator:
    """flashcaps::name, the operator that torch.compile, export and dispatch modes see.

    A plain eager call does the same without torch's dispatcher, which takes longer than a plan and imports torch's
    compiler the first time. Within another operator that is being recorded it is part of that one's plan.
    """

    def __init__(self, name: str, function: Callable[..., Any], mutates_args: Sequence[str]) -> None:
        names = list(inspect.signature(function).parameters)
        self.eager = Eager(function, [names.index(name) for name in mutates_args])
        self.definition = torch.library.custom_op(
            f"flashcaps::{name}", _filled(self.eager.run), mutates_args=mutates_args
        )
        self.overload = getattr(torch.ops.flashcaps, name).default
        self.eager.listed = str(self.overload._schema.returns[0].type).startswith("List")

    def __call__(self, *given: Any) -> Any:
        if is_plain(given):
            return self.eager(*given)
        if not torch.compiler.is_compiling() and recording():
            return self.eager.function(*given)
        return self.overload(*given)

    def register_fake(self, fake: Callable[..., Any]) -> None:
        self.definition.register_fake(fake)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        self.definition.register_autograd(backward, setup_context=setup_context)
        self.eager.register_autograd(backward, setup_context=setup_context)


def _filled(run: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces None in a list of gradients by an empty tensor, since operators of torch return tensors."""
    signature = inspect.signature(run)
    if signature.return_annotation not in ("list[Tensor | None]", list[Tensor | None]):
        return run

    def filled(grad: Tensor, *rest: Any) -> list[Tensor]:
        return [grad.new_empty(0) if g is None else g for g in run(grad, *rest)]

    filled.__signature__ = signature.replace(return_annotation=list[Tensor])  # type: ignore[attr-defined]
    return filled


def is_plain(given: Sequence[Any]) -> bool:
    """Whether this is a plain eager program: no compiler, dispatch mode, transform, trace or subclass of Tensor."""
    return not (
        is_compiling() or dispatch_modes() or transform() is not None or trace() is not None
    ) and PLAIN.issuperset(map(type, given))


def operator(name: str, mutates_args: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Operator]:
    """Makes a function of tensors and then options the operator flashcaps::name."""
    return lambda function: Operator(name, function, mutates_args)


def empty_gradients(grad: Tensor, given: Sequence[Tensor | None], *_: Any) -> list[Tensor]:
    """Contiguous memory for the gradient of each tensor; an empty tensor where there is none."""
    return [grad.new_empty(0) if x is None else x.new_empty(x.shape) for x in given]


def gradient_of(forward: Operator, tensors: int, fake: Callable[..., Any] = empty_gradients) -> Callable[..., Operator]:
    """Makes a function the gradient of `forward`, whose first `tensors` arguments are tensors. fake: its outputs'
    memory.
    """

    def register(function: Callable[..., Sequence[Tensor | None]]) -> Operator:
        backward = Operator(function.__name__, function, ())
        backward.register_fake(fake)

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            ctx.options = inputs[tensors:]
            ctx.save_for_backward(*inputs[:tensors], *([] if isinstance(output, Tensor) else output[1:]))

        def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
            saved = list(ctx.saved_tensors)  # asked once: each time torch looks at all of them
            given, kept = saved[:tensors], saved[tensors:]
            found = [] if grad is None else backward(grad, given, kept, *ctx.options)
            if 0 < len(found) < tensors and found[-1] is not None:
                found = [*found[:-1], *found[-1].unbind()]
            of_tensors = [None if x is None or g is None else g if g.dtype == x.dtype else g.to(x.dtype)
                          for x, g in zip_longest(given, found)]  # fmt: skip
            return *of_tensors, *[None] * len(ctx.options)

        forward.register_autograd(differentiate, setup_context=keep)
        return backward

    return register
