"""Pictures of a record: how time and memory grow, and how each workload compares with its goal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashcaps.analysis.style import FAINT, GREEN, INK, MUTED, RC, colour_of, figure, grid

LABELS = {
    "I": "children I", "J": "parents J", "D": "pose D", "iterations": "iterations", "batch": "batch B",
    "image": "places along an image side",
}  # fmt: skip
LINES = {"triton": "-", "matrix": "--"}


def draw(record: dict[str, Any], folder: Path, stem: str, log: Callable[[str], None]) -> list[str]:
    """Write STEM-time, STEM-sweep and STEM-memory as PNG and SVG; the names of those there are numbers for."""
    try:
        import matplotlib
    except ImportError:
        log("no plots: matplotlib is not installed; python -m benchmarks.table draws them where it is")
        return []
    drawn = []
    with matplotlib.rc_context({**RC, "svg.fonttype": "none"}):
        for name, make in (("time", times), ("sweep", growth), ("memory", memory)):
            picture = make(record)
            if picture is not None:
                save(picture, folder / f"{stem}-{name}")
                drawn.append(f"{stem}-{name}")
    return drawn


def save(picture: Any, path: Path) -> None:
    """Small files that are the same for the same numbers."""
    picture.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    picture.savefig(path.with_suffix(".png"), dpi=90, metadata={"Software": None})


def points(record: dict[str, Any], value: str) -> dict[str, dict[tuple[str, str], list[tuple[int, float]]]]:
    """axis -> (algorithm, backend) -> (x, value) in order."""
    found: dict[str, dict[tuple[str, str], list[tuple[int, float]]]] = {}
    for row in record.get("sweep", []):
        if row.get(value) is not None:
            routing, axis, x = row["workload"].split("/")
            found.setdefault(axis, {}).setdefault((routing, row["backend"]), []).append((int(x), row[value]))
    return {axis: {k: sorted(v) for k, v in lines.items()} for axis, lines in found.items()}


def panels(lines: dict[str, Any], title: str, label: str) -> tuple[Any, list[Any]]:
    """A panel per axis of the sweep that was measured, in rows of three."""
    measured = [axis for axis in LABELS if lines.get(axis)]
    rows = -(-len(measured) // 3)
    picture = figure(11, 0.6 + 2.8 * rows)
    axes = picture.subplots(rows, 3, squeeze=False).flatten()
    for panel in axes[len(measured) :]:
        panel.set_visible(False)
    for panel, axis in zip(axes, measured, strict=False):
        for (routing, backend), found in lines.get(axis, {}).items():
            x, y = zip(*found, strict=True)
            panel.plot(x, y, LINES.get(backend, ":"), color=colour_of(routing), marker="o", markersize=3.5,
                       linewidth=1.6, label=f"{routing}, {backend}")  # fmt: skip
        panel.set_xscale("log", base=2)
        ticks = sorted({x for found in lines.get(axis, {}).values() for x, _ in found})
        panel.set_xticks(ticks, [str(v) for v in ticks], minor=False)
        panel.set_xlabel(LABELS[axis])
        grid(panel)
    for panel in axes[::3]:
        panel.set_ylabel(label)
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, text in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(text, handle)
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=9)
    picture.suptitle(title, fontsize=12)
    return picture, list(axes)


def growth(record: dict[str, Any]) -> Any:
    """Time of one layer against every size."""
    lines = points(record, "time_ms")
    if not lines:
        return None
    picture, axes = panels(lines, f"forward + backward of one layer, {record['hardware']}", "ms")
    for panel in axes:
        panel.set_yscale("log", base=2)  # a doubling is as far everywhere
        panel.yaxis.set_major_formatter("{x:.3g}")
    return picture


def memory(record: dict[str, Any]) -> Any:
    """Peak memory against every size, as a multiple of inputs, outputs, weights and their gradients; 2 is the goal."""
    lines = points(record, "of_bytes")
    if not lines:
        return None
    title = f"peak memory / bytes of inputs, outputs, weights and their gradients, {record['hardware']}"
    picture, axes = panels(lines, title, "times its bytes")
    for panel in axes:
        panel.axhline(2, color=MUTED, linewidth=1, linestyle=":")
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter("{x:g}")
    return picture


def times(record: dict[str, Any]) -> Any:
    """Each workload: public style, matrix and Triton as bars, the goal and the floor as marks."""
    rows = {(r["workload"], r["backend"]): r for r in record.get("rows", []) if r["dtype"] == "tf32" and "time_ms" in r}
    names = [name for name in record["workloads"] if any(key[0] == name for key in rows)]
    if not names:
        return None
    kinds = {"public": ("public style, eager", FAINT), "matrix": ("matrix", MUTED), "triton": ("triton", GREEN)}
    picture = figure(10, 0.55 * len(names) + 1.6)
    axis = picture.subplots()
    for k, (backend, (label, colour)) in enumerate(kinds.items()):
        found = [(n, rows[name, backend]) for n, name in enumerate(names) if (name, backend) in rows]
        form = "eager_ms" if backend == "public" else "time_ms"
        axis.barh([n + 0.27 * (k - 1) for n, _ in found], [r[form] for _, r in found], 0.25, color=colour, label=label)
    for n, name in enumerate(names):
        goal = record["workloads"][name]["goal"]["ms"]
        floor = next((r["floor_ms"] for key, r in rows.items() if key[0] == name and "floor_ms" in r), None)
        for value, style in ((goal, "-"), (floor, ":")):
            if value is not None:
                axis.plot([value, value], [n - 0.42, n + 0.42], style, color=INK, linewidth=1.6)
    axis.plot([], [], "-", color=INK, label="goal")
    axis.plot([], [], ":", color=INK, label="floor")
    axis.set_xscale("log")
    axis.set_yticks(range(len(names)), [record["workloads"][name]["title"] for name in names], fontsize=9)
    axis.invert_yaxis()
    axis.set_xlabel(f"ms of forward + backward, {record['hardware']}")
    axis.legend(fontsize=9, ncols=5, loc="upper center", bbox_to_anchor=(0.3, 1.1))
    axis.grid(True, axis="x", linewidth=0.8)
    return picture
