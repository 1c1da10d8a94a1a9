"""How work is cut: every pair is in a walk, and memory stays within what a layer's own tensors take."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashcaps.kernels.fit.plan import LANES, LEAST, Inputs, Options, is_stored, is_wide, rows_at_once, walk_batch

from .cases import EPS


@given(st.integers(1, 400), st.integers(1, 4000), st.integers(1, 70), st.integers(8, 32), st.integers(0, 9))
def test_walks_over_the_batch_miss_nothing(groups: int, length: int, j: int, resident: int, most: int) -> None:
    walk = walk_batch(groups, length, j, resident, most)
    rows, parents, chunks = walk.grid(groups, j, length)
    assert rows * walk.rows >= groups
    assert parents * walk.parents >= j
    assert chunks * walk.steps * walk.split >= length
    assert chunks <= max(most, 1), "more chunks than there is room for"
    assert walk.rows * walk.split * walk.parents == LANES * walk.warps
    assert walk.warps <= 8


def test_groups_that_read_the_same_parents_walk_together() -> None:
    """em's convolutions: 3 x 3 x 32 children to 32 parents, 245 places at once."""
    assert walk_batch(288, 245, 32, 14, 6).rows > 1


def test_stored_votes_of_few_parents_are_wide_too() -> None:
    """Kernels that hold a pose in a lane's registers took minutes to compile for 64 elements."""
    weight = torch.empty(4, 64, 5, 64)
    assert is_stored(weight)
    assert is_wide(weight, 64)
    assert not is_wide(torch.empty(64, 64, 1, 2), 2)
    assert not is_wide(torch.empty(32, 4, 800, 4), 16)


def test_votes_of_transforms_that_no_cache_holds_are_wide() -> None:
    with torch.device("meta"):
        assert is_wide(torch.empty(1000, 8, 6272, 16), 16)
        for small in (torch.empty(10, 8, 1152, 16), torch.empty(1000, 4, 6272, 4), torch.empty(10**6, 8, 1, 16)):
            assert not is_wide(small, 16)  # of a digit's layer, of 4 x 4 matrices, of one transform


def meta(b: int, g: int, r: int, rows: int, j: int, grid: tuple[int, ...] = ()) -> tuple[Inputs, Options]:
    """Of square poses of so many rows, three iterations."""
    u, weight = torch.empty(b, g, r, rows, rows, device="meta"), torch.empty(j, rows, g, rows, device="meta")
    none = (None,) * 5
    x = Inputs(u, weight, None, torch.empty(b, g * r, device="meta"), *none)
    return x, Options([1.0] * 3, True, list(grid), [], EPS, [])


@pytest.mark.parametrize("rows", [6, 8])
def test_as_many_examples_as_have_room(rows: int) -> None:
    """Within what poses, transforms and gradients leave."""
    x, o = meta(64, 800, 1, rows, 32)
    some = rows_at_once(x, o)
    votes = 800 * 32 * rows**2
    assert some == 3
    assert some * votes < 2 * x.u.numel() + x.weight.numel()
    assert rows_at_once(*meta(512, 800, 1, rows, 32)) > 4 * some


def test_one_example_is_the_least_and_a_megabyte_is_little() -> None:
    assert rows_at_once(*meta(2, 1, 5000, 6, 64)) == 1
    assert rows_at_once(*meta(64, 288, 1, 6, 32, (9, 9, 3, 2))) % 16 == 0
    x, o = meta(5000, 3, 1, 6, 2)
    assert rows_at_once(x, o) >= min(LEAST // (3 * 2 * 36), 5000)
