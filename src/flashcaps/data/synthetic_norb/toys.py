"""The toys of synthetic-NORB: a structure per category, proportions and extras per instance.

x points ahead, y to the left, z up. Every builder draws what differs between instances from `r`; `assemble` then
puts the toy on the ground at the origin and scales it, so that its size does not reveal the category.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .render import Part, Toy, bounds

Point = tuple[float, float, float]
SIDES = (-1, 1)


def _solid(kind: str, centre: Point, half: Point, *, pitch: float = 0.0, shade: float = 1.0) -> Part:
    """A ball or a box, its nose up by `pitch` degrees."""
    c, s = math.cos(math.radians(pitch)), math.sin(math.radians(pitch))
    axes = torch.tensor([[c, 0, -s], [0, 1, 0], [s, 0, c]], dtype=torch.float64)
    return Part(kind, _vector(centre), axes, _vector(half), shade)


ball, box = partial(_solid, "ball"), partial(_solid, "box")


def tube(start: Point, end: Point, radius: float, *, taper: float = 1.0, flat: float = 1.0, shade: float = 1.0) -> Part:
    """A frustum from `start` to `end`: `radius` across, `flat` times that upright, both `taper` times at the end."""
    a, b = _vector(start), _vector(end)
    w = normalize(b - a, dim=0)
    level = torch.linalg.cross(_vector((0, 0, 1)), w)
    u = normalize(level, dim=0) if float(level.norm()) > 1e-3 else _vector((0, 1, 0))
    axes = torch.stack([u, torch.linalg.cross(w, u), w], dim=1)
    return Part("frustum", (a + b) / 2, axes, _vector((radius, radius * flat, float((b - a).norm()) / 2)), shade, taper)


def _vector(xyz: Point) -> Tensor:
    return torch.tensor(xyz, dtype=torch.float64)


def wheels(r: Random, places: list[float], width: float, radius: float) -> list[Part]:
    """Wheels with hubs at x in `places`, on both sides."""
    tyre, hub = r.uniform(0.2, 0.5), r.uniform(0.9, 1.6)
    parts = []
    for x in places:
        for side in SIDES:
            inner, outer = side * (width - 0.1), side * (width + 0.06)
            parts.append(tube((x, inner, radius), (x, outer, radius), radius, shade=tyre))
            parts.append(tube((x, inner, radius), (x, outer * 1.02, radius), radius * 0.45, shade=hub))
    return parts


def animal(r: Random) -> list[Part]:
    """Body on four legs, neck, head with snout and ears, tail; horns, a mane, a hump or a trunk on some."""
    u = r.uniform
    long, girth, leg = u(0.5, 0.85), u(0.2, 0.42), u(0.35, 0.85)
    thick, stride = u(0.06, 0.12), u(-0.2, 0.2)
    z = leg + girth * 0.75
    parts = [ball((0, 0, z), (long, girth * u(0.75, 0.95), girth), pitch=u(-6, 10)),
             ball((long * 0.5, 0, z + 0.04), (girth * 0.95,) * 3)]
    for x, y, swing in ((0.62, 1, 1), (0.62, -1, -1), (-0.66, 1, -1), (-0.66, -1, 1)):
        foot = (long * x + stride * swing, y * girth * 0.6, 0.0)
        parts.append(tube(foot, (long * x, y * girth * 0.5, z), thick, taper=u(1.1, 1.7)))
    neck, rise = u(0.25, 0.85), math.radians(u(25, 75))
    root = (long * 0.7, 0.0, z + girth * 0.3)
    top = (root[0] + neck * math.cos(rise), 0.0, root[2] + neck * math.sin(rise))
    head = u(0.15, 0.24)
    parts += [tube(root, top, girth * u(0.45, 0.65), taper=u(0.5, 0.8)),
              ball(top, (head * u(1.1, 1.5), head * 0.9, head), pitch=u(-25, 0))]
    tip = (top[0] + head * u(1.4, 2.2), 0.0, top[2] - head * u(0.3, 0.9))
    parts.append(tube(top, tip, head * 0.7, taper=u(0.4, 0.8)))
    ear, horned = u(0.08, 0.2), r.random() < 0.4
    for side in SIDES:
        base = (top[0] - head * 0.2, side * head * 0.6, top[2] + head * 0.5)
        parts.append(ball((base[0], base[1] * 1.5, base[2] + ear * 0.5), (ear * 0.4, ear * 0.8, ear)))
        if horned:
            point = (base[0] + 0.05, base[1] * 2.5, base[2] + u(0.25, 0.45))
            parts.append(tube(base, point, 0.06, taper=0.2, shade=1.4))
    back = (-long * 0.9, 0.0, z + girth * 0.2)
    parts.append(tube(back, (back[0] - u(0.1, 0.45), 0, back[2] + u(-0.5, 0.4)), u(0.03, 0.09), taper=u(0.3, 1.6)))
    extra = r.choice(("none", "mane", "hump", "trunk"))
    if extra == "mane":
        behind = (top[0] - head * 0.6, 0.0, top[2] - head * 0.3)
        parts.append(ball(behind, (head * 0.9, head * 1.7, head * 1.8), shade=0.6))
    elif extra == "hump":
        parts.append(ball((-long * 0.1, 0, z + girth * 0.9), (long * 0.4, girth * 0.5, girth * 0.6)))
    elif extra == "trunk":
        parts.append(tube(tip, (tip[0] + 0.08, 0, max(0.1, tip[2] - u(0.4, 0.7))), 0.09, taper=0.6))
    return parts


def human(r: Random) -> list[Part]:
    """Legs with feet, hips, chest, arms bent at the elbow, neck and head; a hat, a pack, a skirt or a staff on some."""
    u = r.uniform
    leg, torso, wide = u(0.75, 1.05), u(0.5, 0.7), u(0.17, 0.27)
    thick, stance, stride = u(0.075, 0.115), u(0.08, 0.24), u(0, 0.32)
    trousers, lean = u(0.5, 1.3), u(-0.05, 0.12)
    hip, neck = leg, (lean, 0.0, leg + torso)
    parts = [tube((0, 0, hip - 0.1), neck, wide * u(0.75, 1.05), flat=u(0.55, 0.75), taper=u(0.95, 1.35)),
             ball((0, 0, hip), (wide * 0.7, wide * 1.0, 0.16), shade=trousers)]
    for side in SIDES:
        foot = (side * stride, side * (0.6 * wide + stance * 0.6), 0.05)
        parts += [tube(foot, (0, side * wide * 0.55, hip), thick, taper=u(1.1, 1.4), shade=trousers),
                  ball((foot[0] + 0.08, foot[1], 0.05), (0.17, 0.085, 0.06), shade=0.5)]
        shoulder = (lean, side * wide * 1.25, leg + torso * 0.92)
        lift, turn = math.radians(u(-80, 65)), math.radians(u(0, 100))
        elbow = _step(shoulder, u(0.3, 0.38), side, turn, lift)
        hand = _step(elbow, u(0.28, 0.36), side, turn + math.radians(u(-50, 50)), lift + math.radians(u(-20, 70)))
        parts += [tube(shoulder, elbow, thick * 0.85), tube(elbow, hand, thick * 0.75, taper=0.8),
                  ball(shoulder, (thick * 1.1,) * 3), ball(elbow, (thick * 0.8,) * 3),
                  ball(hand, (0.075,) * 3, shade=1.3)]
    size = u(0.15, 0.2)
    middle = (lean + 0.02, 0.0, neck[2] + 0.06 + size)
    parts += [tube(neck, middle, 0.08), ball(middle, (size * 0.95, size * 0.85, size * 1.1), shade=1.25)]
    top = (middle[0], 0.0, middle[2] + size * 0.5)
    hat = r.choice(("none", "cap", "cone", "brim"))
    if hat != "none":
        end = (top[0], 0.0, top[2] + {"cap": 0.16, "cone": 0.42, "brim": 0.22}[hat])
        parts.append(tube(top, end, size * 1.0, taper={"cap": 0.8, "cone": 0.05, "brim": 0.75}[hat], shade=0.6))
    if hat == "brim":
        parts.append(tube((top[0], 0, top[2] - 0.02), (top[0], 0, top[2] + 0.02), size * 1.8, shade=0.6))
    extra = r.choice(("none", "pack", "skirt", "staff"))
    if extra == "pack":
        parts.append(box((lean * 0.7 - wide * 1.1, 0, leg + torso * 0.6), (0.13, wide * 0.8, torso * 0.36), shade=0.7))
    elif extra == "skirt":
        parts.append(tube((0, 0, hip - u(0.3, 0.5)), (0, 0, hip + 0.1), wide * u(1.5, 2.0), taper=0.5, shade=trousers))
    elif extra == "staff":
        ends = (hand[0], hand[1], u(0.0, 0.3)), (hand[0] + u(-0.1, 0.2), hand[1], u(1.5, 2.1))
        parts.append(tube(*ends, 0.035, shade=0.5))
    return parts


def _step(start: Point, length: float, side: int, turn: float, lift: float) -> Point:
    """From `start` along an arm: turned by `turn` from sideways to ahead, lifted by `lift`."""
    x, y, z = start
    level = length * math.cos(lift)
    return x + level * math.sin(turn), y + side * level * math.cos(turn), z + length * math.sin(lift)


def airplane(r: Random) -> list[Part]:
    """Fuselage with nose, wings, tailplane and fin, canopy; engines or a propeller, one wing or two, gear."""
    u = r.uniform
    long, fat = u(0.8, 1.1), u(0.1, 0.2)
    z = fat + u(0.1, 0.28)
    nose, tail = u(0.2, 0.45), u(0.3, 0.6)
    parts = [tube((-long + tail, 0, z), (long - nose, 0, z), fat),
             tube((-long + tail, 0, z), (-long, 0, z + fat * 0.5), fat, taper=u(0.15, 0.4)),
             ball((long - nose, 0, z), (nose, fat, fat)),
             ball((long * u(0.3, 0.55), 0, z + fat * 0.8), (u(0.15, 0.3), fat * 0.6, fat * u(0.5, 0.8)), shade=0.4)]
    span, chord, sweep, taper = u(0.7, 1.15), u(0.16, 0.36), u(-0.05, 0.55), u(0.25, 0.9)
    x, rise, thin = u(-0.05, 0.25), u(-0.05, 0.15), u(0.09, 0.15)
    high = r.choice((-0.5, 0.0, 0.8)) * fat
    decks, fins = (high, high + u(0.35, 0.5)) if r.random() < 0.25 else (high,), r.choice(SIDES)
    for side in SIDES:
        for deck in decks:
            tip = (x - sweep, side * span, z + deck + rise)
            parts.append(tube((x, 0, z + deck), tip, chord, flat=thin, taper=taper, shade=u(0.9, 1.1)))
        if len(decks) == 2:
            y = side * span * 0.6
            parts.append(tube((x, y, z + decks[0]), (x, y, z + decks[1] + rise * 0.6), 0.025))
        end = (-long * 0.92 - sweep * 0.4, side * span * u(0.35, 0.5), z + fat * 0.5)
        parts.append(tube((-long * 0.88, 0, z + fat * 0.4), end, chord * 0.6, flat=0.12, taper=taper))
        parts.append(tube((x, side * 0.3, 0.07), (x, side * 0.12, z), 0.03))
        parts.append(tube((x, side * 0.27, 0.08), (x, side * 0.33, 0.08), 0.08, shade=0.4))
    height, root = u(0.28, 0.45), -long * 0.85
    parts.append(tube((root, 0, z), (root - u(0.05, 0.3), 0, z + height), 0.025, flat=chord * 25, taper=0.5))
    engines = r.choice(("propeller", "wing", "tail"))
    if engines == "propeller":
        parts += [tube((long - 0.03, 0, z), (long + 0.08, 0, z), 0.05, shade=0.5),
                  tube((long + 0.02, 0, z), (long + 0.04, 0, z), 0.3, shade=0.8)]
    for side in SIDES if engines != "propeller" else ():
        under_wing, at_tail = (span * 0.4, x - sweep * 0.4 + 0.15, -0.12), (fat + 0.09, -long * 0.5, 0.05)
        y, ahead, hang = under_wing if engines == "wing" else at_tail
        body = ((ahead - 0.22, side * y, z + hang), (ahead + u(0.1, 0.2), side * y, z + hang))
        parts.append(tube(*body, u(0.07, 0.1), taper=1.2, shade=0.7))
    if fins == 1:
        parts.append(tube((long * 0.6, 0, 0.06), (long * 0.55, 0, z), 0.03))
    return parts


def truck(r: Random) -> list[Part]:
    """Chassis, cab with window, and a load: box, tank, open bed, logs or a mixer; two or three axles."""
    u = r.uniform
    long, wide, wheel = 1.0, u(0.26, 0.36), u(0.13, 0.19)
    deck = wheel * 1.5
    cab, tall = u(0.2, 0.32), u(0.25, 0.42)
    front = long - cab
    split = front - cab - u(0.02, 0.08)
    parts = [box((-0.02, 0, deck), (long * 0.95, wide * 0.85, 0.06), shade=0.6),
             box((front, 0, deck + tall), (cab, wide, tall)),
             box((front + cab * 0.5, 0, deck + tall * 1.4), (cab * 0.53, wide * 0.88, tall * 0.34), shade=0.3),
             box((front - 0.02, 0, deck + tall * 1.4), (cab * 0.6, wide * 1.03, tall * 0.3), shade=0.3),
             box((long + 0.02, 0, deck * 0.9), (0.05, wide, 0.07), shade=1.5)]
    if r.random() < 0.5:                                                                    # a bonnet
        parts.append(box((long + 0.16, 0, deck + tall * 0.45), (0.18, wide * 0.85, tall * 0.5)))
    middle, half = (split - long) / 2, (split + long) / 2
    load, paint, floor = r.choice(("box", "tank", "bed", "logs", "mixer")), u(0.6, 1.6), deck + 0.06
    if load == "box":
        height = u(0.3, 0.5)
        parts.append(box((middle, 0, floor + height), (half, wide * u(1.0, 1.12), height), shade=paint))
    elif load == "tank":
        radius = wide * u(0.9, 1.1)
        parts += [tube((-long, 0, floor + radius), (split, 0, floor + radius), radius, flat=u(0.8, 1.0), shade=paint),
                  tube((middle, 0, floor + radius), (middle, 0, floor + radius * 2.15), 0.1, shade=0.6)]
    elif load == "bed":
        height, slope = u(0.1, 0.2), r.choice((0, 0, -12))
        parts += [box((middle, side * wide, floor + height), (half, 0.035, height), shade=paint) for side in SIDES]
        heap = (half * 0.8, wide * 0.85, height * 1.5)
        parts += [box((-long, 0, floor + height), (0.035, wide, height), shade=paint),
                  ball((middle, 0, floor + 0.05), heap, pitch=slope, shade=u(0.4, 1.2))]
    elif load == "logs":
        radius = wide * 0.48
        for y, level in ((-1, 1.0), (1, 1.0), (0, 2.7)):
            z = floor + level * radius
            parts.append(tube((-long * u(0.9, 1.1), y * radius, z), (split, y * radius, z), radius, shade=paint))
    else:
        low, high = (split - 0.02, 0.0, floor + wide * 0.9), (-long * 0.9, 0.0, floor + wide * 1.5)
        waist = (middle * 0.9, 0.0, floor + wide * 1.2)
        parts += [tube(waist, low, wide * 1.15, taper=0.6, shade=paint),
                  tube(waist, high, wide * 1.15, taper=0.4, shade=paint)]
    axles = [front + u(-0.05, 0.05), -long * 0.7] + ([-long * 0.7 + wheel * 2.2] if r.random() < 0.6 else [])
    return parts + wheels(r, axles, wide, wheel)


def car(r: Random) -> list[Part]:
    """Low body with rounded ends, a cabin or open seats, four wheels, bumpers, lamps; a spoiler or a rack on some."""
    u = r.uniform
    long, wide, wheel = 1.0, u(0.36, 0.46), u(0.15, 0.21)
    low, height = wheel * u(0.8, 1.1), u(0.13, 0.19)
    belt = low + 2 * height
    parts = [box((0, 0, low + height), (long * u(0.86, 0.95), wide, height))]
    for end, bulge in ((1, u(0.1, 0.2)), (-1, u(0.08, 0.2))):                               # rounded nose and tail
        x = end * long * 0.84
        parts.append(tube((x, -wide * 0.99, low + height), (x, wide * 0.99, low + height), bulge, flat=height / bulge))
    start, stop, tall = u(-0.85, -0.45), u(0.1, 0.45), u(0.24, 0.38)
    mid, half = (start + stop) / 2, (stop - start) / 2
    roof = r.choice(("round", "square", "open"))
    if roof == "round":
        bow = tall / (half * 1.1)
        parts += [tube((mid, -wide * 0.88, belt), (mid, wide * 0.88, belt), half * 1.1, flat=bow),
                  tube((mid, -wide * 0.92, belt), (mid, wide * 0.92, belt), half * 0.85, flat=bow, shade=0.3)]
    elif roof == "square":
        z = belt + tall * 0.5
        parts += [box((mid, 0, z), (half, wide * 0.88, tall * 0.5)),
                  box((stop - 0.06, 0, z - 0.03), (0.18, wide * 0.8, tall * 0.42), pitch=35, shade=0.3),
                  box((start + 0.06, 0, z - 0.03), (0.16, wide * 0.8, tall * 0.42), pitch=-30, shade=0.3),
                  box((mid, 0, z + 0.01), (half * 0.85, wide * 0.92, tall * 0.3), shade=0.3)]
    else:
        parts += [box((stop, 0, belt + 0.08), (0.03, wide * 0.85, 0.14), pitch=40, shade=0.4),
                  box((mid, 0, belt), (half * 0.9, wide * 0.8, 0.02), shade=0.3)]
        seats = [(mid - 0.05, side * wide * 0.42, belt + 0.06) for side in SIDES]
        parts += [box(seat, (0.07, 0.13, 0.16), pitch=15, shade=0.6) for seat in seats]
    parts += [box((end * long * 0.93, 0, low + height * 0.3), (0.06, wide * 0.98, 0.05), shade=1.5) for end in (1, -1)]
    lamps = [(long * 0.95, side * wide * 0.7, low + height * 1.2) for side in SIDES]
    parts += [ball(lamp, (0.05, 0.07, 0.07), shade=1.8) for lamp in lamps]
    extra = r.choice(("none", "spoiler", "rack"))
    if extra == "spoiler":
        parts.append(box((-long * 0.85, 0, belt + 0.14), (0.09, wide * 0.95, 0.02), pitch=-8))
        parts += [box((-long * 0.85, side * wide * 0.7, belt + 0.06), (0.03, 0.02, 0.08)) for side in SIDES]
    elif extra == "rack" and roof != "open":
        parts.append(box((mid, 0, belt + tall + 0.05), (half * 0.55, wide * 0.6, 0.05), shade=0.6))
    return parts + wheels(r, [long * u(0.55, 0.66), -long * u(0.55, 0.66)], wide, wheel)


CATEGORIES: dict[str, Callable[[Random], list[Part]]] = {
    "animal": animal, "human": human, "airplane": airplane, "truck": truck, "car": car}


def assemble(category: str, instance: int, seed: int) -> Toy:
    """Instance 0..9 of a category, painted: it stands on z = 0, centred, its longest side 1.7 to 2 units."""
    r = Random(f"{seed}/{category}/{instance}")
    parts = CATEGORIES[category](r)
    low, high = bounds(parts)
    shift = -(low + high) / 2
    shift[2] = -low[2]
    scale = r.uniform(1.7, 2.0) / float((high - low).max())
    waves = torch.tensor([[r.uniform(-7, 7) for _ in range(3)] for _ in range(2)])
    phases = torch.tensor([r.uniform(0, 2 * math.pi) for _ in range(2)])
    parts = [replace(part, centre=(part.centre + shift) * scale, half=part.half * scale) for part in parts]
    return Toy(tuple(parts), r.uniform(0.15, 0.75), waves, phases, r.uniform(0, 0.5))
