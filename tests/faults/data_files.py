"""4. A data file cut short, with flipped bits or a label out of range: an error before the first step that names it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from flashcaps.data import load_data
from flashcaps.data.files import SUMS, note_sums
from tests.data.files import NORB, idx_bytes, norb_bytes, write_digits
from tests.data.test_norb import arrays
from tests.data.test_sst import TREES
from tests.faults.child import Row, damaged, prepare, start


@dataclass
class Kind:
    """A data set in its published format: how it is written, and one of its files, with a wrong label in it."""

    name: str
    write: Callable[[Path], None]
    file: str
    mislabelled: Callable[[bytes], bytes]
    options: dict[str, Any] = field(default_factory=dict)


def _pixels(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)


def _write_cifar(root: Path) -> None:
    folder = root / "cifar10"
    folder.mkdir(parents=True)
    for stem in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        raw = b"".join(bytes([n % 10]) + row.tobytes() for n, row in enumerate(_pixels(4)))
        (folder / f"{stem}.bin").write_bytes(raw)


def _pickled(label: int) -> bytes:
    return pickle.dumps({b"data": _pixels(4), b"labels": [0, 1, 2, label]}, protocol=2)


def _write_cifar_python(root: Path) -> None:
    folder = root / "cifar10"
    folder.mkdir(parents=True)
    for stem in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (folder / stem).write_bytes(_pickled(3))


def _write_norb(root: Path) -> None:
    (root / "smallnorb").mkdir(parents=True)
    for part, stem in NORB.items():
        for kind, array in arrays(part).items():
            (root / "smallnorb" / f"{stem}-{kind}.mat").write_bytes(norb_bytes(array))


def _mat(path: Path, content: dict[str, Any]) -> bytes:
    savemat(path, content, do_compression=True)
    return path.read_bytes()


def _svhn(path: Path, label: int) -> bytes:
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    return _mat(path, {"X": x, "y": np.array([[10], [1], [label]], np.uint8)})


def _write_svhn(root: Path) -> None:
    (root / "svhn").mkdir(parents=True)
    for part in ("train", "test"):
        _svhn(root / "svhn" / f"{part}_32x32.mat", 9)


def _affnist(path: Path, label: int) -> bytes:
    image = np.random.default_rng(0).integers(0, 256, (1600, 3), dtype=np.uint8)
    return _mat(path, {"affNISTdata": {"image": image, "label_int": np.array([[0, 1, label]], np.uint8)}})


def _write_affnist(root: Path) -> None:
    write_digits(root / "mnist")
    (root / "affnist").mkdir(parents=True)
    _affnist(root / "affnist" / "test.mat", 9)


def _write_sst(root: Path) -> None:
    (root / "sst" / "trees").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (root / "sst" / "trees" / f"{part}.txt").write_text("\n".join(TREES) + "\n")


def kinds(scratch: Path) -> list[Kind]:
    labels, mat = idx_bytes(np.array([0, 1, 10])), scratch / "scratch.mat"
    wrong_norb = norb_bytes(np.array([0, 1, 2, 3, 5, 0], np.int32))
    return [
        Kind("mnist", lambda root: _write(root, True), "mnist/t10k-labels-idx1-ubyte.gz", lambda _: labels),
        Kind("mnist", lambda root: _write(root, False), "mnist/train-images-idx3-ubyte", lambda _: labels),
        Kind("cifar10", _write_cifar, "cifar10/data_batch_3.bin", lambda raw: b"\x0a" + raw[1:], {"per_file": 4}),
        Kind("cifar10", _write_cifar_python, "cifar10/test_batch", lambda _: _pickled(10), {"per_file": 4}),
        Kind("smallnorb", _write_norb, f"smallnorb/{NORB['train']}-cat.mat", lambda _: wrong_norb),
        Kind("svhn", _write_svhn, "svhn/test_32x32.mat", lambda _: _svhn(mat, 11)),
        Kind("affnist", _write_affnist, "affnist/test.mat", lambda _: _affnist(mat, 10)),
        Kind("sst5", _write_sst, "sst/trees/dev.txt", lambda raw: raw.replace(b"(4", b"(5"), {"counts": (4, 4, 4)}),
    ]  # fmt: skip


def _write(root: Path, packed: bool) -> None:
    write_digits(root / "mnist", packed=packed)


def try_all(folder: Path, full: bool) -> Row:
    row = Row(4, "data file truncated, flipped or mislabelled")
    folder.mkdir(parents=True, exist_ok=True)
    for k, kind in enumerate(kinds(folder)):
        root = folder / f"{k}-{kind.name}"
        kind.write(root)
        load_data(kind.name, root, **kind.options)
        path = root / kind.file
        place = root / kind.file.split("/")[0]
        raw = path.read_bytes()
        for what, content in [("wrong label", kind.mislabelled(raw)), *damaged(raw, 50 if full else 5)]:
            path.write_bytes(raw)
            (place / SUMS).unlink(missing_ok=True)
            if "flipped" in what:  # a pixel has no other witness than the checksum that fetching noted
                note_sums(place, [p for p in place.rglob("*") if p.is_file() and p.name != SUMS])
            path.write_bytes(content)
            fault = _fault(kind, root, path)
            row.count(f"{kind.file}, {what}: {fault}" if fault else "")
    row.count(_before_the_first_step(prepare(folder)))
    return row


def _fault(kind: Kind, root: Path, path: Path) -> str:
    try:
        load_data(kind.name, root, **kind.options)
    except ValueError as error:
        text = str(error)
        named = str(path) in text and "expected" in text and "found" in text
        return "" if named else f"file, expected or found are missing in {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read in silence"


def _before_the_first_step(folder: Path) -> str:
    path = folder / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    child = start(folder, "run")
    code = child.wait()
    if code != 1 or str(path) not in child.output:
        return f"exit code {code}: {child.output}"
    return "a run was begun" if (folder / "run").exists() else ""
