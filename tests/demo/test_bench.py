"""flashcaps bench demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks.bench import Plan, bench
from flashcaps.demo.serve import DEMO


def test_it_measures_every_model_and_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "WARM_UP", 1)
    said: list[str] = []
    path = demo.bench(tmp_path / "demo.json", said.append, repeats=2)
    record = json.loads(path.read_text())
    slides = {row["model"]: row for row in record["rows"] if row["request"] == "slider to picture"}
    assert tuple(slides) == DEMO
    assert all(0 < row["p5_ms"] <= row["median_ms"] <= row["p95_ms"] for row in record["rows"])
    assert {"hardware", "versions", "commit", "command", "cores", "start_s"} <= set(record)
    assert said[-1].startswith("slider to picture: ")


def test_the_benchmark_command_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "bench", lambda path, tell: path)
    assert bench(Plan(["demo"], folder=tmp_path / "bench")) == tmp_path / "demo.json"
