"""A step that is replayed: what comes before the graph, what it is given, and what it cannot take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps.training import capture as module
from flashcaps.training.capture import WARM_UP, CapturedStep, capture

from ..fake_data import small_step


class Replay:
    """Stands for a graph: a replay runs the recorded function on what its tensors hold then."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run
        self.returned = run().clone()

    def replay(self) -> None:
        self.returned.copy_(self.run())


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Graphs recorded on a CPU."""
    graphs: list[Replay] = []

    def record(run: Callable[[], Any]) -> tuple[Replay, Any]:
        graphs.append(Replay(run))
        return graphs[-1], graphs[-1].returned

    monkeypatch.setattr(module, "record", record)
    monkeypatch.setattr(module, "on_side_stream", lambda run: run())
    monkeypatch.setattr(Tensor, "is_cuda", True)
    return graphs


def test_without_a_device_the_step_stays_as_it_is() -> None:
    step = small_step()[0]
    if not torch.cuda.is_available():
        assert capture(step.advance) == step.advance == step.run


def test_the_first_steps_are_eager_and_the_rest_replayed_on_what_they_are_given(recorded: list[Replay]) -> None:
    step = CapturedStep(lambda x, y: x + y, "")
    for k in range(WARM_UP + 3):
        x, y = torch.full((2,), float(k)), torch.randn(2)
        assert len(recorded) == (k > WARM_UP)
        assert torch.equal(step(x, y), x + y)
    assert len(recorded) == 1


def test_what_a_graph_cannot_follow_is_an_error(recorded: list[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    step = CapturedStep(lambda x: x, "do without")
    step(torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"argument 0: expected \(4, 2\).* got \(3, 2\).*last batch.* or do without"):
        step(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"argument 0: .*float32.*got .*float64"):
        step(torch.zeros(4, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match="argument 1: expected a tensor, got float"):
        step(torch.zeros(4, 2), 0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="x: a captured step takes tensors by position"):
        step(x=torch.zeros(4, 2))  # type: ignore[call-arg]
    monkeypatch.setattr(Tensor, "is_cuda", False)
    with pytest.raises(ValueError, match="argument 0: expected a tensor on a CUDA device, got one on cpu"):
        step(torch.zeros(4, 2))


def test_a_capture_that_fails_says_how_to_go_on(recorded: list[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Callable[[], Any]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(module, "record", refuse)
    step, plan = small_step()
    step.run = CapturedStep(step.advance, "run it again with train.capture=false")
    for k in range(WARM_UP):
        step(plan.index[0], plan.noise[0], k)
    with pytest.raises(RuntimeError, match=r"could not be captured.*not permitted.*capturable.*train\.capture=false"):
        step(plan.index[0], plan.noise[0], WARM_UP)
