"""Data larger than memory: pictures and labels in shards, read when they are needed.

    shards = open_shards("pets", "train")                   # pets/shards.json, pets/train-00000.tar, ...
    for place, sample in shards.stream(seed=0, epoch=3, rank=1, world=4):
        picture = decode(sample.picture, shards.image)      # uint8 (C, H, W)

A .tar shard holds each sample as two neighbours, KEY.png (or another kind of picture) and KEY.cls, its class as a
number. A .parquet shard has the columns image (bytes) and label; each row group is a shard of its own. An epoch visits
shards in a new order, `window` of them at a time, and mixes the samples of those. That order is a pure function of
(seed, epoch) and does not depend on who reads: any number of processes share it out, each sample is read once, and
"so many samples were read" is all there is to resume from.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .files import wrong
from .random import draws

INDEX = "shards.json"
PARTS = ("train", "validation", "test")
PICTURES = ("png", "jpg", "jpeg", "bmp", "gif", "tif", "tiff", "webp", "ppm", "pgm")
LARGEST = 64 << 20  # bytes of one picture
WINDOW = 8  # shards mixed with each other, and open at once


class Sample(NamedTuple):
    """A picture as it was stored, and its class."""

    picture: bytes
    label: int


class Shard(Protocol):
    """An opened shard."""

    def __len__(self) -> int: ...

    def read(self, place: int) -> Sample: ...

    def close(self) -> None: ...


class TarShard:
    """Where each picture lies in an uncompressed .tar, found once; pictures are read from there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places, self.labels = _scan(path)
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, place: int) -> Sample:
        offset, size = (int(x) for x in self.places[place])
        picture = os.pread(self._file, size, offset)  # no shared position: threads may read at once
        if len(picture) != size:
            raise wrong(self.path, f"{size:,} bytes of a picture at {offset:,}", f"{len(picture):,}")
        return Sample(picture, int(self.labels[place]))

    def close(self) -> None:
        os.close(self._file)


def _scan(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Offset and size of each picture (N, 2), and labels (N,), of a .tar."""
    places: list[tuple[int, int]] = []
    labels: list[int] = []
    found: dict[str, tuple[int, int] | int] = {}
    key = ""
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                stem, kind = _split(member.name)
                if stem != key:
                    _keep(path, key, found, places, labels)
                    key, found = stem, {}
                if not member.isreg() or member.issparse() or member.size > LARGEST:
                    raise wrong(path, f"plain files of at most {LARGEST:,} bytes", f"{member.name} ({member.size:,})")
                if kind == "cls":
                    content = archive.extractfile(member)
                    found["label"] = _label(path, member.name, b"" if content is None else content.read(32))
                elif kind in PICTURES:
                    found["picture"] = (member.offset_data, member.size)
            _keep(path, key, found, places, labels)
    except (tarfile.TarError, EOFError) as error:
        raise wrong(path, "a whole .tar, not compressed", str(error)) from None
    return np.array(places, dtype=np.int64).reshape(-1, 2), np.array(labels, dtype=np.int64)


def _split(name: str) -> tuple[str, str]:
    """a/b.c.png -> (a/b, c.png): the key ends at the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    stem, _, kind = file.partition(".")
    return folder + slash + stem, kind.lower()


def _label(path: Path, name: str, text: bytes) -> int:
    if not text.strip().isdigit():
        raise wrong(path, f"a class number in {name}", text[:20])
    return int(text)


def _keep(path: Path, key: str, found: dict[str, Any], places: list[Any], labels: list[int]) -> None:
    if not found:
        return
    missing = {"picture", "label"} - set(found)
    if missing:
        raise wrong(path, f"a picture and a .cls for {key!r}", f"no {missing.pop()}")
    places.append(found["picture"])
    labels.append(found["label"])


class ParquetShard:
    """A row group of a .parquet file, in memory while it is open."""

    def __init__(self, path: Path, group: int) -> None:
        file = _parquet(path)
        names = file.schema_arrow.names
        image, label = (next((n for n in known if n in names), None) for known in (("image", "img"), ("label", "cls")))
        if image is None or label is None:
            raise wrong(path, "columns image and label", names)
        table = file.read_row_group(group, columns=[image, label])
        self.images, self.labels = table.column(image).combine_chunks(), table.column(label).to_numpy()
        self.path = path

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, place: int) -> Sample:
        value = self.images[place].as_py()
        picture = value.get("bytes") if isinstance(value, dict) else value  # {"bytes", "path"}, as hubs store pictures
        if not isinstance(picture, bytes):
            raise wrong(self.path, "pictures as bytes", type(picture).__name__)
        return Sample(picture, int(self.labels[place]))

    def close(self) -> None:
        self.images = None


def _parquet(path: Path) -> Any:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(f"reading {path.name} needs pyarrow: pip install 'flashcaps[shards]'") from None
    try:
        return parquet.ParquetFile(path)
    except (arrow.ArrowInvalid, OSError) as error:
        raise wrong(path, "a whole .parquet file", str(error)) from None


class Unit(NamedTuple):
    """A shard that is not open: its file, the row group of a .parquet, and how many samples it has."""

    path: Path
    group: int
    samples: int

    def open(self) -> Shard:
        shard: Shard = ParquetShard(self.path, self.group) if self.path.suffix == ".parquet" else TarShard(self.path)
        if len(shard) != self.samples:
            raise wrong(self.path, f"{self.samples:,} samples", f"{len(shard):,}")
        return shard


class Shards:
    """The samples of one part, numbered through all its shards; at most `window` + 1 shards are open."""

    def __init__(
        self, units: Sequence[Unit], image: tuple[int, int, int], class_names: Sequence[str], window: int = WINDOW
    ) -> None:
        if not units or window < 1:
            raise ValueError(f"units: expected at least one shard and a window of 1, got {len(units)} and {window}")
        self.units, self.image, self.class_names, self.window = list(units), image, tuple(class_names), window
        self.starts = [0, *accumulate(unit.samples for unit in units)]
        self._opened: OrderedDict[int, Shard] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, place: int) -> Sample:
        if not 0 <= place < len(self):
            raise IndexError(f"place: expected 0 to {len(self) - 1}, got {place}")
        k = bisect_right(self.starts, place) - 1
        with self._lock:
            sample = self._open(k).read(place - self.starts[k])
        if not 0 <= sample.label < len(self.class_names):
            expected = f"classes from 0 to {len(self.class_names) - 1}"
            raise wrong(self.units[k].path, expected, f"{sample.label} at place {place - self.starts[k]}")
        return sample

    def _open(self, k: int) -> Shard:
        if k in self._opened:
            self._opened.move_to_end(k)
            return self._opened[k]
        while len(self._opened) > self.window:
            self._opened.popitem(last=False)[1].close()
        shard = self._opened[k] = self.units[k].open()
        return shard

    def close(self) -> None:
        with self._lock:
            while self._opened:
                self._opened.popitem()[1].close()

    def order(self, seed: int, epoch: int) -> Tensor:
        """(N,) int64: every sample once; shards shuffled, and the samples of `window` neighbours mixed."""
        count = len(self.units)
        shards = draws(seed, epoch * count + torch.arange(count), 1)[:, 0].argsort().tolist()
        parts = []
        for k in range(0, count, self.window):
            mixed = [torch.arange(self.starts[s], self.starts[s + 1]) for s in shards[k : k + self.window]]
            place = torch.cat(mixed)
            parts.append(place[draws(seed + 1, epoch * len(self) + place, 1)[:, 0].argsort()])
        return torch.cat(parts)

    def stream(
        self, seed: int = 0, epoch: int = 0, *, rank: int = 0, world: int = 1, start: int = 0
    ) -> Iterator[tuple[int, Sample]]:
        """(place, sample) of this process's part of an epoch; all processes together read each sample once.

        start: how many samples all of them had read when they stopped, were they as many or not.
        """
        if not 0 <= rank < world or not 0 <= start <= len(self):
            raise ValueError(f"rank: expected 0 to {world - 1} and start 0 to {len(self)}, got {rank} and {start}")
        for place in self.order(seed, epoch)[start + rank :: world].tolist():
            yield place, self[place]


def open_shards(path: str | os.PathLike[str], part: str = "train", window: int = WINDOW) -> Shards:
    """The shards of one part that `write_shards` or another program made; a folder without an index is looked through.

    Without an index, image is (0, 0, 0) and there are as many classes as the labels say.
    """
    folder = Path(path).expanduser()
    index = folder / INDEX
    if not index.is_file():
        return _look_through(folder, part, window)
    try:
        about = json.loads(index.read_text(encoding="utf-8"))
        entries = about["parts"][part]
        units = [Unit(folder / Path(e["file"]).name, int(e.get("group", 0)), int(e["samples"])) for e in entries]
        c, h, w = (int(n) for n in about["image"])
        return Shards(units, (c, h, w), [str(n) for n in about["class_names"]], window)
    except (KeyError, TypeError, ValueError) as error:
        raise wrong(index, f"image, class_names and parts with {part!r}", f"{type(error).__name__} {error}") from None


def has_part(path: str | os.PathLike[str], part: str) -> bool:
    """Whether there are shards of this part."""
    folder = Path(path).expanduser()
    if not (folder / INDEX).is_file():
        return any(f.suffix in (".tar", ".parquet") for f in folder.glob(f"{part}*"))
    return part in json.loads((folder / INDEX).read_text(encoding="utf-8")).get("parts", {})


def _look_through(folder: Path, part: str, window: int) -> Shards:
    files = sorted(f for f in folder.glob(f"{part}*") if f.suffix in (".tar", ".parquet"))
    if not files:
        raise FileNotFoundError(f"{folder}: no {INDEX} and no {part}*.tar or {part}*.parquet; "
                                f"make shards with `flashcaps data shard FOLDER {folder}`")
    units, highest = [], -1
    for file in files:
        groups = range(_parquet(file).num_row_groups) if file.suffix == ".parquet" else range(1)
        for group in groups:
            shard = ParquetShard(file, group) if file.suffix == ".parquet" else TarShard(file)
            units.append(Unit(file, group, len(shard)))
            highest = max(highest, int(shard.labels.max(initial=-1)))
            shard.close()
    return Shards(units, (0, 0, 0), [str(k) for k in range(highest + 1)], window)


def decode(picture: bytes, shape: tuple[int, int, int]) -> Tensor:
    """A stored picture as uint8 of `shape` (C, H, W), C 1, 3 or 4."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("pictures are read by Pillow: pip install 'flashcaps[plots]'") from None
    channels, height, width = shape
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    if channels not in modes:
        raise ValueError(f"shape: expected 1, 3 or 4 channels, got {shape}")
    try:
        opened = Image.open(io.BytesIO(picture))
        opened.draft(modes[channels], (width, height))  # a large .jpg is decoded small
        image = opened.convert(modes[channels])
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"picture: expected a whole one, got {len(picture):,} bytes that are none ({error})") from None
    return torch.from_numpy(pixels.copy()).view(height, width, channels).permute(2, 0, 1).contiguous()


class Source(NamedTuple):
    """A picture to be stored: its file, class and part."""

    file: Path
    label: int
    part: str = "train"


def write_shards(
    sources: Iterable[Source], folder: Path, image: tuple[int, int, int], class_names: Sequence[str], *,
    samples: int = 1000, seed: int = 0,
) -> Path:
    """Store pictures as they are in FOLDER/PART-00000.tar, ..., shuffled, so that every shard has of everything.

    The same pictures give the same bytes. The index is written last: without it, the shards are not whole.
    """
    if samples < 1:
        raise ValueError(f"samples: expected at least 1 in a shard, got {samples}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    everything = sorted(sources)
    parts: dict[str, list[dict[str, Any]]] = {}
    for part in PARTS:
        mine = [s for s in everything if s.part == part]
        mixed = [mine[k] for k in draws(seed, torch.arange(len(mine)), 1)[:, 0].argsort().tolist()]
        for k in range(0, len(mixed), samples):
            name = f"{part}-{k // samples:05d}.tar"
            _write_tar(folder / name, mixed[k : k + samples], k)
            parts.setdefault(part, []).append({"file": name, "samples": len(mixed[k : k + samples])})
    about = {"image": list(image), "class_names": list(class_names), "parts": parts}
    half = folder / f"{INDEX}.part"
    half.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return half.replace(folder / INDEX)


def _write_tar(path: Path, sources: Sequence[Source], first: int) -> None:
    half = path.with_suffix(".tar.part")
    with tarfile.open(half, "w", format=tarfile.USTAR_FORMAT) as archive:
        for k, source in enumerate(sources):
            kind = source.file.suffix.lower().removeprefix(".")
            if kind not in PICTURES:
                raise ValueError(f"{source.file}: expected one of {', '.join(PICTURES)}, got .{kind}")
            for ending, content in ((kind, source.file.read_bytes()), ("cls", str(source.label).encode())):
                header = tarfile.TarInfo(f"{first + k:09d}.{ending}")
                header.size = len(content)
                archive.addfile(header, io.BytesIO(content))
    half.replace(path)
