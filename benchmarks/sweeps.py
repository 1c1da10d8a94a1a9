"""How cost grows: one layer per algorithm, one number varied at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

from .workloads import Workload, conv, dense

# children, columns in, parents, pose out (numbers), batch, iterations
BASE: dict[str, dict[str, Any]] = {
    "dynamic": {"I": 1152, "J": 10, "D": 16, "iterations": 3, "batch": 128},
    "em": {"I": 800, "J": 32, "D": 16, "iterations": 3, "batch": 64},
    "attention": {"I": 800, "J": 32, "D": 16, "iterations": 3, "batch": 64},
    "heinsen": {"I": 800, "J": 32, "D": 16, "iterations": 3, "batch": 64},
    "discriminative": {"I": 1152, "J": 10, "D": 16, "iterations": 1, "batch": 128},
}
AXES: dict[str, tuple[int, ...]] = {
    "I": (256, 512, 1024, 2048, 4096, 8192),
    "J": (8, 16, 32, 64, 128),
    "D": (4, 16, 36, 64),
    "iterations": (1, 2, 3, 4, 5),
    "batch": (16, 32, 64, 128, 256, 512),
}
TOY_AXES: dict[str, tuple[int, ...]] = {"I": (4, 8), "J": (2, 3), "D": (4, 9), "iterations": (1, 2), "batch": (1, 2)}
SIZES, TOY_SIZES = (8, 12, 16, 24, 32), (4, 6)  # of the image that convolutional layers see
CONVOLUTIONAL = ("attention", "em")


def layer(name: str, routing: str, I: int, J: int, D: int, iterations: int, batch: int) -> Workload:
    """A dense layer: vectors of 8 to vectors of D where a length is the activation, else square matrices."""
    vector = routing in ("dynamic", "discriminative")
    options: dict[str, Any] = {} if routing == "discriminative" else {"iterations": iterations}
    in_dim = 8 if vector else D
    spec = dense(routing, I, in_dim, J, D, pose="vector" if vector else "matrix", **options)
    title = f"{routing} {I}x{in_dim} -> {J}x{D}, {iterations} it., B {batch}"
    return Workload(name, title, batch, (I, in_dim), (spec,), seen=((1, I),))


def image(name: str, routing: str, size: int, types: int, batch: int) -> Workload:
    """A 3 x 3 convolutional layer of 4 x 4 poses, stride 2, on size x size places."""
    places = ((size - 3) // 2 + 1) ** 2
    title = f"{routing} {types} types on {size}x{size}, 3x3, B {batch}"
    options = {"iterations": 2}
    layers = (conv(routing, types, 2, **options),)
    return Workload(name, title, batch, (types, size, size, 16), layers, seen=((places, 9 * types),))


@cache
def points(toy: bool = False) -> dict[str, Workload]:
    """Every point of every sweep, by name: "dynamic/I/1024"."""
    found = {}
    for axis, values in (TOY_AXES if toy else AXES).items():
        for routing, base in BASE.items():
            if axis == "iterations" and routing == "discriminative":
                continue
            start = {"I": 4, "J": 3, "D": 4, "iterations": 2, "batch": 2} if toy else base
            for value in values:
                name = f"{routing}/{axis}/{value}"
                found[name] = layer(name, routing, **{**start, axis: value})
    for size in TOY_SIZES if toy else SIZES:
        for routing in CONVOLUTIONAL:
            name = f"{routing}/image/{size}"
            found[name] = image(name, routing, size, 2 if toy else 32, 2 if toy else 16)
    return found
