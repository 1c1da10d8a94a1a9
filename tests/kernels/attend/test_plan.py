"""How `attend`'s kernels are cut: every tile has one program, and partial sums stay small."""

import pytest

from flashcaps.kernels.attend import plan
from flashcaps.kernels.common.rows import ceil_div

CASES = {
    "capsnet": (128, 1152, 10, 1, 8, 16),
    "multimnist": (128, 3200, 10, 1, 8, 16),
    "cifar100": (128, 2048, 100, 1, 8, 16),
    "attention": (6272, 288, 32, 4, 4, 4),
    "one": (1, 1, 1, 1, 1, 1),
    "primes": (131, 1153, 7, 1, 5, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_every_tile_has_one_program(case: str) -> None:
    n = plan.Sizes(*CASES[case])
    for kernel in ("forward", "backward"):
        t = plan.tile(n, kernel)
        cut = plan.cut(n, t, kernel)
        chunks, batches, groups = cut.grid
        assert (chunks - 1) * cut.tiles * t.ic < n.g <= chunks * cut.tiles * t.ic
        assert (batches - 1) * cut.batches * t.bt < n.b <= batches * cut.batches * t.bt
        assert (groups - 1) * cut.parents < n.j <= groups * cut.parents


@pytest.mark.parametrize("case", CASES)
def test_products_of_equal_couplings(case: str) -> None:
    """Few rows, a small tile. Many: all parents' columns at a time, and as many programs as the device holds."""
    n = plan.Sizes(*CASES[case])
    tiles = {kernel: plan.uniform(kernel, n) for kernel in plan.MANY_ROWS}
    if not n.many:
        assert set(tiles.values()) == {plan.FEW_ROWS}
        return
    assert tiles["uniform_sum"].parents >= min(n.j * n.h, 128)
    t = tiles["uniform_weight_gradient"]
    rows, programs = ceil_div(n.b * n.c, t.rows), ceil_div(n.g * n.d, t.columns)
    per, chunks = plan.chunks(rows, programs, n.room // n.weight, t.resident)
    assert (chunks - 1) * per < rows <= chunks * per
    full = plan.MULTIPROCESSORS * t.resident
    assert 0.9 * full < chunks * programs <= full


def test_exact_products_have_registers_to_themselves() -> None:
    """Three products for one hold more: no bound, and half the columns."""
    n = plan.Sizes(*CASES["capsnet"])
    fast, exact = (plan.tile(n, "forward", e) for e in (False, True))
    assert (fast.ic, exact.ic) == (16, 8)
    assert [plan.tile(n, "backward", e).registers for e in (False, True)] == [168, None]


LAYERS = {
    "few children": (128, 256, 10, 1, 8, 16),
    "many parents": (64, 800, 128, 4, 4, 4),
    "6x6": (64, 800, 32, 6, 6, 6),
    "large batch": (512, 1152, 10, 1, 8, 16),
    "image": (784, 288, 32, 4, 4, 4, 16 * 32 * 256 * 16),
    "small image": (144, 288, 32, 4, 4, 4, 16 * 32 * 64 * 16),
    "stride 1": (3200, 288, 32, 4, 4, 4, 128 * 32 * 49 * 16, 3200 * 512),
}


@pytest.mark.parametrize("case", [x for x in {**CASES, **LAYERS} if x != "one"])
def test_room_for_partial_sums_is_bound_by_the_layer(case: str) -> None:
    """And no layer waits long for it: half of the device is filled, or as much as with all the room."""
    n = plan.Sizes(*{**CASES, **LAYERS}[case])
    t = plan.tile(n, "backward")
    chunks, batches, groups = plan.cut(n, t, "backward").grid
    assert (batches - 1) * n.weight + chunks * n.parents <= n.room <= plan.ROOM * n.own
    assert 4 * n.room <= 64 << 20
    assert chunks * batches * groups >= (160 if case == "few children" else plan.MULTIPROCESSORS * t.resident // 2)


def test_a_layer_too_small_for_its_bound_is_not_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    n = plan.Sizes(*LAYERS["image"])
    t = plan.tile(n, "backward")
    monkeypatch.setattr(plan, "ROOM", 0.01)
    monkeypatch.setattr(plan, "LEAST_ROOM", 0.01)
    plan.cut.cache_clear()
    chunks, batches, groups = plan.cut(n, t, "backward").grid
    plan.cut.cache_clear()
    assert chunks * batches * groups >= plan.MULTIPROCESSORS * t.resident // 2
