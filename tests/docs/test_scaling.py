"""docs/scaling.md is made from results: it is current, and its arithmetic is right."""

from typing import Any

import pytest

from docs import scaling


def record(**more: Any) -> dict[str, Any]:
    """A GPU whose layers take 2 ns for a number of a vote, whatever the size."""
    rows = []
    for axis, values in (("I", (256, 512, 1024, 2048)), ("D", (4, 16, 36))):
        for value in values:
            name = f"attention/{axis}/{value}"
            time = 2e-6 * scaling.votes_of(name)
            rows.append({"workload": name, "backend": "triton", "time_ms": time, "peak_mib": 3.0 * value})
    rows.append({"workload": "attention/I/4096", "backend": "triton", "failed": "out of memory"})
    return {"hardware": "NVIDIA Test", "commit": "abc", "sweep": rows, "rates": {"bf16": 5e14}, **more}


def test_the_page_is_current() -> None:
    """`python -m docs.scaling` renews it."""
    text = scaling.PAGE.read_text()
    assert scaling.filled(text) == text


def test_an_exponent_is_that_of_the_larger_half() -> None:
    assert scaling.exponent([(x, 7.0 * x**1.5) for x in (1.0, 2.0, 4.0, 8.0)]) == pytest.approx(1.5)
    assert scaling.exponent([(x, 100 + x) for x in (1.0, 2.0, 1e6, 2e6)]) == pytest.approx(1.0, abs=1e-3)
    assert scaling.exponent([(1.0, 2.0)]) is None


def test_growth_and_rate_of_layers_whose_time_is_linear_in_their_votes() -> None:
    table = scaling.growth([record()])
    row = next(line for line in table.splitlines() if line.startswith("| attention"))
    assert row.split("|")[2].strip() == "2.00 (2.00)"
    assert "abc" in table
    assert "not measured" in scaling.growth([record(sweep=[])])
    [rate] = scaling.rates([record()])
    assert rate.nanoseconds == pytest.approx(2.0)
    assert rate.gpu


def test_votes_and_weights_of_a_layer_by_hand() -> None:
    layer = scaling.Layer("two places, 3 -> 5", 2, 3, 5, rows=2, d=7, h=11)
    assert layer.votes == 2 * 3 * 5 * 2 * 11
    assert layer.weights == 3 * 5 * 7 * 11
    assert layer.kept == 2 * 2 * (3 * 2 * 7 + 5 * 2 * 11)


def test_time_on_a_cluster_by_hand() -> None:
    """8 GPUs, 128 images each, 0.01 ns a number, a backbone of 19.8 GFLOP at 40 % of 5e14, 17 M gradients on NVLink."""
    rate = scaling.Rate("GPU", 0.01, 5e14, gpu=True)
    line = next(x for x in scaling.imagenet([rate]).splitlines() if x.startswith("| 8 "))
    _, gpus, batch, compute, reduce, waited, most, speed, minutes, read, _ = (cell.strip() for cell in line.split("|"))
    votes = 2 * (36 * 288 * 32 * 16 + 16 * 288 * 32 * 16 + 512 * 1000 * 16)
    each = votes * 1e-8 + 1e3 * 6 * 3.3e9 / 2e14  # ms
    assert (gpus, batch, most) == ("8", "1,024", "capsules")
    assert float(compute) == pytest.approx(128 * each, rel=0.01)
    assert float(reduce) == pytest.approx(1e3 * 2 * 7 / 8 * 4 * 17_030_208 / 450e9, abs=0.01)
    assert float(waited) == pytest.approx(1e3 * 2 * 7 / 8 * (25 << 20) / 450e9, abs=0.01)  # the last bucket
    expected = 8e3 * 128 / (128 * each + float(waited))
    assert float(speed.replace(",", "")) == pytest.approx(expected, rel=0.01)
    assert float(minutes.split()[0]) == pytest.approx(90 * 1_281_167 / expected / 60, abs=0.6)
    assert float(read) == pytest.approx(expected * 110e-6, abs=0.06)


def test_without_a_gpu_the_page_says_so() -> None:
    assert scaling.imagenet([scaling.Rate("CPU", 9.0)]).startswith("No GPU has been measured yet")
