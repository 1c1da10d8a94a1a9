import importlib
import math
import shutil
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flashcaps.data.synthetic_norb import synthetic_norb
from flashcaps.data.synthetic_norb.render import FAR, Part, Toy, Views, blocked, camera_rays, cast, intersect, render
from flashcaps.data.synthetic_norb.toys import CATEGORIES, assemble, ball, box, tube
from tests.data.conftest import TOYS

module, rays = (importlib.import_module(f"flashcaps.data.synthetic_norb{part}") for part in ("", ".render"))


def column(*xyz: float) -> Tensor:
    return torch.tensor(xyz, dtype=torch.float32)[:, None]


def views(azimuth: float = 0.0, elevation: float = 45.0, lighting: int = 0, key: int = 7) -> Views:
    return Views(torch.tensor([azimuth]), torch.tensor([elevation]), torch.tensor([lighting]), torch.tensor([key]))


BALL = Toy((ball((0, 0, 0.8), (0.4, 0.4, 0.4)),), 0.5, torch.zeros(2, 3), torch.zeros(2), 0.0).to("cpu")
CYLINDER = tube((0, 0, 0.5), (0, 0, 1.5), 0.5)
CONE = tube((0, 0, 0), (0, 0, 1), 0.5, taper=0.0)
KNOWN = {
    "sphere": (ball((0, 0, 1), (0.5, 0.5, 0.5)), (6, 0, 1), (-1, 0, 0), 5.5, (1, 0, 0)),
    "sphere, off centre": (ball((0, 0, 1), (0.5, 0.5, 0.5)), (6, 0.3, 1), (-1, 0, 0), 5.6, (0.8, 0.6, 0)),
    "ellipsoid": (ball((0, 0, 1), (0.5, 0.2, 0.1)), (0, 6, 1), (0, -1, 0), 5.8, (0, 1, 0)),
    "box, front": (box((0, 0, 1), (0.5, 0.2, 0.1)), (6, 0.1, 1.05), (-1, 0, 0), 5.5, (1, 0, 0)),
    "box, top": (box((0, 0, 1), (0.5, 0.2, 0.1)), (0.4, 0.1, 6), (0, 0, -1), 4.9, (0, 0, 1)),
    "box, turned": (box((0, 0, 1), (0.5, 0.2, 0.5), pitch=45), (6, 0, 1), (-1, 0, 0), 6 - math.sqrt(0.5), None),
    "cylinder, side": (CYLINDER, (6, 0.3, 1), (-1, 0, 0), 5.6, (0.8, 0.6, 0)),
    "cylinder, cap": (CYLINDER, (0.2, 0.1, 6), (0, 0, -1), 4.5, (0, 0, 1)),
    "cone, side": (CONE, (6, 0, 0.5), (-1, 0, 0), 5.75, (1 / math.sqrt(1.25), 0, 0.5 / math.sqrt(1.25))),
    "cone, base": (CONE, (0.4, 0, -2), (0, 0, 1), 2.0, (0, 0, -1)),
    "frustum that widens": (tube((0, 0, 0), (0, 0, 1), 0.2, taper=3.0), (6, 0, 0.5), (-1, 0, 0), 5.6, None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_ray_meets_solid_at_the_analytic_distance(name):
    part, o, d, expected, direction = KNOWN[name]
    t, n, _ = cast([part.to("cpu")], column(*o), column(*d))
    assert t.item() == pytest.approx(expected, abs=2e-5)
    if direction is not None:
        torch.testing.assert_close(n[:, 0], torch.tensor(direction, dtype=torch.float32), atol=1e-4, rtol=0)


def inside(part: Part, p: Tensor) -> Tensor:
    x, y, z = ((part.axes.T @ (p - part.centre[:, None])) / part.half[:, None])
    if part.kind == "ball":
        return x * x + y * y + z * z <= 1
    if part.kind == "box":
        return torch.stack([x, y, z]).abs().amax(0) <= 1
    return (z.abs() <= 1) & (torch.hypot(x, y) <= 1 + (part.taper - 1) * (z + 1) / 2)


@pytest.mark.parametrize("part", [
    ball((0.1, 0, 0.2), (0.9, 0.4, 0.3), pitch=30), box((0, 0.1, 0), (0.6, 0.3, 0.4), pitch=-20),
    tube((-0.5, 0.2, 0), (0.6, -0.3, 0.4), 0.4, flat=0.5), tube((0, 0, -0.5), (0.3, 0.2, 0.7), 0.6, taper=0.0),
    tube((0, 0, 0), (0.2, 0.5, 0.3), 0.3, taper=1.8)], ids=["ball", "box", "cylinder", "cone", "widening"])
def test_entry_agrees_with_marching_along_the_ray(part):
    generator = torch.Generator().manual_seed(0)
    o = 3 * rays.unit(torch.randn(3, 300, generator=generator))
    d = rays.unit(0.6 * torch.randn(3, 300, generator=generator) - o)
    steps = torch.arange(0, 6, 2e-3, dtype=torch.float64)
    points = o[:, :, None].double() + steps * d[:, :, None].double()
    within = inside(part, points.view(3, -1)).view(300, -1)
    marched = torch.where(within.any(1), steps[within.int().argmax(1)], FAR).float()
    t, _ = intersect(part.to("cpu"), o, d)
    grazing = within.sum(1) < 5
    assert (~grazing).sum() > 60
    assert (marched - t)[~grazing].abs().max() < 2.1e-3
    assert (t[~within.any(1)] == FAR).float().mean() > 0.98                      # marching may step over a corner


def test_nearest_part_wins_none_is_behind_the_start_and_far_origins_keep_their_digits():
    near, far = ball((1, 0, 0), (0.2, 0.2, 0.2), shade=0.3).to("cpu"), ball((0, 0, 0), (0.5, 0.5, 0.5)).to("cpu")
    for parts in ([near, far], [far, near]):
        t, _, shades = cast(parts, column(6, 0, 0), column(-1, 0, 0))
        assert t.item() == pytest.approx(4.8, abs=1e-5)
        assert shades.item() == pytest.approx(0.3)
        assert [blocked(parts, column(6, 0, 0), column(x, 0, 0)).item() for x in (-1, 1)] == [True, False]
    thin = box((0, 0, 0), (0.5, 0.5, 0.01)).to("cpu")
    t, _, _ = cast([thin], column(0, 0, 100), column(0, 0, -1))
    assert t.item() == pytest.approx(99.99, abs=2e-5)


def hits(parts: Sequence[Part], view: Views, size: int = 64, centre: Tensor = torch.zeros(3)) -> Tensor:
    """Where each camera, aimed at `centre`, sees the parts: (2, size, size) bool."""
    o, d = camera_rays(centre, view, size)
    return (cast([part.to("cpu") for part in parts], o.flatten(1), d.flatten(1))[0] < FAR).view(2, size, size)


def centroid(mask: Tensor) -> tuple[float, float]:
    rows, columns = mask.nonzero().double().mean(0).tolist()
    return columns, rows


def test_near_things_have_positive_disparity_and_far_ones_negative():
    near, far = (hits([ball((x, 0, 0), (0.2, 0.2, 0.2))], views(elevation=30)) for x in (0.9, -0.9))
    shift = [centroid(left)[0] - centroid(right)[0] for left, right in (near, far)]
    assert shift[0] > 1
    assert shift[1] < -1


def test_azimuth_turns_the_toy_against_the_clock():
    marker = ball((0.9, 0, 0), (0.15, 0.15, 0.15))
    front, side, back = (centroid(hits([marker], views(azimuth=a))[0]) for a in (0.0, 90.0, 180.0))
    assert front[1] > back[1] + 10                                               # towards the camera is lower
    assert side[0] > front[0] + 10                                               # a quarter turn: to the right
    high, low = (centroid(hits([ball((0, 0, z), (0.1,) * 3)], views())[0]) for z in (0.6, -0.6))
    assert high[1] < low[1] - 10


def radiance(toy: Toy, view: Views) -> Tensor:
    """Of the toy, seen by cameras that are aimed at the ball."""
    o, d = camera_rays(BALL.sphere[0], view, 32)
    return rays.shade(toy, view, o, d, torch.zeros(3, d[0].numel()))[0]


def test_toy_throws_a_shadow_on_the_ground():
    view = views(lighting=0)
    ground = ~hits(BALL.parts, view, 32, BALL.sphere[0]).flatten()
    away = Toy((ball((0, 50, 0.8), (0.4, 0.4, 0.4)).to("cpu"),), 0.5, BALL.waves, BALL.phases, 0.0)
    empty = radiance(away, view)
    dimmed = (radiance(BALL, view) < 0.6 * empty) & ground
    assert dimmed.sum() > 20
    assert (radiance(BALL, view) > 0.999 * empty)[ground].float().mean() > 0.5     # and most of the ground is lit


def test_lighting_changes_the_image_and_turns_the_shadow():
    images = [render(BALL, views(lighting=i), 32).float() for i in range(6)]
    for i in range(6):
        for j in range(i):
            assert (images[i] - images[j]).abs().mean() > 4
    left, right = (radiance(BALL, views(lighting=i)).view(2, 32, 32)[0] for i in (0, 1))   # key light from each side
    assert left[:, :16].mean() / left[:, 16:].mean() > right[:, :16].mean() / right[:, 16:].mean()


def test_the_scatter_of_shadow_rays_is_even_in_a_block_and_moves_from_image_to_image():
    pattern = rays.sphere_pattern(32, torch.device("cpu"))
    torch.testing.assert_close(pattern.norm(dim=0), torch.ones(32 * 32), atol=1e-5, rtol=0)
    pairs = Views(torch.zeros(3), torch.full((3,), 40.0), torch.zeros(3, dtype=torch.int64), torch.arange(3))
    images = rays.scattered(pattern, pairs).view(3, 6, 32, 32)
    upper = (images[2] > 0).view(6, 16, 2, 16, 2).sum((2, 4))
    assert (upper == 2).all()
    for i in range(6):
        for j in range(i):
            assert (images[:, i] * images[:, j]).sum(0).mean() < 0.5          # the same pattern would give 1


@pytest.mark.parametrize("category", CATEGORIES)
def test_toys_stand_on_the_ground_and_fill_the_frame(category):
    for instance in range(10):
        toy = assemble(category, instance, seed=0).to("cpu")
        lowest = min(float(part.centre[2] - part.extent[2]) for part in toy.parts)
        assert lowest == pytest.approx(0, abs=1e-5)
        seen = hits(toy.parts, views(azimuth=30.0 * instance, key=instance), 40, toy.sphere[0])
        assert 0.03 < seen.float().mean() < 0.6
        assert seen[:, 1:-1, 1:-1].sum() == seen.sum()
    assert len({len(assemble(category, i, seed=0).parts) for i in range(10)}) > 1


def test_labels_and_info_are_smallnorbs(toys):
    assert toys.class_names == ("animal", "human", "airplane", "truck", "car")
    assert toys.shape == (2, 16, 16)
    for split, instances in ((toys.train, [4, 6, 7, 8, 9]), (toys.test, [0, 1, 2, 3, 5])):
        assert split.images.shape == (5 * 5 * 8, 2, 16, 16)
        assert split.labels.bincount().tolist() == [40] * 5
        assert split.labels[:6].tolist() == [0, 1, 2, 3, 4, 0]
        wanted = {"instance": instances, "elevation": [0, 8], "azimuth": [0, 10], "lighting": [1, 3]}
        assert list(split.info) == list(wanted)
        assert {name: split.info[name].unique().tolist() for name in wanted} == wanted
        assert all(column.dtype == torch.int64 for column in (split.labels, *split.info.values()))
        rows = torch.stack([split.labels, *split.info.values()], dim=1)
        assert len(rows.unique(dim=0)) == len(split)


def test_whole_set_has_24300_pairs_a_split(monkeypatch):
    monkeypatch.setattr(module, "_images", lambda c, i, seed, size, grid, device: torch.zeros(
        grid.shape[1], 2, size, size, dtype=torch.uint8))
    whole = synthetic_norb(size=8, cache=False)
    assert (len(whole.train), len(whole.test)) == (24_300, 24_300)
    assert whole.test.info["azimuth"].unique().tolist() == list(range(0, 36, 2))


def test_a_pair_depends_on_the_seed_and_not_on_subset_or_chunk(toys):
    info = toys.test.info
    rows = (info["azimuth"] == 10) & (info["elevation"] == 8) & (info["lighting"] == 3)
    subset = {**TOYS, "azimuths": [5], "elevations": [8], "lightings": [3]}
    one, other = (synthetic_norb(cache=False, **{**subset, "seed": seed}) for seed in (3, 4))
    assert torch.equal(one.test.images, toys.test.images[rows])
    assert ((one.test.images.float() - other.test.images.float()).abs().mean((1, 2, 3)) > 2).all()
    toy = assemble("car", 1, 0)
    many = Views(torch.arange(3.0), torch.full((3,), 40.0), torch.arange(3), torch.arange(3))
    assert torch.equal(render(toy, many, 16), render(toy, many, 16, rays=1))


def test_cache_is_read_back_and_keyed_by_options(toys, toy_root, monkeypatch):
    (file,) = (toy_root / "synthetic_norb").glob("*.safetensors")
    assert file.name.startswith("v1-seed3-16px-")
    monkeypatch.setattr(module, "_render_all", lambda *_: pytest.fail("rendered although cached"))
    cached = synthetic_norb(toy_root, **TOYS)
    for a, b in ((cached.train, toys.train), (cached.test, toys.test)):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert all(torch.equal(a.info[name], b.info[name]) for name in b.info)
    for other in ({"seed": 4}, {"size": 18}, {"lightings": [1, 2]}):
        with pytest.raises(pytest.fail.Exception, match="although cached"):
            synthetic_norb(toy_root, **{**TOYS, **other})


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "not a cache file"])
def test_damaged_cache_is_noticed_and_replaced(toys, toy_root, tmp_path, monkeypatch, damage):
    tensors = {f"{name}.{key}": value for name, split in (("train", toys.train), ("test", toys.test))
               for key, value in {"images": split.images, "labels": split.labels, **split.info}.items()}
    monkeypatch.setattr(module, "_render_all", lambda *_: tensors)
    shutil.copytree(toy_root, tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "synthetic_norb").glob("*.safetensors")
    whole = path.read_bytes()
    flipped = whole[:-1000] + bytes([whole[-1000] ^ 1]) + whole[-999:]
    path.write_bytes({"flipped byte": flipped, "truncated": whole[:-100], "not a cache file": b"?" * 100}[damage])
    with pytest.warns(UserWarning, match="damaged cache file"):
        again = synthetic_norb(tmp_path, **TOYS)
    assert torch.equal(again.train.images, toys.train.images)
    assert path.read_bytes() == whole
    assert {file.name for file in path.parent.iterdir()} == {path.name, "SHA256SUMS"}


@pytest.mark.parametrize(("options", "message"), [
    ({"azimuths": [18]}, "azimuths: expected steps from 0 to 17"),
    ({"lightings": []}, "lightings: .* at least one"),
    ({"size": 4}, "size: expected at least 8"),
    ({"held_out_azimuths": [99]}, "held_out_azimuths: expected steps from 0 to 17"),
])
def test_wrong_arguments_are_named_before_anything_is_rendered(monkeypatch, options, message):
    monkeypatch.setattr(module, "_render_all", lambda *_: pytest.fail("rendered"))
    with pytest.raises(ValueError, match=message):
        synthetic_norb(cache=False, **options)


@pytest.mark.gpu
def test_cuda_gives_the_same_images(toys):
    on_cuda = synthetic_norb(cache=False, device="cuda", **TOYS)
    difference = (on_cuda.test.images.int() - toys.test.images.int()).abs()
    assert (difference > 1).float().mean() < 1e-3                                # rays that graze an edge
