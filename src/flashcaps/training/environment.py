"""What `flashcaps checks` prints: versions, devices, extras, the backend of each algorithm and why no other, and
how far every backend is from the reference."""

import os
import platform
from contextlib import suppress
from importlib import metadata, util
from typing import NamedTuple

import torch

from ..kernels.dispatch import BACKENDS, Transform, choose_backend, make_votes, pick_form
from ..nn.capsules import DenseCapsules
from ..routing import ROUTING
from .memory import in_bytes

PACKAGES = ("flashcaps", "torch", "numpy", "safetensors", "triton")
TOLERANCE = 1e-3  # of the largest element; TF32 products stay within it
EXTRAS = {"plots": "matplotlib", "mat": "scipy", "text": "transformers", "export": "onnxruntime",
          "hub": "huggingface_hub", "timm": "timm", "tensorboard": "tensorboard", "wandb": "wandb",
          "triton": "triton"}  # fmt: skip


class Comparison(NamedTuple):
    algorithm: str
    backend: str
    output: float  # largest differences, as shares of the largest element
    gradient: float

    @property
    def ok(self) -> bool:
        return self.output <= TOLERANCE and self.gradient <= TOLERANCE  # false for NaN


class Active(NamedTuple):
    """The backend that backend="auto" chooses, and the reasons against the others."""

    algorithm: str
    backend: str
    others: dict[str, str]


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that compute; "" for a package that is not installed."""
    found = {"python": platform.python_version()} | dict.fromkeys(PACKAGES, "")
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"torch": str(torch.__version__)}  # names its CUDA version, as its metadata may not


def devices() -> list[str]:
    """A line per device."""
    found = [f"cpu: {platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} threads"]
    for k in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(k)
        found.append(f"cuda:{k}: {card.name}, {in_bytes(card.total_memory)}, capability {card.major}.{card.minor}, "
                     f"CUDA {torch.version.cuda}")  # fmt: skip
    if len(found) == 1:
        built = torch.version.cuda or torch.version.hip
        found.append("no CUDA device: " + (f"torch was built for CUDA {built}, but no driver or card answers" if built
                                           else "this torch was built for the CPU alone"))  # fmt: skip
    return found


def extras() -> dict[str, bool]:
    """Which extras of the package are installed."""
    return {extra: util.find_spec(module) is not None for extra, module in EXTRAS.items()}


def active_backends(device: torch.device | str = "cpu") -> list[Active]:
    """The default backend of a layer on `device`, for every algorithm."""
    rows = []
    for name in ROUTING:
        layer = _layer(name, "auto", device)
        votes = make_votes(Transform(layer.weight, layer.bias, layer.rows), torch.zeros(1, 96, 8, device=device))
        chosen = pick_form(name, votes)
        others = {b: why_not(name, b, device) for b in BACKENDS if b not in ("auto", "reference", chosen)}
        rows.append(Active(name, chosen, others))
    return rows


def why_not(algorithm: str, backend: str, device: torch.device | str) -> str:
    """Why a backend is not chosen: it cannot run, or another is faster."""
    try:
        choose_backend(algorithm, backend)
    except ValueError as error:
        return str(error).removeprefix("backend: ").partition("; ")[0]
    if backend == "triton" and torch.device(device).type != "cuda":
        return f"kernels run on CUDA devices, and this is {torch.device(device).type}"
    return "slower here; by name it runs"


def compare_backends(device: torch.device | str = "cpu") -> list[Comparison]:
    """Outputs and weight gradients of a 96 x 8 -> 10 x 16 layer, for every algorithm and every backend it has."""
    rows = []
    for name in ROUTING:
        reference = _run(name, "reference", device)
        for backend in BACKENDS:
            elsewhere = backend == "triton" and torch.device(device).type != "cuda"  # its interpreter is for tests
            if backend in ("auto", "reference") or elsewhere:
                continue
            with suppress(ValueError):  # this algorithm has no such form, or it cannot run here
                found = zip(_run(name, backend, device), reference, strict=True)
                off = [float((x - y).abs().max() / y.abs().max().clamp(min=1e-12)) for x, y in found]
                rows.append(Comparison(name, backend, *off))
    return rows


def _layer(name: str, backend: str, device: torch.device | str) -> DenseCapsules:
    return DenseCapsules(name, in_capsules=96, in_dim=8, out_capsules=10, out_dim=16, backend=backend).to(device)


def _run(name: str, backend: str, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = _layer(name, backend, device)
    pose = layer(torch.randn(4, 96, 8).to(device)).pose
    (pose * torch.randn(4, 10, 16).to(device)).sum().backward()
    assert layer.weight.grad is not None
    return pose.detach(), layer.weight.grad
