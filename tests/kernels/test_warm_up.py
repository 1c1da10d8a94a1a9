"""Kernels are code that Triton compiles for a CUDA device, whether one is there or not. Compiled ahead, by other
processes, they are those that a step then finds, and a plan launches as Triton does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flashcaps
from flashcaps.kernels.warm_up import Pointer, kind_of

ROOT = Path(__file__).parents[2]
SCRIPT = """
import importlib, os, pathlib, pkgutil, torch
import flashcaps.kernels
from flashcaps import DenseCapsules
from flashcaps.kernels.warm_up import compile_kernels
from benchmarks.host import CountingDriver
from triton import knobs
from triton.runtime import driver

for module in pkgutil.walk_packages(flashcaps.kernels.__path__, "flashcaps.kernels."):
    importlib.import_module(module.name)
os.environ["TRITON_INTERPRET"] = "1"  # layers take tensors of the host for a device's
counter = CountingDriver()
driver.set_active(counter)
layer = DenseCapsules("discriminative", in_capsules=5, in_dim=4, out_capsules=3, out_dim=4, backend="triton")
step = lambda: layer(torch.randn(6, 5, 4)).pose.sum().backward()
compiled = lambda: sorted(pathlib.Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
heard, state = [], torch.get_rng_state()
count = compile_kernels(step, lambda *told: heard.append(told))
before = compiled()
assert torch.equal(torch.get_rng_state(), state), "training that resumes would draw other numbers"
assert not counter.launches and count == len(before) > 1, (count, before)
assert heard == [(k, count) for k in range(count + 1)], heard
calls, tensors, heard = [], [], []  # the first as Triton makes it, the second recorded, from the third on of a plan
for k in range(5):
    counter.launches.clear()
    counter.stream = k
    if k == 4:  # somebody listens, so that a plan calls Triton's Python
        knobs.runtime.launch_enter_hook.add(heard.append)
    step()
    address = lambda x: isinstance(x, torch.Tensor) or (isinstance(x, int) and x >= 2**20)  # no option is
    shown = [(grid, function, [x for x in given if not address(x)]) for grid, _, function, given in counter.launches]
    calls.append(shown)
    tensors.append(sum(isinstance(x, torch.Tensor) for *_, given in counter.launches for x in given) > 0)
    assert all(stream == k for _, stream, _, _ in counter.launches)
assert len(calls[0]) > 1 and all(shown == calls[0] for shown in calls), calls
assert tensors == [True, True, False, False, False], tensors
assert len(heard) == len(calls[0])
assert compiled() == before, "the step compiled again"
assert compile_kernels(step) == 0, "nothing was left to do"
"""
ASSEMBLER = """
from triton.compiler.compiler import make_backend
make_backend(counter.get_current_target()).hash()  # Triton keeps the version; then Inductor sets the variable
from triton import knobs
other = pathlib.Path(os.environ["TRITON_CACHE_DIR"]).with_name("ptxas")
other.write_text(f'#!/bin/sh\\n[ "$1" != --version ] || echo another\\nexec {knobs.nvidia.ptxas.path} "$@"\\n')
other.chmod(0o755)
os.environ["TRITON_PTXAS_PATH"] = str(other)
"""


def run(*words: str, **more: str) -> str:
    """What Python prints, which finds this folder and interprets no kernel."""
    environment = {k: x for k, x in os.environ.items() if k != "TRITON_INTERPRET"} | more
    environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_kernel_passes_the_compilers_front_end() -> None:
    assert "forms of" in run("-m", "tests.kernels.compiled")


@pytest.mark.parametrize("change", ["", ASSEMBLER], ids=["", "another assembler"])
def test_a_step_finds_what_was_compiled_ahead(change: str, tmp_path: Path) -> None:
    run("-c", SCRIPT.replace("layer =", change + "layer =", 1), TRITON_CACHE_DIR=str(tmp_path / "cache"))


def test_a_kernels_key_does_not_depend_on_which_was_launched_first() -> None:
    """Where processes disagree about it, one compiles again what lies in the cache."""
    keys = """
import sys
from flashcaps.kernels.common.replay import settle_key
from flashcaps.kernels.fit import backward_kernels as kernels
for name in sys.argv[1:]:
    settle_key(getattr(kernels, name))
print(sorted(getattr(kernels, name).cache_key for name in sys.argv[1:]))
"""
    names = ["parent_gradients", "last_slopes", "slopes", "chunk_gradients"]
    assert run("-c", keys, *names) == run("-c", keys, *reversed(names))


@pytest.mark.slow  # for its C compiler
def test_plans_tell_the_driver_what_triton_does() -> None:
    assert "the same in plans" in run("-m", "tests.kernels.launched")


def test_arguments_are_of_few_kinds() -> None:
    assert [kind_of(x) for x in (1, 32, 48, 5, 7, 2**31, 0.1, True)] == [1, 16, 16, 3, 3, 2**32 + 16, 0.5, True]
    assert kind_of(torch.zeros(8)[1:]) == Pointer(torch.float32, 4)


def test_there_is_nothing_to_compile_for_a_cpu() -> None:
    assert flashcaps.warm_up(flashcaps.create_model("capsnet_tiny"), (2, 1, 28, 28)) == 0


@pytest.mark.gpu
def test_a_models_first_step_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    model = flashcaps.create_model("capsnet_tiny").cuda()
    assert flashcaps.warm_up(model, (16, 1, 28, 28)) > 0
    before = sorted(tmp_path.rglob("*.cubin"))
    model(torch.rand(16, 1, 28, 28, device="cuda")).scores.sum().backward()
    torch.cuda.synchronize()
    assert sorted(tmp_path.rglob("*.cubin")) == before
    assert flashcaps.warm_up(model, (16, 1, 28, 28)) == 0
