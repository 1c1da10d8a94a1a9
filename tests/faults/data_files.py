"""4. A data file cut short, with flipped bits or a label out of range: an error before the first step that names it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flashcaps.data import load_data
from flashcaps.data.files import SUMS, note_sums
from tests.data import test_affnist, test_cifar, test_norb, test_svhn
from tests.data.files import NORB, idx_bytes, norb_bytes, write_digits
from tests.data.test_sst import TREES
from tests.faults.child import Row, damaged, prepare, start

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)


class Kind(NamedTuple):
    """A data set in its published format: how it is written, and one of its files, with a wrong label in it."""

    name: str
    write: Callable[[Path], Any]
    file: str
    mislabelled: Callable[[bytes], bytes]
    options: dict[str, Any] = {}


def _write_norb(root: Path) -> None:
    (root / "smallnorb").mkdir()
    for part, stem in NORB.items():
        for kind, array in test_norb.arrays(part).items():
            (root / "smallnorb" / f"{stem}-{kind}.mat").write_bytes(norb_bytes(array))


def _write_affnist(root: Path, label: int = 9) -> None:
    write_digits(root / "mnist")
    test_affnist.write(root / "affnist" / "test.mat", (3, 0, label))


def _write_svhn(root: Path, label: int = 9) -> None:
    test_svhn.write(root, [10, 1, label])


def _write_sst(root: Path) -> None:
    (root / "sst" / "trees").mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (root / "sst" / "trees" / f"{part}.txt").write_text("\n".join(TREES) + "\n")


def _written(write: Callable[[Path, int], None], file: str, label: int) -> bytes:
    """The file that `write` makes with a label that is none."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), label)
        return (Path(folder) / file).read_bytes()


def kinds() -> list[Kind]:
    digits, svhn, affnist = idx_bytes(np.array([0, 1, 10])), "svhn/test_32x32.mat", "affnist/test.mat"
    wrong_norb = norb_bytes(np.array([0, 1, 2, 3, 5, 0], np.int32))
    return [
        Kind("mnist", lambda root: write_digits(root / "mnist"), "mnist/t10k-labels-idx1-ubyte.gz", lambda _: digits),
        Kind("mnist", lambda root: write_digits(root / "mnist", packed=False), "mnist/train-images-idx3-ubyte",
             lambda _: digits),
        Kind("cifar10", lambda root: test_cifar.write10(root, PIXELS), "cifar10/data_batch_3.bin",
             lambda raw: b"\x0a" + raw[1:], {"per_file": 4}),
        Kind("smallnorb", _write_norb, f"smallnorb/{NORB['train']}-cat.mat", lambda _: wrong_norb),
        Kind("svhn", _write_svhn, svhn, lambda _: _written(_write_svhn, svhn, 11)),
        Kind("affnist", _write_affnist, affnist, lambda _: _written(_write_affnist, affnist, 10)),
        Kind("sst5", _write_sst, "sst/trees/dev.txt", lambda raw: raw.replace(b"(4", b"(5"), {"counts": (4, 4, 4)}),
    ]  # fmt: skip


def try_all(folder: Path, full: bool) -> Row:
    row = Row(4, "data file truncated, flipped or mislabelled")
    folder.mkdir(parents=True, exist_ok=True)
    for k, kind in enumerate(kinds()):
        root = folder / f"{k}-{kind.name}"
        root.mkdir()
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
