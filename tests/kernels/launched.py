"""What launches tell the CUDA driver, to the byte: python -m tests.kernels.launched (needs gcc, and no GPU)

A plan calls Triton's launcher in C itself, which each version wants to be called in its own way. Here a library that
only listens takes the driver's place, and has to hear the same of Triton's own launches and of those of a plan.
"""

import ctypes
import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # the kernel is to be defined as for a GPU

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

from flashcaps.kernels.common.replay import launch, replayed

STUB = """
typedef unsigned long long word;
int (*hear)(void *, word, void **);
int cuLaunchKernelEx(void *config, word function, void **given, void **extra) { return hear(config, function, given); }
int cuPointerGetAttribute(word *to, int kind, word address) { *to = address; return 0; }
int cuFuncGetAttribute(int *to, int kind, word function) { *to = 1024; return 0; }
int cuDeviceGetAttribute(int *to, int kind, int device) { *to = 232448; return 0; }
int cuModuleGetFunction(word *to, word module, char *name) { static word made = 7; *to = made++; return 0; }
"""
FLAGS = ("-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")  # by that name it is found in the place of the driver's
NONE = (None, 1, 16, 7, 2**40, 0.1, True)
TAILS = (NONE, (torch.zeros(33)[1:], 5, 1, 48, -3, float("inf"), False), (torch.zeros(32), 0, 3, 1, 2**63, -1.0, True))
heard: list[Any] = []


@triton.jit
def every(x, y, none, one, many, odd, big, scale, flag, N: tl.constexpr, WORDS: tl.constexpr):
    i = tl.arange(0, N)
    z = tl.load(x + i * many) * scale
    if none is not None:
        z += tl.load(none + i)
    tl.store(y + i + odd * one, tl.where(flag, z + big, z + WORDS[1]))


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
def hear(config: int, function: int, given: Any) -> int:
    """Notes stream, grid, block and shared memory, number of attributes, function, and what the kernel is given."""
    kernel = next(x for x in every.device_caches[0][0].values() if x.function == function)
    bits = re.findall(r"\.param \.\w(\d+)", kernel.asm["ptx"].split(".entry")[1].split(")")[0])
    stream, *told = (ctypes.string_at(config + at, size).hex() for at, size in ((32, 8), (0, 28), (48, 4)))
    heard.append((stream, *told, function, [ctypes.string_at(given[k], int(x) // 8).hex() for k, x in enumerate(bits)]))
    return 0


def stub(folder: Path) -> ctypes.CDLL:
    """The library: Triton loads no driver that lacks one of the functions it names."""
    code = "".join(path.read_text() for path in Path(nvidia.__file__).parent.glob("driver.*"))
    names = [name for name in set(re.findall(r"\b(cu[A-Z]\w+)\(", code)) if f"{name}(" not in STUB]
    (folder / "stub.c").write_text(STUB + "".join(f"int {name}() {{ return 0; }}\n" for name in names))
    subprocess.run(["gcc", *FLAGS, "-o", folder / "libcuda.so.1", folder / "stub.c"], check=True)
    return ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)


def main() -> None:
    run: Any = replayed(lambda *given: launch(every, (3, 2))(*given, N=32, WORDS=(1, 2), num_warps=2))
    x, y, streams, listener = torch.zeros(512), torch.zeros(512), iter(range(100)), lambda metadata: None
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = knobs.nvidia.libcuda_path = folder
        ctypes.c_void_p.in_dll(stub(Path(folder)), "hear").value = ctypes.cast(hear, ctypes.c_void_p).value
        own = {"get_current_device": lambda: 0, "get_current_target": lambda: GPUTarget("cuda", 90, 32),
               "get_current_stream": lambda device: next(streams)}  # fmt: skip
        driver.set_active(SimpleNamespace(utils=nvidia.CudaUtils(), launcher_cls=nvidia.CudaLauncher, **own))
        for given in [(x, y, *tail) for tail in TAILS] + [(x[:0], x[1:], *NONE)]:
            heard.clear()
            for k in range(4):  # Triton's launch, the one that is recorded, the plan, and the plan for a listener
                hook = knobs.runtime.launch_enter_hook
                (hook.add if k == 3 else hook.remove)(listener)
                run(*given)
            assert len({str(told) for _, *told in heard}) == 1, heard
            assert len({stream for stream, *_ in heard}) == 4, heard
    plans = {plan.__name__ for plan in run.plans.values()}
    assert plans == {"plan"}, f"recorder.py does not know the launcher of Triton {triton.__version__}"
    print(len(run.plans), "kinds of launches are the same in plans")


if __name__ == "__main__":
    main()
