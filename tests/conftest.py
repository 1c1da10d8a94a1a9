"""What every test shares: one seed, one tolerance table, one deterministic hypothesis profile, one command line."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from .browser import chromium as chromium

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined, so before anything defines one

with torch.device("cpu"):
    torch.empty(0)  # torch remembers its constructors on first use; later a test poisons torch.empty for a moment

settings.register_profile(
    "flashcaps",
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("flashcaps")


class Tolerance(NamedTuple):
    """Largest error allowed, as a share of the largest element expected (at least 1)."""

    output: float
    gradient: float


TOLERANCE = {
    torch.float64: Tolerance(1e-10, 1e-8),
    torch.float32: Tolerance(2e-5, 1e-4),
    torch.bfloat16: Tolerance(2e-2, 5e-2),
    torch.float16: Tolerance(4e-3, 2e-2),
}


DOUBLE = {"dtype": torch.float64}


def assert_near(
    actual: Tensor, expected: Tensor | list | float, tolerance: float | None = None, what: str = ""
) -> None:
    """Shapes are equal, and so are elements to `tolerance` (default: that of outputs in the dtype of `actual`).

    A number as `expected` stands for a tensor full of it.
    """
    expected = torch.as_tensor(expected, dtype=torch.float64, device=actual.device)
    if expected.ndim == 0:
        expected = expected.expand(actual.shape)
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.numel() == 0:
        return
    tolerance = TOLERANCE[actual.dtype].output if tolerance is None else tolerance
    allowed = tolerance * max(1.0, expected.abs().max().item())
    error = (actual.detach().double() - expected.detach()).abs().max().item()
    assert error <= allowed, f"{what}: off by {error:.3g}, allowed {allowed:.3g}"  # NaN fails too


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    torch.manual_seed(0)
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)  # training sets it for the whole process


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def done(self) -> "Said":
        """What a command said that went well."""
        assert self.code == 0, self.err
        return self


Say = Callable[..., Said]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command line: its exit code, what it wrote, what it complained of."""
    from flashcaps.cli import main

    def run(*words: object) -> Said:
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        return Said(int(left.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test, in which it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
