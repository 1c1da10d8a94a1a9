"""The Explainer's routing view as an animated SVG, from a network that comes along: python -m docs.animation"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashcaps
from flashcaps.analysis.figure import Run
from flashcaps.demo.build import PAGE, read_samples
from flashcaps.demo.facts import batch_of, grid_and_field, place
from flashcaps.nn.trace import presence

FILE = Path(__file__).parent / "images" / "explainer.svg"
WIDTH, HEIGHT, SIDE, LEFT, TOP = 900, 508, 400, 24, 68  # of the picture of the digit: its side and where it lies
HAIR, THICK = 0.5, 10  # as on the page: width of a line that gains nothing, and of the largest gain
SHOWN, MOVED = 2.2, 0.8  # seconds an iteration stands still, and seconds to the next
AHEAD = 0.045  # as on the page: by less no class stands out


@dataclass(frozen=True)
class Scene:
    """One digit in one network. gains (T, cells, K): what each place sends above an even split, activation (T, K)."""

    digit: Tensor
    gains: Tensor
    activation: Tensor
    grid: tuple[int, int, int]
    field: dict[str, int]

    @property
    def iterations(self) -> int:
        return len(self.activation)


def opening() -> tuple[str, int]:
    """The network and the sample on which the page opens."""
    found = re.search(r'model: "(\w+)", sample: (\d+)', (PAGE / "opening.js").read_text())
    assert found is not None, "opening.js: expected OPENING = { model: ..., sample: ... }"
    return found[1], int(found[2])


@torch.no_grad()
def scene() -> Scene:
    name, sample = opening()
    model: Any = flashcaps.load(name)
    digits = read_samples()[0][sample : sample + 1]
    batch = batch_of(model, digits)
    run = Run(model.eval(), batch, name=name)
    grid, field = grid_and_field(run)
    _, top = run.class_votes(batch)
    there = presence(top)[0].flatten()  # (I,)
    flow = torch.stack([step.coupling[0] * there[:, None] for step in top.steps])  # (T, I, K)
    flow = flow.unflatten(1, (grid[0], -1)).sum(1)  # (T, cells, K)
    traces = [run.class_votes(batch, iterations=t + 1)[1] for t in range(len(top.steps))]
    activation = torch.stack([model.head(trace.out)[0] for trace in traces])
    if top.layer.routing.output_activation == "score":
        activation = activation.softmax(-1)
    return Scene(place(digits[0], *model.image[1:]), flow - flow.mean(-1, keepdim=True), activation, grid, field)


def keyframes(name: str, values: list[str]) -> str:
    """A loop that rests at each of the declarations in turn."""
    length = (SHOWN + MOVED) * len(values)
    stops = []
    for t, value in enumerate(values):
        begin = 100 * t * (SHOWN + MOVED) / length
        stops.append(f"{begin:.1f}%,{begin + 100 * SHOWN / length:.1f}%{{{value}}}")
    return f"@keyframes {name}{{{''.join(stops)}100%{{{values[0]}}}}}"


def style(iterations: int) -> str:
    every = range(iterations)
    loop = f"{(SHOWN + MOVED) * iterations:g}s ease-in-out infinite"
    texts = "".join(
        keyframes(f"t{t}", [f"opacity:{int(s == t)}" for s in every]) + f".t{t}{{animation:t{t} {loop}}}" for t in every
    )
    last = iterations - 1
    page = re.findall(r"--c(\d): light-dark\((#\w+), (#\w+)\)", (PAGE / "base.css").read_text())
    light, dark = ("".join(f".c{found[0]}{{stroke:{found[theme]}}}" for found in page) for theme in (1, 2))
    return "".join([
        ":root{--ink:#1b1f26;--card:#fff;--paper:#fbfbf9;--line:#e2e4e1}",
        "text{font:600 17px system-ui,sans-serif;fill:var(--ink)}",
        ".ink{fill:var(--ink)}.card{fill:var(--card)}.paper{fill:var(--paper);stroke:var(--line)}",
        ".l{fill:none;stroke-linecap:round}.cell{fill:var(--card);stroke:var(--ink);stroke-width:2}",
        ".disc{fill:var(--card);stroke:var(--line);stroke-width:5}.ring{fill:none;stroke-width:5}.says{font-size:22px}",
        light, "@media(prefers-color-scheme:dark){:root{--ink:#e8ebf1;--card:#171b21;--paper:#101419;--line:#2a313b}",
        dark, "}",
        keyframes("w", [f"stroke-width:var(--w{t});stroke-opacity:var(--o{t})" for t in every]),
        f".l{{animation:w {loop}}}",
        keyframes("r", [f"stroke-dasharray:var(--r{t}) 1" for t in every]), f".ring{{animation:r {loop}}}", texts,
        "@media(prefers-reduced-motion:reduce){*{animation:none!important}",
        f".l{{stroke-width:var(--w{last});stroke-opacity:var(--o{last})}}.ring{{stroke-dasharray:var(--r{last}) 1}}",
        "".join(f".t{t}{{opacity:{int(t == last)}}}" for t in every), "}",
    ])  # fmt: skip


def picture(found: Scene) -> str:
    """The SVG: the digit, its places, the class capsules, and lines as wide as what they gain, on one scale."""
    scale = SIDE / found.digit.shape[1]
    size, stride, offset = (found.field[key] for key in ("size", "stride", "offset"))
    classes, top = found.activation.shape[1], float(found.gains.abs().max())
    x1, ys = WIDTH - 60, [TOP - 26 + k * (SIDE + 40) / (classes - 1) for k in range(classes)]
    parts = []
    for row, column in found.digit.nonzero().tolist():
        at = f'x="{LEFT + column * scale:.1f}" y="{TOP + row * scale:.1f}"'
        ink = 0.85 * int(found.digit[row, column]) / 255
        side = f"{scale + 0.2:.1f}"
        parts.append(f'<rect class="ink" {at} width="{side}" height="{side}" opacity="{ink:.2f}"/>')
    middle = lambda n: (offset + stride * n + size / 2) * scale  # noqa: E731
    points = [(LEFT + middle(c), TOP + middle(r)) for r in range(found.grid[1]) for c in range(found.grid[2])]
    for cell, (x, y) in enumerate(points):
        for k in range(classes):
            share = (found.gains[:, cell, k].clamp(min=0) / top).tolist()
            widths = [f"--w{t}:{HAIR + THICK * s:.2f};--o{t}:{0.14 + 0.74 * min(1, 2 * s):.2f}"
                      for t, s in enumerate(share)]  # fmt: skip
            bend = f"{x + 0.35 * (x1 - x):.0f} {y + 0.2 * (ys[k] - y):.0f} {x + 0.6 * (x1 - x):.0f} {ys[k]:.0f}"
            way = f"M{x:.0f} {y:.0f}C{bend} {x1 - 20:.0f} {ys[k]:.0f}"
            parts.append(f'<path class="l c{k}" style="{";".join(widths)}" d="{way}"/>')
    parts += [f'<circle class="cell" cx="{x:.0f}" cy="{y:.0f}" r="6"/>' for x, y in points]
    for k, y in enumerate(ys):
        values = ";".join(f"--r{t}:{float(a):.3f}" for t, a in enumerate(found.activation[:, k].clamp(0, 1)))
        ring = f'<circle class="ring c{k}" r="17" pathLength="1" transform="rotate(-90)" style="{values}"/>'
        parts.append(f'<g transform="translate({x1} {y:.0f})"><circle class="disc" r="17"/>{ring}'
                     f'<text text-anchor="middle" dy=".36em">{k}</text></g>')  # fmt: skip
    for t in range(found.iterations):
        (first, second), (best, _) = (x.tolist() for x in found.activation[t].topk(2))
        winner = best if first - second >= AHEAD else "no class stands out"
        says = f"After iteration {t + 1} of {found.iterations}: {winner}"
        parts.append(f'<text class="says t{t}" x="{LEFT}" y="36">{says}</text>')
    label = "A digit being routed: lines from places of the picture to class capsules, iteration by iteration"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
            f'<style>{style(found.iterations)}</style><rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="16"/>'
            f'<rect class="paper" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" rx="10"/>'
            f'{"".join(parts)}</svg>\n')  # fmt: skip


if __name__ == "__main__":
    FILE.write_text(picture(scene()), encoding="utf-8")
