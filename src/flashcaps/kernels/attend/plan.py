"""How `attend`'s kernels cut their work: rules of the shapes alone.

A program keeps a tile of poses in registers while the parents stream past. Sums over children (s, gq) or over examples
(gW) that several programs share are made in parts, one for each chunk of children or examples. More chunks fill the
device, but their room is bound by the layer's own size, so that forward + backward peak within twice the bytes of
poses, weights, parents and their gradients. A convolutional layer forms no patch but its gradient, a few examples at a
time (`examples`). Where all couplings are equal a step is three plain products with tiles of their own (`uniform`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from ..common.rows import ceil_div, power_of_two
from ..votes import Votes, Windows

MULTIPROCESSORS = 132  # of a large GPU
FINISHERS = 264  # programs at most that end a launch
# Partial sums of a layer, as a share of its own elements. The bound of twice its bytes is 4 (values and gradients,
# twice), of which values take 1 and gradients 1 more; the rest are log-sum-exps and what iterations save.
ROOM, LEAST_ROOM = 1.4, 0.95
LARGEST = 16 << 20  # elements of partial sums in any layer
SLOWER = 1.5  # how much longer than with LARGEST a layer may take to stay within its room
PATCHES, LEAST = 0.5, 1 << 19  # gradients of patches, as a share of a layer's own elements, and elements always allowed
PARENTS, FEW_PARENTS = (4, 5, 8, 10, 16, 32), (2, 3)  # of a program, about, and where room is short
ROWS_HELD, COLUMNS_HELD, OUT_HELD = 16, 32, 64  # of a pose in registers, at most: its rows, columns in and columns out


class Block(NamedTuple):
    """What a program of a kernel holds: rows (examples x pose rows), columns (pose columns x children), warps."""

    rows: int
    columns: int
    warps: int
    resident: int  # programs of a multiprocessor
    registers: int | None = None  # at most, of a thread: fewer let more programs in
    stages: int = 1  # of the loop over parents in which gW is summed: more load ahead, into more registers


BLOCKS = {"forward": Block(64, 128, 4, 2), "backward": Block(64, 64, 4, 3, registers=168)}
# a long loop over parents gains more from what it holds and loads ahead than from a third program
MANY_PARENTS, LONG = 32, {**BLOCKS, "backward": Block(64, 64, 4, 2, stages=3)}
# products in three parts hold the parts of their factors, too: larger blocks would spill
EXACT = {"forward": Block(64, 64, 4, 2), "backward": Block(64, 64, 4, 2)}


class UniformTile(NamedTuple):
    """A product of equal couplings: rows (b, c), columns (i, k), parents' columns (j, h); programs at a time."""

    rows: int
    columns: int
    parents: int
    warps: int
    stages: int
    resident: int  # programs of a multiprocessor, by registers and shared memory


FEW_ROWS = UniformTile(64, 64, 32, 2, 3, 4)
# With many rows poses are to be read once: s and gW take all parents at a time. Four warps are a warp group, the unit
# of the fastest products. 32 columns or more of 4 x 4 poses fill whole sectors of memory.
MANY_ROWS = {
    "uniform_sum": UniformTile(64, 32, 128, 4, 3, 3),
    "uniform_pose_gradient": UniformTile(64, 128, 32, 4, 3, 2),
    "uniform_weight_gradient": UniformTile(32, 128, 128, 8, 3, 2),
}
ROWS = 4096  # from which on they are many


class Sizes(NamedTuple):
    """u (B, G, 1, C, d), weight (J, d, G, h)."""

    b: int
    g: int
    j: int
    c: int
    d: int
    h: int
    image: int = 0  # elements of u where the children of several places overlap in it
    pose: int = 0  # elements of the parents' pose that routing continues from

    @property
    def poses(self) -> int:
        return self.image or self.b * self.g * self.c * self.d

    @property
    def weight(self) -> int:
        return self.j * self.d * self.g * self.h

    @property
    def parents(self) -> int:
        return self.b * self.j * self.c * self.h

    @property
    def own(self) -> int:
        """Elements that a layer reads and writes at the least, without their gradients."""
        return self.poses + self.weight + self.parents + self.pose

    @property
    def room(self) -> int:
        """Elements of partial sums; a step keeps two more numbers of each child, and parents twice more."""
        room = max(ROOM * self.own - 2 * (self.b * self.g + self.parents), LEAST_ROOM * self.own)
        return min(int(room), LARGEST)

    @property
    def wide(self) -> bool:
        """Whether a tile of these poses would not fit a program's registers."""
        return self.c > ROWS_HELD or self.d > COLUMNS_HELD or self.h > OUT_HELD

    @property
    def many(self) -> bool:
        """Whether so many rows read the weights that a copy of those, in the order they are read in, costs little."""
        return self.b * self.c >= ROWS


def sizes(u: Tensor, weight: Tensor, window: Sequence[int] = ()) -> Sizes:
    """u (B, G, 1, C, d), or with a window (C, kernel, stride) an image (B, T, H, W, D)."""
    j, d, g, h = weight.shape
    if not window:
        return Sizes(u.shape[0], g, j, u.shape[3], d, h)
    rows, kernel, stride = window
    places = ((u.shape[2] - kernel) // stride + 1) * ((u.shape[3] - kernel) // stride + 1)
    return Sizes(u.shape[0] * places, g, j, rows, d, h, u.numel())


def wide(votes: Votes | Windows) -> bool:
    """Whether a tile of these poses would not fit a program's registers."""
    u, weight, *window = votes
    return sizes(u, weight, window).wide


def too_large(n: Sizes) -> str | None:
    """Why kernels that form votes in registers cannot take these, or None."""
    if n.wide:
        most = f"{ROWS_HELD}, {COLUMNS_HELD} and {OUT_HELD}"
        return f"poses of {n.c} rows, {n.d} columns in and {n.h} out; the kernel takes at most {most}"
    elements = max(n.b * n.g * n.c * n.d, n.weight, n.parents)
    return f"a tensor of {elements} elements; the kernel's addresses take 2**31" if elements >= 1 << 31 else None


class Tile(NamedTuple):
    """BT examples x IC children; CP, DP, HP: C, d, h rounded up."""

    bt: int
    ic: int
    cp: int
    dp: int
    hp: int
    warps: int
    resident: int
    registers: int | None
    stages: int


def tile(n: Sizes, kernel: str, exact: bool = False) -> Tile:
    """The kernel's block in examples and children; the matrix units take no fewer than 16 columns of a vote."""
    block = (EXACT if exact else LONG if n.j >= MANY_PARENTS else BLOCKS)[kernel]
    cp, dp, hp = power_of_two(n.c), power_of_two(n.d), max(power_of_two(n.h), 16)
    bt = max(min(block.rows // cp, power_of_two(n.b)), 16 // cp, 1)
    warps = block.warps if bt * cp == block.rows else min(block.warps, 4)
    return Tile(bt, max(block.columns // dp, 8), cp, dp, hp, warps, *block[3:])


def finishers(rows: int) -> int:
    """Programs that end a launch, for so many rows (b, j)."""
    return min(rows, FINISHERS)


def finish(rows: int, d: int, chunks: int, warps: int) -> dict[str, int]:
    """Their constants: as many rows to a tile as leave enough tiles, and fewer where there are many chunks."""
    dp, parts, most = power_of_two(d), power_of_two(chunks), 1024 * warps
    rt = max(min(power_of_two(rows // FINISHERS), most // (2 * dp * parts)), 64 // dp, 1)
    return {"RP": dp, "RT": rt, "CT": min(parts, max(most // (rt * dp), 1))}


class Cut(NamedTuple):
    """A grid whose programs add up: tiles of children, tiles of examples and parents of each program."""

    tiles: int
    batches: int
    parents: int
    grid: tuple[int, int, int]  # chunks of children, chunks of examples, groups of parents


class Choice(NamedTuple):
    """A cut, its estimated time, and the elements of its partial sums."""

    time: float
    memory: int
    cut: Cut


def _memory(n: Sizes, weights: int, chunks: int) -> int:
    """Elements of partial gW and gq; those of gq are freed before the parts of gW are added up to one more."""
    if weights == chunks == 1:
        return 0
    return max((weights - 1) * n.weight + chunks * n.parents, weights * n.weight * (weights > 1))


def _choices(n: Sizes, t: Tile, kernel: str, per_program: tuple[int, ...]) -> Iterator[Choice]:
    """Cuts that could be best: as many chunks of examples as fill the device, as there are, as have room, or one.

    A wave of programs takes as long as one: its tiles of children and examples, each with its parents and the poses
    to load. gW ("backward") has a copy per chunk of examples, s or gq one per chunk of children, and a million
    elements of copies take as long to add up as two parents.
    """
    batches, tiles = ceil_div(n.b, t.bt), ceil_div(n.g, t.ic)
    full, both = MULTIPROCESSORS * t.resident, kernel == "backward"
    for groups in sorted({ceil_div(n.j, p) for p in per_program}):
        parents = ceil_div(n.j, groups)
        for per in range(1, tiles + 1):
            chunks = ceil_div(tiles, per)
            fill, fit = full // (chunks * groups), (n.room - chunks * n.parents) // n.weight
            copies = {min(max(k, 1), batches) for k in (1, fill, fill + 1, fit, fit + 1, batches)}
            for rows in sorted({ceil_div(batches, k) for k in copies}) if both else [1]:
                grid = (chunks, ceil_div(batches, rows), ceil_div(n.j, parents))
                weights = grid[1] if both else 1
                waves = ceil_div(grid[0] * grid[1] * grid[2], full)
                added = (weights - 1) * n.weight + (chunks - 1) * n.parents
                time = waves * per * rows * (parents + 1.0) + 2e-6 * added
                if (memory := _memory(n, weights, chunks)) <= LARGEST:
                    yield Choice(time, memory, Cut(per, rows, parents, grid))


@lru_cache(maxsize=256)
def cut(n: Sizes, t: Tile, kernel: str) -> Cut:
    """The cut of least estimated time whose partial sums stay within their room; if that
    would take much longer than LARGEST for them, the one of least memory that does not.
    """
    best = min(_choices(n, t, kernel, PARENTS), key=lambda x: x.time)  # there is one: one chunk of each has no copies
    if best.memory <= n.room:
        return best.cut
    choices = list(_choices(n, t, kernel, (*FEW_PARENTS, *PARENTS)))
    lean = min((x for x in choices if x.memory <= max(n.room, 0)), key=lambda x: x.time)
    if lean.time <= SLOWER * best.time:
        return lean.cut
    return min((x for x in choices if x.time <= SLOWER * best.time), key=lambda x: x.memory).cut


def uniform(kernel: str, n: Sizes) -> UniformTile:
    """The tile of a product of equal couplings."""
    if not n.many:
        return FEW_ROWS
    t, columns, parents = MANY_ROWS[kernel], max(power_of_two(n.g * n.d), 16), max(power_of_two(n.j * n.h), 16)
    return t._replace(columns=min(t.columns, columns), parents=min(t.parents, parents))


@lru_cache(maxsize=256)
def chunks(tiles: int, programs: int, copies: int, resident: int) -> tuple[int, int]:
    """Tiles of a program and chunks of them that take the least estimated time, for sums by as many `programs` in each
    chunk; at most `copies` chunks, or one.
    """
    full = MULTIPROCESSORS * resident
    per = [k for k in range(1, tiles + 1) if k == tiles or ceil_div(tiles, k) <= copies]
    best = min(per, key=lambda k: ceil_div(ceil_div(tiles, k) * programs, full) * (k + 2.0))
    return best, ceil_div(tiles, best)


@lru_cache(maxsize=256)
def examples(n: Sizes, batch: int) -> int:
    """Examples of an image whose patches' gradients are held at a time: of no more elements than PATCHES says, and in
    as few waves of programs in all as can be, each launch counted as one more.
    """
    t = uniform("uniform_pose_gradient", n)
    one, columns = n.b // batch, ceil_div(n.g * n.d, t.columns)
    most = max(int(PATCHES * n.own), LEAST) // (one * n.g * n.c * n.d)
    fewest = ceil_div(batch, max(most, 1))

    def waves(launches: int) -> int:
        rows = ceil_div(ceil_div(batch, launches) * one * n.c, t.rows)
        return launches * (ceil_div(rows * columns, MULTIPROCESSORS * t.resident) + 1)

    return ceil_div(batch, min(range(fewest, min(2 * fewest, batch) + 1), key=waves))
