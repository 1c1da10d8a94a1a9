"""Tiles that a search tries beside the rule's: all are right; what is found is kept, and used where it is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import flashcaps
from flashcaps.kernels.attend.plan import BLOCKS, EXACT, Sizes, other_blocks, tile
from flashcaps.kernels.common.tiles import IN_USE, VARIABLE, Tiles, read, with_tiles
from flashcaps.training.recipe import read_recipe
from flashcaps.training.tune import GAIN, Step, alike, search, step_of, tune

from ..conftest import assert_near

N = Sizes(128, 1152, 10, 1, 8, 16)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    IN_USE.found = None


def layer_step(routing: str) -> Step:
    """Forward + backward of a layer on kernels: its gradients."""
    torch.manual_seed(0)
    pose = "matrix" if routing in ("em", "heinsen") else "vector"
    layer = flashcaps.DenseCapsules(
        routing, in_capsules=5, in_dim=4, out_capsules=3, out_dim=4, pose=pose, iterations=2, backend="triton"
    )
    poses, given = torch.randn(3, 5, 4), torch.rand(3, 5)

    def step() -> list[Tensor]:
        out = layer(poses, given if routing in ("em", "heinsen") else None)
        loss = out.pose.square().sum() + (0 if out.activation is None else out.activation.sum())
        return list(torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True, materialize_grads=True))

    return step


@pytest.mark.parametrize("routing", ["dynamic", "attention"])
def test_every_tile_that_is_tried_is_right(routing: str) -> None:
    step, found = layer_step(routing), dict[str, list[Any]]()
    with IN_USE.watching(found) as asked:
        expected = step()
        tried = [(name, list(other)) for name, (_, others) in asked.items() for other in others]
        assert len(tried) > 5
        for name, other in tried:
            found.clear()
            found[name] = other
            for a, e in zip(step(), expected, strict=True):
                assert_near(a, e, 1e-5, f"{name}: {other}")


def test_other_blocks() -> None:
    for block in {*BLOCKS.values(), *EXACT.values()}:
        others = other_blocks(block)
        assert block not in others
        assert all(sum(a != b for a, b in zip(block, x, strict=True)) == 1 for x in others)


class Pair(NamedTuple):
    rows: int
    columns: int


class Clock:
    """Gives a step's time by the tile in use, and counts how often it is asked."""

    def __init__(self, times: dict[tuple[Any, ...], float], found: dict[str, list[Any]], name: str) -> None:
        self.times, self.found, self.name, self.asked = times, found, name, 0

    def __call__(self) -> float:
        self.asked += 1
        return self.times.get(tuple(self.found.get(self.name, ())), 10.0)


def a_step(tiles: Tiles, wrong: tuple[int, ...] = (), large: tuple[int, ...] = ()) -> Step:
    """Asks for one tile, of which some do not fit, and some give other numbers."""
    from triton.runtime.errors import OutOfResources

    def step() -> list[Tensor]:
        used = tiles.pick("kernel", (4, 5), Pair(1, 1), lambda rule: [Pair(2, 1), Pair(1, 2), Pair(3, 3)])
        if used == large:
            raise OutOfResources(2, 1, "shared memory")
        return [torch.full((3,), 2.0 if used == wrong else 1.0)]

    return step


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Tiles:
    tiles = Tiles()
    monkeypatch.setattr("flashcaps.training.tune.IN_USE", tiles)
    return tiles


def test_the_fastest_is_kept(here: Tiles) -> None:
    found: dict[str, list[Any]] = {}
    clock, said = Clock({(2, 1): 9.0, (1, 2): 7.0, (3, 3): 8.0}, found, "kernel 4 5"), list[str]()
    assert search(a_step(here), clock, found, said.append) == (10.0, 7.0)
    assert found == {"kernel 4 5": [1, 2]}
    assert said == ["kernel 4 5: [1, 1] -> [1, 2], 7.000 ms a step"]
    assert clock.asked == 4
    search(a_step(here), clock, found, said.append)
    assert clock.asked == 5, "what is known is not searched again"
    assert (here.found, here.asked) == (None, None), "a search leaves nothing behind"


def test_the_rule_stays_where_nothing_is_faster(here: Tiles) -> None:
    found: dict[str, list[Any]] = {}
    noise = 10.0 * (1 - GAIN / 2)
    search(a_step(here), Clock({(2, 1): noise, (1, 2): 11.0}, found, "kernel 4 5"), found, print)
    assert found == {"kernel 4 5": [1, 1]}


def test_what_is_wrong_or_does_not_fit_is_passed_over(here: Tiles) -> None:
    found: dict[str, list[Any]] = {}
    clock = Clock({(2, 1): 1.0, (1, 2): 2.0, (3, 3): 3.0}, found, "kernel 4 5")
    search(a_step(here, wrong=(2, 1), large=(1, 2)), clock, found, print)
    assert found == {"kernel 4 5": [3, 3]}


def test_a_file_is_used_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = tile(N, "weighted_sum")
    name = " ".join(map(str, ("weighted_sum", *N, False, 32)))
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps({"hardware": "NVIDIA H200", "tiles": {name: [32, 64, 8, 128]}}))
    monkeypatch.setenv(VARIABLE, str(path))
    IN_USE.found = None
    assert tile(N, "weighted_sum") == rule._replace(bt=32, ic=8, warps=8, registers=128)
    for other in (tile(N._replace(b=64), "weighted_sum"), tile(N, "weighted_sum", bits=16), tile(N, "pose_gradient")):
        assert other.registers is None, "the rule's"
    assert with_tiles("flashcaps train tiny") == f"FLASHCAPS_TILES={path} flashcaps train tiny"
    monkeypatch.delenv(VARIABLE)
    IN_USE.found = None
    assert tile(N, "weighted_sum") == rule
    assert with_tiles("flashcaps train tiny") == "flashcaps train tiny"


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiles.json"
    with pytest.raises(ValueError, match=r"FLASHCAPS_TILES: .*tiles.json is not a file that flashcaps tune made"):
        read(path)
    path.write_text('{"tiles": 3}')
    with pytest.raises(ValueError, match="is not a file that flashcaps tune made"):
        read(path)
    path.write_text(json.dumps({"hardware": "NVIDIA A100", "tiles": {}}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    with pytest.raises(ValueError, match="was made on NVIDIA A100, this is NVIDIA H200"):
        read(path)
    IN_USE.found = {" ".join(map(str, ("weighted_sum", *N, False, 32))): [32, 64]}
    with pytest.raises(ValueError, match="has 2 numbers, expected 4"):
        tile(N, "weighted_sum")


def test_without_a_gpu_there_is_nothing_to_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="tune: there is no CUDA device here"):
        tune(read_recipe("tiny", []), tmp_path / "tiles.json")


def test_a_step_of_a_recipe() -> None:
    torch.manual_seed(0)
    found = step_of(read_recipe("tiny", ["batch=4"]), torch.device("cpu"))()
    assert all(g.isfinite().all() for g in found)
    assert sum(bool(g.any()) for g in found) >= 3
    with pytest.raises(ValueError, match="tune: heinsen_sst5 reads no images"):
        step_of(read_recipe("heinsen_sst5", []), torch.device("cpu"))


@pytest.mark.gpu
def test_a_search_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one other block for each kernel, so that few are compiled; with the file gradients are the same."""
    monkeypatch.setattr("flashcaps.kernels.attend.plan.other_blocks", lambda block: [block._replace(rows=32)])
    recipe, said = read_recipe("capsnet_mnist", ["batch=32"]), list[str]()
    path = tune(recipe, tmp_path / "tiles.json", said.append)
    kept = json.loads(path.read_text())
    assert kept["hardware"] == torch.cuda.get_device_name()
    assert {name.split()[0] for name in kept["tiles"]} == set(BLOCKS)
    assert said[-1].startswith("capsnet_mnist: 4 tiles more in ")
    tune(recipe, path, said.append)
    assert said[-1].startswith("capsnet_mnist: 0 tiles more in ")
    step = step_of(recipe, torch.device("cuda"))
    expected = step()
    IN_USE.found = {name: [32, *BLOCKS[name.split()[0]][1:]] for name in kept["tiles"]}
    assert alike(step(), expected)
