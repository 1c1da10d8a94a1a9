"""What a run costs before its first step, and what a process group costs each one, on a GPU.

    python -m benchmarks.start cold em_smallnorb 64 [--save FILE]     # an empty TRITON_CACHE_DIR, then a full one
    python -m benchmarks.start group capsnet_mnist [--save FILE]      # a captured step alone and in a group of one
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import flashcaps
from flashcaps.data import Split
from flashcaps.training.batches import ImageStream, Share
from flashcaps.training.distributed import Workers, leave_workers, set_precision
from flashcaps.training.recipe import read_recipe
from flashcaps.training.step import TrainStep

from . import provenance
from .measure import run_times, summary

STEPS = 8  # before steps are timed: eager ones, the capture, and a few


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def first_step(name: str, batch: int, device: str) -> dict[str, float]:
    """Seconds of kernels compiled ahead, of the first step and of the second, in this process."""
    torch.manual_seed(0)
    set_precision("tf32")
    torch.backends.cudnn.benchmark = False  # its trials are no part of a start
    model = flashcaps.create_model(name).to(device)
    images = torch.rand(batch, *model.image, device=device)
    wait(device)
    found: dict[str, float] = {}
    begin = time.perf_counter()
    found["kernels"] = flashcaps.warm_up(model, images.shape)
    found["warm_up_s"] = time.perf_counter() - begin
    for step in ("first_s", "second_s"):
        begin = time.perf_counter()
        model(images).scores.square().sum().backward()
        wait(device)
        found[step] = time.perf_counter() - begin
    return {k: round(x, 3) for k, x in found.items()}


def cold(name: str, batch: int, device: str) -> list[dict[str, Any]]:
    """The same in two processes, one after the other, the first with an empty cache."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for process in ("first", "second"):
            begin = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.start", "once", name, str(batch), "--device", device]
            text = subprocess.run(command, env={**os.environ, "TRITON_CACHE_DIR": folder}, check=True,
                                  capture_output=True, text=True).stdout  # fmt: skip
            row = json.loads(text.splitlines()[-1])
            rows.append({"model": name, "batch": batch, "process": process, **row,
                         "wall_s": round(time.perf_counter() - begin, 1)})  # fmt: skip
    return rows


def step_ms(name: str, device: str, batch: int) -> dict[str, Any]:
    """Of a recipe's training step, captured on a GPU, on random images."""
    recipe = read_recipe(name, [f"train.batch={batch}"])
    set_precision(recipe.train.precision)
    torch.manual_seed(0)
    model = flashcaps.create_model(recipe.model.name, **recipe.model.overrides).to(device)
    labels = torch.arange(16 * batch) % model.classes
    split = Split(torch.randint(0, 255, (len(labels), *model.image), dtype=torch.uint8), labels).to(device)
    stream = ImageStream(split, recipe.augment, Share(batch), model.classes, 0)
    step, plan = TrainStep(model, stream, recipe, "top1", Workers(torch.device(device))), stream.plan(0)
    for k in range(STEPS):
        step(plan.index[k], plan.noise[k], k)
    runs = [lambda k=k: step(plan.index[k], plan.noise[k], STEPS + k) for k in range(STEPS)]
    return summary(run_times(runs, device, 0.4))


def group(name: str, batch: int, device: str) -> list[dict[str, Any]]:
    """The step alone, and with its gradients in buckets through a process group of one."""
    rows = [{"model": name, "batch": batch, "group": False, **step_ms(name, device, batch)}]
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        rows.append({"model": name, "batch": batch, "group": True, **step_ms(name, device, batch)})
        leave_workers()
    return rows


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("what", choices=("cold", "group", "once"))
    ask.add_argument("name", help="a model, or of a group a recipe")
    ask.add_argument("batch", type=int, nargs="?", default=128)
    ask.add_argument("--device", default="cuda")
    ask.add_argument("--save", type=Path, help="a JSON file for the rows")
    given = ask.parse_args()
    if given.what == "once":
        print(json.dumps(first_step(given.name, given.batch, given.device)))
        return
    rows = {"cold": cold, "group": group}[given.what](given.name, given.batch, given.device)
    for row in rows:
        print(row, flush=True)
    if given.save:
        given.save.write_text(json.dumps({**provenance(given.device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
