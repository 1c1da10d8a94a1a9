"""Bars of familiar and novel viewpoints, from results."""

from __future__ import annotations

from typing import Any

import pytest

from flashcaps.analysis import DoesNotApply, Run
from flashcaps.analysis.comparisons import novel_viewpoints
from flashcaps.training.recipe import read_recipe
from tests.analysis.conftest import small_run


def record(recipe: str, familiar: float, novel: float, *overrides: str, seed: int = 0) -> dict[str, Any]:
    curve = [{"step": 10 * k, "epoch": k, "error": e, "split": "validation"} for k, e in enumerate((50.0, familiar))]
    return {"recipe": recipe, "variant": ",".join(overrides) or "default", "overrides": list(overrides), "seed": seed,
            "metric": "test_error_percent", "value": novel, "parameters": 280_000, "curve": curve}  # fmt: skip


def of(*records: dict[str, Any], name: str = "em_views_azimuth") -> Run:
    run = small_run(2)
    run.recipe, run.records = read_recipe(name), list(records)
    return run


def test_both_errors_of_each_model_mean_over_seeds() -> None:
    run = of(record("em_views_azimuth", 4.0, 12.0), record("em_views_azimuth", 6.0, 14.0, seed=1),
             record("cnn_views_azimuth", 5.0, 20.0), record("cnn_views_elevation", 3.0, 9.0))  # fmt: skip
    data, figure, caption = novel_viewpoints(run)
    assert data["azimuth"]["em_views_azimuth"] == {"familiar": 5.0, "novel": 13.0, "seeds": 2, "parameters": 280_000}
    assert data["elevation"] == {
        "cnn_views_elevation": {"familiar": 3.0, "novel": 9.0, "seeds": 1, "parameters": 280_000}
    }
    assert caption.index("em 5.0 -> 13.0 %") < caption.index("cnn 5.0 -> 20.0 %")
    assert "heinsen_views_azimuth" in caption.partition("Not measured yet")[2]
    assert len(figure.axes) == 2


def test_runs_on_other_schedules_and_other_data_and_of_other_models_are_left_out() -> None:
    run = of(record("em_views_azimuth", 4.0, 12.0), record("cnn_views_azimuth", 5.0, 20.0),
             record("em_views_azimuth", 40.0, 60.0, "epochs=3"), record("em_synthetic_norb", 1.0, 2.0),
             record("em_views_azimuth", 2.0, 6.0, "model.iterations=2"),
             record("cnn_views_azimuth", 9.0, 9.0, "data.name=smallnorb"))  # fmt: skip
    table = novel_viewpoints(run).data["azimuth"]
    assert {name: row["novel"] for name, row in table.items()} == {"em_views_azimuth": 12.0, "cnn_views_azimuth": 20.0}
    run.recipe = read_recipe("em_views_azimuth", ["data.name=smallnorb"])
    assert list(novel_viewpoints(run).data["azimuth"]) == ["cnn_views_azimuth"]


def test_it_says_what_is_missing() -> None:
    with pytest.raises(DoesNotApply, match=r"viewpoints held out are needed.*not measured yet.*em_views_azimuth"):
        novel_viewpoints(of(record("em_synthetic_norb", 1.0, 2.0)))
