"""The outcome of a case, and whether it is explained."""

import math
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

FINITE, REFUSED, CARRIED, OVERFLOW, UNEXPLAINED = "finite", "refused", "carried", "overflow", "unexplained"
KINDS = (FINITE, REFUSED, CARRIED, OVERFLOW, UNEXPLAINED)
SECONDS = 120  # a case that takes longer hangs


@dataclass(frozen=True)
class Case:
    """A call with named arguments. names: further words an error may name. gradient: whether to ask for one.

    check: looks at a finite result, returns what is wrong with it, or "". spoil: how often an argument is made wrong.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    names: tuple[str, ...] = ()
    gradient: bool = False
    check: Callable[[Any], str] = lambda result: ""
    spoil: float = 0.3

    def text(self) -> str:
        return ", ".join(f"{k}={show(v)}" for k, v in self.arguments.items())


@dataclass(frozen=True)
class Verdict:
    kind: str
    why: str = ""


def show(x: Any) -> str:
    if isinstance(x, Tensor):
        if x.is_sparse or x.device.type == "meta" or not x.numel() or x.is_complex():
            return f"{x.dtype} {tuple(x.shape)} {x.layout} {x.device}"
        return f"{x.dtype} {tuple(x.shape)} stride {x.stride()} of {x.min().item():.3g} to {x.max().item():.3g}"
    return repr(x)[:200]


def flat(x: Any) -> Iterator[Tensor]:
    """All tensors in a result."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, nn.Module):
        yield from x.parameters()
    elif isinstance(x, dict):
        for value in x.values():
            yield from flat(value)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from flat(value)
    elif hasattr(x, "__dataclass_fields__"):
        yield from flat([getattr(x, name) for name in x.__dataclass_fields__])


def finite(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex()) or bool(torch.isfinite(x).all())


def real(x: Any) -> bool:
    """Whether `x` is a dense floating-point tensor on the CPU, whose numbers can be read."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and x.device.type == "cpu"


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def evaluate(case: Case, arguments: dict[str, Any]) -> tuple[Any, list[Tensor]]:
    """The result, and every tensor in it, gradients by the arguments included."""
    if not case.gradient:
        result = case.function(**arguments)
        return result, list(flat(result))
    leaves = {k: x.detach().clone().requires_grad_() if real(x) else x for k, x in arguments.items()}
    result = case.function(**leaves)
    outputs = [x for x in flat(result) if x.requires_grad]
    asked = [x for x in leaves.values() if real(x)]
    found = list(flat(result))
    if outputs and asked:
        ones = [torch.ones_like(x) for x in outputs]
        gradients = torch.autograd.grad(outputs, asked, ones, allow_unused=True)
        found += [g for g in gradients if g is not None]
    return result, found


def judge(case: Case) -> Verdict:
    """Run a case and classify its outcome."""
    try:
        with limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result, tensors = evaluate(case, case.arguments)
    except (ValueError, TypeError, FileNotFoundError) as error:
        return refusal(case, error)
    except Exception as error:
        return Verdict(UNEXPLAINED, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    if all(finite(x) for x in tensors if x.device.type == "cpu" and x.layout == torch.strided):
        wrong = checked(case, result)
        return Verdict(UNEXPLAINED, wrong) if wrong else Verdict(FINITE)
    infinite = any(isinstance(x, float) and not math.isfinite(x) for x in case.arguments.values())
    if infinite or not all(finite(x) for x in flat(list(case.arguments.values())) if real(x)):
        return Verdict(CARRIED)
    return beyond(case, tensors)


def checked(case: Case, result: Any) -> str:
    try:
        return case.check(result)
    except Exception as error:
        return f"a result that cannot be checked, {type(error).__name__}: {str(error).splitlines()[0]}"


def refusal(case: Case, error: Exception) -> Verdict:
    """An error is a refusal if a word of its message is the name of an argument."""
    words = set(re.findall(r"[A-Za-z_]\w*", str(error)))
    known = {*case.arguments, *case.names}
    if words & known:
        return Verdict(REFUSED)
    return Verdict(UNEXPLAINED, f"{type(error).__name__} that names no argument: {error}")


def beyond(case: Case, tensors: list[Tensor]) -> Verdict:
    """Finite arguments, but not all of the result: explained where the number is beyond the dtype.

    The number is what fp64 gives, or what fp32 gives, in which half precision is computed: where routing is
    ill-conditioned (deviations far below the votes) the two differ.
    """
    try:
        wanted = [evaluate(case, widened(case.arguments, dtype))[1] for dtype in (torch.float64, torch.float32)]
    except Exception as error:
        return Verdict(UNEXPLAINED, f"not finite, and in fp64 {type(error).__name__}: {str(error).splitlines()[0]}")
    for k, (x, double, single) in enumerate(zip(tensors, *wanted, strict=True)):
        if not x.is_floating_point():
            continue
        lost = ~torch.isfinite(x)
        if bool(torch.isnan(x).any()):
            return Verdict(UNEXPLAINED, f"NaN in tensor {k} of the result")
        number = torch.maximum(double.abs(), single.abs().double() if x.dtype.itemsize < 4 else double.abs())
        beyond_it = torch.isfinite(number) & (number > torch.finfo(x.dtype).max / 2)
        if not bool(beyond_it[lost].all()):
            return Verdict(UNEXPLAINED, f"Inf in tensor {k} of the result, where the number is smaller")
    return Verdict(OVERFLOW)


def widened(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Floating tensors in at least this dtype."""
    return {k: x.to(dtype) if real(x) and x.dtype.itemsize < dtype.itemsize else x for k, x in arguments.items()}
