"""fetch against a server on this machine: whole, resumed, truncated, wrong, and from a folder."""

import gzip
import hashlib
import random
import shutil
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flashcaps.data import DATA, download
from flashcaps.data.download import fetch
from flashcaps.data.files import SUMS, Member, Remote
from flashcaps.data.mnist import MNIST

CONTENT = random.Random(0).randbytes(3_000_000)


def checksum(raw: bytes, kind: str = "sha256") -> str:
    return f"{kind}:{hashlib.new(kind, raw).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves `files`; `behaviour` says how badly. `ranges` records what was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.behaviour = "good"
        self.ranges: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        body = self.server.files.get(self.path[1:])
        if body is None:
            self.send_error(404)
            return
        start = 0
        if asked and self.server.behaviour != "no ranges":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        stop = start + 1_000_000 if self.server.behaviour == "stops" else len(body)
        self.wfile.write(body[start:stop])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def publish(server, monkeypatch):
    """Make the server the place where mnist is published, as one file."""

    def publish(raw: bytes, file: str = "digits.gz", **options) -> Remote:
        server.files[file] = raw
        options = {"urls": (server.url(file),), "size": len(raw), "checksum": checksum(raw)} | options
        remote = Remote(file, **options)
        monkeypatch.setattr(MNIST, "files", (remote,))
        return remote

    return publish


def put(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


def names(folder) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != SUMS)


def test_whole_file_arrives_with_progress(publish, server, tmp_path):
    publish(CONTENT)
    seen = []
    (path,) = fetch("mnist", tmp_path, progress=lambda *args: seen.append(args))
    assert path == tmp_path / "mnist" / "digits.gz"
    assert path.read_bytes() == CONTENT
    assert names(tmp_path / "mnist") == ["digits.gz"]
    assert seen[-1] == ("digits.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    fetch("multimnist", tmp_path)  # the same file, in place
    assert server.ranges == [None]


@pytest.mark.parametrize("later", ["good", "no ranges"])  # a server without ranges starts over
def test_transfer_that_stops_is_an_error_and_goes_on_later(publish, server, tmp_path, later):
    publish(CONTENT)
    server.behaviour = "stops"
    with pytest.raises(ConnectionError, match=r"expected 3,000,000 bytes, the transfer stopped after 1,000,000.*again"):
        fetch("mnist", tmp_path)
    assert names(tmp_path / "mnist") == ["digits.gz.part"]
    server.behaviour = later
    (path,) = fetch("mnist", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000000-"]
    assert names(tmp_path / "mnist") == ["digits.gz"]


@pytest.mark.parametrize(("options", "there", "error", "message", "left"), [
    ({"checksum": checksum(b"something else")}, ("digits.gz", b"older"), ValueError,
     r"digits.gz from http://127.*: expected sha256:.*, found sha256:.*; not", ["digits.gz"]),
    ({}, ("digits.gz.part", b"x" * 500), ValueError, "; not taken, get it elsewhere", []),
    ({"size": len(CONTENT) + 1}, None, ConnectionError, "expected 3,000,001 bytes, the server offers 3,000,000", []),
], ids=["checksum", "resumed onto something else", "size"])
def test_a_wrong_file_is_thrown_away(publish, tmp_path, options, there, error, message, left):
    """An older file is left alone; afterwards the right one can be had."""
    publish(CONTENT, **options)
    if there:
        put(tmp_path / "mnist" / there[0], there[1])
    with pytest.raises(error, match=message):
        fetch("mnist", tmp_path)
    assert names(tmp_path / "mnist") == left
    assert not left or (tmp_path / "mnist" / "digits.gz").read_bytes() == b"older"
    publish(CONTENT)
    assert fetch("mnist", tmp_path)[0].read_bytes() == CONTENT


def test_every_address_is_tried_and_all_failing_is_one_line(publish, server, tmp_path):
    publish(CONTENT, urls=(server.url("gone"), server.url("digits.gz")))
    assert fetch("mnist", tmp_path / "second")[0].read_bytes() == CONTENT
    publish(CONTENT, urls=(server.url("gone"), server.url("away")))
    with pytest.raises(ConnectionError, match=r"/gone: HTTP Error 404.*/away: HTTP Error 404.*--from DIR") as error:
        fetch("mnist", tmp_path)
    assert "\n" not in str(error.value)


def archive(kind: str = "gztar", **members: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        for name, raw in members.items():
            put(Path(folder, "inner", name), raw)
        return Path(shutil.make_archive(f"{folder}/packed", kind, folder, "inner")).read_bytes()


MEMBERS = (Member("inner/a", "a", 3, checksum(b"aaa")), Member("inner/b", "deep/b", 2))


@pytest.mark.parametrize("kind", ["gztar", "zip"])
def test_archive_is_unpacked_and_removed(publish, server, tmp_path, kind):
    publish(archive(kind, a=b"aaa", b=b"bb", c=b"c"), "x.archive", members=MEMBERS)
    paths = fetch("mnist", tmp_path)
    assert names(tmp_path / "mnist") == ["a", "deep/b"]
    assert [p.read_bytes() for p in paths] == [b"aaa", b"bb"]
    fetch("mnist", tmp_path)
    assert len(server.ranges) == 1


def test_archive_with_a_wrong_member_changes_nothing(publish, server, tmp_path):
    publish(archive(a=b"aaX", b=b"bb"), "x.tar.gz", members=MEMBERS)
    put(tmp_path / "mnist" / "deep" / "b", b"BB")
    with pytest.raises(ValueError, match=r"inner/a in .*: expected sha256"):
        fetch("mnist", tmp_path)
    assert (tmp_path / "mnist" / "deep" / "b").read_bytes() == b"BB"
    assert not (tmp_path / "mnist" / "a").exists()


@pytest.mark.parametrize("below", [".", "mnist"])
def test_from_a_folder(publish, server, tmp_path, below):
    publish(CONTENT)
    put(tmp_path / "from" / below / "digits.gz", CONTENT)
    (path,) = fetch("mnist", tmp_path / "root", tmp_path / "from")
    assert path.read_bytes() == CONTENT
    assert (tmp_path / "from" / below / "digits.gz").exists()
    assert server.ranges == []


def test_a_file_packed_otherwise_is_as_good_and_so_is_one_in_place_unpacked(publish, server, tmp_path):
    publish(gzip.compress(CONTENT, 9, mtime=1), content=checksum(CONTENT))
    put(tmp_path / "from" / "digits.gz", gzip.compress(CONTENT, 1, mtime=2))
    assert names(fetch("mnist", tmp_path / "one", tmp_path / "from")[0].parent) == ["digits.gz"]
    put(tmp_path / "two" / "mnist" / "digits", CONTENT)
    assert names(fetch("mnist", tmp_path / "two")[0].parent) == ["digits"]
    assert server.ranges == []


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"x" + raw[1:]])
def test_damaged_file_in_a_folder_is_refused_and_a_good_one_kept(publish, tmp_path, damage):
    publish(CONTENT)
    put(tmp_path / "from" / "digits.gz", damage(CONTENT))
    with pytest.raises(ValueError, match=r"digits.gz from .*from/digits.gz: expected .*, found .*; not taken"):
        fetch("mnist", tmp_path, tmp_path / "from")
    assert names(tmp_path / "mnist") == []
    (tmp_path / "mnist" / "digits.gz").write_bytes(CONTENT)
    assert fetch("mnist", tmp_path, tmp_path / "from") == [tmp_path / "mnist" / "digits.gz"]


def test_archive_in_a_folder_is_unpacked_and_stays(publish, tmp_path):
    raw = archive(a=b"aaa", b=b"bb")
    publish(raw, "x.tar.gz", members=MEMBERS)
    with pytest.raises(FileNotFoundError, match=r"no x.tar.gz in .*from or .*mnist; unpacked files go to .*one/mnist"):
        fetch("mnist", tmp_path / "one", tmp_path / "from")
    put(tmp_path / "from" / "x.tar.gz", raw)
    fetch("mnist", tmp_path / "one", tmp_path / "from")
    assert names(tmp_path / "one" / "mnist") == ["a", "deep/b"]
    assert (tmp_path / "from" / "x.tar.gz").exists()


def test_what_comes_along_needs_nothing(tmp_path):
    assert fetch("digits", tmp_path) == []
    assert fetch("synthetic-norb", tmp_path) == []


def test_every_published_file_has_an_address_a_size_and_a_checksum():
    folders = {id(folder): folder for load in DATA.values() for folder in getattr(load, "published", ())}
    assert len(folders) == 8
    for folder in folders.values():
        for remote in folder.files:
            kind, _, value = remote.checksum.partition(":")
            assert len(value) == {"md5": 32, "sha256": 64}[kind]
            assert remote.size > 0
            assert all(url.startswith(("http://", "https://")) and url.endswith(remote.file) for url in remote.urls)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "sst5"])
def test_published_files_have_the_checksums_stated(real_root, name):
    (folder,) = DATA[name].published
    assert all(download._present(remote, Path(real_root) / folder.folder) for remote in folder.files)
