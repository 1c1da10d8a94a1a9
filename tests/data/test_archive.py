import io
import random
import stat
import tarfile
import zipfile

import pytest

from flashcaps.data.archive import unpack


def make_tar(path, entries):
    with tarfile.open(path, "w:gz") as t:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                t.addfile(info)
            else:
                info.size = len(content)
                t.addfile(info, io.BytesIO(content))


def make_zip(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if content is None:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            z.writestr(info, content or b"/etc/passwd")


@pytest.fixture(params=[make_tar, make_zip])
def make(request):
    return request.param


def test_writes_the_wanted_members_and_no_others(tmp_path, make):
    make(tmp_path / "a", [("in/x.bin", b"xx"), ("in/readme", b"r"), ("y.bin", b"yyy")])
    unpack(tmp_path / "a", {"in/x.bin": tmp_path / "out" / "x", "y.bin": tmp_path / "out" / "y"})
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["x", "y"]
    assert (tmp_path / "out" / "x").read_bytes() == b"xx"
    assert (tmp_path / "out" / "y").read_bytes() == b"yyy"


@pytest.mark.parametrize(("entry", "message"), [
    *(((name, b"evil"), "points outside the archive; refused")
      for name in ("/abs", "../up", "in/../../up", "c:/windows", "in\\..\\up")),
    (("link", None), "member 'link' is neither a file nor a folder; refused"),
    (("y", b"\0" * 1200), "expected at most 1,000 bytes unpacked, found 1,202 or more; refused"),
    (("z", b"zz"), r"expected a member 'y', found \['x', 'z'\]"),
])  # fmt: skip
def test_what_is_refused_leaves_nothing(tmp_path, make, entry, message):
    make(tmp_path / "a", [("x", b"xx"), entry])
    with pytest.raises(ValueError, match=message):
        unpack(tmp_path / "a", {"x": tmp_path / "out" / "x", "y": tmp_path / "out" / "y"}, limit=1000)
    assert not (tmp_path / "out").exists()


def test_truncated_archive_leaves_nothing(tmp_path, make):
    noise = random.Random(0).randbytes(50_000)
    make(tmp_path / "a", [("x", noise), ("y", noise)])
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(ValueError, match="expected a whole archive"):
        unpack(tmp_path / "a", {"x": tmp_path / "x", "y": tmp_path / "y"})
    assert not (tmp_path / "x").exists()
