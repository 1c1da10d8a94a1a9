"""Curves of the documentation, from a log worked out by hand; and the picture is one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docs import curves


def write_log(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, entries)).encode()))
    return path


def test_an_epoch_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    log = write_log(tmp_path / "x.gz", [
        {"kind": "train", "epoch": 0, "error": 4.0}, {"kind": "train", "epoch": 0, "error": 2.0},
        {"kind": "evaluation", "epoch": 0, "error": 50.0}, {"kind": "train", "epoch": 1, "error": 1.0},
        {"kind": "test", "error": 9.0},
    ])  # fmt: skip
    assert curves.by_epoch(log) == ([1, 2], [3.0, 1.0])


def test_the_picture_shows_every_run(tmp_path: Path) -> None:
    for logs in curves.PANELS.values():
        for log in logs.values():
            assert (curves.RUNS / log).is_file()
            write_log(tmp_path / log, [{"kind": "train", "epoch": k, "error": 5.0 / (k + 1)} for k in range(3)])
    curves.draw(tmp_path, tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert len(picture.convert("L").getcolors() or ()) > 10  # not blank
    assert curves.PICTURE.is_file()


def test_the_picture_of_attacks_has_every_record_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"attack": attack, "epsilon": e, "accuracy": 90 - 300 * e} for attack in ("fgsm", "pgd") for e in (0, 0.1)]
    records = [{"data": "mnist", "model": "capsnet_mnist", "rows": rows}, {"data": "mnist", "model": "cnn_mnist",
               "rows": rows}, {"data": "cifar10", "model": "resnet18_cifar10", "rows": rows}]  # fmt: skip
    for k, record in enumerate(records):
        path = tmp_path / "robustness" / f"recipe_{k}" / "default-0.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    drawn = []
    monkeypatch.setattr(curves.plt, "close", drawn.append)
    curves.draw_attacks(tmp_path, tmp_path / "picture.png")
    axes = drawn[0].axes
    assert [len(axis.lines) for axis in axes] == [4, 2]
    assert {line.get_color() for line in axes[0].lines} == {curves.COLOURS[0], curves.COLOURS[1]}
    assert {line.get_color() for line in axes[1].lines} == {curves.COLOURS[0]}
    assert curves.ATTACKS.is_file()
