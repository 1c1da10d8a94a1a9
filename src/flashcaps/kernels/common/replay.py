"""What an operator does on the host, recorded once for each kind of arguments and replayed from then on.

Tiles, grids, constants, buffers and views of an operator follow from the shapes, strides, dtypes and options of its
arguments, never from what tensors hold: a CUDA graph could not hold it otherwise. Working them out, and binding the
arguments of kernels, takes Python longer than a small layer takes the device. So the second time that a kind of
arguments comes, `replayed` writes the calls of torch and of compiled kernels down as a Python function of straight
lines, a plan, and from the third time on that is all that runs. A buffer is freed after its last use.

    @replayed
    def operator(u, weight, iterations):
        s = torch.empty(...)
        launch(kernel, grid)(u, weight, s, TILE=...)
        return s

Two rules: kernels are launched by `launch`, and every tensor is an argument or made inside.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

MOST = 256  # kinds of arguments that an operator remembers; then the oldest go
aten = torch.ops.aten
# torch's own bindings, which parse arguments in a quarter of the time that the dispatcher's take
BINDINGS: dict[Any, Callable[..., Any]] = {
    aten.empty.memory_format: torch.empty,
    aten.empty_strided.default: torch.empty_strided,
    aten.select.int: torch.select,
    aten.permute.default: torch.permute,
    aten.transpose.int: torch.transpose,
    aten.view.default: Tensor.view,
    aten.clone.default: torch.clone,
}
_thread = threading.local()  # has the recorder at work
_dry: list[tuple[Any, ...]] | None = None  # what would be launched, in every thread of a dry run


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """kernel[grid], in the plan that is being recorded, if one is."""

    def run(*given: Any, **constants: Any) -> None:
        if _dry is not None:
            _dry.append((kernel, given, constants))
            return
        compiled = kernel[grid](*given, **constants)
        if (recorder := getattr(_thread, "recorder", None)) is not None:
            recorder.add_launch(kernel, compiled, grid, given, constants)

    return run


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
    """A function of tensors, lists of tensors and options, by position, with a plan for each kind of them.

    It runs without autocast: operators choose the dtypes that they compute in.
    """
    plans: dict[Any, Callable[..., Any] | None] = {}

    @wraps(function)
    def operator(*given: Any) -> Any:
        first = given[0]
        kind = (first[0] if isinstance(first, list) else first).device.type
        if torch.is_autocast_enabled(kind):  # as where a compiled backward pass begins
            with torch.autocast(kind, enabled=False):
                return operator(*given)
        if _dry is not None:
            return function(*given)
        key = torch.get_float32_matmul_precision(), *[_kind(x) for x in given]
        plan = plans.get(key)
        if plan is not None:
            return plan(*given)
        if key not in plans:  # kernels compile now; what comes but once needs no plan
            plans[key] = None
            if len(plans) > MOST:
                del plans[next(iter(plans))]
            return function(*given)
        given = tuple(_renamed(x) for x in given)
        with Recorder(given) as recorder:
            result = function(*given)
        plans[key] = recorder.plan(result)
        return result

    operator.plans = plans  # type: ignore[attr-defined]
    return operator


def _kind(x: Any) -> Any:
    """What a plan depends on; kernels are compiled for addresses that are multiples of 16, or for any."""
    if isinstance(x, Tensor):
        return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16
    return tuple([_kind(y) for y in x]) if isinstance(x, list) else x


def _renamed(x: Any) -> Any:
    """Another object for each tensor, so that one that is given twice is two in the plan."""
    if isinstance(x, list):
        return [_renamed(y) for y in x]
    return x.detach() if isinstance(x, Tensor) else x


class Recorder(TorchDispatchMode):
    """Runs what is called within it, and writes each call as a line of Python."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler for it, seconds of the second step

    def __init__(self, given: tuple[Any, ...]) -> None:
        super().__init__()
        self.names: Any = WeakIdKeyDictionary()  # of the tensors that are alive
        self.values: dict[str, Any] = {}  # what lines name beside tensors
        self.lines: list[str] = []
        self.fresh = count()
        self.arguments = [f"a{k}" for k in range(len(given))]
        for name, x in zip(self.arguments, given, strict=True):
            for k, y in enumerate(x if isinstance(x, list) else [x]):
                if isinstance(y, Tensor):
                    self.names[y] = f"{name}[{k}]" if isinstance(x, list) else name

    def __enter__(self) -> Recorder:
        _thread.recorder = self
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        _thread.recorder = None

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if call is aten._local_scalar_dense.default:
            raise RuntimeError("an operator that reads what a tensor holds cannot be replayed")
        named, words = named or {}, [self._word(x) for x in given]
        words += [f"{key}={self._word(x)}" for key, x in named.items()]
        _thread.recorder = None  # the launches of an operator within are its own
        result = call(*given, **named)
        _thread.recorder = self
        if isinstance(result, Tensor) and result in self.names and not call._schema.is_mutable:
            return result  # a cast to its own dtype, or the like
        several = isinstance(result, list | tuple)
        made = "".join(f"{self._name(x)}, " for x in result) if several else self._name(result)
        self.lines.append(f"{made} = {self._value(BINDINGS.get(call, call))}({', '.join(words)})")
        return result

    def add_launch(self, kernel: Any, compiled: Any, grid: Any, given: Any, constants: dict[str, Any]) -> None:
        """The compiled kernel itself, past the binding of arguments, where Triton has one that takes them all."""
        if _takes_all(compiled):
            bound = dict(zip(kernel.arg_names, given, strict=False)) | constants
            call, words = self._value(compiled[(*grid, 1, 1)[:3]]), [self._word(bound[x]) for x in kernel.arg_names]
        else:
            call = f"{self._value(kernel)}[{self._word(grid)}]"
            words = [*(self._word(x) for x in given), f"**{self._value(constants)}"]
        self.lines.append(f"{call}({', '.join(words)})")

    def plan(self, result: Any) -> Callable[..., Any]:
        """A function of what the recorded one was given that returns the like of `result`."""
        lines, later = [f"return {self._word(result)}"], set(re.findall(r"\bt\d+\b", self._word(result)))
        for line in reversed(self.lines):
            last = sorted(set(re.findall(r"\bt\d+\b", line)) - later)
            lines += [f"del {', '.join(last)}", line] if last else [line]
            later.update(last)
        source = "\n    ".join([f"def plan({', '.join(self.arguments)}):", *reversed(lines)])
        exec(compile(source, "<plan>", "exec"), self.values)
        return self.values["plan"]

    def _name(self, x: Any) -> str:
        """Of what a call returned; a tensor that it changed in place has its name."""
        if not isinstance(x, Tensor):
            return "_"
        if x not in self.names:
            self.names[x] = f"t{next(self.fresh)}"
        return str(self.names[x])

    def _word(self, x: Any) -> str:
        if isinstance(x, Tensor):
            if x not in self.names:
                raise RuntimeError("an operator whose tensors are neither given nor made inside cannot be replayed")
            return str(self.names[x])
        if isinstance(x, list | tuple):
            words = "".join(f"{self._word(y)}, " for y in x)
            return f"[{words}]" if isinstance(x, list) else f"({words})"
        return repr(x) if x is None or type(x) in (bool, int) else self._value(x)

    def _value(self, x: Any) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = x
        return name


def _takes_all(compiled: Any) -> bool:
    """Whether `compiled` is a kernel that is called with all arguments, constants too, as from Triton 3.3 on."""
    if not hasattr(compiled, "packed_metadata"):  # of the interpreter
        return False
    import triton

    return tuple(int(x) for x in triton.__version__.split(".")[:2]) >= (3, 3)
