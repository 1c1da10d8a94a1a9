"""The processes of a run: one, or several that torchrun started, each with a device and a part of every batch."""

import gc
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MEETING_S = 600  # seconds that all processes have to start
ROLL_CALL_S = 5  # seconds that the others have to answer
BUCKET = 25 << 20  # bytes of gradients that travel together
ALIGNED = 64  # numbers: where a gradient begins in its bucket, for optimisers that read several at a time


@dataclass(frozen=True)
class Workers:
    """This process among `world`. local: its number on its machine."""

    device: torch.device
    rank: int = 0
    world: int = 1
    local: int = 0

    def average_statistics(self, model: nn.Module) -> None:
        """Averages the running statistics of batch normalisation, which each process took from its own images."""
        if self.world > 1:
            for name, x in model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    dist.all_reduce(x)
                    x /= self.world

    def summed(self, x: Tensor) -> Tensor:
        """x summed over all processes, as a new tensor."""
        x = x.clone()
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def gathered(self, value: Any) -> list[Any]:
        """The value of every process, in order of rank."""
        values: list[Any] = [value]
        if self.world > 1:
            values *= self.world
            dist.all_gather_object(values, value)
        return values

    def shared(self, value: Any) -> Any:
        """The first process's value, in all of them."""
        values = [value]
        if self.world > 1:
            dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def agreed(self, flag: bool) -> bool:
        """Whether any process has the flag; all processes must call it at the same step."""
        return flag if self.world == 1 else bool(self.summed(torch.tensor(float(flag), device=self.device)))


class GradientBuckets:
    """Averages gradients over the process group during the backward pass.

    Parameters share buckets of about `size` bytes, from the last parameter, whose gradient comes first. A bucket with
    all its gradients is averaged while the backward pass continues. Every process sends its buckets in the same order,
    the last one after the backward pass, with the loss. Gradients stay in their buckets, in the layout of their
    parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], size: int = BUCKET) -> None:
        self.buckets: list[list[nn.Parameter]] = [[]]
        for p in reversed(parameters):
            if sum(x.nbytes for x in self.buckets[-1]) >= size:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self._note)
        self.place = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
        self.missing: list[int] = []  # gradients that each bucket still waits for; empty between steps
        self.sent: list[tuple[Tensor, Any]] = []
        self.averages = dist.get_backend() == "nccl"  # gloo can only sum

    def begin(self) -> None:
        """Is called before the backward pass that completes the gradients."""
        self.missing = [len(bucket) for bucket in self.buckets]

    def finish(self, loss: Tensor) -> None:
        """Is called after it: averages all gradients, and `loss` in place."""
        while len(self.sent) < len(self.buckets) - 1:
            self._send()  # a bucket with parameters that this step did not use
        mean = self._send(loss)[-1]
        for flat, work in self.sent:
            work.wait()
            if not self.averages:
                flat /= dist.get_world_size()
        loss.copy_(mean)
        self.missing, self.sent = [], []

    def _note(self, p: Tensor) -> None:
        if self.missing:
            self.missing[self.place[p]] -= 1  # type: ignore[index]
            while len(self.sent) < len(self.buckets) - 1 and self.missing[len(self.sent)] == 0:
                self._send()

    def _send(self, *more: Tensor) -> list[Tensor]:
        """Starts to average the next bucket; returns what it holds, gradients and then `more`."""
        given = [p for p in self.buckets[len(self.sent)] if p.grad is not None]
        tensors = [*(p.grad for p in given if p.grad is not None), *more]
        *starts, end = accumulate((-(-x.numel() // ALIGNED) * ALIGNED for x in tensors), initial=0)
        flat = self.buckets[0][0].new_empty(end)
        parts = [flat.as_strided(x.shape, x.stride(), k) for x, k in zip(tensors, starts, strict=True)]
        if parts:
            torch._foreach_copy_(parts, tensors)
        for p, part in zip(given, parts, strict=False):
            p.grad = part
        operation = dist.ReduceOp.AVG if self.averages else dist.ReduceOp.SUM
        self.sent.append((flat, dist.all_reduce(flat, operation, async_op=True)))
        return parts


def join_workers(device: str = "auto") -> Workers:
    """The device asked for ("auto": a GPU if there is one), and the process group where torchrun started several."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = find_device(device)
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world > 1 and not dist.is_initialized():
        store, rank, world = next(dist.rendezvous("env://"))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = meet(store, rank, world)
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", store=store, rank=rank, world_size=world)
    return Workers(chosen, dist.get_rank() if world > 1 else 0, world, local)


def meet(store: dist.Store, rank: int, world: int) -> dist.Store:
    """A part of torchrun's store, under a prefix that only the processes of this start know.

    The store outlives the processes: after a restart a process would find the addresses of the old ones there, and wait
    for them. So each process writes a new random word; the first process answers every word with its own, which becomes
    the prefix, and waits until all have read it.
    """
    word = secrets.token_hex(8)
    if rank > 0:
        store.set(f"flashcaps/come/{rank}", word)
        first = store.get(f"flashcaps/answer/{word}").decode()
        store.set(f"flashcaps/heard/{first}/{rank}", "1")
        return dist.PrefixStore(first, store)
    missing, until = list(range(1, world)), time.monotonic() + MEETING_S
    while missing:
        for other in missing:
            if store.check([f"flashcaps/come/{other}"]):
                store.set(f"flashcaps/answer/{store.get(f'flashcaps/come/{other}').decode()}", word)
        time.sleep(0.02)
        missing = [r for r in missing if not store.check([f"flashcaps/heard/{word}/{r}"])]
        if time.monotonic() > until:
            raise TimeoutError(f"rank {', '.join(map(str, missing))} of {world} did not come within {MEETING_S} s")
    return dist.PrefixStore(word, store)


def was_restarted() -> bool:
    """Whether torchrun or Slurm started this command again after it failed."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("TORCHELASTIC_RESTART_COUNT",
                                                                       "SLURM_RESTART_COUNT"))


def lost_workers(workers: Workers, error: BaseException) -> str:
    """The processes that do not answer after a failed exchange, as "rank 1, 3"; "" for other errors."""
    broken = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL", "Connection"))
    if workers.world == 1 or not broken or not dist.is_initialized():
        return ""
    here = [f"flashcaps/here/{rank}" for rank in range(workers.world)]
    present = [False] * workers.world
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(here[workers.rank], "1")
        until = time.monotonic() + ROLL_CALL_S
        while not all(present) and time.monotonic() < until:
            present = [store.check([key]) for key in here]
            time.sleep(0.1)
    except RuntimeError:  # the store is in the first process, unless torchrun has it
        return "rank 0"
    missing = [str(rank) for rank, answered in enumerate(present) if not answered]
    return f"rank {', '.join(missing)}" if missing else ""


def leave_workers() -> None:
    if dist.is_initialized():
        gc.collect()  # otherwise NCCL waits for captured steps that hold its work
        dist.destroy_process_group()


def find_device(device: str) -> torch.device:
    """The device of "auto", "cpu", "cuda" or "cuda:1"; raises where it does not exist, or was never tested."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {device!r}") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {device} is not on this machine; use --device cpu or auto")
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {device!r}, on which nothing is tested")
    return chosen


def set_precision(precision: str) -> None:
    """Lets fp32 products use TF32 unless the precision is "fp32"."""
    exact = precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = True  # shapes never change


class Stopped(Exception):
    """Training was asked to stop and saved its state; code: the exit code a shell gives the signal."""

    def __init__(self, number: int, resume: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; continue with: {resume}")
        self.code = 128 + number


@contextmanager
def recorded_signals() -> Iterator[list[int]]:
    """A context that records Ctrl-C and SIGTERM instead of stopping; a second Ctrl-C interrupts."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received[-1:] == [number] == [signal.SIGINT]:
            raise KeyboardInterrupt
        received.append(number)

    main = threading.current_thread() is threading.main_thread()  # where signals arrive
    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
