"""How `attend`'s kernels cut their work, from the shapes alone: no search, no surprise."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

FULL = 264  # programs a large GPU of 132 multiprocessors holds at a time
ROOM = 12 << 20  # elements of partial sums
COUPLINGS = 16 << 20  # elements of couplings in memory at a time


class Block(NamedTuple):
    """What a program of a kernel holds: rows (examples x pose rows), columns (pose columns x children), parents."""

    rows: int
    columns: int
    warps: int
    parents: int = 1
    stages: int = 3  # tiles on their way, and the one that is there


BLOCKS = {
    "couplings": Block(64, 64, 4),
    "pose_gradient": Block(64, 64, 4),
    "coupled_sum": Block(64, 64, 4, 5, 2),
    "weight_gradient": Block(64, 64, 4, 2, 3),
}
PLAIN = Block(64, 64, 2, 32)  # its parents are columns (j, h)


class Sizes(NamedTuple):
    """u (B, G, 1, C, d), weight (J, d, G, h)."""

    b: int
    g: int
    j: int
    c: int
    d: int
    h: int


class Tile(NamedTuple):
    """BT examples x IC children x P parents; CP, DP, HP: C, d, h rounded up."""

    bt: int
    ic: int
    p: int
    cp: int
    dp: int
    hp: int
    warps: int
    stages: int


class Cut(NamedTuple):
    """Programs that add up `tiles` tiles each; the chunks are the copies of the sum."""

    tiles: int
    chunks: int


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def too_large(n: Sizes) -> str | None:
    """Why a tile of these poses would not fit a program's registers, or None."""
    if n.d > 32 or n.h > 64 or n.c > 16:
        return f"poses of {n.c} rows, {n.d} columns in and {n.h} out; the kernel takes at most 16, 32 and 64"
    elements = max(n.b * n.g * n.c * n.d, n.j * n.d * n.g * n.h, n.b * n.j * n.c * n.h)
    return f"a tensor of {elements} elements; the kernel's addresses take 2**31" if elements >= 1 << 31 else None


def per_program(parents: int, most: int) -> int:
    """Parents of a program: the poses it loads cost as much as one more, and a last program with few is a waste."""
    return min(range(1, most + 1), key=lambda p: ceil_div(parents, p) * (p + 1))


def tile(n: Sizes, kernel: str) -> Tile:
    """The kernel's block in examples and children; the matrix units take no fewer than 16 columns of a vote."""
    block = BLOCKS[kernel]
    cp, dp, hp = power_of_two(n.c), power_of_two(n.d), max(power_of_two(n.h), 16)
    bt = max(min(block.rows // cp, power_of_two(n.b)), 16 // cp, 1)
    warps = block.warps if bt * cp == block.rows else min(block.warps, 4)
    p = per_program(n.j, max(block.parents * 16 // hp, 1))
    return Tile(bt, max(block.columns // dp, 8), p, cp, dp, hp, warps, block.stages)


def children(n: Sizes) -> list[tuple[int, int]]:
    """Blocks of children, first and behind the last, whose couplings have room."""
    size = max(COUPLINGS // (n.b * n.j) // 16 * 16, 16)
    return [(begin, min(begin + size, n.g)) for begin in range(0, n.g, size)]


@lru_cache(maxsize=256)
def cut(tiles: int, programs: int, copy: int) -> Cut:
    """Chunks of least estimated time for sums over `tiles` tiles, by as many `programs` in each chunk.

    A wave of programs takes as long as one: its tiles, and as much again as two to begin and end. A million elements of
    copies, `copy` in each chunk, take as long to add up as one tile, and must not be more than ROOM.
    """
    best: tuple[float, Cut] | None = None
    for per in range(1, tiles + 1):
        chunks = ceil_div(tiles, per)
        if chunks > 1 and chunks * copy > ROOM:
            continue
        time = ceil_div(chunks * programs, FULL) * (per + 2.0) + 1e-6 * (chunks - 1) * copy
        if best is None or time < best[0]:
            best = time, Cut(per, chunks)
    assert best is not None  # one chunk has room
    return best[1]
