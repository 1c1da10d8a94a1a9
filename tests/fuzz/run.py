"""Many cases on several processes. A case that kills its process or hangs is recorded, and the rest go on."""

import argparse
import json
import multiprocessing
import platform
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.results import commit, hardware

from . import on_data, on_functions, on_layers
from .draw import Draw
from .judge import KINDS, UNEXPLAINED, Case, judge

TARGETS: dict[str, Callable[[Draw], Case]] = on_functions.TARGETS | on_layers.TARGETS | on_data.TARGETS
NAMES = sorted(TARGETS)
SHOWN = 20  # unexplained cases written out for each target


def draw_case(name: str, seed: str) -> Case:
    """A case of a target, an argument of it sometimes made wrong."""
    draw = Draw(seed)
    case = TARGETS[name](draw)
    draw.spoil(case.arguments, case.spoil)
    return case


def make_case(seed: int, number: int) -> tuple[str, Case]:
    """Targets take turns; what a case is depends on (seed, number) alone."""
    name = NAMES[number % len(NAMES)]
    return name, draw_case(name, f"{seed}/{name}/{number}")


def work(pipe: Connection, seed: int, numbers: list[int]) -> None:
    """Judge these cases. Each is announced before it runs, so that one that kills the process is known."""
    torch.set_num_threads(1)
    for number in numbers:
        pipe.send((number, "", "", ""))
        name, case = make_case(seed, number)
        verdict = judge(case)
        text = case.text() if verdict.kind == UNEXPLAINED else ""
        pipe.send((number, name, verdict.kind, f"{verdict.why} [{text}]" if text else ""))
    pipe.close()


def one_process(seed: int, numbers: list[int]) -> Iterator[tuple[int, str, str, str]]:
    """(number, target, kind, why) of each case, from a process of their own, restarted when it dies."""
    context = multiprocessing.get_context("fork")
    while numbers:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(theirs, seed, numbers), daemon=True)
        process.start()
        theirs.close()
        at = numbers[0]
        try:
            while True:
                at, name, kind, why = mine.recv()
                if kind:
                    yield at, name, kind, why
        except EOFError:
            process.join()
        if process.exitcode == 0:
            return
        yield at, NAMES[at % len(NAMES)], UNEXPLAINED, f"the process ended with code {process.exitcode}"
        numbers = numbers[numbers.index(at) + 1 :]


def collect(numbers: list[int], seed: int, workers: int) -> dict[str, Any]:
    """Counts of every kind for every target, and the unexplained cases."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    lost: dict[str, list[dict[str, Any]]] = defaultdict(list)
    streams = [one_process(seed, numbers[k::workers]) for k in range(workers)]
    while streams:
        for stream in list(streams):
            found = next(stream, None)
            if found is None:
                streams.remove(stream)
                continue
            number, name, kind, why = found
            counts[name][kind] += 1
            if kind == UNEXPLAINED and len(lost[name]) < SHOWN:
                lost[name].append({"number": number, "why": why})
    return {"targets": {n: {k: counts[n][k] for k in KINDS} for n in sorted(counts)}, "unexplained": dict(lost)}


def report(found: dict[str, Any]) -> str:
    rows = [f"{'target':<52}" + "".join(f"{kind:>13}" for kind in KINDS)]
    for name, kinds in found["targets"].items():
        rows.append(f"{name:<52}" + "".join(f"{kinds[kind]:>13,}" for kind in KINDS))
    for name, cases in found["unexplained"].items():
        rows += [f"{name}, case {c['number']}: {c['why']}" for c in cases[:3]]
    total = {kind: sum(kinds[kind] for kinds in found["targets"].values()) for kind in KINDS}
    rows.append(f"{'together':<52}" + "".join(f"{total[kind]:>13,}" for kind in KINDS))
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0 when every case is explained."""
    words = sys.argv[1:] if words is None else list(words)
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", default="", help="only targets whose name has this in it")
    parser.add_argument("--only", type=int, help="run this one case, and say what it is")
    parser.add_argument("--save", type=Path, help="write the counts as JSON")
    options = parser.parse_args(words)
    if options.only is not None:
        name, case = make_case(options.seed, options.only)
        print(name, case.text(), judge(case), sep="\n")
        return 0
    began = time.monotonic()
    wanted = [n for n in range(options.cases) if options.target in NAMES[n % len(NAMES)]]
    found = collect(wanted, options.seed, options.workers)
    print(report(found))
    if options.save:
        about = {
            "cases": sum(sum(kinds.values()) for kinds in found["targets"].values()),
            "seed": options.seed,
            "command": shlex.join(["python", "-m", "tests.fuzz", *words]),
            "commit": commit(),
            "hardware": hardware(torch.device("cpu")),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "wall_s": round(time.monotonic() - began, 1),
        }
        write_atomic(options.save, json.dumps(about | found, indent=2) + "\n")
    return 1 if any(kinds[UNEXPLAINED] for kinds in found["targets"].values()) else 0
