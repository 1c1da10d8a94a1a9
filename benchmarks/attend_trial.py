r"""Candidates for faster kernels of `attend`, side by side on a CUDA device. One command:

    python -m benchmarks.attend_trial [--save FILE] [--shapes 0,1,2,3] [--kernels parent_gradient,weighted_sum]

A candidate is one of the four kernels with another block, other options of the compiler, or its rewriting in
`attend_trial_kernels`. All are compiled side by side; each is checked against the current kernel, as
||x - y|| / ||y||, and timed in a captured graph of many launches. Its grid is cut for the programs that a
multiprocessor holds of it, by registers and shared memory as compiled. What fails is a row with its error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashcaps.kernels import _attend_kernels as current
from flashcaps.kernels import _attend_plan as plan
from flashcaps.kernels._attend_launch import empty, mend, precision

from . import attend_trial_kernels as rewritten
from . import provenance

SHAPES = {
    "1152x8 -> 10x16, B 128": plan.Sizes(128, 1152, 10, 1, 8, 16),
    "3200x8 -> 10x16, B 128": plan.Sizes(128, 3200, 10, 1, 8, 16),
    "2048x8 -> 100x16, B 128": plan.Sizes(128, 2048, 100, 1, 8, 16),
    "288x4x4 -> 32x4x4, B 6272": plan.Sizes(6272, 288, 32, 4, 4, 4),
}
KERNELS = tuple(plan.BLOCKS)
FAR = 2e-3  # from the current kernel: more is wrong, TF32 loses half of it
PROCESSES = 16  # compilers at a time
REGISTERS, SHARED, WARPS, PROGRAMS = 65536, 228 << 10, 64, 32  # of a multiprocessor


class Candidate(NamedTuple):
    """A kernel of `attend`, rewritten or not, its block, and the compiler's options."""

    kernel: str
    block: plan.Block
    rewritten: bool = False
    ahead: bool = True  # the next parent's tiles are loaded before this one's are used; of rewritten kernels
    stages: int = 3
    registers: int | None = None  # at most, of a thread
    full: int | None = None  # programs to cut for; None: as many as are resident

    def __str__(self) -> str:
        how = [f"{self.block.rows}x{self.block.columns}, {self.block.warps} warps"]
        how += ["rewritten"] * self.rewritten + ["not ahead"] * (not self.ahead)
        how += [f"{self.stages} stages"] * (self.stages != 3)
        how += [f"<= {self.registers} registers"] * (self.registers is not None)
        return ", ".join(how + [f"cut for {self.full}"] * bool(self.full))


def _of(kernel: str, *rows: tuple[int, int, int], **options: Any) -> list[Candidate]:
    return [Candidate(kernel, plan.Block(*row), **options) for row in rows]


def current_one(kernel: str) -> Candidate:
    return Candidate(kernel, plan.BLOCKS[kernel], full=plan.FULL.get(kernel, 0))


WHOLE = (64, 64, 4)
CANDIDATES = [
    *(current_one(kernel) for kernel in KERNELS),
    *_of("weighted_sum", WHOLE),  # the same, cut for what is resident
    *_of("parent_gradient", WHOLE),
    *_of("log_sum_exp", (16, 64, 1), (64, 128, 4), (128, 64, 8)),
    *_of("log_sum_exp", WHOLE, stages=4),
    *_of("log_sum_exp", WHOLE, (64, 128, 4), (16, 64, 1), rewritten=True),
    *_of("weighted_sum", WHOLE, registers=128),
    *_of("weighted_sum", WHOLE, (128, 64, 8), rewritten=True),
    *_of("weighted_sum", WHOLE, rewritten=True, registers=128),
    *_of("weighted_sum", WHOLE, (64, 128, 4), (32, 64, 2), (16, 64, 1), rewritten=True, ahead=False),
    *_of("weighted_sum", WHOLE, rewritten=True, ahead=False, registers=128),
    *_of("weighted_sum", WHOLE, rewritten=True, ahead=False, registers=128, full=792),
    *_of("pose_gradient", (16, 64, 1), (128, 64, 8)),
    *_of("pose_gradient", WHOLE, registers=168),
    *_of("pose_gradient", WHOLE, (128, 64, 8), (16, 64, 1), rewritten=True),
    *_of("pose_gradient", WHOLE, rewritten=True, registers=168),
    *_of("pose_gradient", WHOLE, rewritten=True, stages=1, registers=168),
    *_of("parent_gradient", (128, 64, 8)),
    *_of("parent_gradient", WHOLE, registers=168),
    *_of("parent_gradient", WHOLE, (128, 64, 8), rewritten=True),
    *_of("parent_gradient", WHOLE, (32, 64, 2), (128, 64, 8), rewritten=True, ahead=False),
    *_of("parent_gradient", WHOLE, rewritten=True, ahead=False, registers=168),
    *_of("parent_gradient", WHOLE, rewritten=True, ahead=False, registers=128),
    *_of("parent_gradient", WHOLE, rewritten=True, ahead=False, registers=168, full=792),
]


class Given(NamedTuple):
    """Inputs of all four kernels; lse and delta are what the current kernels make of the others."""

    n: plan.Sizes
    u: Tensor
    weight: Tensor
    query: Tensor
    gs: Tensor
    lse: Tensor
    delta: Tensor


def draw(n: plan.Sizes, device: str) -> Given:
    def normal(*size: int, std: float) -> Tensor:
        return std * torch.randn(size, device=device)

    u, weight = normal(n.b, n.g, 1, n.c, n.d, std=0.3), normal(n.j, n.d, n.g, n.h, std=0.3)
    query, gs = (normal(n.b, n.j, n.c * n.h, std=(n.c * n.h) ** -0.5) for _ in range(2))
    x = Given(n, u, weight, query, gs, empty(u, n.b, n.g), empty(u, n.b, n.g))
    for kernel, into in (("log_sum_exp", x.lse), ("pose_gradient", x.delta)):
        into.copy_(Launch(x, current_one(kernel)).run()[-1])
    return x


def resident(registers: int, shared: int, warps: int) -> int:
    """Programs of a multiprocessor: a quarter of its registers is for a warp in four, given out by 256; shared memory
    goes to programs with 1 KB of their own.
    """
    quarter = REGISTERS // 4 // (-(-registers // 8) * 8 * 32)
    return max(min(4 * quarter // warps, SHARED // (shared + 1024), WARPS // warps, PROGRAMS), 1)


class Launch:
    """One kernel at one shape: its grid, its arguments, and room for its outputs."""

    def __init__(self, x: Given, candidate: Candidate) -> None:
        self.x, self.candidate, n = x, candidate, x.n
        self.function = getattr(rewritten if candidate.rewritten else current, candidate.kernel)
        tile = plan.tile(n, candidate.kernel, candidate.block)
        self.tile, self.constants = tile, {
            "G": n.g, "J": n.j, "C": n.c, "D": n.d, "H": n.h,
            "BT": tile.bt, "IC": tile.ic, "CP": tile.cp, "DP": tile.dp, "HP": tile.hp,
            "QUERY": True, "LOGITS": False, "PRECISION": precision(x.u.dtype), "MEND": mend(x.u),
            "num_warps": tile.warps, "num_stages": candidate.stages,
        }  # fmt: skip
        if candidate.kernel == "log_sum_exp":
            self.constants["LEAKY"] = False
        elif candidate.kernel != "weighted_sum":
            self.constants["DETACH"] = False
        if candidate.rewritten and candidate.kernel in plan.FULL:
            self.constants["AHEAD"] = candidate.ahead
        if candidate.registers is not None:
            self.constants["maxnreg"] = candidate.registers
        self.used = self._compile(candidate.full or plan.FULL.get(candidate.kernel, 1))
        if self.used and candidate.kernel in plan.FULL and candidate.full is None:
            self._plan(plan.MULTIPROCESSORS * self.used["resident"])

    def _compile(self, full: int) -> dict[str, int]:
        """Registers, spilled bytes, shared memory and resident programs; nothing where kernels are interpreted."""
        self._plan(full)
        if not self.x.u.is_cuda:
            return {}
        kernel = self.function.warmup(*self.arguments, grid=self.grid, **self.constants)
        kernel._init_handles()
        held = resident(kernel.n_regs, kernel.metadata.shared, self.tile.warps)
        return {"registers": kernel.n_regs, "spills": kernel.n_spills, "shared": kernel.metadata.shared,
                "resident": held}  # fmt: skip

    def _plan(self, full: int) -> None:
        """Grid, outputs and arguments, as `_attend_launch.Step` has them."""
        (n, u, weight, query, gs, lse, delta), tile, kernel = self.x, self.tile, self.candidate.kernel
        inputs = (u, weight, query, u)
        tiles = plan.ceil_div(n.b, tile.bt), plan.ceil_div(n.g, tile.ic)
        self.grid: tuple[int, ...] = tiles
        if kernel == "log_sum_exp":
            self.outputs = [torch.empty_like(lse)]
            self.arguments: tuple[Any, ...] = (*inputs, *self.outputs, n.b)
        elif kernel == "pose_gradient":
            self.outputs = [torch.empty_like(u), torch.empty_like(delta)]
            self.arguments = (gs, *inputs, lse, *self.outputs, n.b, 0)
        else:
            cut = plan.cut(n, tile, kernel, full)
            sums = empty(u, cut.grid[0], n.b, n.j, n.c * n.h)
            if kernel == "weighted_sum":
                chunks, batches, groups = cut.grid
                self.grid, self.outputs = (batches, chunks, groups), [sums]
                self.arguments = (*inputs, lse, sums, n.b, cut.tiles, cut.parents)
            else:
                self.grid, self.outputs = cut.grid, [empty(u, cut.grid[1], *weight.shape), sums]
                self.arguments = (gs, *inputs, lse, delta, *self.outputs, empty(u, 1),
                                  n.b, cut.tiles, cut.batches, cut.parents, 0)  # fmt: skip

    def once(self) -> None:
        self.function[self.grid](*self.arguments, **self.constants)

    def run(self) -> list[Tensor]:
        """Outputs of one launch, partial sums added up."""
        self.once()
        partial = self.candidate.kernel in plan.FULL
        return [x.sum(0) if partial else x for x in self.outputs]

    def microseconds(self) -> float:
        """Median over replays of a graph of about 2 ms of launches."""
        self.once()
        runs = max(min(int(2000 / _elapsed(self.once)), 40), 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(runs):
                self.once()
        graph.replay()
        return statistics.median(_elapsed(graph.replay) for _ in range(11)) / runs


def _elapsed(call: Any) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def apart(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest ||x - y|| / ||y||; NaN is inf."""
    far = [float((x.double() - y.double()).norm() / y.double().norm()) for x, y in zip(actual, expected, strict=True)]
    return max(float("inf") if e != e else e for e in far)


def measure(x: Given, candidate: Candidate, expected: list[Tensor] | None) -> tuple[dict[str, Any], list[Tensor]]:
    """A candidate's row, and its outputs. `expected` None: it is the current kernel."""
    row: dict[str, Any] = {"kernel": candidate.kernel, "candidate": str(candidate), "current": expected is None}
    try:
        launch = Launch(x, candidate)
        outputs = launch.run()
        row.update(launch.used, grid=launch.grid, mb=sum(y.nbytes for y in launch.outputs) / 1e6)
        row["off"] = apart(outputs, expected or outputs)
        if row["off"] > FAR:
            raise ValueError(f"off by {row['off']:.1e} from the current kernel; expected at most {FAR}")
        row["us"] = launch.microseconds()
        return row, outputs
    except Exception as error:  # a block too large, an option unknown to this compiler: a row of its own
        row["error"] = repr(error)[:160]
        return row, []


def sweep(name: str, kernels: tuple[str, ...]) -> list[dict[str, Any]]:
    x = draw(SHAPES[name], "cuda")
    rows: list[dict[str, Any]] = []
    expected: dict[str, list[Tensor]] = {}
    for candidate in [c for c in CANDIDATES if c.kernel in kernels]:
        row, outputs = measure(x, candidate, expected.get(candidate.kernel))
        expected.setdefault(candidate.kernel, outputs)
        rows.append({"shape": name, **row})
        del outputs
        torch.cuda.empty_cache()
    return rows


def warm(part: int, shapes: list[str], kernels: tuple[str, ...]) -> None:
    """Compile every PROCESSES-th candidate; errors are met again where they are shown."""
    jobs = [(name, c) for name in shapes for c in CANDIDATES if c.kernel in kernels]
    for name, candidate in jobs[part::PROCESSES]:
        n = SHAPES[name]
        u, weight = torch.empty(n.b, n.g, 1, n.c, n.d, device="cuda"), torch.empty(n.j, n.d, n.g, n.h, device="cuda")
        small = empty(u, n.b, n.j, n.c * n.h)
        lse = empty(u, n.b, n.g)
        try:
            launch = Launch(Given(n, u, weight, small, small, lse, lse), candidate)
            launch.function.warmup(*launch.arguments, grid=launch.grid, **launch.constants)
        except Exception as error:
            print(f"warm {name} {candidate.kernel} {candidate}: {repr(error)[:120]}", flush=True)
        torch.cuda.empty_cache()


def show(rows: list[dict[str, Any]]) -> None:
    """A table for each shape: gain, the current kernel's time (*) over the candidate's; MB, of outputs, all copies."""
    now = {(r["shape"], r["kernel"]): r.get("us") for r in rows if r["current"]}
    shape = None
    for r in sorted(rows, key=lambda r: (list(SHAPES).index(r["shape"]), KERNELS.index(r["kernel"]), r.get("us", 1e9))):
        if r["shape"] != shape:
            shape = r["shape"]
            print(f"\n{shape:<82}{'us':>8}{'gain':>6}{'regs':>6}{'spill':>6}{'KB':>5}{'held':>5}{'MB':>7}  grid, off")
        text = f"{r['kernel']:<16}{r['candidate']:<64}{'*' if r['current'] else ' '} "
        if "error" in r:
            print(f"{text}{r['error']}")
            continue
        before = now[shape, r["kernel"]]
        gain = f"{before / r['us']:>6.2f}" if before else f"{'':>6}"
        used = f"{r['registers']:>6}{r['spills']:>6}{r['shared'] >> 10:>5}{r['resident']:>5}{r['mb']:>7.1f}"
        print(f"{text}{r['us']:>8.1f}{gain}{used}  {tuple(r['grid'])} {r['off']:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", help="write all numbers as JSON here")
    parser.add_argument("--shapes", default="0,1,2,3", help="which of: " + "; ".join(SHAPES))
    parser.add_argument("--kernels", default=",".join(KERNELS), help="of these")
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shapes, kernels = [list(SHAPES)[int(k)] for k in args.shapes.split(",")], tuple(args.kernels.split(","))
    if args.warm is not None:
        return warm(args.warm, shapes, kernels)
    if not torch.cuda.is_available():
        parser.error("no CUDA device; kernels are timed on one")
    began = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.attend_trial", "--shapes", args.shapes, "--kernels", args.kernels]
    for process in [subprocess.Popen([*command, "--warm", str(k)]) for k in range(PROCESSES)]:
        process.wait()
    compiled = time.perf_counter()
    rows = [row for name in shapes for row in sweep(name, kernels)]
    if args.save:
        with open(args.save, "w") as file:
            json.dump({**provenance("cuda"), "rows": rows}, file, indent=1)
    show(rows)
    print(f"\ncompiled in {compiled - began:.0f} s, measured in {time.perf_counter() - compiled:.0f} s")


if __name__ == "__main__":
    main()
