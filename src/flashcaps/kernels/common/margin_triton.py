"""The kernel of `_margin`: one program, since all there is to read is a number per example and class."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def margin(
    v, targets, loss, gradient, B, sb, sk, present, absent, down, K: tl.constexpr, KP: tl.constexpr,
    ROWS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, KP)[None, :]
    total = tl.full((ROWS, KP), 0.0, tl.float32)
    for lo in range(0, B, ROWS):
        b = lo + tl.arange(0, ROWS)[:, None]
        live = (b < B) & (k < K)
        x = tl.load(v + b * sb + k * sk, mask=live, other=0.0).to(tl.float32)
        if INDEX:
            t = tl.where(tl.load(targets + b, mask=b < B, other=-1) == k, 1.0, 0.0)
        else:
            t = tl.load(targets + b * K + k, mask=live, other=0.0).to(tl.float32)
        short, long = tl.maximum(present - x, 0.0), tl.maximum(x - absent, 0.0)
        total += tl.where(live, t * short * short + down * (1 - t) * long * long, 0.0)
        tl.store(gradient + b * K + k, 2 * (down * (1 - t) * long - t * short) / B, mask=live)
    tl.store(loss, tl.sum(total) / B)
