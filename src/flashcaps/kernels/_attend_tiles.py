r"""What the Triton kernels of `attend` load, and how.

Votes only ever exist as factors: with v_ij = u_i W_ij every use of a vote is a product with the tile of poses u.

A tile is BT examples x IC children, for P parents at a time: to the matrix units P products of rows (c, b) and columns
(k, i), one to a warp. Sums over the pose's rows c and columns k then stay inside a thread, each exponential is taken
once, warps never wait for each other, and sums over children stay in registers: what a thread holds of one product
is what it needs for the next (`order`). CP, DP, HP are C, d, h rounded up to what the units take. Loads outside a
tensor are zero and their lse infinite: couplings, and all that they multiply, are zero there.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def order(N: tl.constexpr, SWAP: tl.constexpr):
    """0 ... N - 1; if SWAP, each block of 8 as 0 2 4 6 1 3 5 7.

    A thread holds columns 2t and 2t + 1 of an fp32 product, and gives the next product its columns t and t + 4: with
    the rows of the next product's right side in this order they are the same, and no number changes hands.
    """
    n = tl.arange(0, N)
    if SWAP:
        n = n // 8 * 8 + n % 4 * 2 + n // 4 % 2
    return n


@triton.jit
def swapped(x, SWAP: tl.constexpr):
    """The columns of x (P, R, N) in that order."""
    if SWAP:
        P: tl.constexpr = x.shape[0]
        R: tl.constexpr = x.shape[1]
        N: tl.constexpr = x.shape[2]
        x = tl.reshape(tl.permute(tl.reshape(x, (P, R, N // 8, 4, 2)), (0, 1, 2, 4, 3)), (P, R, N))
    return x


@triton.jit
def poses(
    u, b, i, B, IC: tl.constexpr,
    G: tl.constexpr, C: tl.constexpr, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """u (B, G, C, d) as (BT, IC, CP, DP), its addresses and mask."""
    c = tl.arange(0, CP)[None, None, :, None]
    k = tl.arange(0, DP)[None, None, None, :]
    at = ((b[:, None, None, None] * G + i[None, :, None, None]) * C + c) * D + k
    inside = b[:, None, None, None] < B
    if G % IC != 0:
        inside = inside & (i[None, :, None, None] < G)
    if CP != C:
        inside = inside & (c < C)
    if DP != D:
        inside = inside & (k < D)
    return tl.load(u + at, inside, 0.0).to(tl.float32), at, inside


@triton.jit
def parents_at(
    first, r, j, B, BT: tl.constexpr,
    J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    """Addresses of parents j (P) in (B, J, C, h) at rows r (R) of (c, b), as (P, R, HP), and their mask."""
    b = first + r % BT
    c = r // BT
    h = tl.arange(0, HP)[None, None, :]
    row = (b[None, :] * J + j[:, None]) * C + c[None, :]
    inside = (b[None, :] < B) & (j[:, None] < J)
    if CP != C:
        inside = inside & (c < C)[None, :]
    inside = inside[:, :, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, :, None] * H + h, inside


@triton.jit
def weights_at(
    first, n, j, IC: tl.constexpr,
    G: tl.constexpr, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    """Addresses of W_j, j (P), in (J, d, G, h) at columns n (N) of (k, i), as (P, N, HP), and their mask."""
    i = first + n % IC
    k = n // IC
    h = tl.arange(0, HP)[None, None, :]
    row = (j[:, None] * D + k[None, :]) * G + i[None, :]
    inside = (j < J)[:, None]
    if G % IC != 0:
        inside = inside & (i < G)[None, :]
    if DP != D:
        inside = inside & (k < D)[None, :]
    inside = inside[:, :, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, :, None] * H + h, inside


@triton.jit
def logits_at(i, j, G: tl.constexpr, J: tl.constexpr):
    """Addresses in (G, J) as (P, IC), and their mask."""
    return i[None, :] * J + j[:, None], (i < G)[None, :] & (j < J)[:, None]


@triton.jit
def dot_poses(x, y):
    """sum over a pose of x y, both (P or 1, CP, BT, DP, IC) or (.., DP, IC, CP, BT) -> (P, BT, IC) or (P, IC, BT)."""
    return tl.sum(tl.sum(x * y, 3), 1)
