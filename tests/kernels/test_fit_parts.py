"""Wide poses in the Triton form of the fit: tiles of stored votes, a few examples at a time, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flashcaps.kernels.fit.ops import Outputs, fit_routing, fit_routing_backward
from flashcaps.kernels.fit.parts import LEAST, grouped, parts_of, rows_at_once
from flashcaps.kernels.fit.source import Source, Walk, stored, wide
from flashcaps.kernels.fit.walk_back import Inputs, Options

from flashcaps import ConvCapsules, DenseCapsules
from flashcaps.kernels.fit import (
    forward as _fit_forward,
)
from flashcaps.kernels.fit import (
    gradients as _fit_gradients,
)
from flashcaps.kernels.fit import (
    parts as _fit_parts,
)
from flashcaps.kernels.fit import (
    source as _fit_source,
)

from ..conftest import TOLERANCE, assert_near
from ..layer_cases import assert_same, run_layer
from .poison import poison_memory
from .test_fit_triton import CASES, EPS, Case, assert_twin, names, operator_inputs

# Dense, of one group, of several; over positions; and stored because they are few. Poses of 3 and of 64 elements.
WIDE = [
    Case(3, 4, 1, 6, 6, 6, 2),
    Case(3, 3, 1, 8, 8, 8, 2, betas="ij"),
    Case(3, 3, 1, 3, 9, 6, 3, first=True, start=True, betas="ij", bias=True),
    Case(3, 1, 4, 6, 6, 6, 3, betas="j", bias=True),
    Case(3, 2, 2, 4, 8, 5, 3, start=True, betas="mixed", bias=True),
    Case(2, 2, 2, 1, 12, 12, 5, first=True, betas="mixed"),
    Case(2, 1, 1, 1, 12, 11, 5, positions=True),
    Case(2, 1, 1, 1, 13, 10, 6, positions=True, first=True, start=True, betas="ij", bias=True),
    Case(3, 3, 1, 1, 20, 17, 4, betas="ij", bias=True),
    Case(2, 3, 1, 1, 65, 3, 97),
]

# Real layers, for a GPU: their examples go one, two or a few at a time, and the last part may be a smaller one.
LAYERS = [
    Case(37, 800, 1, 6, 6, 6, 32),
    Case(10, 800, 1, 8, 8, 8, 32),
    Case(10, 800, 1, 6, 6, 6, 32, betas="ij", bias=True),
    Case(37, 800, 1, 8, 8, 8, 32, betas="ij", bias=True),
    Case(5, 1, 1297, 8, 8, 8, 33, betas="j", bias=True),
    Case(5, 72, 1, 6, 6, 6, 32, positions=True),
]


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty", "empty_like")


def in_parts(monkeypatch: pytest.MonkeyPatch, examples: int) -> None:
    """So many at a time, however much room there is."""

    def rows(x: Inputs, o: Options) -> int:
        return examples * (4 if o.grid else 1)

    monkeypatch.setattr(_fit_parts, "rows_at_once", rows)


def inputs_of(case: Case) -> tuple[Inputs, Options]:
    tensors = operator_inputs(case)
    return Inputs(*tensors[:9]), Options(*tensors[9:])


@pytest.mark.parametrize("case", WIDE, ids=names)
def test_outputs_and_gradients(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of what examples share add up; of three examples the last part has but one."""
    in_parts(monkeypatch, 2 if case.b > 2 else 1)
    assert wide(torch.empty(case.j, case.d, case.g, case.h), case.c * case.h)
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("case", [WIDE[1], WIDE[4]], ids=names)
def test_all_examples_at_once(case: Case) -> None:
    x, o = inputs_of(case)
    assert rows_at_once(x, o) >= case.b
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("case", [WIDE[0], WIDE[3], WIDE[7]], ids=names)
def test_half_precision(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 2)
    assert_twin(case, torch.float16)


@pytest.mark.parametrize("case", [WIDE[2], WIDE[4]], ids=names)
def test_more_parents_than_a_tile_has_and_children_in_chunks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(source: Source, tiles: int) -> Walk:
        return Walk(1, 1, source.tile["PARENTS"], 3, 1)

    monkeypatch.setattr(_fit_source, "TILE", 2 << (case.c * case.h - 1).bit_length())
    monkeypatch.setattr(_fit_forward, "walk_tiles", walk)
    monkeypatch.setattr(_fit_gradients, "walk_tiles", walk)
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("routing", ["em", "heinsen"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_dense_layers(routing: str, iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 2)
    sizes: dict[str, Any] = dict(in_capsules=3, in_dim=36, out_capsules=2, out_dim=36, pose="matrix", eps=0.05)
    if routing == "em":
        sizes["inverse_temperature"] = 0.3
    assert_same_as_reference(DenseCapsules, (3, 3, 36), dict(routing=routing, iterations=iterations, **sizes))


@pytest.mark.parametrize("over", ["types", "positions"])
def test_convolutional_layers(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poses this wide are gathered into patches; places of one example share a softmax, and stay together."""
    in_parts(monkeypatch, 1)
    sizes: dict[str, Any] = dict(in_types=1, in_dim=(1, 12), out_types=2, out_dim=(1, 24), kernel=2, stride=1)
    options = dict(routing="em", iterations=2, inverse_temperature=0.3, eps=0.05, over=over)
    assert_same_as_reference(ConvCapsules, (2, 1, 3, 3, 12), sizes | options)


def assert_same_as_reference(kind: type, shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    torch.manual_seed(1)
    layer = kind(backend="triton", **arguments)
    exact = kind(backend="reference", **arguments).double()
    exact.load_state_dict(layer.state_dict())
    u, activation = torch.randn(shape), torch.rand(shape[:-1])
    assert_same(run_layer(layer, u, activation), run_layer(exact, u.double(), activation.double()), torch.float32)


def test_stored_votes_of_few_parents_are_wide_too() -> None:
    """Kernels that hold a pose in a lane's registers took minutes to compile for 64 elements."""
    weight = torch.empty(4, 64, 5, 64)
    assert stored(weight)
    assert wide(weight, 64)
    assert not wide(torch.empty(64, 64, 1, 2), 2)
    assert not wide(torch.empty(32, 4, 800, 4), 16)


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


@pytest.mark.parametrize("case", [WIDE[0], Case(3, 1, 1, 1, 12, 11, 5, positions=True)], ids=names)
def test_parts_are_all_of_the_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 2)
    x, o = inputs_of(case)
    parts = list(parts_of(x, o, grouped(x.weight)))
    assert torch.equal(torch.cat([part.u for _, part, _ in parts]), x.u)
    assert [source.sizes[0] for _, _, source in parts] == [rows.stop - rows.start for rows, _, _ in parts]
    x, o = inputs_of(CASES[1])
    ((rows, part, source),) = parts_of(x, o, None)
    assert part is x
    assert source.sizes[0] == x.u[rows].shape[0]


@pytest.mark.parametrize("case", [WIDE[2], Case(2, 1, 2, 6, 6, 6, 2, bias=True)], ids=names)
def test_operators_are_registered_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 1)
    inputs = operator_inputs(case)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fit_routing, inputs, test_utils=checks)
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    out = fit_routing(*given)
    steps = len(Outputs.of(out).found)
    gradients = [torch.ones_like(x) for x in out[: 3 * steps]]
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(fit_routing_backward, (*given, out, gradients, True), test_utils=checks)


def test_parts_do_not_change_what_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a gradient of the gate the others are the same."""
    in_parts(monkeypatch, 2)
    inputs = list(operator_inputs(Case(3, 1, 2, 6, 6, 6, 2, betas="ij", bias=True)))

    def gradients() -> list[torch.Tensor]:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad and x is not inputs[3]]
        return list(torch.autograd.grad(fit_routing(*inputs)[1].sum(), tensors, allow_unused=True))

    expected = gradients()
    inputs[3] = inputs[3].detach()
    for a, e in zip(gradients(), expected, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert_near(a, e.double(), TOLERANCE[torch.float32].gradient)
