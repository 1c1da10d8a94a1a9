"""From a folder of pictures to a file that runs elsewhere: train, evaluate, predict, look, export, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.cli.train import evaluate_run
from flashcaps.deploy.export import export_model, open_exported
from flashcaps.deploy.predict import find_pictures, predict, prepare
from flashcaps.training.autosize import own_recipe
from flashcaps.training.loop import RunOptions, train
from tests.own_pictures import SHAPES, write_pictures


@pytest.mark.slow
def test_two_hundred_pictures_of_three_classes(tmp_path: Path) -> None:
    folder, run = write_pictures(tmp_path / "shapes", 200, 50, 70), tmp_path / "run"
    recipe, _ = own_recipe("images", str(folder))
    outcome = train(recipe, RunOptions("cpu", str(run)))
    assert outcome.test.examples == 41
    assert outcome.test.error <= 10

    evaluation, names = evaluate_run(str(run), [], None, "test", "cpu", None, 100)
    assert evaluation.wrong == outcome.test.wrong
    assert names == SHAPES

    fresh = write_pictures(tmp_path / "fresh", 30, 50, 70, seed=9)
    model: Any = flashcaps.load(run)
    pictures = find_pictures([str(fresh)])
    found = predict(model, pictures)
    right = [p.answer == (Path(p.file).parent.name,) for p in found]
    assert sum(right) >= 27
    for picture in ("curve.png", "reconstructions.png"):
        assert (run / picture).stat().st_size > 1000

    images = torch.stack([prepare(p.source, model) for p in pictures])
    report = export_model(model, tmp_path / "shapes.onnx", real=images)
    assert report.real is not None
    assert report.difference <= 1e-4
    scores = open_exported(report.path)(images)[0]
    assert [(SHAPES[k],) for k in scores.argmax(1).tolist()] == [p.answer for p in found]
