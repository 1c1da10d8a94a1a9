"""Finds data races of kernels in Triton's interpreter, which runs one program after the other and so never shows one.

Under `watch`, loads, stores, barriers and counters of every launch are noted. Two programs of a launch that touch one
address, one of them by a store, must have an order on a device: one arrives at a counter after its access, with a
barrier between, and the other waits for all who arrive there, with a barrier before its own access (`order_triton`).
In one program, a barrier lies between a store and a load of the same address by another instruction. A counter is 0 at
first, and programs wait only for those that a device starts before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from triton.runtime import interpreter

from flashcaps.kernels.common import order_triton

Builder = interpreter.InterpreterBuilder


class Point(NamedTuple):
    """Where a program stood: how many barriers it had passed, of those of the launch's programs in a device's order."""

    program: int
    barriers: int


class Wait(NamedTuple):
    at: Point
    counter: int
    count: int


class Launch:
    """What the programs of one launch did."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.patched: set[int] = set()  # modules whose Triton language is made the interpreter's
        self.now = Point(0, 0)
        self.touched: list[tuple[np.ndarray, Point, bool]] = []  # addresses, and whether they were stored to
        self.arrivals: defaultdict[int, list[Point]] = defaultdict(list)
        self.waits: defaultdict[int, list[Wait]] = defaultdict(list)  # of each program
        self.fresh: list[np.ndarray] = []  # addresses that the program stored to since its last barrier
        self.faults: list[str] = []

    def move(self, now: Point) -> None:
        self.now, self.fresh = now, []

    def touch(self, pointers: Any, mask: Any, stored: bool) -> None:
        mask.data = mask.data.astype(bool)  # Triton 3.9's own takes no other, yet makes integers of (block & scalar)
        addresses, there = np.broadcast_arrays(pointers.data, mask.data)
        self.touched.append((addresses[there], self.now, stored))
        if stored:
            self.fresh.append(addresses[there])
        elif self.fresh and np.isin(addresses[there], np.concatenate(self.fresh)).any():
            self.faults.append(f"{self.kernel}: {self.now} loads what it stored, without a barrier")

    def arrive(self, counter: int, before: int) -> None:
        if before != len(self.arrivals[counter]):
            self.faults.append(f"{self.kernel}: a counter is {before} after {len(self.arrivals[counter])} arrivals")
        self.arrivals[counter].append(self.now)

    def known(self, at: Point) -> dict[int, int]:
        """Of each program that `at` comes after: how many barriers it had passed, at least, by what is known there."""
        found: dict[int, int] = {}
        for wait in self.waits[at.program]:
            if wait.at.barriers >= at.barriers:  # no barrier holds back the other threads
                continue
            for arrival in self.arrivals[wait.counter]:
                for program, passed in (*self.known(arrival).items(), (arrival.program, arrival.barriers)):
                    found[program] = max(found.get(program, 0), passed)
        return found

    def check(self) -> None:
        for wait in (wait for waits in self.waits.values() for wait in waits):
            arrivals = self.arrivals[wait.counter]
            if wait.count != len(arrivals):
                self.faults.append(f"{self.kernel}: waits for {wait.count} of {len(arrivals)} programs")
            if any(arrival.program >= wait.at.program for arrival in arrivals):
                self.faults.append(f"{self.kernel}: program {wait.at.program} waits for one that starts later")
        known: dict[Point, dict[int, int]] = {}
        for accesses in self.shared():
            for first, stored in accesses:
                for second, _ in accesses if stored else ():
                    for point in (first, second):
                        known.setdefault(point, self.known(point))
                    after = known[second].get(first.program, 0) > first.barriers
                    before = known[first].get(second.program, 0) > second.barriers
                    if first.program != second.program and not (after or before):
                        self.faults.append(f"{self.kernel}: {first} stores what {second} touches, in no order")

    def shared(self) -> set[tuple[tuple[Point, bool], ...]]:
        """Accesses to one address by several programs, at least one a store; each such set once."""
        if not self.touched:
            return set()
        marks = sorted({(point, stored) for _, point, stored in self.touched})
        number = {mark: k for k, mark in enumerate(marks)}
        addresses = np.concatenate([a.ravel() for a, *_ in self.touched])
        mark = np.concatenate([np.full(a.size, number[point, stored]) for a, point, stored in self.touched])
        pairs = np.unique(np.stack([addresses.astype(np.int64), mark]), axis=1)
        _, starts = np.unique(pairs[0], return_index=True)
        groups = {tuple(group) for group in np.split(pairs[1], starts[1:]) if len(group) > 1}
        found = {tuple(marks[k] for k in group) for group in groups}
        return {g for g in found if len({point.program for point, _ in g}) > 1 and any(stored for _, stored in g)}


@contextmanager
def watch() -> Iterator[list[str]]:
    """The faults of the launches made under it, each looked for when the launch ends."""
    faults: list[str] = []
    launches: list[Launch] = []
    execute, load, store = interpreter.GridExecutor.__call__, Builder.create_masked_load, Builder.create_masked_store
    atomic, place, barrier = Builder.create_atomic_rmw, Builder.set_grid_idx, Builder.create_barrier
    patch, dtype_of = interpreter._patch_lang, interpreter._get_np_dtype
    dtypes: dict[str, Any] = {}

    def executed(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.append(Launch(self.fn.__name__))
        execute(self, *args, **kwargs)
        launches[-1].check()
        faults.extend(launches.pop().faults)

    def patched(function: Any) -> Any:
        """Once a launch and module: Triton does it at every call of a function, which takes a third of all time."""
        module, known = id(function.__globals__), launches[-1].patched
        if module in known:
            return None
        known.add(module)
        return patch(function)

    def dtype(kind: Any) -> Any:
        """Kept by name: Triton makes a table of all of them at every call."""
        return dtypes[kind.name] if kind.name in dtypes else dtypes.setdefault(kind.name, dtype_of(kind))

    def placed(self: Any, x: int, y: int, z: int) -> None:
        place(self, x, y, z)
        wide, high, _ = self.grid_dim
        launches[-1].move(Point(x + wide * (y + high * z), 0))  # a device counts from the first axis up

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        launches[-1].touch(pointers, mask, False)
        return load(self, pointers, mask, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        launches[-1].touch(pointers, mask, True)
        return store(self, pointers, value, mask, *rest)

    def counted(self: Any, kind: Any, pointer: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        found = atomic(self, kind, pointer, value, mask, sem, scope)
        if value.data.any():
            launches[-1].arrive(int(pointer.data.item()), int(found.data.item()))
        return found

    def passed(self: Any) -> None:
        program, barriers = launches[-1].now
        launches[-1].move(Point(program, barriers + 1))
        barrier(self)

    def waited(counter: Any, count: Any) -> None:
        launch, many = launches[-1], np.asarray(count.handle.data if hasattr(count, "handle") else count)
        launch.waits[launch.now.program].append(Wait(launch.now, int(counter.handle.data.item()), int(many.item())))
        interpreter.interpreter_builder.create_barrier()  # no spinning: a program that is not there yet never comes

    replaced = [
        (interpreter.GridExecutor, "__call__", executed), (Builder, "create_masked_load", loaded),
        (Builder, "create_masked_store", stored), (Builder, "create_atomic_rmw", counted),
        (Builder, "set_grid_idx", placed), (Builder, "create_barrier", passed),
        (order_triton.wait_for, "rewrite", lambda: waited), (interpreter, "_patch_lang", patched),
        (interpreter, "_get_np_dtype", dtype),
    ]  # fmt: skip
    with ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(mock.patch.object(owner, name, function))
        yield faults
