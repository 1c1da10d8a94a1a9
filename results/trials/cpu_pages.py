"""Training steps on a CPU whose freed memory is returned or kept: python results/trials/cpu_pages.py

Two processes, one of which calls `keep_freed_memory`, are asked for a step in turn. Writes cpu_pages.json beside it.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import flashcaps
from flashcaps.training.environment import versions
from flashcaps.training.memory import keep_freed_memory
from flashcaps.training.results import commit, hardware

WORKLOADS = {"attention_simple_cifar10": 128, "attention_resnet_cifar10": 64, "dynamic_simple_cifar10": 128,
             "em_smallnorb": 32, "heinsen_smallnorb": 20, "capsnet_mnist": 128, "cnn_smallnorb": 128}  # fmt: skip
WHAT = """a training step (forward, backward, Adam) on one thread, random images, loss the mean square of the scores: \
medians of seven after two; each pair is returned, kept"""


def serve(kept: str, name: str, batch: str) -> None:
    """A step for each line that comes: seconds, seconds of the CPU, page faults, and the process's peak in MiB."""
    if kept == "kept":
        keep_freed_memory()
    torch.manual_seed(0)
    model = flashcaps.create_model(name).train()
    images, adam = torch.rand(int(batch), *model.image), torch.optim.Adam(model.parameters())
    for _ in sys.stdin:
        wall, cpu, before = time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF)
        model(images).scores.square().mean().backward()
        adam.step()
        adam.zero_grad()
        after = resource.getrusage(resource.RUSAGE_SELF)
        faults, peak = after.ru_minflt - before.ru_minflt, after.ru_maxrss // 1024
        print(time.perf_counter() - wall, time.process_time() - cpu, faults, peak, flush=True)


def measure(name: str, batch: int) -> dict[str, object]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, __file__, kept, name, str(batch)], **pipes) for kept in ("no", "kept")]
    steps: list[list[list[float]]] = [[], []]
    for _ in range(9):
        for process, found in zip(both, steps, strict=True):
            print(file=process.stdin, flush=True)
            found.append([float(x) for x in process.stdout.readline().split()])
    for process in both:
        process.communicate()
    wall, cpu, faults, peak = ([round(statistics.median(column), 4) for column in columns]
                               for columns in zip(*(zip(*found[2:], strict=True) for found in steps), strict=True))
    return {"workload": name, "batch": batch, "median_s": wall, "median_cpu_s": cpu, "page_faults": faults,
            "process_peak_mib": peak, "ratio_of_cpu_seconds": round(cpu[0] / cpu[1], 3)}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        serve(*sys.argv[1:])
    else:
        record = {"what": WHAT, "command": "python results/trials/cpu_pages.py", "commit": commit(), "seed": 0,
                  "hardware": hardware(torch.device("cpu")), "versions": versions()}  # fmt: skip
        record["rows"] = [measure(*workload) for workload in WORKLOADS.items()]
        Path(__file__).with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
