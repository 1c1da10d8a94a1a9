"""Steps of `attend` and of dynamic routing on drawn numbers, and how far they are from explicit votes in float64."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps.kernels.attend import plan
from flashcaps.kernels.attend.triton import TritonAttend, dynamic_poses
from flashcaps.kernels.votes import Votes
from flashcaps.routing.dynamic import dynamic_routing
from flashcaps.routing.math import over_parents

GIVEN = ["nothing", "query", "logits", "shared logits", "both"]
# b, g, j, c, d, h: vector poses, matrix poses, primes, ones, powers of two that leave nothing over
SHAPES = [(5, 7, 3, 1, 3, 5), (3, 5, 2, 2, 3, 3), (2, 3, 5, 4, 4, 4), (1, 1, 1, 1, 1, 1), (4, 8, 4, 1, 8, 16)]
# votes are formed: too many columns in, in rows of two, columns out, rows
WIDE = [(3, 4, 3, 1, 40, 5), (2, 3, 2, 2, 33, 3), (2, 3, 3, 1, 3, 70), (2, 3, 2, 17, 2, 2)]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
Drawn = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def draw(shape: tuple[int, ...], given: str, dtype: torch.dtype, device: str = "cpu", scale: float = 1.0) -> Drawn:
    """u, weight, query and logits that require gradients."""
    b, g, j, c, d, h = shape

    def normal(*size: int, std: float = 1.0, kind: torch.dtype = dtype) -> Tensor:
        return (std * torch.randn(size, device=device)).to(kind).requires_grad_()

    logits = {"logits": (g, j), "both": (g, j), "shared logits": (j,)}.get(given)
    return (
        normal(b, g, 1, c, d),
        normal(j, d, g, h, std=d**-0.5),
        normal(b, j, c * h, std=scale * (c * h) ** -0.5) if given in ("query", "both") else None,
        None if logits is None else normal(*logits, kind=torch.float32),
    )


def explicit(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool) -> Tensor:
    v = Votes(u, weight).explicit()
    a = v.new_zeros(v.shape[:3])
    if query is not None:
        a = a + torch.einsum("bijd,bjd->bij", v, query)
    return torch.einsum("bij,bijd->bjd", over_parents(a if logits is None else a + logits, leaky), v)


def fused(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool) -> Tensor:
    return TritonAttend(Votes(u, weight), logits, leaky)(query)


def with_gradients(function: Callable[..., Tensor], drawn: Drawn, grad: Tensor, leaky: bool) -> list[Tensor]:
    out = function(*drawn, leaky)
    return [out.detach(), *torch.autograd.grad(out, [x for x in drawn if x is not None], grad.to(out.dtype))]


def errors_of(fused: Callable[..., Any], explicit: Callable[..., Any], drawn: Sequence[Tensor | None]) -> list[float]:
    """||x - reference|| / ||reference|| of every output and of every gradient. NaN is inf."""
    double = [None if x is None else x.detach().double().requires_grad_() for x in drawn]
    given, exact = ([x for x in tensors if x is not None] for tensors in (drawn, double))
    out, expected = fused(*drawn), explicit(*double)
    if isinstance(out, Tensor):
        out, expected = (out,), (expected,)
    grads = [torch.randn_like(x) for x in out]
    found = torch.autograd.grad(sum((x * g).sum() for x, g in zip(out, grads, strict=True)), given)
    for x, y in zip(found, given, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
    wanted = torch.autograd.grad(sum((x * g).sum() for x, g in zip(expected, grads, strict=True)), exact)
    return relative([*out, *found], [*expected, *wanted])


def errors(drawn: Drawn, leaky: bool) -> list[float]:
    return errors_of(partial(fused, leaky=leaky), partial(explicit, leaky=leaky), drawn)


def assert_close(drawn: Drawn, leaky: bool = False, factor: float = 1.0) -> None:
    far = errors(drawn, leaky)
    assert max(far) < factor * TOLERANCE[drawn[0].dtype], far


def dynamic_errors(
    shape: tuple[int, ...], given: str, dtype: torch.dtype, device: str = "cpu", **how: Any
) -> list[float]:
    """Relative errors of the pose and of the gradients of u, weight, bias and logits."""
    u, weight, bias, logits = draw(shape, given, dtype, device)
    if bias is not None:
        bias = bias.detach()[0].requires_grad_()

    def poses(u: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor | None) -> Tensor:
        return dynamic_poses(Votes(u, weight), 3, logits, bias, **how)

    def exact(u: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor | None) -> Tensor:
        return dynamic_routing(Votes(u, weight).explicit(), iterations=3, bias=bias, logits=logits, **how).pose

    return errors_of(poses, exact, (u, weight, bias, logits))


def relative(actual: list[Tensor], expected: list[Tensor]) -> list[float]:
    """||x - y|| / ||y||; NaN is inf."""
    pairs = zip(actual, expected, strict=True)
    far = [(x.double() - y).detach().norm() / y.detach().norm().clamp(min=1e-3) for x, y in pairs]
    return [float(torch.nan_to_num(e, nan=float("inf"))) for e in far]


def small_tiles(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    """Tiles of 2 x 2, so that small shapes have many; `full` programs, so that each loops, or none does."""
    whole = plan.tile
    plan.cut.cache_clear()
    small = {"bt": 2, "ic": 2, "resident": 1}
    monkeypatch.setattr(plan, "tile", lambda n, kernel, *given: whole(n, kernel, *given)._replace(**small))
    monkeypatch.setattr(plan, "uniform", lambda kernel, n: plan.UniformTile(2, 4, 4, 1, 2, 1))
    monkeypatch.setattr(plan, "MULTIPROCESSORS", full)
    plan.chunks.cache_clear()
