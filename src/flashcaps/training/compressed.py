"""Weights as xz: a third smaller in bfloat16, an eighth in float16, the same bits, unpacked within a bound.

Of a number's two bytes one holds sign and exponent, which repeat, and one is noise: lp = pb = 1 keeps their statistics
apart.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

SUFFIX = ".xz"
MAGIC = b"\xfd7zXZ\0"
LIMIT = 1 << 30  # bytes of weights a file may unpack to
MEMORY = 128 << 20  # bytes of working memory a file may ask for; preset 9 asks for 65 MiB


def is_compressed(path: Path) -> bool:
    """By its first bytes, whatever its name; no safetensors file begins with them."""
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def compress(raw: bytes) -> bytes:
    """The same bytes for the same bytes, with a checksum over them."""
    if len(raw) > LIMIT:
        raise ValueError(f"weights: expected at most {LIMIT:,} bytes to compress, got {len(raw):,}; leave out {SUFFIX}")
    lzma = _lzma()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]
    return lzma.compress(raw, format=lzma.FORMAT_XZ, filters=filters)


def decompress(path: Path) -> bytes:
    """What a compressed file holds, whole and at most LIMIT bytes, or an error that names the file."""
    lzma = _lzma()
    with path.open("rb") as stream:
        packed = stream.read(LIMIT + 1)
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        raw = decoder.decompress(packed, max_length=LIMIT + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"{path}: does not unpack ({error}); the file is damaged, get it again") from None
    if max(len(packed), len(raw)) > LIMIT:
        raise ValueError(f"{path}: expected at most {LIMIT:,} bytes of weights, found more; refused")
    if not decoder.eof:
        raise ValueError(f"{path}: ends after {len(packed):,} bytes, too early; the file is damaged, get it again")
    if decoder.unused_data:
        raise ValueError(f"{path}: expected nothing after the weights, found {len(decoder.unused_data):,} bytes; "
                         "the file is damaged, get it again")  # fmt: skip
    return raw


def _lzma() -> ModuleType:
    try:
        import lzma
    except ImportError:
        raise ImportError(f"{SUFFIX} files need Python's module lzma, which this Python was built without; install "
                          "liblzma and build it again, or take another") from None  # fmt: skip
    return lzma
