"""The learning curve as a table and as a picture."""

import csv
import json
from pathlib import Path

from PIL import Image

from flashcaps.training.callbacks import COLUMNS, CSV
from flashcaps.training.plots import draw_curve

METRICS = [
    {"kind": "train", "step": 2, "seconds": 0.5, "epoch": 0, "loss": 0.5, "error": 40.0, "lr": 0.1, "images_s": 9.0},
    {"kind": "routing", "step": 2, "seconds": 0.5, "change": [0.1, 0.2]},
    {"kind": "evaluation", "step": 2, "seconds": 0.6, "epoch": 0, "split": "validation", "error": 30.0},
    {"kind": "test", "step": 2, "seconds": 0.7, "error": 20.0, "weights": "last"},
]


def test_a_table_beside_the_picture(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
    table = CSV()
    table.folder = tmp_path
    table.end({})
    assert draw_curve(tmp_path, METRICS) == ""
    with (tmp_path / "curve.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == COLUMNS
    assert [row["kind"] for row in rows] == ["train", "evaluation", "test"]
    assert [float(row["error"]) for row in rows] == [40, 30, 20]
    assert rows[1]["loss"] == ""
    assert rows[1]["split"] == "validation"
    assert min(Image.open(tmp_path / "curve.png").size) > 100
