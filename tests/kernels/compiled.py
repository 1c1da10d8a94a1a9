"""Every kernel that small layers launch, through Triton's front end for a CUDA device: python -m tests.kernels.compiled

The interpreter takes what the compiler does not (branches that return different types, a constexpr set twice), so that
without this only a GPU would tell. Nothing is run: launches are recorded, and each new one becomes Triton's first form,
where types are checked.
"""

import importlib
import os
import pkgutil
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # kernels are to be defined as for a GPU

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

import flashcaps.kernels
from flashcaps.kernels.attend import launch

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64", torch.int32: "i32",
         torch.bool: "i1", torch.float64: "fp64"}  # fmt: skip

KERNELS = flashcaps.kernels.__path__
MODULES = [importlib.import_module(m.name) for m in pkgutil.walk_packages(KERNELS, "flashcaps.kernels.")]
os.environ["TRITON_INTERPRET"] = "1"  # and from here on layers believe that they run on a CPU


class Compiler:
    """Takes the place of a launch: kernel[grid](...) is compiled, once for each set of types and kinds of constants."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.count: Counter[str] = Counter()
        self.failed: list[str] = []
        self.where = ""
        self.backend = make_backend(HOPPER)

    def launch(self, kernel: Any) -> Callable[..., None]:
        def compiled(*given: Any, **named: Any) -> None:
            types, constants = {}, {}
            for k, p in enumerate(kernel.params):
                value = given[k] if k < len(given) else named.get(p.name)
                types[p.name] = "constexpr" if p.is_constexpr or value is None else type_of(value)
                if types[p.name] == "constexpr":
                    constants[(k,)] = value
            options = {x: value for x, value in named.items() if x not in kernel.arg_names}
            key = f"{kernel.__name__} {types} {[kind(value) for value in constants.values()]}"
            if key not in self.seen:
                self.seen.add(key)
                self.compile(kernel, types, constants, options)

        return compiled

    def compile(self, kernel: Any, types: dict[str, str], constants: dict[Any, Any], options: dict[str, Any]) -> None:
        self.count[kernel.__name__] += 1
        parsed, context = self.backend.parse_options(options), ir.context()
        ir.load_dialects(context)
        self.backend.load_dialects(context)
        more = self.backend.get_codegen_implementation(parsed), self.backend.get_module_map()
        try:
            ASTSource(kernel, types, constants).make_ir(HOPPER, parsed, *more, context)
        except Exception as error:  # whatever the compiler does not like
            self.failed.append(f"{self.where}: {kernel.__name__}: {last_cause(error)}")


def kind(value: Any) -> Any:
    """What types depend on: sizes above 1 are alike, but for powers of two, which ranges have to be."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 1:
        return value
    return "power of two" if value.bit_count() == 1 else "size"


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i64" if abs(value) >= 2**31 else "i32"


def last_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[-300:]


def routed(compiler: Compiler) -> None:
    """Layers of every kind, forward and backward; half precision without options."""
    from flashcaps.kernels.fit.triton import TritonFit

    from ..layer_cases import cases, run_layer
    from .attend.steps import GIVEN, draw, fused, with_gradients
    from .attend.steps import WIDE as WIDE_POSES
    from .fit.cases import CASES, WIDE, WIDE_LAYERS, names, run

    forms = ("dense", "dense, rectangular", "shared", "any", "conv", "conv, positions", "conv, point")
    for dtype in (torch.float32, torch.bfloat16):
        for case in cases("dynamic", "em", "attention", "heinsen", forms=forms, options=dtype == torch.float32):
            compiler.where = f"{case.id} {dtype}"
            u, activation = case.draw(dtype=dtype)
            try:
                run_layer(case.build("triton", dtype), u, activation)
            except ValueError as error:  # what the kernels say they do not take
                if "the Triton kernel cannot run" not in str(error):
                    raise
    for fit in CASES + WIDE + WIDE_LAYERS:
        compiler.where = names(fit)
        run(TritonFit, fit, fit.draw("cpu"), torch.float32)
    for shape, given, leaky in product(WIDE_POSES, GIVEN, (False, True)):
        compiler.where = f"attend of {shape}, {given}"
        b, _, j, c, _, h = shape
        with_gradients(fused, draw(shape, given, torch.float32), torch.ones(b, j, c * h), leaky)


def around(compiler: Compiler) -> None:
    """What lies around them."""
    from flashcaps.kernels.common import batch_norm
    from flashcaps.kernels.common.margin import margin_rows
    from flashcaps.kernels.common.norm import norm_rows, squash_rows
    from flashcaps.kernels.common.patches import gather_patches
    from flashcaps.kernels.common.stem import image_product

    batch_norm.fused = lambda x: True  # type: ignore[assignment]
    for dtype in (torch.float32, torch.bfloat16):
        compiler.where = f"around {dtype}"
        x, weight, bias = (torch.randn(n, dtype=dtype, requires_grad=True) for n in ((6, 5, 9), 9, 9))
        norm_rows(x, weight, bias, 1e-5, torch.float32).sum().backward()
        squash_rows(x, 1.0, 0.0, torch.float32).sum().backward()
        gather_patches(torch.randn(2, 3, 5, 4, 6, dtype=dtype, requires_grad=True), 3, 1).sum().backward()
        margin_rows(x.detach()[0], torch.arange(5), 0.9, 0.1, 0.5)
        image_product(torch.randn(2, 1, 7, 6, dtype=dtype), torch.randn(4, 1, 3, 3), None, 1, 0, torch.float32)
        image = torch.randn(2, 5, 4, 3, dtype=dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
        batch_norm.normalise(torch.nn.BatchNorm2d(5), image, residual=image.detach()).sum().backward()


def launchable() -> set[str]:
    """Kernels: they ask which of their programs they are, and return nothing."""
    found = {x for module in MODULES for x in vars(module).values() if isinstance(x, JITFunction)}
    return {x.__name__ for x in found if "program_id(" in x.src and "return" not in x.src}


def main() -> None:
    compiler = Compiler()
    JITFunction.__getitem__ = lambda kernel, grid: compiler.launch(kernel)  # type: ignore[method-assign, assignment]
    launch.tf32_gain = lambda u: 1.0007  # type: ignore[assignment]  # as on a device that takes TF32
    routed(compiler)
    around(compiler)
    missed = launchable() - set(compiler.count)
    for line in [*compiler.failed, *(f"{name}: never launched" for name in sorted(missed))]:
        print("FAILED", line)
    print(f"{sum(compiler.count.values())} forms of {len(compiler.count)} kernels")
    raise SystemExit(bool(compiler.failed or missed))


if __name__ == "__main__":
    main()
