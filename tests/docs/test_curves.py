"""Pictures of the documentation: curves, from logs and records worked out by hand; the animation of the README, of the
network and the digit that the page opens on."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs import animation, curves


def test_every_run_is_drawn_by_the_mean_of_its_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [("train", 0, 4.0), ("train", 0, 2.0), ("evaluation", 0, 50.0), ("train", 1, 1.0)]
    entries = [{"kind": kind, "epoch": epoch, "error": error} for kind, epoch, error in errors]
    logs = [log for panel in curves.PANELS.values() for log in panel.values()]
    assert all((curves.RUNS / log).is_file() for log in logs)
    for log in logs:
        (tmp_path / log).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / log).write_bytes(gzip.compress("\n".join(map(json.dumps, entries)).encode()))
        assert curves.by_epoch(tmp_path / log) == ([1, 2], [3.0, 1.0])
    drawn: list[Any] = []
    monkeypatch.setattr(curves.plt, "close", drawn.append)
    curves.draw(tmp_path, tmp_path / "picture.png")
    assert sum(len(axis.lines) for axis in drawn[0].axes) == len(logs)
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_picture_of_attacks_has_every_record_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"attack": attack, "epsilon": e, "accuracy": 90 - 300 * e} for attack in ("fgsm", "pgd") for e in (0, 0.1)]
    for data, model in (("mnist", "capsnet_mnist"), ("mnist", "cnn_mnist"), ("cifar10", "resnet18_cifar10")):
        path = tmp_path / "robustness" / model / "default-0.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"data": data, "model": model, "rows": rows}))
    drawn: list[Any] = []
    monkeypatch.setattr(curves.plt, "close", drawn.append)
    curves.draw_attacks(tmp_path, tmp_path / "picture.png")
    axes = drawn[0].axes
    assert [len(axis.lines) for axis in axes] == [4, 2]
    assert {line.get_color() for line in axes[0].lines} == {curves.COLOURS[0], curves.COLOURS[1]}
    assert {line.get_color() for line in axes[1].lines} == {curves.COLOURS[0]}


def test_the_stored_animation_tells_what_the_network_answers() -> None:
    stored = animation.FILE.read_text()
    assert len(stored) < 500_000
    assert not re.search(r"(href|src|url)\W", stored)  # a picture that needs nothing else
    found = animation.scene()
    said = re.findall(r"After iteration \d of \d: ([^<]*)", stored)
    leads = [(int(a.argmax()), a.topk(2).values.diff().neg().item()) for a in found.activation]
    assert said == [str(best) if lead >= animation.AHEAD else "no class stands out" for best, lead in leads]
    widths = [float(w) for w in re.findall(rf"--w{found.iterations - 1}:([\d.]+)", stored)]
    gains = found.gains[-1].clamp(min=0).flatten() / found.gains.abs().max()
    expected = (animation.HAIR + animation.THICK * gains).tolist()
    assert len(widths) == len(expected)
    assert max(abs(a - b) for a, b in zip(widths, expected, strict=True)) < 0.02
