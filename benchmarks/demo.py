"""The explainer over HTTP: from a slider to its picture, from a drawing to its routing.

    python -m benchmarks.demo [--save FILE]      or      flashcaps bench demo

A server of its own on a port of its own, one connection that is kept, no two requests alike (nothing is answered from
memory), the median of many after a few to warm up.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashcaps.demo.serve import DEMO, take_port
from flashcaps.training.checkpoint import write_atomic

from . import provenance

GOAL_MS = 50.0  # slider to picture, at the median
REPEATS = 200
WARM_UP = 10


@contextmanager
def served() -> Iterator[tuple[http.client.HTTPConnection, float]]:
    """A connection to `flashcaps demo`, and the seconds from its start to its first answer."""
    with take_port("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flashcaps", "demo", "--no-browser", "--port", str(port)]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"flashcaps demo ended with {process.returncode}") from None
                time.sleep(0.02)
        yield connection, time.monotonic() - begun
        connection.close()
    finally:
        process.terminate()
        process.wait(20)


def ask(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
    connection.request("POST", f"/api/{path}", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {content[:200]!r}")
    return json.loads(content)


def timed(request: Callable[[int], Any], repeats: int) -> dict[str, float]:
    """Milliseconds of request(k), k = 0, 1, ...: median, and the limits of the middle 90 %."""
    found = []
    for k in range(WARM_UP + repeats):
        begun = time.perf_counter()
        request(k)
        found.append(1000 * (time.perf_counter() - begun))
    found = sorted(found[WARM_UP:])
    return {"median_ms": round(statistics.median(found), 2), "p5_ms": round(found[len(found) // 20], 2),
            "p95_ms": round(found[-1 - len(found) // 20], 2)}  # fmt: skip


def measure(connection: http.client.HTTPConnection, repeats: int = REPEATS) -> list[dict[str, Any]]:
    connection.request("GET", "/api/models")
    listed = json.loads(connection.getresponse().read())
    sample = listed["samples"][13]["image"]

    def drawing(k: int, side: int = 28) -> dict[str, Any]:
        pixels = bytearray(side * side)
        pixels[: 28 * 28] = base64.b64decode(sample)
        pixels[0], pixels[1] = k % 256, k // 256  # no two alike
        return {"width": side, "height": side, "pixels": base64.b64encode(pixels).decode()}

    rows = []
    for model in listed["models"]:
        name, side = model["name"], model["image"][1]
        routed = ask(connection, "route", {"model": name, "image": drawing(9999, side)})
        label = routed["predicted"][0]
        pose = routed["poses"][label]

        def slide(k: int, name: str = name, pose: list[float] = pose, label: int = label) -> Any:
            moved = [x + (0.001 * (k + 1) if d == k % len(pose) else 0) for d, x in enumerate(pose)]
            return ask(connection, "decode", {"model": name, "pose": moved, "class": label})

        def draw(k: int, name: str = name, side: int = side) -> Any:
            return ask(connection, "route", {"model": name, "image": drawing(k, side)})

        rows.append({"request": "slider to picture", "model": name} | timed(slide, repeats))
        rows.append({"request": "drawing to routing", "model": name} | timed(draw, max(1, repeats // 4)))
    five = list(DEMO[:5])
    rows.append({"request": "five algorithms on one drawing", "model": "all five"}
                | timed(lambda k: ask(connection, "compare", {"models": five, "image": drawing(2000 + k)}),
                        max(1, repeats // 10)))  # fmt: skip
    return rows


def bench(path: Path, log: Callable[[str], None] = print, repeats: int = REPEATS) -> Path:
    """Measure, print a line for each request and model, and write `path`."""
    with served() as (connection, start_s):
        rows = measure(connection, repeats)
    log(f"start to first answer {start_s:.1f} s")
    for row in rows:
        log(f"{row['request']:<32} {row['model']:<20} {row['median_ms']:7.1f} ms "
             f"({row['p5_ms']:.1f} to {row['p95_ms']:.1f})")  # fmt: skip
    slides = [row["median_ms"] for row in rows if row["request"] == "slider to picture"]
    word = "within" if max(slides) <= GOAL_MS else "MORE than"
    log(f"slider to picture: {max(slides):.1f} ms at the median of the slowest, {word} the {GOAL_MS:g} ms wanted")
    record = provenance() | {"cores": os.cpu_count(), "start_s": round(start_s, 2), "goal_ms": GOAL_MS, "rows": rows}
    write_atomic(path, json.dumps(record, indent=2) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description="The explainer over HTTP.")
    parser.add_argument("--save", type=Path, default=Path("results/demo.json"))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    print(bench(given.save, repeats=given.repeats))


if __name__ == "__main__":
    main()
