"""Records what an operator does on the host, once for each kind of arguments, and replays it from then on.

Tiles, grids, constants, buffers and views follow from the shapes, strides, dtypes and options of an operator's
arguments, never from the values in its tensors: a CUDA graph could not capture the operator otherwise. Working them
out and binding the arguments of kernels takes Python longer than a small layer takes the device. So the second call
with a kind of arguments is recorded (`common.recorder`) as a plan, a Python function of straight lines that holds the
calls of torch and of compiled kernels. Later calls run the plan alone.

    @replayed
    def operator(u, weight, iterations):
        s = torch.empty(...)
        launch(kernel, grid)(u, weight, s, TILE=...)
        return s

Two rules: kernels are launched by `launch`, and every tensor is an argument or made inside.
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .recorder import Recorder

MOST = 256  # kinds of arguments that an operator remembers; then the oldest go
_thread = threading.local()  # holds the recorder at work
_dry: list[tuple[Any, ...]] | None = None  # launches of a dry run, by any thread: autograd has its own


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """kernel[grid], which also adds the launch to the plan that is being recorded, if any."""

    def run(*given: Any, **constants: Any) -> None:
        constants["enable_fp_fusion"] = True  # Triton's default up to 3.9, which warns that 3.10's will be False
        if _dry is not None:
            _dry.append((kernel, given, constants))
            return
        recorder = getattr(_thread, "recorder", None)
        settle_key(kernel)
        with nullcontext() if recorder is None else _disable_current_modes():  # Triton's interpreter calls torch, too
            compiled = kernel[grid](*given, **constants)
        if recorder is not None and recorder.listens:
            recorder.add_launch(kernel, compiled, grid, given, constants)

    return run


def settle_key(kernel: Any) -> None:
    """Has Triton work out the keys of the functions that a kernel calls before the kernel's own.

    The key of a compiled kernel in Triton's cache covers the constants of those functions only if their keys are known
    by then. It would depend on what a process launched before, and another process would compile the kernel again.
    """
    if getattr(kernel, "hash", "") is not None:
        return  # known, or no compiled function
    for instruction in dis.get_instructions(kernel.fn):
        if instruction.opname == "LOAD_GLOBAL":
            settle_key(kernel.fn.__globals__.get(instruction.argval))
    kernel.cache_key  # noqa: B018  # the property keeps it


def recording() -> bool:
    """Whether this thread is recording the plan of an operator."""
    recorder = getattr(_thread, "recorder", None)
    return recorder is not None and recorder.listens


@contextmanager
def dry_run() -> Iterator[list[tuple[Any, ...]]]:
    """A context in which nothing is launched: the list gets (kernel, arguments, constants) of each launch instead."""
    global _dry
    _dry = []
    try:
        yield _dry
    finally:
        _dry = None


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a function of tensors, lists of tensors and options, all by position, a plan for each kind of arguments.

    It runs without autocast, since operators choose the dtypes they compute in, and on the device of its tensors.
    """
    plans: dict[Any, Callable[..., Any] | None] = {}

    @wraps(function)
    def operator(*given: Any) -> Any:
        first = given[0][0] if isinstance(given[0], list) else given[0]
        device = first.get_device()
        if torch.is_autocast_enabled("cpu" if device < 0 else "cuda"):  # it is in a compiled backward pass
            with torch.autocast(first.device.type, enabled=False):
                return operator(*given)
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                return operator(*given)
        if _dry is not None:
            return function(*given)
        kinds, addresses = kinds_of(given)
        plan = plans.get(kinds)
        if plan is not None:
            return plan(addresses, *given)
        if kinds not in plans:  # kernels compile in the first call, and arguments seen only once need no plan
            plans[kinds] = None
            if len(plans) > MOST:
                del plans[next(iter(plans))]
            return function(*given)
        given = tuple(_renamed(x) for x in given)
        around, recorder = getattr(_thread, "recorder", None), Recorder(given)
        _thread.recorder = recorder
        try:
            with recorder:
                result = function(*given)
        finally:
            _thread.recorder = around  # that of the operator that calls this one, if any
        plans[kinds] = recorder.plan(result)
        return result

    operator.plans = plans  # type: ignore[attr-defined]
    return operator


def kinds_of(given: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """What a plan depends on, and the address of each tensor. Triton compiles a kernel apart for addresses that are
    multiples of 16.
    """
    kinds: list[Any] = [torch.get_float32_matmul_precision()]
    addresses: list[int] = []
    for x in given:
        several = isinstance(x, list)
        if several:
            kinds.append(len(x))
        for y in x if several else (x,):
            if isinstance(y, Tensor):
                addresses.append(address := y.data_ptr())
                kinds += (y.shape, y.stride(), y.dtype, y.get_device(), address % 16)
            else:
                kinds.append(y)
    return tuple(kinds), addresses


def _renamed(x: Any) -> Any:
    """A new object for each tensor, so that a tensor given twice has two names in the plan."""
    if isinstance(x, list):
        return [_renamed(y) for y in x]
    return x.detach() if isinstance(x, Tensor) else x
