"""7. Files made to do harm: pickles that run code, archives that reach outside or burst, recipes of nonsense."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flashcaps
from flashcaps.data import files as _files
from flashcaps.data import load_data
from flashcaps.data.archive import unpack
from flashcaps.training.checkpoint import load_state, save_state
from flashcaps.training.recipe import read_recipe
from tests.fake_data import small_recipe
from tests.faults.child import Row

CAP = 1 << 20  # bytes an archive may unpack to in these trials


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def try_all(folder: Path, full: bool) -> Row:
    row = Row(7, "malicious pickles, archives, recipes and tables")
    folder.mkdir(parents=True, exist_ok=True)
    for what, attack in pickles(folder):
        row.count(_refused(what, attack, folder / "evil"))
    for what, path, wanted in archives(folder / "archives"):
        row.count(_kept_inside(what, path, wanted, folder))
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
    cifar = folder / "root" / "cifar10"
    cifar.mkdir(parents=True)
    for stem in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (cifar / stem).write_bytes(pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": evil}, protocol=2))
    yield "python version of CIFAR", lambda: load_data("cifar10", folder / "root", per_file=1)
    for name in ("cat", "dog"):
        (folder / "pets" / name).mkdir(parents=True)
        np.save(folder / "pets" / name / "1.npy", np.array([evil], dtype=object), allow_pickle=True)
    yield "array of objects", lambda: load_data("images", path=str(folder / "pets"))


def _tar(path: Path, *members: tuple[str, bytes | str], kind: bytes = tarfile.SYMTYPE) -> Path:
    """Members with bytes are files; with text, links to it."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("x", b"xx"), *members):
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = kind, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def _zip(path: Path, name: str, content: bytes = b"evil", mode: int = stat.S_IFREG) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", b"xx")
        info = zipfile.ZipInfo(name)
        info.external_attr = (mode | 0o777) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, content)
    return path


def _understated(path: Path) -> Path:
    """A zip whose directory says that a bomb is two bytes."""
    _zip(path, "bomb", b"\0" * (CAP * 4))
    raw = path.read_bytes()
    path.write_bytes(raw.replace((CAP * 4).to_bytes(4, "little"), (2).to_bytes(4, "little")))
    return path


def _long_header(path: Path) -> Path:
    """A tar whose extended header alone takes 64 MiB, and almost nothing packed."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 64 << 20
    with gzip.open(path, "wb", compresslevel=9) as out:
        out.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(64):
            out.write(b"\0" * (1 << 20))
    return path


def archives(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """(what, the archive, the member asked for)"""
    folder.mkdir(parents=True)
    outside = ["../evil", "a/../../evil", str(folder / "evil"), "/tmp/flashcaps-evil", "..\\evil", "c:/evil"]
    for k, name in enumerate(outside):
        yield f"tar with {name}", _tar(folder / f"t{k}", (name, b"evil")), "x"
        yield f"zip with {name}", _zip(folder / f"z{k}", name), "x"
        yield f"tar asked for {name}", _tar(folder / f"w{k}", (name, b"evil")), name
    yield "symbolic link", _tar(folder / "s", ("link", str(folder.parent))), "link"
    yield "file through a link", _tar(folder / "sf", ("link", ".."), ("link/evil", b"evil")), "link/evil"
    yield "hard link", _tar(folder / "h", ("link", "/etc/passwd"), kind=tarfile.LNKTYPE), "link"
    yield "device", _tar(folder / "d", ("device", ""), kind=tarfile.CHRTYPE), "device"
    yield "pipe", _tar(folder / "p", ("pipe", ""), kind=tarfile.FIFOTYPE), "pipe"
    yield "link in a zip", _zip(folder / "zl", "link", b"/etc/passwd", stat.S_IFLNK), "link"
    yield "tar bomb", _tar(folder / "b", ("bomb", b"\0" * (2 * CAP))), "bomb"
    yield "zip bomb", _zip(folder / "zb", "bomb", b"\0" * (2 * CAP)), "bomb"
    yield "zip bomb that understates itself", _understated(folder / "zu"), "bomb"
    yield "long header", _long_header(folder / "lh"), "x"
    (folder / "n").write_bytes(b"nothing of the kind")
    yield "not an archive", folder / "n", "x"


def _kept_inside(what: str, archive: Path, wanted: str, folder: Path) -> str:
    """Refused, with nothing written but below one folder, and there nothing that stays."""
    inside = folder / "inside"
    before = set(folder.rglob("*"))
    error = _error(lambda: unpack(archive, {wanted: inside / "x"}, CAP))
    new = set(folder.rglob("*")) - before - {inside}
    if Path("/tmp/flashcaps-evil").exists() or new:
        return f"{what}: wrote {sorted(map(str, new))}"
    return "" if isinstance(error, ValueError) else f"{what}: {error!r}"


def recipes(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(the key that must be named, the attack)"""
    absurd = {
        "train.batch": "99999999999", "train.epochs": "9" * 5000, "train.seed": "-1", "train.log_every": "0",
        "train.rollback": "1000", "train.save_seconds": "nan", "train.ema": "2.0", "optimiser.lr": "inf",
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
