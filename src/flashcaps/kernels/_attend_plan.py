"""How `attend`'s kernels cut their work, from the shapes alone: no search, no surprise."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

MULTIPROCESSORS = 132  # of a large GPU: work is spread over as many
ROOM = 12 << 20  # elements of partial sums


class Block(NamedTuple):
    """What a warp of a kernel holds: rows (pose rows x examples), elements (rows x pose columns x children)."""

    rows: int
    elements: int
    parents: int  # of a program at most, a warp each
    stages: int = 2  # tiles on their way


BLOCKS = {
    "log_sum_exp": Block(32, 2048, 4),
    "weighted_sum": Block(32, 2048, 4),
    "pose_gradient": Block(16, 1024, 4),
    "query_gradient": Block(32, 2048, 4),
    "weight_gradient": Block(16, 1024, 4),
}


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
    stages: int


class Cut(NamedTuple):
    """A grid whose programs add up over `tiles` tiles each; the chunks are the copies of the sum."""

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


def tile(n: Sizes, kernel: str) -> Tile:
    """The kernel's block in examples and children: 8 of each at least where sums over a pose shall stay in a thread,
    16 rows and columns for the matrix units.
    """
    block = BLOCKS[kernel]
    cp, dp, hp = power_of_two(n.c), power_of_two(n.d), max(power_of_two(n.h), 16)
    bt = max(block.rows // cp, min(8, 64 // cp))
    ic = max(block.elements // (bt * cp * dp), 16 // dp, 1)
    return Tile(bt, ic, min(block.parents, power_of_two(n.j)), cp, dp, hp, block.stages)


@lru_cache(maxsize=256)
def cut(tiles: int, programs: int, copy: int) -> Cut:
    """Chunks of least estimated time for sums over `tiles` tiles by as many `programs` per chunk.

    A multiprocessor's time is that of its programs, each its tiles and as much again as two to begin and end; a million
    elements of copies, `copy` in each chunk but the first, take as long to add up as a tile. Copies stay under ROOM.
    """
    best: tuple[float, Cut] | None = None
    for per in range(1, tiles + 1):
        chunks = ceil_div(tiles, per)
        copies = (chunks - 1) * copy
        if copies > ROOM:
            continue
        time = ceil_div(chunks * programs, MULTIPROCESSORS) * (per + 2.0) + 1e-6 * copies
        if best is None or time < best[0]:
            best = time, Cut(per, chunks)
    assert best is not None  # one chunk has no copies
    return best[1]
