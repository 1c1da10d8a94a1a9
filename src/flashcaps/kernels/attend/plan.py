"""How `attend`'s kernels cut their work, from the shapes alone; a search for other blocks is for who asks (`_tiles`).

Memory: sums that programs share are made in parts, one for each chunk of children or examples. The more chunks the
fuller the device, but their room is bound by the layer's own size, so that forward + backward peak within twice the
bytes of poses, weights, parents and their gradients. Of convolutional layers no patch is formed but its gradient, a few
examples at a time (`examples`).

What was tried (one H200, TF32, forward + backward of 1152x8 -> 10x16, 3200x8 -> 10x16, 2048x8 -> 100x16 at batch 128,
3 iterations, and one attention step 288x4x4 -> 32x4x4 at 6272; ms):

- tiles that keep poses in registers while parents stream past, sums over children in memory: 0.292 0.651 2.68 4.64.
  This is the design here; of it, settle and unsettle then took 0.06 ms of the first row and take 0.02 now.
- a warp per parent, all sums in registers, a kernel per gradient: 0.377 0.96 3.3 7.4. No barriers and no shuffles, but
  each warp loads the same poses again from shared memory, where by their layout banks collide (not counted).
- couplings of a block of children written once, all else plain products: 0.307 0.71 4.2 6.0, and 1.6 times the memory
  of the last two. The products gain less than the kernels lose that store couplings (2048x8: from 0.06 to 0.36 ms).
- of that, the products of the first, uniform step were kept: forward 0.008 ms of the first row, backward 0.027.
- the same tiles without loading the next parent's ahead, factors dealt so that no shuffle comes between two products,
  poses held twice so that none are transposed: weighted_sum takes 15, 34, 142 and 637 us for 20, 49, 239 and 862
  before, parent_gradient with at most 168 registers 36, 88, 542 and 2110 us for 42, 116, 571 and 2621. Loading ahead,
  128 registers, 32 or 128 rows, 8 warps: each slower or about as fast. Of results/trials/attend_h200_rewritten.json.
- products of equal couplings in 8 tiles each: `FEW`, 64 x 64 x 32 with 2 warps, takes 7, 7 and 15 us for s, gu and gW
  with few rows (CapsNet) and wastes what attention ResNet has; of its largest layer `MANY` takes 74, 114 and 135 us.
  Of results/trials/attend_h200_plain.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from ...routing.votes import Votes, Windows
from ..common.tiles import pick

MULTIPROCESSORS = 132  # of a large GPU
FULL = {"weighted_sum": 264, "parent_gradient": 396}  # programs that it holds at a time
# Of a layer's own elements, what its partial sums may have. Of 4 (they and their gradients, twice) 1 are given, 1 more
# the gradients; the rest are log-sum-exps and what iterations keep.
ROOM, LEAST_ROOM = 1.4, 0.95
LARGEST = 16 << 20  # elements of them in any layer
SLOWER = 1.5  # than with LARGEST for all: no layer shall wait longer for less memory
PATCHES, LEAST = 0.5, 1 << 19  # elements of the gradients of patches, of a layer's own, and what is few in any layer
PARENTS, FEW_PARENTS = (4, 5, 8, 10, 16, 32), (2, 3)  # of a program, about, and where room is short


class Block(NamedTuple):
    """What a program of a kernel holds: rows (examples x pose rows), columns (pose columns x children), warps."""

    rows: int
    columns: int
    warps: int
    registers: int | None = None  # at most, of a thread: fewer than it would take let more programs in


BLOCKS = {
    "log_sum_exp": Block(64, 64, 4),
    "weighted_sum": Block(64, 128, 4),
    "pose_gradient": Block(64, 64, 4),
    "parent_gradient": Block(64, 64, 4, registers=168),
}
# products in three parts hold their factors' parts, too: what else would spill
EXACT = {**BLOCKS, "weighted_sum": Block(64, 64, 4), "parent_gradient": Block(64, 64, 4)}


class Plain(NamedTuple):
    """Of the products of equal couplings: rows (b, c), columns (i, k), parents' columns (j, h); programs at a time."""

    rows: int
    columns: int
    parents: int
    warps: int
    stages: int
    resident: int  # of a multiprocessor, by registers and shared memory


FEW = Plain(64, 64, 32, 2, 3, 4)
# With many rows poses are to be read once: s and gW take all parents at a time. Four warps are a warp group, the unit
# of the fastest products. 32 columns or more of 4 x 4 poses fill whole sectors of memory.
MANY = {
    "plain_sum": Plain(64, 32, 128, 4, 3, 3),
    "plain_pose_gradient": Plain(64, 128, 32, 4, 3, 2),
    "plain_weight_gradient": Plain(32, 128, 128, 8, 3, 2),
}
ROWS = 4096  # from which on they are many
ROWS_HELD, COLUMNS_HELD, OUT_HELD = 16, 32, 64  # of a pose, at most: its rows, columns in and columns out


class Sizes(NamedTuple):
    """u (B, G, 1, C, d), weight (J, d, G, h)."""

    b: int
    g: int
    j: int
    c: int
    d: int
    h: int
    image: int = 0  # elements of u where children of several places overlap in it
    pose: int = 0  # elements of the parents' pose to go on from

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


class Tile(NamedTuple):
    """BT examples x IC children; CP, DP, HP: C, d, h rounded up."""

    bt: int
    ic: int
    cp: int
    dp: int
    hp: int
    warps: int
    registers: int | None


class Cut(NamedTuple):
    """A grid whose programs add up: tiles of children, tiles of examples and parents of each program."""

    tiles: int
    batches: int
    parents: int
    grid: tuple[int, int, int]  # chunks of children, chunks of examples, groups of parents


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def wide(votes: Votes | Windows) -> bool:
    """Whether a tile of these poses would not fit a program's registers."""
    rows = votes.rows if isinstance(votes, Windows) else votes.u.shape[3]
    return rows > ROWS_HELD or votes.weight.shape[1] > COLUMNS_HELD or votes.weight.shape[3] > OUT_HELD


def too_large(n: Sizes) -> str | None:
    """Why kernels that form votes in registers would not take these, or None."""
    if n.c > ROWS_HELD or n.d > COLUMNS_HELD or n.h > OUT_HELD:
        most = f"{ROWS_HELD}, {COLUMNS_HELD} and {OUT_HELD}"
        return f"poses of {n.c} rows, {n.d} columns in and {n.h} out; the kernel takes at most {most}"
    elements = max(n.b * n.g * n.c * n.d, n.j * n.d * n.g * n.h, n.b * n.j * n.c * n.h)
    return f"a tensor of {elements} elements; the kernel's addresses take 2**31" if elements >= 1 << 31 else None


def tile(n: Sizes, kernel: str, exact: bool = False, bits: int = 32) -> Tile:
    """The kernel's block in examples and children; the matrix units take no fewer than 16 columns of a vote."""
    block = pick(kernel, (*n, exact, bits), (EXACT if exact else BLOCKS)[kernel], other_blocks)
    cp, dp, hp = power_of_two(n.c), power_of_two(n.d), max(power_of_two(n.h), 16)
    bt = max(min(block.rows // cp, power_of_two(n.b)), 16 // cp, 1)
    warps = block.warps if bt * cp == block.rows else min(block.warps, 4)
    return Tile(bt, max(block.columns // dp, 8), cp, dp, hp, warps, block.registers)


def other_blocks(block: Block) -> list[Block]:
    """What a search tries beside a block: one of its numbers changed."""
    changed: list[dict[str, Any]] = [{"rows": 32}, {"rows": 64}, {"rows": 128}, {"columns": 64}, {"columns": 128},
                                     {"warps": 8}, *({"registers": most} for most in (None, 128, 168))]  # fmt: skip
    return [x for x in dict.fromkeys(block._replace(**c) for c in changed) if x != block]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _memory(n: Sizes, weights: int, chunks: int) -> int:
    """Elements of so many copies of gW and of gq; gq's are gone when gW's are added up to one more."""
    if weights == chunks == 1:
        return 0
    return max((weights - 1) * n.weight + chunks * n.parents, weights * n.weight * (weights > 1))


class Choice(NamedTuple):
    """A cut, its estimated time, and the elements of its partial sums."""

    time: float
    memory: int
    cut: Cut


def _choices(n: Sizes, t: Tile, kernel: str, per_program: tuple[int, ...]) -> Iterator[Choice]:
    """Cuts that could be best: as many chunks of examples as fill the device, as there are, as have room, or one.

    A wave of programs takes as long as one: its tiles of children and examples, each with its parents and the poses
    to load. gW (`parent_gradient`) has a copy per chunk of examples, s or gq one per chunk of children, and a million
    elements of copies take as long to add up as two parents.
    """
    batches, tiles = ceil_div(n.b, t.bt), ceil_div(n.g, t.ic)
    full, both = FULL[kernel], kernel == "parent_gradient"
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
    """The cut of least estimated time whose partial sums stay within their room, FULL programs at a time; if that
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


def many(n: Sizes) -> bool:
    """Whether so many rows read the weights that a copy of those, in the order they are read in, costs little."""
    return n.b * n.c >= ROWS


def plain(kernel: str, n: Sizes) -> Plain:
    """The tile of a product of equal couplings."""
    if not many(n):
        return FEW
    t, columns, parents = MANY[kernel], max(power_of_two(n.g * n.d), 16), max(power_of_two(n.j * n.h), 16)
    return t._replace(columns=min(t.columns, columns), parents=min(t.parents, parents))


@lru_cache(maxsize=256)
def examples(n: Sizes, batch: int) -> int:
    """Of an image, whose patches' gradients are held at a time: of no more elements than PATCHES says, and in as few
    waves of programs in all as can be, each launch counted as one more.
    """
    t = plain("plain_pose_gradient", n)
    one, columns = n.b // batch, ceil_div(n.g * n.d, t.columns)
    most = max(int(PATCHES * n.own), LEAST) // (one * n.g * n.c * n.d)
    fewest = ceil_div(batch, max(most, 1))

    def waves(launches: int) -> int:
        rows = ceil_div(ceil_div(batch, launches) * one * n.c, t.rows)
        return launches * (ceil_div(rows * columns, MULTIPROCESSORS * t.resident) + 1)

    return ceil_div(batch, min(range(fewest, min(2 * fewest, batch) + 1), key=waves))


@lru_cache(maxsize=256)
def chunks(tiles: int, programs: int, copies: int, resident: int) -> tuple[int, int]:
    """Tiles of a program and chunks of them, at most so many copies and one more, of least estimated time, for sums
    by as many `programs` in each chunk.
    """
    full = MULTIPROCESSORS * resident
    per = [k for k in range(1, tiles + 1) if k == tiles or ceil_div(tiles, k) <= copies]
    best = min(per, key=lambda k: ceil_div(ceil_div(tiles, k) * programs, full) * (k + 2.0))
    return best, ceil_div(tiles, best)
