"""Plans: the numbers of the function they were recorded from, for any arguments of their kind, and for no others."""

from __future__ import annotations

import ast
import itertools
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flashcaps.kernels
from flashcaps.kernels.common import replay
from flashcaps.kernels.common.operators import operator
from flashcaps.kernels.common.recorder import Buffer, place
from flashcaps.kernels.common.replay import launch, replayed


@replayed
def mixed(x: Tensor, more: list[Tensor], scale: float, copies: int) -> tuple[Tensor, list[Tensor]]:
    """Views, buffers, changes in place, lists, casts that do nothing, and options."""
    s = torch.empty(copies, *x.shape, dtype=x.dtype)
    for k in range(copies):
        s[k].copy_(x.to(x.dtype) * scale).add_(more[k % len(more)].t().contiguous().t())
    first, *rest = s.unbind()
    return first + 0, [y.clone() for y in rest]


def draw(shape: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
    return torch.randn(shape), [torch.randn(shape), torch.randn(shape)]


def test_plans_of_shapes_and_options_that_alternate() -> None:
    mixed.plans.clear()  # type: ignore[attr-defined]
    kinds = [((3, 4), 0.5, 2), ((4, 3), 0.5, 2), ((3, 4), 2.0, 3)]
    for _ in range(4):
        for shape, scale, copies in kinds:
            x, more = draw(shape)
            first, rest = mixed(x, more, scale, copies)
            for k, y in enumerate([first, *rest]):
                torch.testing.assert_close(y, x * scale + more[k % 2], rtol=0, atol=0)
            assert isinstance(rest, list)
    plans = mixed.plans  # type: ignore[attr-defined]
    assert len(plans) == len(kinds)
    assert all(plan is not None for plan in plans.values())


def test_a_plan_is_for_its_strides_alignment_and_precision() -> None:
    mixed.plans.clear()  # type: ignore[attr-defined]
    x, more = draw((4, 4))
    odd = torch.randn(17)[1:].view(4, 4)
    for y in (x, x.t(), odd, x, x.t(), odd, x, x.t(), odd):
        torch.testing.assert_close(mixed(y, more, 1.0, 1)[0], y + more[0], rtol=0, atol=0)
    assert len(mixed.plans) == 3  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("high")
    try:
        mixed(x, more, 1.0, 1)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(mixed.plans) == 4  # type: ignore[attr-defined]


def test_a_tensor_given_twice_is_two_in_the_plan() -> None:
    add = replayed(lambda x, y: x + 2 * y)
    x, y = torch.randn(3), torch.randn(3)
    add(x, x), add(x, x)
    torch.testing.assert_close(add(x, y), x + 2 * y)


def test_autocast_changes_nothing_inside() -> None:
    """A compiled backward pass runs operators within the caller's autocast."""
    sums = replayed(lambda x, y: torch.zeros(3, 4, 4).baddbmm_(x, x @ y))
    x, y = torch.randn(2, 3, 4, 4)
    expected = x @ (x @ y)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(sums(x, y), expected)


def test_kinds_that_come_once_are_forgotten() -> None:
    scale = replayed(lambda x, factor: x * factor)
    for k in range(replay.MOST + 5):
        scale(torch.ones(1), float(k))
    assert len(scale.plans) == replay.MOST  # type: ignore[attr-defined]


def test_a_buffer_is_freed_after_its_last_use() -> None:
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def count(x: Tensor, **options: bool) -> None:
        seen.append(weakref.ref(x))
        alive.append(sum(y() is not None for y in seen))

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return count

    kernel = Counted()

    @replayed
    def chain(x: Tensor) -> Tensor:
        for _ in range(5):
            x = x + 1
            launch(kernel, (1,))(x)
        return x

    for _ in range(3):
        chain(torch.zeros(1231))
    assert len(alive) == 15
    assert max(alive) <= 2  # what the kernel reads, and in the plan what the last one read


def test_what_cannot_be_replayed_is_an_error() -> None:
    foreign = torch.ones(2)
    reads, takes = replayed(lambda x: x * x.sum().item()), replayed(lambda x: x + foreign)
    for function, words in ((reads, "reads what a tensor holds"), (takes, "neither given nor made inside")):
        function(torch.ones(2))
        with pytest.raises(RuntimeError, match=words):
            function(torch.ones(2))


@operator("doubled_for_test")
def doubled(x: Tensor) -> Tensor:
    return x * 2


class Calls(TorchDispatchMode):
    """The names of what is called within it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        self.names.append(call._schema.name)
        return call(*given, **(named or {}))


def test_a_plan_has_what_is_used_and_operators_line_by_line() -> None:
    """What nobody uses is left out, but for random numbers, whose state others see."""

    @replayed
    def mix(x: Tensor) -> Tensor:
        torch.rand(2)
        (x * 3).sum()
        return doubled(x).view(x.shape).expand(x.shape) + 1

    x = torch.randn(4)
    mix(x), mix(x)
    with Calls() as calls:
        y = mix(x)
    assert torch.equal(y, 2 * x + 1)
    assert calls.names == ["aten::rand", "aten::mul", "aten::add"]


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def chain(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x + count, by way of rows of temporaries that kernels alone see; and a view of a result that they write to."""
    run, out = launch(add_one, (1,)), torch.empty(2, *x.shape)
    y = x[0]
    for _ in range(count - 1):
        z = torch.empty(3, 400)[1:]
        run(y, z[1], x.shape[1], BLOCK=512)
        y = z[1]
    run(y, out.select(0, 1)[0], x.shape[1], BLOCK=512)
    return out[1, :1] + 0, out


def test_what_kernels_alone_see_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight temporaries, of which two are in use at a time, share memory for two."""
    run, made = replayed(chain), []
    make = torch._C._dynamo.guards._empty_strided_cpu
    for k in range(4):
        x = torch.randn(1, 400)
        if k == 3:
            monkeypatch.setattr(torch._C._dynamo.guards, make.__name__, lambda *a: made.append(y := make(*a)) or y)
        first, out = run(x, 9)
        torch.testing.assert_close(first, x + 9)
        torch.testing.assert_close(out[1], x + 9)
    assert [x.nbytes for x in made] == [2 * 400 * 4, 2 * 5120]


def test_a_workspace_takes_no_more_than_memory_that_is_freed() -> None:
    """A temporary much larger than others is freed before torch needs memory of its own."""

    @replayed
    def two(x: Tensor) -> Tensor:
        run, y, z = launch(add_one, (1,)), torch.empty(1 << 20), torch.empty(8)
        run(x, y, 8, BLOCK=8)
        run(y, z, 8, BLOCK=8)
        del y
        more = torch.zeros(1 << 20)
        run(z, more, 8, BLOCK=8)
        return more[:8].clone()

    for _ in range(3):
        assert torch.equal(two(torch.zeros(8)), torch.full((8,), 3.0))
    plan = next(iter(two.plans.values()))  # type: ignore[attr-defined]
    assert "t0" in plan.__code__.co_varnames
    assert "workspace" in plan.__code__.co_varnames


def test_places_in_a_workspace() -> None:
    """No two that are in use at a time overlap, and the most in use at a time is nearly all there is."""
    draw = random.Random(0)
    for _ in range(50):
        lives = [sorted(draw.choices(range(20), k=2)) for _ in range(12)]
        buffers = [Buffer("", "", 0, 512 * draw.randint(1, 9), torch.device("cpu"), torch.float32, *x) for x in lives]
        offsets = place(buffers)
        for x, y in itertools.combinations(buffers, 2):
            apart = offsets[x] + x.size <= offsets[y] or offsets[y] + y.size <= offsets[x]
            assert apart or x.last < y.first or y.last < x.first
        most = max(sum(x.size for x in buffers if x.first <= k <= x.last) for k in range(20))
        assert most <= max(offsets[x] + x.size for x in buffers) <= 1.3 * most


def test_kernels_fuse_multiply_and_add_in_every_version_of_triton() -> None:
    with replay.dry_run() as launches:
        launch(add_one, (1,))(torch.zeros(8), torch.zeros(8), 8, BLOCK=8)
    assert [constants for *_, constants in launches] == [{"BLOCK": 8, "enable_fp_fusion": True}]


def test_every_kernel_is_launched_where_plans_see_it() -> None:
    """kernel[grid](...) would be missing from a plan."""
    found = []
    for path in Path(flashcaps.kernels.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and path.name != "replay.py":
                found.append(f"{path.name}: {ast.unparse(node.func)}")
    assert found == []
