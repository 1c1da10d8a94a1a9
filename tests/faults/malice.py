"""7. Files made to do harm: pickles that run code, files that burst, recipes and tables of nonsense."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flashcaps
from flashcaps.data import files as _files
from flashcaps.data import load_data
from flashcaps.training.checkpoint import load_state, save_state
from flashcaps.training.recipe import read_recipe
from tests.fake_data import small_recipe
from tests.faults.child import Row

CAP = 1 << 20  # bytes a file may unpack to in these trials


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def try_all(folder: Path, full: bool) -> Row:
    row = Row(7, "malicious pickles, recipes and tables")
    folder.mkdir(parents=True, exist_ok=True)
    for what, attack in pickles(folder):
        row.count(_refused(what, attack, folder / "evil"))
    for key, attack in (*recipes(folder), *tables(folder)):
        row.count(_names(key, attack))
    row.count(_bounded(folder))
    return row


def _error(attack: Callable[[], Any]) -> Exception | None:
    try:
        attack()
    except Exception as error:
        return error
    return None


def _refused(what: str, attack: Callable[[], Any], evil: Path) -> str:
    error = _error(attack)
    if evil.exists():
        return f"{what}: code from the file ran"
    return "" if error is not None else f"{what}: read in silence"


def _names(key: str, attack: Callable[[], Any]) -> str:
    error = _error(attack)
    if not isinstance(error, ValueError | OSError):
        return f"{key}: {type(error).__name__} {str(error)[:200]}"
    text = str(error)
    return "" if key in text and len(text) < 1000 and "\n" not in text else f"{key}: {text[:300]!r}"


def pickles(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Wherever a file might be unpickled."""
    evil = Evil(folder / "evil")
    weights = folder / "weights.pt"
    torch.save({"x": evil}, weights)
    yield "torch.save as weights", lambda: flashcaps.load(weights)
    (folder / "run").mkdir()
    (folder / "run" / "last.safetensors").write_bytes(pickle.dumps(evil))
    yield "pickle as safetensors", lambda: flashcaps.load(folder / "run")
    save_state(folder / "run", {"at": 1, "x": evil}, 1)  # with a checksum that is right
    yield "training state", lambda: load_state(folder / "run")
    for name in ("cat", "dog"):
        (folder / "pets" / name).mkdir(parents=True)
        np.save(folder / "pets" / name / "1.npy", np.array([evil], dtype=object), allow_pickle=True)
    yield "array of objects", lambda: load_data("images", path=str(folder / "pets"))


def recipes(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(the key that must be named, the attack)"""
    absurd = {
        "train.batch": "99999999999", "train.epochs": "9" * 5000, "train.seed": "-1", "train.log_every": "0",
        "train.save_seconds": "nan", "train.ema": "2.0", "optimiser.lr": "inf",
        "optimiser.betas": "[0.9, -1.0]", "optimiser.eps": "-1e-8", "schedule.every": "0", "augment.shift": "1e9",
        "augment.crop": "-1", "augment.mixup": "-inf", "augment.contrast": "[1, 2, 3]", "loss.reconstruction": "nan",
        "data.test": "-3", "data.resize": "123456789", "data.tokens": "0", "model.decoder": "[" * 50 + "]" * 50,
        "model.primary": "{ types = 1e400 }", "train.precision": '"fp1"', "claim.trials": "0", "model.name": "''",
    }  # fmt: skip
    for key, value in absurd.items():
        yield key.split(".")[1], lambda k=key, v=value: small_recipe(f"{k}={v}")
    texts = {"nested": b"x = " + b"[" * 200_000, "digits": b"x = " + b"9" * 100_000, "latin": b"\xff",
             "large": b"#" * (2 << 20)}  # fmt: skip
    for name, text in texts.items():
        path = folder / f"{name}.toml"
        path.write_bytes(text)
        yield path.name, lambda p=path: read_recipe(str(p))


def tables(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    texts = {
        "field": b"file,label\n" + b"x" * 200_000 + b",1\n",
        "nul": b"file,label\na\0b.png,1\n",
        "name": b"file,label\n" + b"a/" * 5000 + b"b.png,1\n",
        "latin": b"file,label\n\xff\xfe.png,1\n",
        "short": b"file,label\nx.png\n",
        "empty": b"",
        "header": b"file,label\n",
        "digits": b"file,label\ntables.png," + b"9" * 5000 + b"\ntables.png,1\n",
        "split": b"file,label,split\ntables.png,1,elsewhere\n",
        "classes": b"file,a,b\ntables.png,1e999,nan\n",
    }
    (folder / "tables.png").write_bytes(b"no picture")
    for name, text in texts.items():
        path = folder / f"{name}.csv"
        path.write_bytes(text)
        # a class may have any name: there it is the picture that is none
        yield "tables.png" if name == "digits" else path.name, lambda p=path: load_data("table", path=str(p))


def _bounded(folder: Path) -> str:
    """A gzip file that unpacks to more than any data set is refused before it fills the memory."""
    path = folder / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0" * (4 * CAP)))
    limit, _files.LIMIT = _files.LIMIT, CAP
    try:
        return _names(str(path), lambda: _files.read_bytes(path))
    finally:
        _files.LIMIT = limit
