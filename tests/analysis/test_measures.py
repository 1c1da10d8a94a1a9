"""Measures of drawn figures whose size is known."""

import numpy as np
import pytest
import torch

from flashcaps.analysis.measures import correlation, measure


def bar(width: int, height: int, side: int = 40, slope: float = 0.0) -> torch.Tensor:
    """A filled box in the middle, its rows moved right by `slope` per row up."""
    picture = torch.zeros(side, side)
    for r in range(height):
        y = (side - height) // 2 + r
        x = (side - width) // 2 + round(slope * (height / 2 - r))
        picture[y, x : x + width] = 1
    return picture


@pytest.mark.parametrize(("width", "height"), [(3, 20), (4, 12), (9, 15)])
def test_a_box_has_its_width_height_and_area(width, height):
    got = measure(bar(width, height))
    assert float(got["area"]) == width * height
    assert float(got["width"]) == pytest.approx((width**2 - 1) ** 0.5, rel=1e-4)  # of pixels, not of a continuous box
    assert float(got["height"]) == pytest.approx((height**2 - 1) ** 0.5, rel=1e-4)
    assert float(got["skew"]) == pytest.approx(0, abs=1e-5)


def test_thickness_is_that_of_a_long_stroke():
    thick = [float(measure(bar(w, 34))["thickness"]) for w in (2, 4, 6)]
    assert thick == pytest.approx([2, 4, 6], rel=0.2)
    assert thick == sorted(thick)


@pytest.mark.parametrize("slope", [-0.5, 0.5, 1.0])
def test_skew_is_the_slope(slope):
    assert float(measure(bar(4, 20, slope=slope))["skew"]) == pytest.approx(slope, rel=0.05)


def test_nothing_drawn_measures_finite():
    assert all(torch.isfinite(v).all() for v in measure(torch.zeros(2, 8, 8)).values())


def test_correlation_is_numpys():
    x, y = torch.randn(3, 20, dtype=torch.float64), torch.randn(3, 20, dtype=torch.float64)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(correlation(x, y), expected, atol=1e-9)
    assert float(correlation(torch.ones(5), torch.randn(5))) == 0
