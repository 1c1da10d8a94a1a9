"""Shards made here: every sample once, whoever reads; stopping and going on; broken and hostile files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flashcaps.data.shards import Sample, Shards, Source, TarShard, Unit, decode, has_part, open_shards, write_shards

COUNT, PER_SHARD = 53, 6  # nine shards, the last of them not full


def png(k: int, size: tuple[int, int] = (4, 5)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, k).save(file, "PNG")
    return file.getvalue()


def number(picture: bytes) -> int:
    """The picture's colour, which says which one it is."""
    return int(decode(picture, (1, 1, 1)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("shards")
    (base / "pictures").mkdir()
    sources = []
    for k in range(COUNT):
        file = base / "pictures" / f"{k:03d}.png"
        file.write_bytes(png(k))
        sources.append(Source(file, k % 3, "test" if k >= 50 else "train"))
    write_shards(sources, base / "out", (1, 5, 4), ("a", "b", "c"), samples=PER_SHARD)
    return base / "out"


def seen(shards: Shards, **options: int) -> list[int]:
    return [number(sample.picture) for _, sample in shards.stream(**options)]


# ---- every sample once


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_together_read_every_sample_once(folder: Path, world: int) -> None:
    shards = open_shards(folder)
    parts = [seen(shards, seed=1, epoch=2, rank=r, world=world) for r in range(world)]
    assert Counter(k for part in parts for k in part) == Counter(range(50))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_labels_stay_with_their_pictures(folder: Path) -> None:
    assert all(s.label == number(s.picture) % 3 for _, s in open_shards(folder).stream())


def test_order_depends_on_seed_and_epoch_alone(folder: Path) -> None:
    one, two = open_shards(folder), open_shards(folder)
    assert seen(one, seed=5, epoch=1) == seen(two, seed=5, epoch=1)
    orders = {tuple(one.order(s, e).tolist()) for s in range(3) for e in range(3)}
    assert len(orders) == 9
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_samples_of_a_window_are_mixed_and_those_of_others_are_not(folder: Path) -> None:
    shards = open_shards(folder, window=3)
    homes = [place // PER_SHARD for place in shards.order(0, 0)[: 2 * PER_SHARD + 2].tolist()]  # the last has two
    assert len(set(homes)) == 3
    assert homes != sorted(homes)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 2)])
def test_reading_goes_on_where_it_stopped_with_another_number_of_ranks(folder: Path, before: int, after: int) -> None:
    shards, stopped = open_shards(folder), 18  # a multiple of both worlds, as whole steps are
    early = [seen(shards, rank=r, world=before)[: stopped // before] for r in range(before)]
    late = [seen(open_shards(folder), rank=r, world=after, start=stopped) for r in range(after)]
    assert Counter(k for part in early + late for k in part) == Counter(range(50))


def test_a_killed_reader_goes_on_from_what_it_wrote_down(folder: Path, tmp_path: Path) -> None:
    """A process is killed in the middle of an epoch; the next one starts at the count it left."""
    log = tmp_path / "log"
    code = f"""
import os, signal, sys
from flashcaps.data.shards import decode, open_shards
start = int(sys.argv[1])
for k, (_, sample) in enumerate(open_shards({str(folder)!r}).stream(seed=3, epoch=1, start=start)):
    with open({str(log)!r}, "a") as file:
        file.write(f"{{int(decode(sample.picture, (1, 1, 1)))}}\\n")
    if start == 0 and k == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    first = subprocess.run([sys.executable, "-c", code, "0"], capture_output=True)
    assert first.returncode == -9
    done = len(log.read_text().split())
    assert done == 21
    assert subprocess.run([sys.executable, "-c", code, str(done)], capture_output=True).returncode == 0
    assert [int(k) for k in log.read_text().split()] == seen(open_shards(folder), seed=3, epoch=1)


def test_a_class_by_the_name_of_a_part_is_no_part(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    write_shards([Source(tmp_path / "a.png", 0)], tmp_path / "out", (1, 5, 4), ("validation", "test"))
    assert [has_part(tmp_path / "out", part) for part in ("train", "validation", "test")] == [True, False, False]


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, label: int) -> None:
    """-1 is how others mark what has no label."""
    monkeypatch.setattr(TarShard, "read", lambda self, place: Sample(b"", label))
    with pytest.raises(ValueError, match=rf"expected classes from 0 to 2.*{label} at place 4"):
        open_shards(folder)[4]


def test_a_bounded_number_of_shards_is_open(folder: Path) -> None:
    shards = open_shards(folder, window=2)
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    for _ in shards.stream():
        most = max(most, len(os.listdir("/proc/self/fd")))
    assert most - before <= 3
    shards.close()
    assert len(os.listdir("/proc/self/fd")) == before


# ---- writing


def test_the_same_pictures_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    files = sorted((folder.parent / "pictures").iterdir())
    sources = [Source(f, k % 3, "test" if k >= 50 else "train") for k, f in enumerate(files)]
    write_shards(reversed(sources), tmp_path, (1, 5, 4), ("a", "b", "c"), samples=PER_SHARD)
    names = sorted(p.name for p in folder.iterdir())
    assert names == sorted(p.name for p in tmp_path.iterdir())
    assert all((folder / n).read_bytes() == (tmp_path / n).read_bytes() for n in names)


def test_the_index_is_written_last(tmp_path: Path) -> None:
    good, bad = tmp_path / "1.png", tmp_path / "2.npy"
    good.write_bytes(png(1))
    bad.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"2\.npy: expected one of png"):
        write_shards([Source(good, 0), Source(bad, 1)], tmp_path / "out", (1, 2, 2), ("a", "b"), samples=1)
    assert not (tmp_path / "out" / "shards.json").exists()


def test_a_folder_without_an_index_is_looked_through(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("train-*.tar"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = open_shards(tmp_path)
    assert (len(found), found.class_names) == (50, ("0", "1", "2"))
    assert found.order(0, 0).tolist() == open_shards(folder).order(0, 0).tolist()


def test_parquet_files_are_read_by_row_group(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    for k in range(3):
        numbers = range(10 * k, 10 * k + 10)
        images = [{"bytes": png(n), "path": None} for n in numbers] if k else [png(n) for n in numbers]
        table = arrow.table({"image": images, "label": [n % 3 for n in numbers]})
        parquet.write_table(table, tmp_path / f"train-{k}.parquet", row_group_size=4)
    shards = open_shards(tmp_path, window=2)
    assert len(shards.units) == 9
    assert sorted(seen(shards)) == list(range(30))
    assert all(s.label == number(s.picture) % 3 for _, s in shards.stream(epoch=1))


# ---- pictures


@pytest.mark.parametrize("shape", [(1, 7, 3), (3, 5, 4), (4, 9, 9)])
def test_pictures_are_brought_to_the_shape(shape: tuple[int, int, int]) -> None:
    x = decode(png(77), shape)
    assert (x.dtype, tuple(x.shape)) == (torch.uint8, shape)
    assert (x[:3] == 77).all()


def test_a_picture_of_the_shape_is_unchanged() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    assert torch.equal(decode(file.getvalue(), (3, 6, 5)).permute(1, 2, 0), torch.from_numpy(pixels))


@pytest.mark.parametrize("content", [b"", b"nonsense", png(3)[:40]])
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^picture: expected a whole one"):
        decode(content, (1, 4, 4))


def test_a_picture_that_unpacks_to_gigapixels_is_refused() -> None:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100)))
    with pytest.raises(ValueError, match=r"^picture: expected a whole one"):
        decode(bomb, (1, 4, 4))


# ---- broken and hostile files


def tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([("1.png", png(1))], "no label"),
        ([("1.cls", b"1")], "no picture"),
        ([("1.png", png(1)), ("1.cls", b"cat")], "b'cat'"),
        ([("1.png", png(1)), ("1.cls", b"-1")], "b'-1'"),
        ([("1.png", png(1)), ("2.png", png(2)), ("1.cls", b"1")], "no label"),
    ],
)
def test_samples_that_are_not_whole_are_named(tmp_path: Path, members: list[tuple[str, bytes]], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        TarShard(tar(tmp_path / "train.tar", members))


def test_links_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match="expected plain files"):
        TarShard(tmp_path / "train.tar")


def test_other_members_and_folders_are_passed_over(tmp_path: Path) -> None:
    members = [("a/1.json", b"{}"), ("a/1.png", png(9)), ("a/1.cls", b"2\n")]
    shard = TarShard(tar(tmp_path / "x.tar", members))
    assert (len(shard), shard.read(0).label, number(shard.read(0).picture)) == (1, 2, 9)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_cut_shard_is_an_error_that_names_it(folder: Path, tmp_path: Path, share: float) -> None:
    whole = (folder / "train-00000.tar").read_bytes().rstrip(b"\0")
    (tmp_path / "train-00000.tar").write_bytes(whole[: int(share * len(whole))])
    (tmp_path / "shards.json").write_text((folder / "shards.json").read_text())
    with pytest.raises(ValueError, match=r"train-00000\.tar: expected"):
        list(Unit(tmp_path / "train-00000.tar", 0, PER_SHARD).open().read(k) for k in range(PER_SHARD))


def test_a_class_beyond_the_names_is_an_error(folder: Path, tmp_path: Path) -> None:
    about = json.loads((folder / "shards.json").read_text())
    (tmp_path / "shards.json").write_text(json.dumps(about | {"class_names": ["a", "b"]}))
    for file in folder.glob("*.tar"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match="expected classes from 0 to 1"):
        list(open_shards(tmp_path).stream())


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"parts": {"train": []}, "image": [1, 2, 2], "class_names": []}'])
def test_a_broken_index_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "shards.json").write_text(content)
    with pytest.raises(ValueError, match=r"shards\.json: expected"):
        open_shards(tmp_path)


def test_an_index_does_not_lead_out_of_its_folder(folder: Path, tmp_path: Path) -> None:
    about = json.loads((folder / "shards.json").read_text())
    about["parts"]["train"] = [{"file": str(folder / "train-00000.tar"), "samples": PER_SHARD}]
    (tmp_path / "shards.json").write_text(json.dumps(about))
    with pytest.raises(FileNotFoundError):
        open_shards(tmp_path)[0]


def test_no_shards_say_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="flashcaps data shard"):
        open_shards(tmp_path)
