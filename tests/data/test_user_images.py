"""Folders, tables and hub data sets become the pictures and labels they hold."""

import importlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flashcaps.data import load_data
from flashcaps.data.user_images import Listing, feature_scale, list_folder, list_hub, list_table, read_picture, survey
from flashcaps.training.batches import held_images
from tests.own_pictures import SHAPES, gigapixels, write_pictures


def png(grey: int = 0) -> bytes:
    content = io.BytesIO()
    Image.new("L", (8, 6), grey).save(content, "png")
    return content.getvalue()


def test_a_folder_per_class(tmp_path: Path) -> None:
    (tmp_path / SHAPES[0] / "folder.png").mkdir(parents=True)
    (tmp_path / SHAPES[0] / ".originals").mkdir()
    for hidden in ("._0.png", ".originals/0.png"):  # what a Mac leaves beside a file, and Picasa of those it changed
        (tmp_path / SHAPES[0] / hidden).write_bytes(b"\0\5\x16\7")
    data = load_data("images", path=str(write_pictures(tmp_path, 60, 12, 20)))
    assert data.class_names == SHAPES
    assert (data.classes, data.shape, data.multilabel) == (3, (3, 12, 20), False)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [42, 6, 12]
    for split, each in ((data.train, 14), (data.validation, 2), (data.test, 4)):
        assert torch.bincount(split.labels).tolist() == [each] * 3
    pixels = {x.numpy().tobytes() for s in (data.train, data.validation, data.test) for x in s.images}
    assert len(pixels) == 60  # every picture once
    for path in tmp_path.glob("*/0*.png"):
        assert read_picture(path).numpy().tobytes() in pixels
    assert not torch.equal(load_data("images", path=str(tmp_path), seed=1).train.images, data.train.images)
    (tmp_path / "bird").mkdir()
    with pytest.warns(UserWarning, match="no pictures in bird, which is left out of the classes; remove it, or add"):
        again = load_data("images", path=str(tmp_path))
    assert again.class_names == SHAPES
    assert torch.equal(again.train.images, data.train.images)


def test_labels_belong_to_their_pictures(tmp_path: Path) -> None:
    for k, name in enumerate(("10", "9", "x")):
        (tmp_path / name).mkdir()
        for n in range(5):
            Image.new("L", (8, 8), 40 * k + n).save(tmp_path / name / f"{n}.png")
    data = load_data("images", path=str(tmp_path))
    assert data.class_names == ("9", "10", "x")  # numbers in their order
    for split in (data.train, data.test):
        values = split.images[:, 0, 0, 0] // 40
        assert values.tolist() == [(1, 0, 2)[label] for label in split.labels.tolist()]


@pytest.mark.filterwarnings("error")  # the test part is given, however many examples there were in training
def test_folders_train_val_test_are_kept(tmp_path: Path) -> None:
    for part, count in (("train", 9), ("val", 3), ("test", 6)):
        write_pictures(tmp_path / part, count, 10, 10, seed=count)
    data = load_data("images", path=str(tmp_path), examples=9)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [9, 3, 6]
    (tmp_path / "test" / "square").mkdir()
    (tmp_path / "test" / "bar" / "0000.png").rename(tmp_path / "test" / "square" / "0.png")
    with pytest.raises(ValueError, match="no class 'square' among those of training"):
        load_data("images", path=str(tmp_path))


def test_sizes_and_channels_are_found(tmp_path: Path) -> None:
    for k, (mode, size) in enumerate((("L", (30, 20)), ("L", (34, 24)), ("L", (300, 200)))):
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new(mode, size, 77).save(tmp_path / name / f"{k}.png")
    assert survey(list_folder(tmp_path)) == (1, 24, 34)
    assert survey(list_folder(tmp_path), size=(16, 18)) == (1, 16, 18)
    Image.new("RGB", (512, 256)).save(tmp_path / "a" / "colour.png")
    assert survey(list_folder(tmp_path))[0] == 3
    assert load_data("images", path=str(tmp_path), size=(16, 18), channels=1).shape == (1, 16, 18)
    for name in ("a", "b"):
        for k in range(3):
            Image.new("L", (512, 256)).save(tmp_path / name / f"{k}.png")
    assert survey(list_folder(tmp_path), channels=1) == (1, 64, 128)  # 128 is the longest side unasked


def test_pictures_of_all_kinds(tmp_path: Path) -> None:
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    colour = np.stack([grey, grey + 50, grey + 100], -1)
    Image.fromarray(grey).save(tmp_path / "g.png")
    Image.fromarray(colour).save(tmp_path / "c.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    expected = torch.from_numpy(colour).permute(2, 0, 1)
    assert torch.equal(read_picture(tmp_path / "g.png"), torch.from_numpy(grey)[None])
    assert torch.equal(read_picture(tmp_path / "c.png"), expected)
    assert torch.equal(read_picture(tmp_path / "deep.png", 1), torch.from_numpy(grey)[None])
    assert torch.equal(read_picture((tmp_path / "c.png").read_bytes()), expected)
    assert read_picture(tmp_path / "g.png", 3).shape == (3, 6, 8)
    assert read_picture(tmp_path / "c.png", 4)[3].eq(255).all()
    for array in (colour, colour.transpose(2, 0, 1), colour / 255.0):
        np.save(tmp_path / "a.npy", array)
        assert torch.equal(read_picture(tmp_path / "a.npy", 3), expected)
    np.save(tmp_path / "two.npy", np.stack([grey, grey]))
    assert read_picture(tmp_path / "two.npy", 2).shape == (2, 6, 8)
    lying = Image.fromarray(grey)
    orientation = lying.getexif()
    orientation[0x0112] = 6  # as the camera was held: turn by 90 degrees to see it upright
    lying.save(tmp_path / "p.jpg", exif=orientation)
    assert read_picture(tmp_path / "p.jpg").shape == (1, 8, 6)


@pytest.mark.parametrize(("given", "channels", "message"), [
    (np.zeros((2, 8, 8), np.uint8), 3, "expected 3 channels, got 2"),
    (np.full((8, 8), 7.0), 1, "expected numbers from 0 to 1"),
    (np.zeros(8, np.uint8), 1, r"expected \(H, W\)"),
    (np.zeros((0, 8), np.uint8), 1, r"expected \(H, W\)"),
    (np.full((8, 8), 1000, np.uint16), 1, "expected numbers from 0 to 255, got 1000 to 1000; scale them"),
    (np.full((8, 8), -1), 1, "expected numbers from 0 to 255, got -1 to -1"),
    (np.zeros((8, 8), complex), 1, "expected bytes, or numbers from 0 to 1, got complex128"),
    (np.full((8, 8), "a"), 1, "expected bytes, or numbers from 0 to 1, got <U1"),
    *((content, None, "stdin: not a whole picture") for content in (b"\x89PNG nothing", b"", png()[:40], gigapixels())),
])  # fmt: skip
def test_arrays_and_bytes_that_do_not_fit_are_named(given: Any, channels: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_picture(given, channels)


def test_every_number_means_the_same_grey(tmp_path: Path) -> None:
    grey = np.arange(0, 240, 5, dtype=np.uint8).reshape(6, 8)
    expected = torch.from_numpy(grey)[None]
    Image.fromarray(grey.astype(np.float32)).save(tmp_path / "bytes.tif")
    Image.fromarray(grey.astype(np.float32) / 255).save(tmp_path / "share.tif")
    Image.fromarray(grey.astype(np.int32) * 257).save(tmp_path / "deep.tif")
    np.save(tmp_path / "a.npy", grey.astype(np.int64))
    (tmp_path / "a.npy").rename(tmp_path / "A.NPY")
    for name in ("bytes.tif", "share.tif", "deep.tif", "A.NPY"):
        assert torch.equal(read_picture(tmp_path / name), expected), name
    assert read_picture(np.array([[False, True]]))[0].tolist() == [[0, 255]]
    Image.fromarray(grey.astype(np.int32) * 70000).save(tmp_path / "far.tif")
    with pytest.raises(ValueError, match=r"far\.tif: expected numbers from 0 to 65535, got 0 to 1\.645e\+07"):
        read_picture(tmp_path / "far.tif")
    for content, message in (("hello", "not an array of numbers as np.save writes it"), ("", "not a whole array")):
        (tmp_path / "text.npy").write_text(content)
        with pytest.raises(ValueError, match=rf"text\.npy: {message}"):
            read_picture(tmp_path / "text.npy")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_what_is_transparent_is_white(tmp_path: Path, mode: str) -> None:
    """Black ink on nothing has black below nothing, too: without its paper it is a black picture."""
    ink = np.zeros((6, 8, 4), np.uint8)
    ink[2:4, 3:6, 3] = 255
    drawn = Image.fromarray(ink)
    if mode == "P":
        drawn = Image.fromarray((ink[..., 3] == 0).astype(np.uint8)).convert("P")
        drawn.putpalette([0, 0, 0, 0, 0, 0])
        drawn.save(tmp_path / "ink.png", transparency=1)
    else:
        drawn.convert(mode).save(tmp_path / f"ink.{'tif' if mode == 'PA' else 'png'}")
    (file,) = tmp_path.iterdir()
    paper = torch.from_numpy(255 - ink[..., 3])
    assert torch.equal(read_picture(file), paper.expand(3, -1, -1))
    assert torch.equal(read_picture(file, 1), paper[None])
    assert torch.equal(read_picture(file, 4)[3], 255 - paper)  # who asks for transparency gets it


def write_table(folder: Path, header: str, rows: list[str], name: str = "t.csv") -> Path:
    for k in range(len(rows)):
        Image.new("RGB", (10, 8), (20 * k, 0, 0)).save(folder / f"{k}.png")
    (folder / name).write_text("\n".join([header, *(f"{k}.png{row}" for k, row in enumerate(rows))]) + "\n")
    return folder / name


def test_a_table_of_labels(tmp_path: Path) -> None:
    rows = [f",{c},{s}" for c, s in (("cat", "train"), ("dog", "train"), ("cat", "val"), ("dog", "test"))]
    data = load_data("table", path=str(write_table(tmp_path, "file,label,split", rows)))
    assert data.class_names == ("cat", "dog")
    assert [s.labels.tolist() for s in (data.train, data.validation, data.test)] == [[0, 1], [0], [1]]
    assert data.test.images[0, 0, 0, 0] == 60
    tabs = write_table(tmp_path, "label\timage", [], "t.tsv")
    tabs.write_text("label\timage\n" + "".join(f"{'ab'[k % 2]}\t{k}.png\n" for k in range(4)))
    assert list_table(tabs).labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("header", "rows"), [
    ("file, label", [", cat", ",dog ", ", cat ", ",dog"]),
    ("file ;label", [";cat", ";dog", ";cat", ";dog"]),
    ("file\tlabel", ["\tcat", "\tdog", "\tcat", "\tdog"]),
    ("file,label", [",cat,,", ",dog", ",cat", ",dog"]),
    ("file,label,", [",cat,7", ",dog,8", ",cat,9", ",dog,10"]),
])  # fmt: skip
def test_tables_as_programs_write_them(tmp_path: Path, header: str, rows: list[str]) -> None:
    listing = list_table(write_table(tmp_path, header, rows))
    assert listing.class_names == ("cat", "dog")
    assert listing.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("header", "rows"), [
    ("file,sea,sky", [",1,0", ",0,1", ",1,1", ",0,0"] * 3),
    ("file,labels", [",sea", ",sky", ",sea|sky", ","] * 3),
    ("file,labels", [",sea", ",sky", ",sky; sea", ","] * 3),
])  # fmt: skip
def test_several_labels_at_once(tmp_path: Path, header: str, rows: list[str]) -> None:
    table = write_table(tmp_path, header, rows)
    data = load_data("table", path=str(table))
    assert data.multilabel
    assert data.class_names == ("sea", "sky")
    assert list_table(table).labels[:4].tolist() == [[1, 0], [0, 1], [1, 1], [0, 0]]
    assert data.train.labels.shape == (len(data.train), 2)
    assert held_images(data.test, 0, data).rule == "threshold"
    with pytest.raises(ValueError, match="expected one label an example"):
        load_data("table", path=str(table), multilabel=False)


@pytest.mark.parametrize(("header", "rows", "message"), [
    ("file,label", [], "no rows"),
    ("file,label", [",a", ",a"], "at least two classes, got a"),
    ("file", ["", ""], "expected a column label"),
    ("file,x,y", [",1,2", ",0,1"], "expected a column label, or 0 and 1"),
    ("file,label,split", [",a,train", ",b,later"], "split: expected train, val or test"),
    ("file,label", [",a", ",b", ",", ",b"], "row 3: expected a label in column 'label', got none"),
    ("file,label", [",a", "", ",b"], "row 2: expected a label"),
    ("file,label", [",a", ",b,c"], "row 2: more fields than the header has; put text with ',' in it betw"),
    ("file,label,label", [",a,b", ",b,a"], "two columns 'label'"),
    ("file,x,y", [",1,0", ",0,"], "row 2 has '' in y"),
    ("0.png,a", [",a", ",b"], r"expected a header, got a file, 0\.png; add a first line file,label"),
    ("gone.png,a", [",a", ",b"], "expected a header, got a first line with the label 'a'"),
])  # fmt: skip
def test_tables_that_say_too_little(tmp_path: Path, header: str, rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_table(write_table(tmp_path, header, rows))


@pytest.mark.parametrize("row", [b"x" * 200_000 + b",1", b"a\0b.png,1", b"a/" * 5000 + b"b.png,1", b"\xff\xfe.png,1"],
                         ids=["long field", "NUL", "long name", "not UTF-8"])  # fmt: skip
def test_tables_that_no_program_writes(tmp_path: Path, row: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(b"file,label\n" + row + b"\n")
    with pytest.raises((ValueError, FileNotFoundError), match=r"t\.csv: ") as caught:
        list_table(tmp_path / "t.csv")
    assert len(str(caught.value)) < 1000


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--images: no folder"):
        list_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="no pictures in folders; expected one folder per class"):
        list_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="--table: no file"):
        list_table(tmp_path / "none.csv")
    (tmp_path / "t.csv").write_text("file,label\nx.png,a\n")
    with pytest.raises(FileNotFoundError, match=r"no file .*x\.png; paths .*'file' are relative .* table of numbers"):
        list_table(tmp_path / "t.csv")
    write_pictures(tmp_path / "p" / "train", 6, 8, 8)
    with pytest.raises(ValueError, match="none of 6 examples is held out to test on: expected a test part"):
        load_data("images", path=str(tmp_path / "p"))
    table = write_table(tmp_path, "file,sea,sky", [",1,0", ",0,1"])
    with pytest.raises(ValueError, match="no column 'people', a class of training; expected sea, sky, people"):
        list_table(table, ("sea", "sky", "people"))
    write_pictures(tmp_path / "q" / "car", 3, 8, 8)
    (tmp_path / "q" / "train").mkdir()
    with pytest.raises(ValueError, match=r"as .*/train/cat/1\.png \(train is taken for a split; rename it if"):
        list_folder(tmp_path / "q")


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The datasets library, with a cache of its own and without a network."""
    library = importlib.import_module("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    return library


def write_parquet(folder: Path, part: str, count: int, labels: Any = None, first: int = 0, **columns: Any) -> Path:
    """Picture k is of grey k, stored as bytes; class k % 2."""
    parquet, arrow = (importlib.import_module(name) for name in ("pyarrow.parquet", "pyarrow"))
    pictures = [png(k) for k in range(first, first + count)]
    table = columns or {"image": pictures, "label": [k % 2 for k in range(count)] if labels is None else labels}
    folder.mkdir(exist_ok=True)
    parquet.write_table(arrow.table(table), folder / f"{part}-{first:05d}.parquet")
    return folder


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_of_the_hub(datasets: Any, tmp_path: Path, streaming: bool) -> None:
    for part, counts in (("train", (4, 2)), ("validation", (2,)), ("test", (3, 1))):
        for k, count in enumerate(counts):  # a split of several files
            write_parquet(tmp_path / "hub", part, count, first=4 * k)
    data = load_data("hub", path=str(tmp_path / "hub"), streaming=streaming)
    assert data.class_names == ("0", "1")
    assert [len(s) for s in (data.train, data.validation, data.test)] == [6, 2, 4]
    assert data.test.images[:][:, 0, 0, 0].tolist() == [0, 1, 2, 4]
    assert data.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.train.images[torch.tensor([4, 0])][:, 0, 0, 0].tolist() == [4, 0]


def test_folders_and_saved_tables_that_the_hub_library_reads(datasets: Any, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "pictures" / "train", 30, 8, 8).parent
    listing = list_hub(str(folder))
    assert Counter(listing.parts) == {"": 30}  # nothing is held out yet
    assert listing.class_names == SHAPES
    data = load_data("hub", path=str(folder), streaming=True)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [21, 3, 6]
    rows = datasets.Dataset.from_dict({"img": [np.zeros((4, 4), np.uint8)] * 4, "label": [0, 1, 1, 0]},
                                      datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(2)}))
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "saved"))
    assert load_data("hub", path=str(tmp_path / "saved")).shape == (1, 4, 4)


def test_data_sets_of_the_hub_that_do_not_fit_are_named(datasets: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected columns image and label, got text"):
        list_hub(str(write_parquet(tmp_path / "text", "train", 1, text=["a"])))
    with pytest.raises(ValueError, match="no split train, only test"):
        list_hub(str(write_parquet(tmp_path / "rest", "test", 2)))
    classes = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(2)})
    rows = datasets.Dataset.from_dict({"image": [np.zeros((4, 4), np.uint8)] * 2, "label": [1, -1]}, classes)
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "unlabelled"))
    with pytest.raises(ValueError, match="unlabelled: expected labels from 0 to 1, got -1"):
        list_hub(str(tmp_path / "unlabelled"))
    cut = write_parquet(tmp_path / "cut", "train", 9) / "train-00000.parquet"
    write_parquet(tmp_path / "cut", "train", 9, first=9)
    cut.write_bytes(cut.read_bytes()[:-60])
    with pytest.raises(ValueError, match=r"--dataset: .*cut: `datasets` cannot read it"):
        list_hub(str(tmp_path / "cut"))
    broken = write_parquet(tmp_path / "broken", "train", 1, image=[b"\x89PNG no"] * 4, label=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="broken: row 0: not a whole picture"):
        load_data("hub", path=str(broken))


def test_a_constant_column_is_divided_by_1_not_by_what_rounding_leaves() -> None:
    for n in range(50, 150, 7):
        rows = [torch.tensor([0.1], dtype=torch.float64)] * n
        listing = Listing(rows, torch.zeros(n, dtype=torch.int64), ["train"] * (n - 1) + ["test"], ("a",))
        assert feature_scale(listing) == ([pytest.approx(0.1)], [1])
