"""A training step recorded as a CUDA graph and replayed: the device waits for no Python in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

WARM_UP = 3  # eager steps before a capture: cuBLAS, cuDNN and Triton choose and allocate in them
P = ParamSpec("P")
T = TypeVar("T")


def capture(step: Callable[P, T], *, otherwise: str = "call the step itself") -> Callable[P, T]:
    """A step of tensors, optimiser included, that is replayed as a CUDA graph.

        optimiser = torch.optim.Adam(model.parameters(), capturable=True)

        @flashcaps.capture
        def step(images, labels):
            optimiser.zero_grad()
            loss = flashcaps.functional.margin_loss(model(images).scores, labels)
            loss.backward()
            optimiser.step()
            return loss

    The first three calls run the step itself; the fourth is recorded, and from then on calls copy their tensors to
    where the graph reads them. So all calls have the shapes and dtypes of the first, nothing in the step may wait for
    the device (`.item()`), a number that changes must be a tensor (also a learning rate), and the next call overwrites
    what the step returned. Without a CUDA device the step is returned as it is.

    otherwise: what an error advises where the step cannot be captured.
    """
    return CapturedStep(step, otherwise) if torch.cuda.is_available() else step


class CapturedStep(Generic[P, T]):
    """See `capture`."""

    def __init__(self, step: Callable[P, T], otherwise: str) -> None:
        self.step, self.otherwise = step, otherwise
        self.calls = 0
        self.inputs: tuple[Tensor, ...] = ()  # where the graph reads
        self.graph: torch.cuda.CUDAGraph | None = None
        self.returned: T

    def __call__(self, *given: P.args, **named: P.kwargs) -> T:
        tensors = check_tensors(given, named)
        if self.calls == 0:
            self.inputs = tuple(x.clone() for x in tensors)
        for k, (x, old) in enumerate(zip(tensors, self.inputs, strict=True)):
            if (x.shape, x.dtype) != (old.shape, old.dtype):
                raise ValueError(f"argument {k}: expected {tuple(old.shape)} of {old.dtype} as at the first call, got "
                                 f"{tuple(x.shape)} of {x.dtype}; leave a smaller last batch out, or {self.otherwise}")
            old.copy_(x)
        self.calls += 1
        if self.calls <= WARM_UP:
            return on_side_stream(self._run)
        if self.graph is None:
            try:
                self.graph, self.returned = record(self._run)
            except Exception as error:
                raise RuntimeError(f"the step could not be captured in a CUDA graph ({type(error).__name__}: {error}); "
                                   f"optimisers need capturable=True, nothing may wait for the device; or "
                                   f"{self.otherwise}") from error
        self.graph.replay()
        return self.returned

    def _run(self) -> T:
        return self.step(*self.inputs)  # type: ignore[arg-type, call-arg]


def check_tensors(given: tuple[object, ...], named: dict[str, object]) -> list[Tensor]:
    """The arguments of a captured step; raises unless they are CUDA tensors by position."""
    if named:
        raise TypeError(f"{next(iter(named))}: a captured step takes tensors by position, got it by name")
    tensors = [x for x in given if isinstance(x, Tensor)]
    for k, x in enumerate(given):
        if not isinstance(x, Tensor):
            raise TypeError(f"argument {k}: expected a tensor, got {type(x).__name__}, which a graph would keep")
        if not x.is_cuda:
            raise ValueError(f"argument {k}: expected a tensor on a CUDA device, got one on {x.device}; use .to()")
    return tensors


def on_side_stream(run: Callable[[], T]) -> T:
    """Runs on another stream, as CUDA requires before a graph is recorded."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        returned = run()
    main.wait_stream(side)
    return returned


def record(run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """A CUDA graph of one run, and what the run returned, where each replay writes.

    The error mode lets other threads, such as NCCL's, call CUDA meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        returned = run()
    return graph, returned
