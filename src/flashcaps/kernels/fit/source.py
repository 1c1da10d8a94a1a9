"""Where votes come from, as the kernels of `_fit_triton` read them, and how their walks are cut.

Walks share out what they sum over between the warps of a program, which merge before they write; only where that
leaves a GPU idle are they cut into chunks. What chunks leave is kept below half of poses and transforms, so
memory is of the size of a layer's own tensors at any size.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

import triton
from torch import Tensor

from ..common.patches import Window

LANES = 32  # of a warp
MULTIPROCESSORS = 132  # of a large GPU
REGISTERS = 65536 // LANES  # of a multiprocessor, for each lane of its warps
SHORTEST = 8  # steps that take as long as what a walk begins and ends with
MOST = 64  # chunks
IMAGE = 1.9  # times an image: what a few examples of it at once may take on their way back
HIDDEN = 12  # warps of a multiprocessor whose work hides the latency of what they read
CHUNKED = 1 / 12  # of stored wide votes: what the chunks of one kernel may leave
TILE, EACH = 2048, 8  # elements of a tile of votes, at most, and of those a lane has
UNROLLED = 128  # multiply-adds of one vote that kernels unroll; at 256 their compiler takes minutes
NARROW = 16  # elements of a stored vote that a lane takes alone
READ = 3  # warps' work: reading from the second-level cache what one of them needs of its parents


class Source(NamedTuple):
    """Votes in two layouts; u None: the votes themselves, stored, those of wide poses as a product leaves them."""

    u: Tensor | None  # (B, G, R, C, K), or with a window the image (examples, types, height, width, C K)
    by_parent: Tensor  # (G, K, J, H), or votes (B, I, J, D), or (G, B, R, C, J, H)
    by_child: Tensor  # (J, K, G, H), or the same votes
    window: Window | None = None
    shift: Tensor | None = None  # (D, J): a bias that all children share
    own_by_parent: Tensor | None = None  # (G, C, J, H): a bias of each group
    own_by_child: Tensor | None = None  # (J, C, G, H)
    whole: int = 0  # elements of the image of which u is a few examples

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, I, J, R"""
        if self.tiled:
            g, b, r, _, j, _ = self.by_parent.shape
            return b, g * r, j, r
        if self.u is None:
            b, i, j, _ = self.by_parent.shape
            return b, i, j, 1
        (b, g, r, _, _), (groups, _, j, _) = self.u.shape, self.by_parent.shape
        if self.window is not None:
            return b * self.window.places, groups, j, 1
        return b, g * r, j, r

    @property
    def pose(self) -> tuple[int, int, int]:
        """C, K, H; K = 0 for stored votes, whose D is H unless they are wide."""
        if self.tiled:
            return self.by_parent.shape[3], 0, self.by_parent.shape[5]
        if self.u is None:
            return 1, 0, self.by_parent.shape[3]
        _, k, _, h = self.by_parent.shape
        return self.u.shape[4] // k if self.window is not None else self.u.shape[3], k, h

    @property
    def tiled(self) -> bool:
        """Whether the kernels of `_fit_tiles` take these votes."""
        return self.by_parent.ndim == 6

    @property
    def tile(self) -> dict[str, int]:
        """Parents, elements and warps."""
        width = triton.next_power_of_2(self.dim)
        parents = max(min(triton.next_power_of_2(self.sizes[2]), TILE // width), 1)
        return {"PARENTS": parents, "WIDTH": width, "num_warps": max(parents * width // (EACH * LANES), 1)}

    @property
    def blocks(self) -> int:
        """Tiles that hold all parents."""
        return triton.cdiv(self.sizes[2], self.tile["PARENTS"])

    @property
    def dim(self) -> int:
        c, _, h = self.pose
        return c * h

    @property
    def options(self) -> dict[str, int]:
        """What kernels are compiled for."""
        c, k, h = self.pose
        if self.tiled:
            return {"J": self.sizes[2], "C": c, "H": h, "RUN": self.run, **self.tile}
        own = self.own_by_child is not None
        return {"J": self.sizes[2], "C": c, "K": k, "H": h, "RUN": self.run, "OWN": own}

    @property
    def where(self) -> dict[str, int]:
        """What `pose_at` is told."""
        known = dict.fromkeys(("OH", "OW", "SB", "PY", "PX", "K", "ST", "SY", "SX"), 0)
        known = known if self.window is None else self.window.constants
        return {"KERNEL" if name == "K" else name: x for name, x in known.items()}

    @property
    def groups(self) -> int:
        return 1 if self.u is None else self.by_parent.shape[0]

    @property
    def one(self) -> bool:
        """Whether all children share one transform."""
        return self.u is not None and self.groups == 1

    @property
    def run(self) -> int:
        return 1 if self.dim % 4 else 4

    @property
    def by_parents(self) -> tuple[Tensor, Tensor, Tensor]:
        """Poses, transforms and biases; something to point at where they are not read."""
        poses = self.by_parent if self.u is None else self.u
        return poses, self.by_parent, self.by_parent if self.own_by_parent is None else self.own_by_parent

    @property
    def by_children(self) -> tuple[Tensor, Tensor, Tensor]:
        poses = self.by_parent if self.u is None else self.u
        return poses, self.by_child, self.by_child if self.own_by_child is None else self.own_by_child

    @property
    def room(self) -> int:
        """Elements that the chunks of one kernel may leave."""
        if self.tiled:
            return int(CHUNKED * self.by_parent.numel())
        return (self.by_parent.numel() + (0 if self.u is None else self.u.numel())) // 2

    @property
    def chunks(self) -> int:
        """Of the gradient of transforms, at most. All examples of an image add to the same, and it has what
        `examples_at_once` leaves of the image's room."""
        if self.whole:
            return 1 + int((2 - IMAGE) * self.whole) // self.by_parent.numel()
        return self.room // self.by_parent.numel()


def stored(weight: Tensor) -> bool:
    """Whether votes, being few, are stored. weight (J, d, G, h)"""
    j, d, _, h = weight.shape
    return j * h <= 4 * d


def wide(weight: Tensor, dim: int) -> bool:
    """Whether votes of `dim` elements are made by a matrix product, a few examples at a time, and read as tiles."""
    return dim * weight.shape[1] > UNROLLED and (dim > NARROW or not stored(weight))


def source_of(u: Tensor, weight: Tensor, bias: Tensor | None, window: Window | None = None) -> Source:
    """u (B, G, R, C, K), weight (J, K, G, H), bias (J, C, G, H), all contiguous; an image as its window says."""
    j, _, g, _ = weight.shape
    if window is not None:
        return Source(u, weight.permute(2, 1, 0, 3).contiguous(), weight, window)
    shift = bias.float().view(j, -1).t().contiguous() if bias is not None and g == 1 else None
    if stored(weight):
        votes = votes_of(u, weight, bias if shift is None else None)
        return Source(None, votes, votes, None, shift)
    by_parent = weight.permute(2, 1, 0, 3).contiguous()
    if bias is None or shift is not None:
        return Source(u, by_parent, weight, None, shift)
    return Source(u, by_parent, weight, None, None, bias.permute(2, 1, 0, 3).contiguous(), bias)


def votes_of(u: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, I, J, D), by matrix products; without a copy where one transform is for all, of poses of one row."""
    b, g, r, c, k = u.shape
    j, _, _, h = weight.shape
    x = u.float().permute(1, 0, 2, 3, 4).reshape(g, b * r * c, k)
    v = x @ weight.float().permute(2, 1, 0, 3).reshape(g, k, j * h)
    v = v.view(g, b, r, c, j, h).permute(1, 0, 2, 4, 3, 5)
    if bias is not None:
        v += bias.float().permute(2, 0, 1, 3)[None, :, None]
    return v.reshape(b, g * r, j, c * h).contiguous()


def wide_votes(u: Tensor, by_group: Tensor, bias: Tensor | None) -> Source:
    """The source of u (B, G, R, C, K), of transforms by_group (G, K, J, H) and bias (J, C, G, H): nothing is copied
    but u."""
    (b, g, r, c, k), (_, _, j, h) = u.shape, by_group.shape
    votes = (by_rows(u) @ by_group.view(g, k, j * h)).view(g, b, r, c, j, h)
    shift = bias.float().view(j, -1).t().contiguous() if bias is not None and g == 1 else None
    if bias is not None and shift is None:
        votes += bias.float().permute(2, 1, 0, 3)[:, None, None]
    return Source(None, votes, votes, None, shift)


def by_rows(u: Tensor) -> Tensor:
    """Poses (B, G, R, C, K) -> (G, B R C, K) in fp32: what transforms are multiplied with."""
    return u.float().transpose(0, 1).reshape(u.shape[1], -1, u.shape[4])


class Walk(NamedTuple):
    """A program: rows x split x parents lanes, split of which walk `steps` steps each and merge."""

    rows: int
    split: int
    parents: int
    steps: int
    warps: int

    def grid(self, rows: int, parents: int, length: int) -> tuple[int, int, int]:
        chunks = triton.cdiv(length, self.steps * self.split)
        return triton.cdiv(rows, self.rows), triton.cdiv(parents, self.parents), chunks

    @property
    def options(self) -> dict[str, int]:
        return {"ROWS": self.rows, "SPLIT": self.split, "PARENTS": self.parents, "num_warps": self.warps}


class Warps(NamedTuple):
    """Of a kernel whose lanes take so many registers: in a program, at most, and resident on a multiprocessor."""

    program: int
    resident: int


def warps_of(registers: int) -> Warps:
    """Programs of as many warps as leave but little of a multiprocessor empty."""
    resident = min(REGISTERS // min(max(registers, 64), 255), 32)
    return Warps(max(n for n in (1, 2, 4, 8) if resident // n * n >= 0.85 * resident), resident)


@cache
def steps_of(programs: int, warps: int, resident: int, length: int, most: int) -> int:
    """Steps of a walk over `length`, cut into chunks, `most` at most: the fewest that take a large GPU about the least
    time, its waves of programs times the steps of each, and SHORTEST for what a walk begins and ends with."""

    def time(chunks: int) -> int:
        waves = triton.cdiv(programs * chunks, MULTIPROCESSORS * max(resident // warps, 1))
        return waves * (triton.cdiv(length, chunks) + SHORTEST)

    times = {chunks: time(chunks) for chunks in range(1, max(min(most, MOST, length), 1) + 1)}
    return triton.cdiv(length, next(c for c, t in times.items() if t <= 1.03 * min(times.values())))


def walk_children(source: Source, registers: int) -> Walk:
    """Over children. Rows are examples: where there are many, some walk together and share W in the first-level cache.

    registers: of a lane, about.
    """
    b, i, j, _ = source.sizes
    most, resident = warps_of(registers)
    parents = min(triton.next_power_of_2(j), LANES)
    programs = b * triton.cdiv(j, parents)
    rows = 1
    if source.u is not None and not source.one:
        while rows < most // 2 and programs * most >= 4 * rows * MULTIPROCESSORS * resident:
            rows *= 2
    lanes = LANES // parents  # a warp's rows, or split
    split = max(min(most * lanes // rows, triton.next_power_of_2(triton.cdiv(i, SHORTEST))), lanes // rows)
    warps = max(rows * split * parents // LANES, 1)
    chunks = source.room // (b * (2 * source.dim + 2) * j)
    steps = steps_of(triton.cdiv(programs, rows), warps, resident, triton.cdiv(i, split), chunks)
    return Walk(rows, split, parents, steps, warps)


def walk_tiles(source: Source, tiles: int) -> Walk:
    """Over children, of which a program takes the votes for some parents one after the other. tiles: that it holds."""
    b, i, j, _ = source.sizes
    parents, warps = source.tile["PARENTS"], source.tile["num_warps"]
    chunks = source.room // (b * (2 * source.dim + 2) * j)
    resident = min(REGISTERS // (48 + EACH * tiles), 32)
    steps = steps_of(b * triton.cdiv(j, parents), warps, resident, i, chunks)
    return Walk(1, 1, parents, steps, warps)


def walk_batch(source: Source, registers: int, groups_each: int, most: int) -> Walk:
    """Over the children of the batch in a group, in `most` chunks at most. Rows are groups, `groups_each` to a lane."""
    b, i, j, r = source.sizes
    return _walk_batch(i // r, b * r, j, warps_of(registers).resident, groups_each, most)


@cache
def _walk_batch(groups: int, length: int, j: int, resident: int, groups_each: int, most: int) -> Walk:
    """The rows, split and chunks that take a large GPU about the least time; of those the fewest chunks.

    Groups of a program walk together and read the same parents, from the first-level cache but once. A step takes as
    long as a multiprocessor has warps to issue, or all together have parents to read.
    """
    parents = min(triton.next_power_of_2(j), LANES)
    lanes = LANES // parents  # a warp's rows, or split
    least = min(lanes * groups_each, triton.next_power_of_2(groups))
    choices: list[tuple[float, int, Walk]] = []  # with the time and chunks of each
    for rows, split in product((1, 2, 4, 8), repeat=2):
        rows, split = rows * least, split * max(lanes // least, 1)
        warps = max(rows * split * parents // (LANES * groups_each), 1)
        if (rows > least and rows > groups) or (split > lanes and split > length) or warps > min(resident, 8):
            continue
        slots, reads = MULTIPROCESSORS * (resident // warps), READ * least / rows
        for chunks in range(1, max(min(most, MOST, length // split), 1) + 1):
            programs = triton.cdiv(groups, rows) * triton.cdiv(j, parents) * chunks
            waves, rest = divmod(programs, slots)
            step = 0.0
            for times, running in ((waves, slots), (1 if rest else 0, rest)):
                issued, read = triton.cdiv(running, MULTIPROCESSORS), reads * running / MULTIPROCESSORS
                step += times * max(warps * issued, warps * read, HIDDEN)
            steps = triton.cdiv(length, split * chunks)
            choices.append((step * (steps + SHORTEST), chunks, Walk(rows, split, parents, steps, warps)))
    enough = 1.03 * min(time for time, _, _ in choices)
    return min((c for c in choices if c[0] <= enough), key=lambda c: (c[1], c[2].warps))[2]
