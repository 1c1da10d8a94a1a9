import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from .common import Device, say


def find_benchmarks() -> ModuleType:
    """The package `benchmarks`, from the wheel or from a clone."""
    if importlib.util.find_spec("flashcaps.benchmarks") is not None:
        return importlib.import_module("flashcaps.benchmarks.bench")
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "bench.py").is_file():
        raise ImportError("bench: the benchmarks are not installed; run it in a clone of the sources")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module("benchmarks.bench")


def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="names of workloads (default: all)")] = None,
    backend: Annotated[list[str] | None, typer.Option(help="only triton, public, matrix, reference, ...")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="only tf32 or bf16")] = None,
    sweep: Annotated[bool, typer.Option(help="measure growth with I, J, D, iterations, batch and image")] = False,
    whole: Annotated[bool, typer.Option(help="measure whole training steps at large batches")] = False,
    profile: Annotated[bool, typer.Option(help="profile the kernels of three whole steps")] = False,
    seconds: Annotated[float, typer.Option(help="time limit; the most important rows come first")] = 600.0,
    kernels: Annotated[str, typer.Option(help="compile: first, only (and stop), or ready (already done)")] = "first",
    device: Device = "auto",
    save: Annotated[Path | None, typer.Option(help="write the JSON, tables and plots into this folder")] = None,
    toy: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Time and memory of layers and training steps on this machine, compared with public code, the floor and the goal.

    On a CPU: one layer of every algorithm in public, reference and matrix form.

    \b
    flashcaps bench
    flashcaps bench dynamic_mnist em_stack --backend triton --backend public
    flashcaps bench --sweep --seconds 300 --save results/bench
    flashcaps bench em/D heinsen/J/64 --sweep
    flashcaps bench --whole --profile
    """
    module = find_benchmarks()
    plan = module.Plan(
        workloads or (), backend or (), precision or (), sweep, whole, profile, seconds, device, save, kernels, toy
    )
    path = module.bench(plan, say)
    say(f"written to {path}" if path else "nothing was written; --save FOLDER keeps what is measured")
