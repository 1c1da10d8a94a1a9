"""CUDA graphs: a run recorded once and replayed, without Python between its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def warm_up(run: Callable[[], Any]) -> None:
    """One run on a side stream, as recording wants it before."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        run()
    main.wait_stream(side)


def record(run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph to replay, and what the recorded run gave: each replay writes there."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        given = run()
    return graph, given
