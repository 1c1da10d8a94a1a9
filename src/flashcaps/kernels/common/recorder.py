"""Records an operator's calls of torch and of kernels as a plan: a Python function of straight lines.

Kernels get addresses instead of tensors. Temporaries that only kernels use are not tensors at all: they share one
workspace, in which `place` puts each by the lines between which it is in use. The workspace takes no more memory than
freeing every temporary after its last use would, but for `SLACK`. Results, and whatever torch computes with, remain
tensors; the plan frees them after their last use.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from .rows import ceil_div

aten = torch.ops.aten
# torch's own bindings, which parse arguments in a quarter of the time that the dispatcher's take
BINDINGS: dict[Any, Callable[..., Any]] = {
    aten.zeros.default: torch.zeros,
    aten.zeros_like.default: torch.zeros_like,
    aten.bmm.default: torch.bmm,
    aten.mm.default: torch.mm,
    aten.mm.out: torch.mm,
    aten.cat.default: torch.cat,
    aten.add.Tensor: torch.add,
    aten.mul.Tensor: torch.mul,
    aten.neg.default: torch.neg,
    aten.sum.dim_IntList: torch.sum,
    aten.add_.Tensor: Tensor.add_,
    aten.copy_.default: Tensor.copy_,
    aten.clone.default: torch.clone,
}
MEMORY = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided")
ALIGNED = 512  # bytes, as memory of torch is
SLACK = 1 << 20  # bytes by which the workspace may exceed what it replaces: torch asks a device for more at a time
NAME = re.compile(r"(@?)\b(t\d+|a\d+(?:\[\d+\])?)(?!\w)")  # a tensor in a line; with @ its address


@dataclass
class Line:
    """A call. made: names of what it returns. pure: all it does is to return those, so that the plan drops the line if
    nobody uses them. lazy: nor if only their addresses are used, as for views and memory. direct: the same launch
    without Triton's Python.
    """

    text: str
    made: Sequence[str] = ()
    pure: bool = False
    lazy: bool = False
    direct: str = ""


@dataclass(eq=False)
class Buffer:
    """The memory of tensor `name`: its address while recording, and the first and last line that use it."""

    name: str
    pointer: str  # the name of its address
    address: int
    size: int
    device: torch.device
    dtype: torch.dtype
    first: int = -1
    last: int = -1


class Recorder(TorchDispatchMode):
    """Runs what is called within it, and writes each call as a line of Python."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds of the second step

    def __init__(self, given: tuple[Any, ...]) -> None:
        super().__init__()
        self.names: Any = WeakIdKeyDictionary()  # of the tensors that are alive
        self.places: dict[str, tuple[Buffer, int]] = {}  # of each name: its buffer, and bytes from where that begins
        self.values: dict[str, Any] = {"torch": torch, "guards": guards, "tensor_at": tensor_at, "hooked": hooked}
        self.lines: list[Line] = []
        self.fresh, self.device = count(), _tensors(given)[0].device  # the device at hand, as `replayed` has it
        self.listens = True  # false inside a call of torch: launches of an operator called there are its own
        self.arguments = ", ".join(f"a{k}" for k in range(len(given)))
        for i, x in enumerate(given):
            for k, y in enumerate(x if isinstance(x, list) else [x]):
                if isinstance(y, Tensor):
                    self._place(y, f"a{i}[{k}]" if isinstance(x, list) else f"a{i}", f"p{len(self.places)}")
        self.pointers = "".join(f"p{k}, " for k in range(len(self.places)))

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if call is aten._local_scalar_dense.default:
            raise RuntimeError("an operator that reads what a tensor holds cannot be replayed")
        named, words = named or {}, [self._word(x) for x in given]
        words += [f"{key}={self._word(x)}" for key, x in named.items()]
        self.listens = False
        result = call(*given, **named)
        self.listens = True
        schema = call._schema
        if isinstance(result, Tensor) and result in self.names and not schema.is_mutable:
            return result  # a cast to its own dtype, or the like
        several = isinstance(result, list | tuple)
        results = result if several else [result]
        owners = {x.untyped_storage()._cdata: x for x in _tensors([*given, *named.values()])}
        viewed = [owners.get(x.untyped_storage()._cdata) for x in _tensors(results)]
        view = None not in viewed and not schema.is_mutable
        if view and isinstance(result, Tensor) and _alike(result, viewed[0]):
            self.names[result] = self.names[viewed[0]]
            return result  # all of a tensor, as it is
        for x, owner in zip(_tensors(results), viewed, strict=True):
            if x not in self.names:
                name = f"t{next(self.fresh)}"
                self._place(x, name, f"p{name}", owner)
        made = [self.names[x] if isinstance(x, Tensor) else "_" for x in results]
        memory = schema.name in MEMORY
        if memory:
            text = self._empty(result.shape, result.stride(), result.dtype, result.device)
        elif not (view and isinstance(result, Tensor) and (text := self._view(result))):
            text = f"{self._value(BINDINGS.get(call, call))}({', '.join(words)})"
        pure = not schema.is_mutable and torch.Tag.nondeterministic_seeded not in call.tags
        self.lines.append(Line(f"{', '.join(made)}{',' * several} = {text}", made, pure, memory or view))
        return result

    def add_launch(self, kernel: Any, compiled: Any, grid: Any, given: Any, constants: dict[str, Any]) -> None:
        """Adds a launch; where Triton's version allows, of the compiled kernel, without binding arguments again."""
        if hasattr(compiled, "packed_metadata") and _version() >= (3, 3):
            bound, grid = dict(zip(kernel.arg_names, given, strict=False)) | constants, (*grid, 1, 1)[:3]
            words = "".join(f"{'@' * isinstance(bound[x], Tensor)}{self._word(bound[x])}, " for x in kernel.arg_names)
            line = Line(f"{self._value(compiled[grid])}({words})", direct=self._direct(compiled, grid, words))
        else:
            plain = type(kernel).__name__ != "InterpretedFunction"
            words = "".join(
                f"{self._word(x)}, " if plain or not isinstance(x, Tensor)
                else f"tensor_at(@{self._word(x)}, {self._value(x.dtype)}), "
                for x in given
            )  # fmt: skip
            line = Line(f"{self._value(kernel)}[{self._word(grid)}]({words}**{self._value(constants)})")
        self.lines.append(line)

    def plan(self, result: Any) -> Callable[..., Any]:
        """The plan: a function of the tensors' addresses and of all arguments that returns what `result` stands for."""
        self.lines.append(Line(f"return {self._word(result)}"))
        *_, most = self._layout({name for line in self.lines if line.lazy for name in line.made})
        apart: set[str] = set()
        while True:
            lines, offsets, peak = self._layout(apart)
            if peak <= most + SLACK:
                break
            apart.add(max(offsets, key=lambda x: x.size).name)  # a tensor again, freed after its last use
        begin = [f"{self.pointers}= addresses"] if self.pointers else []
        traced = self._function("traced", begin, lines, offsets)
        if not any(line.direct for line in lines):
            return traced
        from triton import knobs
        from triton.runtime import driver

        self.values |= {"runtime": knobs.runtime, "get_stream": driver.active.get_current_stream}
        begin.append(f"if hooked(runtime): return traced(addresses, {self.arguments})")
        begin.append(f"stream = get_stream({driver.active.get_current_device()})")
        return self._function("plan", begin, [replace(x, text=x.direct or x.text) for x in lines], offsets)

    def _layout(self, apart: set[str]) -> tuple[list[Line], dict[Buffer, int], int]:
        """The lines that are needed if tensors named in `apart` have memory of their own, where the other temporaries
        begin in the workspace, and the most bytes in use at a time.
        """
        lines: list[Line] = []
        needed = set(apart)
        addressed: set[str] = set()
        for line in reversed(self.lines):
            used = needed if line.lazy else needed | addressed
            if not line.pure or used.intersection(line.made):
                lines.insert(0, line)
                needed.update(name for at, name in NAME.findall(line.text) if not at)
                addressed.update(self.places[name][0].name for at, name in NAME.findall(line.text) if at)
        buffers: dict[Buffer, None] = {}
        for k, line in enumerate(lines):
            for _, name in NAME.findall(line.text):
                buffer = self.places[name][0]
                buffer.first = buffer.first if buffer in buffers else k
                buffer.last, buffers[buffer] = k, None
        made = [x for x in buffers if x.name[0] == "t"]
        offsets = place([x for x in made if x.name not in needed])
        first = min((x.first for x in offsets), default=0)
        last = max((x.last for x in offsets), default=0)
        alive = [(first, last, size_of(offsets)), *((x.first, x.last, x.size) for x in made if x not in offsets)]
        return lines, offsets, max(sum(size for i, j, size in alive if i <= k <= j) for k in range(len(lines)))

    def _function(self, name: str, begin: list[str], lines: list[Line], offsets: dict[Buffer, int]) -> Any:
        """Compiles the lines to a function, with numbers for addresses, that frees tensors after their last use."""
        addressed = {self.places[x][0].name for line in lines for at, x in NAME.findall(line.text) if at}
        shared = {x.name for x in offsets}

        def number(match: re.Match[str]) -> str:
            buffer, offset = self.places[match[2]]
            base, offset = "w" if buffer in offsets else buffer.pointer, offset + offsets.get(buffer, 0)
            return match[2] if not match[1] else f"{base} + {offset}" if offset else base

        body: list[tuple[str, set[str]]] = []  # lines, and the tensors that each needs
        for line in lines:
            used = {self.places[x][0].name if at else x for at, x in NAME.findall(line.text)}
            if used & shared:
                used = used - shared | {"workspace"}
                if all("workspace" not in x for _, x in body):
                    made = self._empty((size_of(offsets),), (1,), torch.uint8, next(iter(offsets)).device)
                    body += [(f"workspace = {made}", {"workspace"}), ("w = workspace.data_ptr()", {"workspace"})]
            body.append((NAME.sub(number, line.text), used))
            body += [(f"p{x} = {x}.data_ptr()", {x}) for x in line.made if x in addressed]
        last = {x: k for k, (_, used) in enumerate(body) for x in used if x[0] != "a"}
        source = [f"def {name}(addresses, {self.arguments}):", *begin]
        for k, (text, _) in enumerate(body):
            source.append(text)
            over = [x for x in last if last[x] == k < len(body) - 1]
            source += [f"del {', '.join(over)}"] if over else []
        exec(compile("\n    ".join(source), "<plan>", "exec"), self.values)
        return self.values[name]

    def _direct(self, compiled: Any, grid: tuple[int, ...], words: str) -> str:
        """The call of Triton's launcher in C, without scratch memory or hooks; "" for versions not known here."""
        from triton.backends.nvidia.driver import CudaLauncher

        run = compiled.run
        if not (3, 6) <= _version() <= (3, 9) or not isinstance(run, CudaLauncher):
            return ""
        if run.global_scratch_size or run.profile_scratch_size or getattr(run, "gsan_enabled", False):
            return ""  # gsan, which looks for data races from Triton 3.8 on, adds arguments of its own
        x, y, z = grid
        metadata = self._value(compiled.packed_metadata)
        begin = f"{self._value(run.launch)}({x}, {y}, {z}, stream, {compiled.function!r}, "
        begin += f"{int(run.launch_cooperative_grid)}, {int(run.launch_pdl)}, "
        if _version() == (3, 6):
            return f"{begin}None, None, {metadata}, None, None, None, {words})"
        known = f"{self._value(run.arg_annotations)}, {self._value(run.kernel_signature)}"
        return f"{begin}{metadata}, None, None, None, None, None, {known}, ({words}))"

    def _place(self, x: Tensor, name: str, pointer: str, owner: Tensor | None = None) -> None:
        """Name a tensor, whose memory is its own or that of `owner`."""
        self.names[x] = name
        if owner is None:
            size = max(ceil_div(x.untyped_storage().nbytes(), ALIGNED), 1) * ALIGNED
            self.places[name] = Buffer(name, pointer, x.data_ptr(), size, x.device, x.dtype), 0
        else:
            buffer = self.places[self.names[owner]][0]
            self.places[name] = buffer, x.data_ptr() - buffer.address if x.numel() else 0

    def _view(self, x: Tensor) -> str:
        """Part of a buffer as a tensor, in one step whatever views lie between them; "" for one of another dtype."""
        buffer, offset = self.places[self.names[x]]
        if buffer.dtype != x.dtype:
            return ""
        return f"guards._reinterpret_tensor({buffer.name}, {tuple(x.shape)}, {x.stride()}, {offset // x.itemsize})"

    def _empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
        """Memory, on the operator's device by what inductor calls: torch.empty takes three times as long."""
        quick, size = f"_empty_strided_{device.type}", f"{tuple(shape)}, {strides}"
        if device == self.device and hasattr(guards, quick):
            return f"guards.{quick}({size}, {self._value(dtype)})"
        return f"torch.empty_strided({size}, dtype={self._value(dtype)}, device={self._value(device)})"

    def _word(self, x: Any) -> str:
        if isinstance(x, Tensor):
            if x not in self.names:
                raise RuntimeError("an operator whose tensors are neither given nor made inside cannot be replayed")
            return str(self.names[x])
        if isinstance(x, list | tuple):
            words = "".join(f"{self._word(y)}, " for y in x)
            return f"[{words}]" if isinstance(x, list) else f"({words})"
        known = x is None or type(x) in (bool, int) or (type(x) is float and math.isfinite(x))
        return repr(x) if known else self._value(x)

    def _value(self, x: Any) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = x
        return name


def place(buffers: list[Buffer]) -> dict[Buffer, int]:
    """Offsets in the workspace: the largest buffer first, each as low as the buffers in use at the same time allow."""
    offsets: dict[Buffer, int] = {}
    for x in sorted(buffers, key=lambda x: -x.size):
        begin = 0
        for y, offset in sorted(offsets.items(), key=lambda item: item[1]):
            if x.first <= y.last and y.first <= x.last and begin + x.size > offset:
                begin = max(begin, offset + y.size)
        offsets[x] = begin
    return offsets


def size_of(offsets: dict[Buffer, int]) -> int:
    return max((offset + x.size for x, offset in offsets.items()), default=0)


def hooked(runtime: Any) -> bool:
    """Whether a profiler or another tool has asked Triton to be told of launches."""
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def tensor_at(address: int, dtype: torch.dtype) -> Tensor:
    """A tensor that begins at an address: Triton's interpreter takes no numbers for pointers."""
    if not address:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_uint8 * 8).from_address(address), dtype=torch.uint8).view(dtype)


def _alike(x: Tensor, y: Tensor | None) -> bool:
    """Whether two tensors that share memory have the same numbers in the same places."""
    if y is None:
        return False
    return (x.data_ptr(), x.dtype, x.shape, x.stride()) == (y.data_ptr(), y.dtype, y.shape, y.stride())


def _tensors(given: Sequence[Any]) -> list[Tensor]:
    return [y for x in given for y in (x if isinstance(x, list | tuple) else [x]) if isinstance(y, Tensor)]


def _version() -> tuple[int, ...]:
    import triton

    return tuple(int(x) for x in triton.__version__.split(".")[:2])
