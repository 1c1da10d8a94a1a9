"""Programs of a launch that wait for others of it.

A launch has several kinds of programs, those that others wait for first. A program that others wait for stores its
results and arrives at a counter; one that reads them awaits the count. Counters are 0 when a launch begins.

Why that is right on a device: `arrive` has a barrier, so all stores of the program happen before one thread adds to the
counter, and it adds as a release at the scope of the device, which covers the stores that the thread has seen by the
barrier. The counter is read as an acquire at the same scope, which also drops the multiprocessor's first-level cache,
and the barrier after it holds back the other threads' loads. Why nobody waits forever: programs wait only for those of
a lower index, and a device starts programs in the order of their indices. Nothing is summed by an atomic, and a sum's
order is its chunks', whoever arrives last: results have the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arrive(counter):
    """All that this program stored can be read by whoever awaits the counter."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def wait_for(counter, count):
    """Until so many programs have arrived."""
    while tl.atomic_add(counter, 0, sem="acquire") < count:
        pass
    tl.debug_barrier()
