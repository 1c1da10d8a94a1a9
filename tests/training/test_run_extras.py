"""What a run leaves besides its weights, and what it says when memory runs out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.training import loader as sources
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.memory import OutOfMemory
from flashcaps.training.step import TrainStep

from ..fake_data import fake_load_data, small_recipe


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "load_data", fake_load_data)


def test_a_command_to_go_on_with_and_points_of_the_routing(tmp_path: Path) -> None:
    train(small_recipe("steps=12"), RunOptions("cpu", str(tmp_path / "run"), recipe_name="mine.toml"))
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "curve.csv", "curve.png", "best.safetensors", "last.safetensors"} <= files
    command = (tmp_path / "run" / "resume.txt").read_text()
    assert command == f"flashcaps train mine.toml steps=12 --seed 0 --device cpu --out {tmp_path / 'run'} --resume\n"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    routing = [line for line in lines if line["kind"] == "routing"]
    assert [line["step"] for line in routing] == [1, 2, 5, 10]
    assert all(len(line["change"]) == 6 and min(line["change"]) > 0 for line in routing)


def test_out_of_memory_names_a_batch_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TrainStep.advance

    def full(step: TrainStep, index: torch.Tensor, noise: torch.Tensor, *rest: Any) -> None:
        if len(index) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        whole(step, index, noise, *rest)

    monkeypatch.setattr(TrainStep, "advance", full)
    with pytest.raises(OutOfMemory, match=r"train.batch: 8 does not fit .*batch=4 fits, or accumulate=2"):
        train(small_recipe("epochs=1"), RunOptions("cpu", str(tmp_path / "run")))
