"""What a routing is given, how votes lie in memory, and how kernels cut their work. Every tile is chosen here.

Votes are made in registers from poses and transforms, unless they are
- few, J h <= 4 d: then they are of the size of the poses, and storing them is less to read at every iteration;
- wide, of more than UNROLLED multiply-adds: then they are a matrix product's, stored a few examples at a time;
- a small part of their transforms (HEAVIER), which no cache holds: then votes are less to read, and stored likewise.

A walk divides what it sums over between the warps of a program, which merge their sums before they write. Only where
that leaves a GPU idle is a walk cut into chunks, too. Partial sums of chunks stay below half the size of poses and
transforms, so that memory grows with a layer's own tensors. The rules look at shapes alone: a shape gives the same bits
every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import triton
from torch import Tensor

from ..common.patches import Window, gather_patches, windowed

LANES = 32  # of a warp
MULTIPROCESSORS = 132  # of a large GPU
REGISTERS = 65536 // LANES  # of a multiprocessor, for each lane of its warps
BOUND = 168  # registers of a lane that wants a few more: half as many warps again fit, and a few values spill
SHORTEST = 8  # steps that take as long as the beginning and the end of a walk
MOST = 64  # chunks
HIDDEN = 12  # warps of a multiprocessor whose work hides the latency of what they read
READ = 3  # cost of reading a program's parents from the second-level cache, in steps of a warp
FINISHERS = 264  # programs at most that end a launch
AHEAD, WHOLE = 8, 8  # chunks that these read at once, at most, and parents that lie in 32 bytes
FULL = 2048  # warps: two for every one that is resident on a large GPU
TILE, EACH = 2048, 8  # elements of a tile of wide votes, at most, and of those a lane has
UNROLLED = 128  # multiply-adds of one vote that kernels unroll; at 256 their compiler takes minutes
NARROW = 16  # elements of a stored vote that a lane takes alone
HEAVIER, CACHED = 4, 1 << 23  # a transform's elements for each of a vote; elements that a second-level cache may hold
CHUNKED = 1 / 12  # of stored wide votes: what the chunks of one kernel may leave
IMAGE = 1.9  # times an image: the memory that the backward pass of a few of its examples may take
STORED = 1  # times the poses: how many stored votes are made at once for their gradient
ROUNDED = 0.95  # of the memory there is: allocators give a little more than is asked for
LEAST = 1 << 18  # elements of wide votes at a time, at least: a megabyte is little, however small the layer


class Inputs(NamedTuple):
    """Tensors that have gradients."""

    u: Tensor  # (B, G, R, C, K), or an image (examples, types, height, width, C K)
    weight: Tensor  # (J, K, G, H)
    bias: Tensor | None  # (J, C, G, H): of votes
    gate: Tensor  # (B, I); with an image, (examples, types, height, width)
    first_z: Tensor | None  # (B, I): Z of the first couplings, for shares over positions; None: equal shares
    first: Tensor | None  # (I, J): the first couplings; None: 1 / J
    beta: Tensor | None  # (I, J)
    offset: Tensor | None  # (J,) or (B, J)
    slope: Tensor | None  # (J,)
    factors: tuple[float, float] = (1.0, 1.0)  # of offset and slope, which have no gradients

    def rows(self, rows: slice) -> Inputs:
        """The inputs of some rows, where they are not in an image."""
        first_z = None if self.first_z is None else self.first_z[rows]
        offset = self.offset if self.offset is None or self.offset.ndim == 1 else self.offset[rows]
        return self._replace(u=self.u[rows], gate=self.gate[rows], first_z=first_z, offset=offset)


class Options(NamedTuple):
    """window: kernel and stride of an image, or empty. grid: of a softmax over positions, or empty."""

    scales: list[float]  # lambda of each iteration
    spread: bool  # whether logits have log sigma^2, as em's
    grid: list[int]
    window: list[int]
    eps: float
    taus: list[float]  # sharpness of the E-step after each iteration; empty: 1
    gated: bool = False  # whether the gate's gradient is asked for

    def tau(self, t: int) -> float:
        return self.taus[t] if self.taus else 1.0

    def window_of(self, u: Tensor) -> Window | None:
        return windowed(u, *self.window)[1] if self.window else None

    def gate_of(self, gate: Tensor) -> Tensor:
        """(B, I), of patches where it is an image."""
        if not self.window:
            return gate
        return gather_patches(gate[..., None], *self.window).view(-1, gate.shape[1] * self.window[0] ** 2)


class Source(NamedTuple):
    """Poses, and transforms in two layouts; or, where u is None, stored votes."""

    u: Tensor | None  # (B, G, R, C, K), or with a window the image (examples, types, height, width, C K)
    by_parent: Tensor  # (G, K, J, H), a view if there is `one`; or votes (G, B, R, C, J, H)
    by_child: Tensor  # (J, K, G, H), or the same votes
    tiled: bool = False  # whether votes are wide, for the kernels of `wide`
    window: Window | None = None
    shift: Tensor | None = None  # (J, D): a bias that all children share
    own_by_parent: Tensor | None = None  # (G, C, J, H): a bias of each group
    own_by_child: Tensor | None = None  # (J, C, G, H)
    whole: int = 0  # elements of the image of which u is a few examples

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, I, J, R"""
        if self.u is None:
            g, b, r, _, j, _ = self.by_parent.shape
            return b, g * r, j, r
        (b, g, r, _, _), (groups, _, j, _) = self.u.shape, self.by_parent.shape
        if self.window is not None:
            return b * self.window.places, groups, j, 1
        return b, g * r, j, r

    @property
    def pose(self) -> tuple[int, int, int]:
        """C, K, H; K = 0 for stored votes."""
        if self.u is None:
            return self.by_parent.shape[3], 0, self.by_parent.shape[5]
        _, k, _, h = self.by_parent.shape
        return self.u.shape[4] // k if self.window is not None else self.u.shape[3], k, h

    @property
    def dim(self) -> int:
        c, _, h = self.pose
        return c * h

    @property
    def groups(self) -> int:
        return 1 if self.u is None else self.by_parent.shape[0]

    @property
    def one(self) -> bool:
        """Whether all children share one transform. Those of an image may lie apart, and count as a group each."""
        return self.u is not None and self.window is None and self.groups == 1

    @property
    def tile(self) -> dict[str, int]:
        """Parents, elements and warps of a tile."""
        width = triton.next_power_of_2(self.dim)
        parents = max(min(triton.next_power_of_2(self.sizes[2]), TILE // width), 1)
        return {"PARENTS": parents, "WIDTH": width, "num_warps": max(parents * width // (EACH * LANES), 1)}

    @property
    def tiles(self) -> int:
        """Tiles that hold all parents."""
        return triton.cdiv(self.sizes[2], self.tile["PARENTS"])

    @property
    def run(self) -> int:
        return 1 if self.dim % 4 else 4

    @property
    def options(self) -> dict[str, int]:
        """Constants of every kernel."""
        c, k, h = self.pose
        if self.tiled:
            return {"J": self.sizes[2], "C": c, "H": h, "RUN": self.run, **self.tile}
        own = self.own_by_child is not None
        return {"J": self.sizes[2], "C": c, "K": k, "H": h, "RUN": self.run, "OWN": own}

    @property
    def at(self) -> tuple[int, ...]:
        """Where children lie, for `forward_kernels.load_pose`."""
        return (0,) if self.window is None else tuple(self.window.constants.values())

    @property
    def by_parents(self) -> tuple[Tensor, Tensor, Tensor]:
        """Poses, transforms and biases; any pointer stands for what is not read."""
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


def is_stored(weight: Tensor) -> bool:
    """Whether votes, being few, are stored. weight (J, d, G, h)"""
    j, d, _, h = weight.shape
    return j * h <= 4 * d


def is_wide(weight: Tensor, dim: int) -> bool:
    """Whether votes of `dim` elements are made by a matrix product, a few examples at a time, and read as tiles.

    Kernels that make votes read W (J, d, G, h) for every example. A layer of 6272 x 8 -> 1000 x 16 has 3.2 GB of it,
    read 13 times in a step of three iterations. An example's votes are an eighth of it, their products read W 3 times.
    """
    _, d, g, h = weight.shape
    heavy = g > 1 and d * h >= HEAVIER * dim and weight.numel() > CACHED
    return (dim * d > UNROLLED or heavy) and (dim > NARROW or not is_stored(weight))


def source_of(u: Tensor, weight: Tensor, bias: Tensor | None, window: Window | None = None) -> Source:
    """u (B, G, R, C, K), weight (J, K, G, H), bias (J, C, G, H), all contiguous; an image as its window says."""
    if window is not None:
        return Source(u, by_group(weight), weight, window=window)
    shift, own = split_bias(bias)
    if is_stored(weight):
        votes = votes_by_child(votes_of(u, by_rows(u), by_group(weight.float()), own))
        votes = votes[None, :, :, None]  # one group of I children, poses of one row
        return Source(None, votes, votes, shift=shift)
    if weight.shape[2] == 1:  # read once by each program, in whatever order it lies
        return Source(u, weight.permute(2, 1, 0, 3), weight, shift=shift)
    by_parent = None if own is None else by_group(own)
    return Source(u, by_group(weight), weight, shift=shift, own_by_parent=by_parent, own_by_child=own)


def split_bias(bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A bias (J, C, G, H) of one group, which moves parents instead of votes, as (J, D); or the bias of several."""
    if bias is None or bias.shape[2] > 1:
        return None, bias
    return bias.float().view(bias.shape[0], -1), None


def by_group(x: Tensor) -> Tensor:
    """(J, ., G, H) -> (G, ., J, H)"""
    return x.permute(2, 1, 0, 3).contiguous()


def by_rows(u: Tensor) -> Tensor:
    """Poses (B, G, R, C, K) -> (G, B R C, K) in fp32: what transforms are multiplied with."""
    return u.float().transpose(0, 1).reshape(u.shape[1], -1, u.shape[4])


def votes_of(u: Tensor, rows: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
    """(G, B, R, C, J, H), as a product of u (B, G, R, C, K), given as `by_rows` has it, and transforms (G, K, J, H) in
    fp32 leaves them, with a bias (J, C, G, H)."""
    (b, g, r, c, _), (_, _, j, h) = u.shape, matrices.shape
    votes = (rows @ matrices.flatten(2)).view(g, b, r, c, j, h)
    if bias is not None:
        votes += bias.float().permute(2, 1, 0, 3)[:, None, None]
    return votes


def votes_by_child(votes: Tensor) -> Tensor:
    """(G, B, R, C, J, H) -> (B, I, J, D), without a copy where one transform is for all, of poses of one row."""
    g, b, r, c, j, h = votes.shape
    return votes.permute(1, 0, 2, 4, 3, 5).reshape(b, g * r, j, c * h).contiguous()


def wide_source(u: Tensor, matrices: Tensor, bias: Tensor | None) -> Source:
    """As `source_of`, of transforms (G, K, J, H): nothing is copied but u."""
    shift, own = split_bias(bias)
    votes = votes_of(u, by_rows(u), matrices, own)
    return Source(None, votes, votes, tiled=True, shift=shift)


def in_parts(x: Inputs, o: Options) -> bool:
    """Whether votes are wide, and routed a few examples at a time."""
    return not o.window and is_wide(x.weight, x.u.shape[3] * x.weight.shape[3])


def wide_parts(x: Inputs, o: Options, matrices: Tensor) -> Iterator[tuple[slice, Inputs, Source]]:
    """Some rows, their inputs and their votes; matrices (G, K, J, H): transforms, in fp32.

    The caller drops a part before it asks for the next, so that the votes of one part are in memory at a time.
    """
    b, some = x.u.shape[0], rows_at_once(x, o)
    for begin in range(0, b, some):
        rows = slice(begin, min(begin + some, b))
        part = x.rows(rows)
        yield rows, part, wide_source(part.u, matrices, x.bias)


def examples_at_once(x: Inputs, steps: int, places: int) -> int:
    """Examples of an image that go backward together.

    As many as have room for tables, parts and patches in what image, transforms, parents and their gradients leave,
    within twice their bytes, beside the parents and Z that are kept of all examples. Where those leave next to nothing
    the layer is a small one on top of others, and takes as many as fill a GPU.
    """
    (j, k, i, h), (b, _, _, _, width) = x.weight.shape, x.u.shape
    d = width // k * h
    row = i * (width + 5 + steps) + (6 * d + 8) * j  # elements that a row of parents needs on its way back
    kept = b * places * ((2 * steps + 1) * d * j + (steps - 1) * i)
    room = IMAGE * x.u.numel() + 0.9 * x.weight.numel() + 0.5 * b * places * d * j - kept
    if room < x.u.numel() / 4:
        return max(FULL * LANES // (i * places), 1)
    return max(int(room / (row * places)), 1)


def rows_at_once(x: Inputs, o: Options) -> int:
    """Rows whose wide votes are stored together.

    As many as have room in what poses, transforms and their gradients leave, within twice their bytes, beside the
    parents and Z that are kept of all; at least one example. A softmax over positions has all places of an example in
    one part. A part takes about 8 launches forward and 14 backward at three iterations, whatever is in it: more rows
    would take fewer launches, but memory, and their votes would no longer fit a second-level cache.
    """
    (b, g, r, c, k), (j, _, _, h) = x.u.shape, x.weight.shape
    i, d, t = g * r, c * h, len(o.scales)
    places = math.prod((size - o.grid[2]) // o.grid[3] + 1 for size in o.grid[:2]) if o.grid else 1
    votes = i * j * d
    # votes, then chunks or poses and their gradients; gates, Z and sums; tables and gradients of parents
    row = votes + max(int(CHUNKED * votes), 2 * i * c * k) + i * (4 * t + 4) + j * (t * (4 * d + 5) + 6 * d)
    kept = b * (t * (2 * d + 2) * j + (t - 1) * i) + 2 * x.weight.numel()  # transforms and their gradient, in fp32
    room = (2 * x.u.nbytes + 3 * x.weight.nbytes) / 4 + 2 * b * j * d - kept
    return max(int(ROUNDED * room / (row * places)), LEAST // (votes * places), 1) * places


def votes_at_once(x: Inputs) -> int:
    """Examples whose few votes are made together for their gradient: as many as are of the size of the poses."""
    (b, _, _, c, k), (j, _, _, h) = x.u.shape, x.weight.shape
    return max(min(STORED * b * c * k // (j * c * h), b), 1)


def weight_chunks(source: Source) -> int:
    """Chunks of the gradient of transforms, at most. All examples of an image add to the same, and it has what
    `examples_at_once` leaves of the image's room."""
    if source.whole:
        return 1 + int((2 - IMAGE) * source.whole) // source.by_parent.numel()
    return source.room // source.by_parent.numel()


def child_lanes(source: Source) -> int:
    """Children of a program with a child per lane: a warp."""
    return min(triton.next_power_of_2(source.sizes[1]), LANES)


def parent_lanes(parents: int) -> int:
    """Parents of a program with a parent per lane, at most a warp."""
    return min(triton.next_power_of_2(parents), LANES)


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


def finish(source: Source, chunks: int, warps: int) -> tuple[int, dict[str, int]]:
    """Programs that end a launch whose walks leave so many chunks, and their constants: elements and parents of a tile,
    and chunks read at once. A lane has a few numbers under way, of several parents where there are few chunks."""
    count = source.sizes[0] * source.sizes[2]
    width, ahead = triton.next_power_of_2(source.dim), min(triton.next_power_of_2(chunks), AHEAD)
    fill = max(AHEAD // 2 // ahead, 1) * LANES * warps // width
    tile = max(min(fill, triton.next_power_of_2(triton.cdiv(count, FINISHERS))), WHOLE)
    return min(triton.cdiv(count, tile), FINISHERS), {"WIDTH": width, "TILE": tile, "AHEAD": ahead}


def moments_walk(source: Source) -> Walk:
    """Of the M-step, over children."""
    if source.tiled:
        return walk_tiles(source, 6)
    return walk_children(source, 32 + (6 if source.own_by_parent is None else 8) * source.dim)


def parents_walk(source: Source) -> tuple[Walk, dict[str, int]]:
    """Of the gradients of parents, over children; and the bound on registers there may be."""
    if source.tiled:
        return walk_tiles(source, 8), {}
    _, k, h = source.pose
    registers = 56 + 7 * source.dim + (5 * k * h // 2 if source.one else 0)
    if BOUND < registers <= 1.25 * BOUND:
        return walk_children(source, BOUND), {"maxnreg": BOUND}
    return walk_children(source, registers), {}


def weights_walk(source: Source, chunks: int) -> Walk:
    """Of the gradient of transforms, over the children of the batch in a group, in so many chunks at most."""
    (b, i, j, r), (_, k, h) = source.sizes, source.pose
    own = 0 if source.own_by_parent is None else 2 * source.dim
    return walk_batch(i // r, b * r, j, resident_warps(80 + 2 * source.dim + 2 * k * h + own), chunks)


def resident_warps(registers: int) -> int:
    """Warps of a multiprocessor, of a kernel whose lanes take so many registers."""
    return min(REGISTERS // min(max(registers, 64), 255), 32)


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
    resident = resident_warps(registers)
    most = max(n for n in (1, 2, 4, 8) if resident // n * n >= 0.85 * resident)  # leaves little of it empty
    parents = parent_lanes(j)
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


@cache
def walk_batch(groups: int, length: int, j: int, resident: int, most: int) -> Walk:
    """The rows (groups), split and chunks that take a large GPU about the least time; of those the fewest chunks.

    Groups of a program walk together and read the same parents, from the first-level cache but once. A step takes as
    long as a multiprocessor has warps to issue, or all together have parents to read.
    """
    parents = parent_lanes(j)
    lanes = LANES // parents  # a warp's rows, or split
    least = min(lanes, triton.next_power_of_2(groups))
    choices: list[tuple[float, int, Walk]] = []  # with the time and chunks of each
    for rows, split in product((1, 2, 4, 8), repeat=2):
        rows, split = rows * least, split * max(lanes // least, 1)
        warps = max(rows * split * parents // LANES, 1)
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
