"""Candidates for `attend`'s kernels in Triton's interpreter, against the current kernels: every output and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.attend_trial import (
    CANDIDATES,
    KERNELS,
    SHAPES,
    Candidate,
    Given,
    apart,
    current_one,
    draw,
    measure,
    resident,
    show,
)
from torch import Tensor

from benchmarks import attend_trial, attend_trial_kernels
from flashcaps.kernels import _attend_kernels
from flashcaps.kernels import _attend_plan as plan
from flashcaps.kernels._attend_launch import Step

INTERPRETED = not torch.cuda.is_available()
# b, g, j, c, d, h: vectors, matrices, primes; eight columns of a tile or more are dealt
DRAWN = [plan.Sizes(5, 19, 3, 1, 8, 16), plan.Sizes(6, 18, 5, 4, 4, 4), plan.Sizes(3, 11, 2, 2, 3, 5)]
REWRITTEN = [c for c in CANDIDATES if c.rewritten and c.block == plan.BLOCKS[c.kernel] and c.registers is None]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def run(x: Given, candidate: Candidate) -> list[Tensor]:
    return attend_trial.Launch(x, candidate).run()


class TestInterpreted:
    """Runs where kernels run on the CPU, one program after another."""

    __test__ = INTERPRETED

    @pytest.mark.parametrize("candidate", REWRITTEN, ids=lambda c: f"{c.kernel}, {c}")
    @pytest.mark.parametrize("n", DRAWN, ids=str)
    def test_a_rewritten_kernel_gives_the_same(self, n: plan.Sizes, candidate: Candidate) -> None:
        x = draw(n, "cpu")
        expected = run(x, current_one(candidate.kernel))
        assert apart(run(x, candidate), expected) < 1e-5

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_another_block_gives_the_same(self, kernel: str) -> None:
        x = draw(DRAWN[0], "cpu")
        expected = run(x, current_one(kernel))
        assert apart(run(x, Candidate(kernel, plan.Block(16, 128, 1))), expected) < 1e-5

    @pytest.mark.parametrize(
        ("given", "detach", "ahead"),
        [("query", False, True), ("both", False, False), ("both", True, True), ("logits", False, False)],
    )
    def test_rewritten_kernels_take_a_step_over(
        self, monkeypatch: pytest.MonkeyPatch, given: str, detach: bool, ahead: bool
    ) -> None:
        """In `Step`, on tiles so small that programs loop over children, examples and parents; sums added to, too."""
        n = DRAWN[0]
        x = draw(n, "cpu")
        logits = torch.randn(n.g, n.j) if given != "query" else None
        step = Step(x.u, x.weight, x.query if given != "logits" else None, logits, False, detach)
        monkeypatch.setattr(plan, "FULL", dict.fromkeys(plan.FULL, 2))
        whole = plan.tile
        monkeypatch.setattr(plan, "tile", lambda n, kernel: whole(n, kernel)._replace(bt=2, ic=8))
        plan.cut.cache_clear()
        expected = both_passes(step, x.gs)
        for kernel in KERNELS:
            how = {"AHEAD": ahead} if kernel in plan.FULL else {}
            monkeypatch.setattr(_attend_kernels, kernel, Rewritten(getattr(attend_trial_kernels, kernel), how))
        found = both_passes(step, x.gs)
        plan.cut.cache_clear()
        assert apart([y for y in found if y.numel()], [y for y in expected if y.numel()]) < 1e-5

    def test_a_candidate_that_fails_is_a_row(self) -> None:
        """No device: it runs, and cannot be timed."""
        row, _ = measure(draw(DRAWN[2], "cpu"), CANDIDATES[0], None)
        assert "error" in row
        show([{"shape": next(iter(SHAPES)), **row}])

    def test_what_is_far_off_is_an_error(self) -> None:
        x = draw(DRAWN[2], "cpu")
        expected = [2 * y for y in run(x, CANDIDATES[0])]
        assert "off by 5.0e-01" in measure(x, CANDIDATES[0], expected)[0]["error"]


class Rewritten:
    """A rewritten kernel where the current one was called."""

    def __init__(self, kernel: Any, how: dict[str, bool]) -> None:
        self.kernel, self.how = kernel, how

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **constants: self.kernel[grid](*arguments, **constants, **self.how)


def both_passes(step: Step, gs: Tensor) -> list[Tensor]:
    """s and all gradients; those of u, W and l twice over."""
    lse = torch.empty(step.n.b, step.n.g)
    s = step.forward(lse).sum(0)
    into = step.gradients(torch.float32)
    step.backward(gs, lse, into, again=False)
    gq = step.backward(gs, lse, into, again=True)
    return [s, into[0], into[1].sum(0), into[2].sum(0), gq.sum(0)]


def test_the_current_kernels_come_first() -> None:
    assert [c.kernel for c in CANDIDATES[: len(KERNELS)]] == list(KERNELS)
    assert all(c.block == plan.BLOCKS[c.kernel] and not c.rewritten for c in CANDIDATES[: len(KERNELS)])
    assert len({(c.kernel, str(c)) for c in CANDIDATES}) == len(CANDIDATES)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "held"),
    [(254, 40960, 4, 2), (168, 20480, 4, 3), (84, 24576, 4, 5), (32, 120 << 10, 4, 1), (210, 4096, 1, 8)],
)
def test_resident_programs(registers: int, shared: int, warps: int, held: int) -> None:
    """As a profiler gives them: 254 registers and 40 KB are two programs of four warps."""
    assert resident(registers, shared, warps) == held


def test_the_table_has_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    shape = next(iter(SHAPES))
    used = {"registers": 200, "spills": 0, "shared": 20480, "resident": 2, "grid": (48, 2, 2), "mb": 9.5, "off": 1e-6}
    now = {"shape": shape, "kernel": "parent_gradient", "candidate": "a", "current": True, "us": 44.0, **used}
    other = {**now, "current": False, "us": 22.0}
    show([now, {**other, "candidate": "b"}, {**other, "candidate": "c", "error": "OutOfRegisters"}])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if " 2.00 " in line and " b " in line]
    assert any("OutOfRegisters" in line for line in lines)
