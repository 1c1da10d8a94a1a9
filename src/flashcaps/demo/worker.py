"""One thread that computes, with a bounded queue and a cache of answers: the event loop never waits for torch."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from .inputs import Refused

QUEUE = 64  # waiting jobs
CACHE = 64 << 20  # bytes of cached answers

Work = Callable[[], bytes]


@dataclass(order=True)
class Job:
    """rank: quick work first, then in order of arrival."""

    rank: tuple[int, int]
    work: Work = field(compare=False)
    done: asyncio.Future[bytes] = field(compare=False)
    loop: asyncio.AbstractEventLoop = field(compare=False)


class Cache:
    """Least recently used cache of answers, up to `limit` bytes."""

    def __init__(self, limit: int = CACHE) -> None:
        self.limit, self.size = limit, 0
        self.kept: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        if key not in self.kept:
            return None
        self.kept.move_to_end(key)
        return self.kept[key]

    def put(self, key: str, answer: bytes) -> None:
        if len(answer) > self.limit:
            return
        self.size += len(answer) - len(self.kept.pop(key, b""))
        self.kept[key] = answer
        while self.size > self.limit:
            self.size -= len(self.kept.popitem(last=False)[1])


class Worker:
    """answer(key, work) returns the cached bytes of `key`, or the result of `work` on the thread.

    A key requested twice at the same time is computed once. A full queue is refused with 503.
    """

    def __init__(self, limit: int = QUEUE, cache: int = CACHE) -> None:
        self.limit, self.cache = limit, Cache(cache)
        self.jobs: queue.PriorityQueue[Job] = queue.PriorityQueue()
        self.running: dict[str, asyncio.Future[bytes]] = {}
        self.turn = itertools.count()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._work, name="flashcaps-demo", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        if self.thread is not None:
            loop = asyncio.new_event_loop()
            self.jobs.put(Job((-1, 0), _leave, loop.create_future(), loop))
            self.thread.join(timeout=10)
            self.thread = None
            loop.close()

    async def answer(self, key: str, work: Work, *, quick: bool = False) -> bytes:
        known = self.cache.get(key)
        if known is not None:
            return known
        if key in self.running:
            return await asyncio.shield(self.running[key])
        if self.jobs.qsize() >= self.limit:
            raise Refused(503, "too busy: too many requests are waiting; try again in a moment")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()
        done.add_done_callback(lambda future: self._finished(key, future))
        self.running[key] = done
        self.jobs.put(Job((0 if quick else 1, next(self.turn)), work, done, loop))
        return await asyncio.shield(done)  # a client may disconnect while others wait for the same answer

    def _finished(self, key: str, done: asyncio.Future[bytes]) -> None:
        self.running.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            self.cache.put(key, done.result())

    def _work(self) -> None:
        while True:
            job = self.jobs.get()
            if job.work is _leave:
                return
            try:
                answer = job.work()
            except Exception as error:
                _tell(job, job.done.set_exception, error)
            else:
                _tell(job, job.done.set_result, answer)


def _leave() -> bytes:
    return b""


def _tell(job: Job, settle: Callable[..., None], value: object) -> None:
    """Sets the result of a future in its own loop, unless that is closed."""

    def inside() -> None:
        if not job.done.done():
            settle(value)

    if not job.loop.is_closed():
        job.loop.call_soon_threadsafe(inside)
