"""A small ray caster for toys made of solid parts, in batches on any device.

A part is a unit solid (ball, box or frustum) under an affine map x = centre + axes (half * x'), so every
intersection is solved in the part's own frame, where the ray parameter t is the same as in the world's.
Vectors are stored (3, M), one column per ray, so that sums over the three coordinates vectorise.

A toy stands still with its feet on z = 0; to turn it by an azimuth, cameras and lights turn the other way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..random import draws, uniform

SAMPLES = 2                                     # rays per pixel and axis
DISTANCE, BASELINE, HALF_WIDTH = 6.0, 0.75, 1.4  # of the cameras, in units of half a toy's length
GLOSS = 0.25
FAR = 1e9                                       # "no hit": finite, so that FAR * 0 is no NaN
# azimuth from the camera and elevation of the key light in degrees; key, fill (from the camera) and ambient strength
LIGHTINGS = ((-50, 50, 0.90, 0.00, 0.35), (55, 40, 0.85, 0.10, 0.25), (10, 75, 0.80, 0.00, 0.45),
             (150, 45, 1.00, 0.15, 0.30), (-120, 30, 1.10, 0.05, 0.20), (0, 60, 0.25, 0.10, 0.80))
# what differs from pair to pair; drawn from the pair's key, so a subset has the same images as the whole
JITTER = {
    "x": (-0.14, 0.14), "z": (-0.14, 0.14), "zoom": (0.87, 1.15), "roll": (-5.0, 5.0), "light": (-25.0, 25.0),
    "paint": (0.5, 1.5), "ground": (0.1, 0.85), "exposure": (0.7, 1.15), "noise": (0.006, 0.02),
    "cloth": (0.0, 0.4), "cloth_x": (-4.0, 4.0), "cloth_y": (-4.0, 4.0), "cloth_phase": (0.0, 6.28)}


@dataclass(frozen=True)
class Part:
    """One solid: kind "ball", "box" or "frustum" (|z'| <= 1, radius 1 at the bottom and `taper` at the top)."""

    kind: str
    centre: Tensor          # (3,)
    axes: Tensor            # (3, 3), columns: the part's own axes
    half: Tensor            # (3,) half sizes along them
    shade: float = 1.0      # factor on the toy's albedo
    taper: float = 1.0

    @property
    def radius(self) -> float:
        """Radius of a sphere around `centre` that holds the part."""
        x, y, z = self.half.tolist()
        if self.kind == "ball":
            return max(x, y, z)
        return math.hypot(x, y, z) if self.kind == "box" else math.hypot(max(x, y) * max(1.0, self.taper), z)

    @property
    def extent(self) -> Tensor:
        """Half sizes of the box along the world's axes that holds the part, (3,)."""
        edges = self.axes * self.half
        if self.kind == "ball":
            return edges.square().sum(1).sqrt()
        if self.kind == "box":
            return edges.abs().sum(1)
        return edges[:, :2].square().sum(1).sqrt() * max(1.0, self.taper) + edges[:, 2].abs()

    def to(self, device: torch.device | str) -> Self:
        centre, axes, half = (t.to(device, torch.float32) for t in (self.centre, self.axes, self.half))
        return replace(self, centre=centre, axes=axes, half=half)


@dataclass(frozen=True)
class Toy:
    """Parts, the toy's albedo, and its pattern: the product of two waves, and how deep it is."""

    parts: tuple[Part, ...]
    albedo: float
    waves: Tensor           # (2, 3)
    phases: Tensor          # (2,)
    depth: float

    @cached_property
    def sphere(self) -> tuple[Tensor, float]:
        """Centre and radius of a sphere that holds the toy."""
        low, high = bounds(self.parts)
        return (low + high) / 2, float((high - low).norm()) / 2

    def to(self, device: torch.device | str) -> Self:
        parts = tuple(part.to(device) for part in self.parts)
        return replace(self, parts=parts, waves=self.waves.to(device), phases=self.phases.to(device))


@dataclass(frozen=True)
class Views:
    """What is seen, one entry per image pair: degrees, lighting index, and a key that all its noise is drawn from."""

    azimuth: Tensor         # (V,) float
    elevation: Tensor       # (V,) float
    lighting: Tensor        # (V,) int64
    key: Tensor             # (V,) int64

    @cached_property
    def jitter(self) -> dict[str, Tensor]:
        """Every pair's own value of each of JITTER's quantities, (V, 1)."""
        random = uniform(0, self.key, len(JITTER))[..., None]
        return {name: low + (high - low) * random[:, i] for i, (name, (low, high)) in enumerate(JITTER.items())}


def bounds(parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
    """Lowest and highest corner of the box that holds all parts."""
    low = torch.stack([part.centre - part.extent for part in parts]).amin(0)
    return low, torch.stack([part.centre + part.extent for part in parts]).amax(0)


def dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(0)


def unit(v: Tensor) -> Tensor:
    return v * dot(v, v).clamp(min=1e-30).rsqrt()


def times(matrix: Tensor, v: Tensor) -> Tensor:
    """(K, 3) x (3, M) by elementwise operations: a matmul would lose digits where TF32 is allowed."""
    return matrix[:, :1] * v[0] + matrix[:, 1:2] * v[1] + matrix[:, 2:] * v[2]


def meeting(centre: Tensor, radius: float, o: Tensor, d: Tensor) -> Tensor:
    """The indices of rays o + t d (|d| = 1, t > 0) that may meet a sphere."""
    m = centre[:, None] - o
    t = dot(m, d)
    return ((dot(m, m) - t * t < radius * radius * 1.01 + 1e-4) & (t > -radius)).nonzero()[:, 0]


def solve(part: Part, o: Tensor, d: Tensor) -> Tensor:
    """Smallest t at which o + t d (both in the part's frame) enters the unit solid; FAR where it never does."""
    if part.kind == "box":
        d = torch.where(d.abs() < 1e-9, 1e-9, d)
        near, far = (-1 - o) / d, (1 - o) / d
        enter, leave = torch.minimum(near, far).amax(0), torch.maximum(near, far).amin(0)
        return torch.where(enter <= leave, enter, FAR)
    if part.kind == "ball":
        a, b, c = dot(d, d), dot(o, d), dot(o, o) - 1
        disc = b * b - a * c
        return torch.where(disc >= 0, (-b - disc.clamp(min=0).sqrt()) / a, FAR)
    return _solve_frustum(part.taper, o, d)


def _solve_frustum(taper: float, o: Tensor, d: Tensor) -> Tensor:
    """Side x^2 + y^2 = (mid + slope z)^2 and two caps: the first of four candidates that lies on the solid."""
    mid, slope = (1 + taper) / 2, (taper - 1) / 2
    r, dr = mid + slope * o[2], slope * d[2]
    a = d[0] * d[0] + d[1] * d[1] - dr * dr
    a = torch.where(a.abs() < 1e-9, 1e-9, a)
    b, c = o[0] * d[0] + o[1] * d[1] - r * dr, o[0] * o[0] + o[1] * o[1] - r * r
    disc = b * b - a * c
    root = disc.clamp(min=0).sqrt()
    best = torch.full_like(a, FAR)
    for t in ((-b - root) / a, (-b + root) / a):
        on_side = (disc >= 0) & ((o[2] + t * d[2]).abs() <= 1)
        best = torch.where(on_side & (t < best), t, best)
    dz = torch.where(d[2].abs() < 1e-9, 1e-9, d[2])
    for z, radius in ((-1.0, 1.0), (1.0, taper)):
        t = (z - o[2]) / dz
        on_cap = (o[0] + t * d[0]).square() + (o[1] + t * d[1]).square() <= radius * radius
        best = torch.where(on_cap & (t < best), t, best)
    return best


def normal(part: Part, p: Tensor) -> Tensor:
    """Outward unit normals, in the world, at points p (3, M) of the surface in the part's frame."""
    if part.kind == "box":
        face = p.abs().argmax(0, keepdim=True)
        n = torch.zeros_like(p).scatter_(0, face, p.gather(0, face))
    elif part.kind == "ball":
        n = p
    else:
        slope = (part.taper - 1) / 2
        side = torch.stack([p[0], p[1], -slope * ((1 + part.taper) / 2 + slope * p[2])])
        cap = torch.stack([torch.zeros_like(p[2]), torch.zeros_like(p[2]), p[2]])
        n = torch.where(p[2].abs() > 0.999, cap, side)
    return unit(times(part.axes, n / part.half[:, None]))


def intersect(part: Part, o: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """t (M,) and the point of entry in the part's frame (3, M) for rays in the world, |d| = 1."""
    inverse = part.axes.T / part.half[:, None]
    shift = dot(part.centre[:, None] - o, d)              # start beside the part: far origins cost digits
    o, d = times(inverse, o + shift * d - part.centre[:, None]), times(inverse, d)
    t = solve(part, o, d)
    return torch.where(t < FAR, t + shift, FAR), o + t * d


def cast(parts: Sequence[Part], o: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First hits: t (M,), FAR for none; normal (3, M); shade (M,)."""
    t, n, shade = torch.full_like(o[0], FAR), torch.zeros_like(o), torch.ones_like(o[0])
    for part in parts:
        rays = meeting(part.centre, part.radius, o, d)
        entry, p = intersect(part, o[:, rays], d[:, rays])
        first = ((entry > 1e-4) & (entry < t[rays])).nonzero()[:, 0]
        rays = rays[first]
        t[rays], n[:, rays], shade[rays] = entry[first], normal(part, p[:, first]), part.shade
    return t, n, shade


def blocked(parts: Sequence[Part], o: Tensor, d: Tensor) -> Tensor:
    """Whether any part lies on the ray, (M,) bool."""
    hit = torch.zeros_like(o[0], dtype=torch.bool)
    for part in parts:
        rays = meeting(part.centre, part.radius, o, d)
        rays = rays[~hit[rays]]
        entry, _ = intersect(part, o[:, rays], d[:, rays])
        hit[rays] = (entry > 1e-4) & (entry < FAR)
    return hit


def direction(azimuth: Tensor, elevation: Tensor) -> Tensor:
    """Unit vectors (3, V) from angles in degrees."""
    a, e = torch.deg2rad(azimuth), torch.deg2rad(elevation)
    return torch.stack([e.cos() * a.cos(), e.cos() * a.sin(), e.sin()])


def camera_rays(target: Tensor, views: Views, size: int) -> tuple[Tensor, Tensor]:
    """Origins and unit directions, (3, V, 2 * size * size), of the left and then the right camera's rays, row by row.

    Both cameras look at the target: what is nearer has x_left > x_right. Every pair has its own small shift and zoom.
    """
    back = direction(-views.azimuth, views.elevation)
    right = direction(90 - views.azimuth, torch.zeros_like(views.azimuth))
    aim = target[:, None, None] + right[..., None] * views.jitter["x"]                      # (3, V, 1)
    aim[2] += views.jitter["z"]
    side = torch.tensor([-BASELINE / 2, BASELINE / 2], device=target.device)
    o = aim + DISTANCE * back[..., None] + side * right[..., None]                          # (3, V, 2)
    forward = unit(aim - o)
    right = unit(torch.stack([forward[1], -forward[0], torch.zeros_like(forward[0])]))
    up = torch.linalg.cross(right, forward, dim=0)
    roll, reach = torch.deg2rad(views.jitter["roll"]), HALF_WIDTH / DISTANCE * views.jitter["zoom"]
    right, up = roll.cos() * right + roll.sin() * up, roll.cos() * up - roll.sin() * right
    u = (torch.arange(size, device=o.device) + 0.5) * (2 / size) - 1
    forward, right, up = (v[..., None, None] for v in (forward, reach * right, reach * up))
    d = unit(forward + u * right - u[:, None] * up)                                         # (3, V, 2, size, size)
    return o[..., None, None].expand_as(d).flatten(2), d.flatten(2)


def sphere_pattern(size: int, device: torch.device) -> Tensor:
    """A unit vector per ray of an image, (3, size * size), spread evenly over each 2 x 2 block: for soft shadows."""
    cell = torch.arange(size * size, device=device)
    row, column = cell // size, cell % size
    random = uniform(0, cell, 2)
    height = row % 2 + random[:, 0] - 1
    angle = math.pi * (column % 2 + random[:, 1])
    ring = (1 - height * height).clamp(min=0).sqrt()
    return torch.stack([ring * angle.cos(), ring * angle.sin(), height])


def scattered(pattern: Tensor, views: Views) -> Tensor:
    """The pattern for every image, (3, V * 2 * cells), moved by an amount of its own.

    A pattern that was the same in every image would mark shadows by a fixed texture, which a linear model can read.
    """
    cells = pattern.shape[1]
    start = draws(2, views.key, 2) % (cells // 2) * 2                                       # even: keeps blocks whole
    return pattern[:, ((start[..., None] + torch.arange(cells, device=start.device)) % cells).flatten()]


def surface(toy: Toy, views: Views, o: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What rays o, d (3, V, R) meet: points and normals (3, M), albedo and gloss (M,).

    The ground, under a cloth with a wave of its own in every pair, and in front of it the toy.
    """
    t = -o[2] / d[2].clamp(max=-1e-3)
    p = o + t * d
    jitter = views.jitter
    cloth = jitter["cloth_x"] * p[0] + jitter["cloth_y"] * p[1] + jitter["cloth_phase"]
    albedo = (jitter["ground"] * (1 + jitter["cloth"] * cloth.sin())).flatten()
    image = torch.arange(len(views.key), device=t.device).repeat_interleave(t.shape[1])
    o, d, p, t = o.flatten(1), d.flatten(1), p.flatten(1), t.flatten()
    n, gloss = torch.zeros_like(p), torch.zeros_like(t)
    n[2] = 1
    rays = meeting(*toy.sphere, o, d)
    entry, face, factor = cast(toy.parts, o[:, rays], d[:, rays])
    hit = (entry < t[rays]).nonzero()[:, 0]
    rays = rays[hit]
    p[:, rays] = o[:, rays] + entry[hit] * d[:, rays]
    n[:, rays], gloss[rays] = face[:, hit], GLOSS
    waves = times(toy.waves, p[:, rays]) + toy.phases[:, None]
    paint = (toy.albedo * jitter["paint"])[:, 0].clamp(max=0.9)[image[rays]]
    albedo[rays] = paint * factor[hit] * (1 + toy.depth * waves.sin().prod(0))
    return p, n, albedo, gloss


def sees_sky(toy: Toy, p: Tensor, d: Tensor) -> Tensor:
    """1 where nothing of the toy is in the way from p along d, else 0, (M,)."""
    rays = meeting(*toy.sphere, p, d)
    free = torch.ones_like(p[0])
    free[rays] -= blocked(toy.parts, p[:, rays], d[:, rays]).float()
    return free


def shade(toy: Toy, views: Views, o: Tensor, d: Tensor, pattern: Tensor) -> Tensor:
    """Light that returns along the rays, (V, R): key light with soft shadow, fill, ambient with occlusion.

    One shadow ray and one ambient ray for each camera ray; pattern (3, V * R) scatters them.
    """
    p, n, albedo, gloss = surface(toy, views, o, d)
    azimuth, elevation, key, fill, ambient = torch.tensor(LIGHTINGS, device=d.device)[views.lighting].T[..., None]
    light = direction(azimuth + views.jitter["light"] - views.azimuth[:, None], elevation).expand_as(d).flatten(1)
    d, start = d.flatten(1), p + 2e-3 * n
    facing = dot(n, light).clamp(min=0)
    lit = facing * sees_sky(toy, start, unit(light + 0.12 * pattern))
    shine = gloss * lit * dot(unit(light - d), n).clamp(min=0) ** 24
    out = unit(n + 0.98 * pattern)                                                          # cosine weighted
    sky = 0.2 + 0.8 * sees_sky(toy, start, out)
    down = (out[2] < 0).view(len(views.key), -1)                                            # what the ground returns
    sky = sky.view_as(down) * torch.where(down, 0.6 * views.jitter["ground"], 1.0)
    lit, shine, albedo, front = (x.view_as(down) for x in (lit, shine, albedo, -dot(n, d)))
    return albedo * (key * lit + fill * front.clamp(min=0) + ambient * sky) + key * shine


def develop(radiance: Tensor, views: Views) -> Tensor:
    """Radiance (V, 2, H, W) -> uint8: vignette, exposure, gamma and the sensor's noise."""
    u = torch.linspace(-1, 1, radiance.shape[-1], device=radiance.device).square()
    vignette = 1 - 0.12 * (u + u[:, None])
    exposure, noise = (views.jitter[name][..., None, None] for name in ("exposure", "noise"))
    grey = (radiance * vignette * exposure).clamp(0, 1) ** (1 / 1.8)
    cell = torch.arange(radiance[0].numel(), device=radiance.device)
    bits = draws(1, (views.key[:, None] * len(cell) + cell).flatten(), 1).view(radiance.shape)
    bell = (bits & 0x7FFF) + (bits >> 15 & 0x7FFF) + (bits >> 30 & 0x7FFF) + (bits >> 45 & 0x7FFF)
    grey = grey + noise * (bell - 65534) / 18918                                            # nearly normal, variance 1
    return (grey * 255).round().clamp(0, 255).to(torch.uint8)


def render(toy: Toy, views: Views, size: int, *, rays: int | None = None) -> Tensor:
    """Stereo pairs (V, 2, size, size) uint8 of one toy, on the device of `views`; at most `rays` rays at a time."""
    device, fine = views.key.device, SAMPLES * size
    toy, pattern = toy.to(device), sphere_pattern(fine, device)
    rays = rays or (1 << 23 if device.type == "cuda" else 1 << 17)
    images = []
    chunk = max(1, rays // (2 * fine * fine))
    for some in map(Views, *(x.split(chunk) for x in (views.azimuth, views.elevation, views.lighting, views.key))):
        light = shade(toy, some, *camera_rays(toy.sphere[0], some, fine), scattered(pattern, some))
        images.append(develop(avg_pool2d(light.view(-1, 2, fine, fine), SAMPLES), some))
    return torch.cat(images)
