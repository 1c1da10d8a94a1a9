"""One thread, a bounded queue, a bounded cache."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flashcaps.demo.inputs import Refused
from flashcaps.demo.worker import Cache, Worker


def run(test: object, **options: int) -> Worker:
    """`test(worker)` in an event loop of its own."""
    worker = Worker(**options)
    worker.start()
    try:
        asyncio.run(test(worker))  # type: ignore[operator]
    finally:
        worker.stop()
    return worker


async def begun(worker: Worker, gate: threading.Event) -> asyncio.Task[bytes]:
    """Work that the thread has taken and that ends with the gate."""
    taken = threading.Event()

    def work() -> bytes:
        taken.set()
        return b"%d" % gate.wait(10)

    task = asyncio.create_task(worker.answer("first", work))
    while not taken.is_set():
        await asyncio.sleep(0.001)
    return task


def test_the_same_is_computed_once() -> None:
    calls, gate = [], threading.Event()

    def work() -> bytes:
        gate.wait(10)
        calls.append(1)
        return b"answer"

    async def test(worker: Worker) -> None:
        asked = [asyncio.create_task(worker.answer("key", work)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*asked) == [b"answer"] * 20
        assert await worker.answer("key", work) == b"answer"

    assert run(test).running == {}
    assert calls == [1]


def test_the_loop_goes_on_while_the_worker_works() -> None:
    gate = threading.Event()

    async def test(worker: Worker) -> None:
        slow = asyncio.create_task(worker.answer("slow", lambda: b"%d" % gate.wait(10)))
        await asyncio.sleep(0.01)  # the loop turns although the work does not end
        assert not slow.done()
        gate.set()
        assert await slow == b"1"

    run(test)


def test_a_full_queue_is_refused_and_emptied() -> None:
    gate = threading.Event()

    async def test(worker: Worker) -> None:
        first = await begun(worker, gate)
        waiting = [asyncio.create_task(worker.answer(str(k), lambda: b"x")) for k in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="too busy") as caught:
            await worker.answer("4", lambda: b"x")
        assert caught.value.status == 503
        gate.set()
        await asyncio.gather(first, *waiting)
        assert await worker.answer("4", lambda: b"later") == b"later"

    run(test, limit=3)


def test_quick_work_goes_first() -> None:
    gate, order = threading.Event(), []

    def note(name: str) -> bytes:
        order.append(name)
        return b""

    async def test(worker: Worker) -> None:
        first = await begun(worker, gate)
        rest = [asyncio.create_task(worker.answer(name, lambda name=name: note(name), quick=name[0] == "q"))
                for name in ("slow 1", "slow 2", "quick 1", "quick 2")]  # fmt: skip
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *rest)

    run(test)
    assert order == ["quick 1", "quick 2", "slow 1", "slow 2"]


def test_an_error_reaches_everyone_who_asked_and_is_not_kept() -> None:
    async def test(worker: Worker) -> None:
        def fail() -> bytes:
            raise Refused(415, "no")

        asked = await asyncio.gather(worker.answer("k", fail), worker.answer("k", fail), return_exceptions=True)
        assert [type(x) for x in asked] == [Refused, Refused]
        assert await worker.answer("k", lambda: b"yes") == b"yes"

    run(test)


def test_who_leaves_does_not_take_the_answer_from_others() -> None:
    gate = threading.Event()

    async def test(worker: Worker) -> None:
        first, second = (asyncio.create_task(worker.answer("k", lambda: b"%d" % gate.wait(10))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await second == b"1"

    run(test)


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    cache = Cache(limit=10)
    cache.put("a", b"12345")
    cache.put("b", b"12345")
    assert cache.get("a") == b"12345"
    cache.put("c", b"1")
    assert cache.get("b") is None
    assert cache.get("a") is not None
    cache.put("a", b"1")
    assert cache.size == 2
    cache.put("huge", bytes(11))
    assert cache.get("huge") is None
    assert cache.get("a") == b"1"
