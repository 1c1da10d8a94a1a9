"""What all routing functions share, run over every case, beside agreeing with an oracle (test_contract.py): dtypes,
layouts, numbers at the ends of their range."""

from dataclasses import replace

import pytest
import torch

from flashcaps.functional import em_routing, heinsen_routing
from flashcaps.routing import Routed
from flashcaps.routing.math import OverPositions

from .cases import CASES, Tensors, assert_gradients, backward, results
from .conftest import TOLERANCE, assert_near

HALF = [torch.float16, torch.bfloat16]
every_case = pytest.mark.parametrize("name", CASES)

WITH_VARIANCE = [name for name in CASES if name.startswith(("em", "heinsen")) or name == "attention, activations"]


def assert_same(actual: Routed, expected: Routed, tolerance: float) -> None:
    """pose, activation, coupling and variance agree."""
    for what in ("pose", "activation", "coupling", "variance"):
        x, y = getattr(actual, what), getattr(expected, what)
        assert (x is None) == (y is None)
        if x is not None:
            assert_near(x, y, tolerance, what)


# ---- shapes and layouts


@every_case
def test_an_empty_batch(name: str) -> None:
    case = CASES[name]
    routed, gradients = backward(case, case.draw(0, 4, 3, 2))
    assert routed.pose.shape == (0, 3, 2)
    assert routed.coupling.shape == (0, 4, 3)
    assert "activation" not in case.outputs or routed.activation.shape == (0, 3)
    assert gradients["votes"].shape == (0, 4, 3, 2)


@every_case
def test_non_contiguous_inputs(name: str) -> None:
    """Every argument with its axes stored in reverse: same numbers, same gradients, nothing viewed away."""
    case = CASES[name]
    tensors = case.draw(2, 4, 3, 5)
    strided = {k: x.permute(*reversed(range(x.ndim))).contiguous() for k, x in tensors.items()}
    strided = {k: x.permute(*reversed(range(x.ndim))) for k, x in strided.items()}
    assert not strided["votes"].is_contiguous()
    (routed, gradients), (expected, wanted) = backward(case, strided), backward(case, tensors)
    assert_same(routed, expected, 1e-12)
    for argument in wanted:
        assert_near(gradients[argument], wanted[argument], TOLERANCE[torch.float64].gradient, argument)


@every_case
def test_expanded_and_channels_last_votes(name: str) -> None:
    case = CASES[name]
    tensors = case.draw(2, 4, 3, 5)
    last = tensors["votes"].contiguous(memory_format=torch.channels_last)
    assert_same(case(tensors | {"votes": last}), case(tensors), 1e-12)
    repeated = tensors["votes"][:1].expand(2, 4, 3, 5)
    assert_same(case(tensors | {"votes": repeated}), case(tensors | {"votes": repeated.contiguous()}), 1e-12)


@every_case
def test_inputs_are_left_alone(name: str) -> None:
    case = CASES[name]
    tensors = case.draw(2, 4, 3, 2)
    before = {k: x.clone() for k, x in tensors.items()}
    case(tensors, record=True)
    assert all(torch.equal(tensors[k], before[k]) for k in before)


# ---- precision


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_outputs_keep_the_dtype_and_the_values_of_fp64(name: str, dtype: torch.dtype) -> None:
    """Only rounding of inputs and outputs is lost: the reference gets the same rounded inputs."""
    case = CASES[name]
    tensors = case.draw(2, 5, 3, 4, dtype=dtype)
    exact = {k: x.double() if x.is_floating_point() else x for k, x in tensors.items()}
    (routed, gradients), (expected, wanted) = backward(case, tensors), backward(case, exact)
    for what in case.outputs:
        assert getattr(routed, what).dtype == dtype, what
        assert_near(getattr(routed, what), getattr(expected, what), what=what)
    for argument in wanted:
        assert gradients[argument].dtype == dtype
        assert_near(gradients[argument], wanted[argument], TOLERANCE[dtype].gradient, f"gradient of {argument}")


@pytest.mark.parametrize("name", WITH_VARIANCE)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_variance_is_returned_in_fp32(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    variance = case(case.draw(2, 5, 3, 4, dtype=dtype, size=1000.0)).variance  # its squares overflow fp16
    assert variance.dtype == torch.float32
    assert variance.isfinite().all()
    assert case(case.draw(2, 5, 3, 4)).variance.dtype == torch.float64


def huge(name: str, dtype: torch.dtype) -> Tensors:
    """Arguments whose votes lie between -1e4 and 1e4."""
    tensors = CASES[name].draw(2, 5, 3, 4, dtype=dtype)
    return tensors | {"votes": (1e4 * tensors["votes"].double().tanh()).to(dtype)}


@every_case
@pytest.mark.parametrize("default_eps", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_votes_of_ten_thousand_stay_finite_in_half_precision(name: str, dtype: torch.dtype, default_eps: bool) -> None:
    """Results, and every gradient that the dtype can hold."""
    case, tensors = CASES[name], huge(name, dtype)
    eps = {"em": 1e-8, "heinsen": 1e-5}.get(name.split(",")[0])
    options = {"eps": eps} if default_eps and eps else {}
    routed, gradients = backward(case, tensors, **options)
    assert all(x.isfinite().all() for x in results(routed))
    exact = {k: x.double() if x.is_floating_point() else x for k, x in tensors.items()}
    for argument, wanted in backward(case, exact, **options)[1].items():
        small = wanted.abs() < torch.finfo(dtype).max / 2
        assert gradients[argument][small].isfinite().all(), argument


@every_case
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_softmax_and_variance_stay_in_fp32_under_autocast(name: str, autocast: torch.dtype) -> None:
    """Products may run in lower precision; couplings and variances are fp32, those of Gaussians as exact."""
    case = CASES[name]
    tensors = case.draw(2, 5, 3, 4, dtype=torch.float32)
    expected = case(tensors)
    with torch.autocast("cpu", dtype=autocast):
        routed = case(tensors)
    assert routed.coupling.dtype == torch.float32
    gaussian = expected.variance is not None
    precision = torch.float32 if gaussian and name != "attention, activations" else autocast
    assert_near(routed.coupling, expected.coupling, TOLERANCE[precision].output, "coupling")
    if gaussian:
        assert routed.variance.dtype == torch.float32
        assert_near(routed.variance, expected.variance, TOLERANCE[precision].output, "variance")


@every_case
def test_sums_over_many_children_do_not_overflow_under_autocast(name: str) -> None:
    """Forty children that vote 1e4: their sum is no fp16 number, but the inputs are fp32 and so is the sum."""
    case = CASES[name]
    tensors = case.draw(1, 40, 2, 4, dtype=torch.float32)
    tensors["votes"] = torch.full_like(tensors["votes"], 1e4)
    with torch.autocast("cpu", dtype=torch.float16):
        routed = case(tensors)
    assert all(x.isfinite().all() for x in results(routed))


# ---- a convolution's softmax


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].distribution])
def test_couplings_over_positions_sum_to_one_per_child(name: str) -> None:
    """Three children in a row, kernel 2: two parent places share the middle child, whatever the algorithm."""
    case = CASES[name]
    tensors = case.draw(2 * 2, 2 * 2, 3, 2)  # examples x places, types x kernel
    softmax = OverPositions(torch.tensor([[0, 1], [1, 2]]), places=3)
    coupling = case(tensors, softmax=softmax).coupling.view(2, 2, 2, 2, 3).sum(-1)  # example, place, type, offset
    assert_near(coupling[:, 0, :, 0], 1.0)
    assert_near(coupling[:, 1, :, 1], 1.0)
    assert_near(coupling[:, 0, :, 1] + coupling[:, 1, :, 0], 1.0)


@pytest.mark.parametrize("name", ["dynamic, leaky", "em", "attention", "heinsen"])
def test_gradients_over_positions(name: str) -> None:
    softmax = OverPositions(torch.tensor([[0, 1], [1, 2]]), places=3)
    case = replace(CASES[name], options=CASES[name].options | {"softmax": softmax})
    assert_gradients(case, case.draw(2, 2, 2, 2))


# ---- history


@pytest.mark.parametrize("name", ["dynamic", "em", "heinsen"])
def test_history_is_that_of_shorter_runs(name: str) -> None:
    case = CASES[name]
    tensors = case.draw(2, 4, 3, 2)
    options = {"inverse_temperature": 0.7} if name == "em" else {}
    for t, step in enumerate(case(tensors, record=True, **options).history):
        shorter = case(tensors, iterations=t + 1, **options)
        assert_near(step.pose, shorter.pose, 1e-12)
        assert_near(step.coupling, shorter.coupling, 1e-12)
        if name != "dynamic":  # whose activation is the length of the pose
            assert_near(step.activation, shorter.activation, 1e-12)


# ---- degenerate examples


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@every_case
def test_votes_of_zero_have_finite_results_and_gradients(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    tensors = case.draw(2, 4, 3, 2, dtype=dtype)
    tensors["votes"].zero_()
    routed, gradients = backward(case, tensors)
    assert all(x.isfinite().all() for x in (*results(routed), *gradients.values()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_absent_children_everywhere_have_finite_results_and_gradients(dtype: torch.dtype) -> None:
    case = CASES["em"]
    tensors = case.draw(2, 4, 3, 2, dtype=dtype)
    tensors["activation"].zero_()
    routed, gradients = backward(case, tensors, eps=1e-8)
    assert all(x.isfinite().all() for x in (*results(routed), *gradients.values()))
    assert_near(routed.pose, 0.0, 0.0)


def test_em_and_heinsen_agree_where_their_procedures_do() -> None:
    """One iteration from uniform assignments with gates sigmoid(score) = activation: the same means and variances."""
    em = CASES["em"].draw(2, 4, 3, 2)
    score = em["activation"].logit()
    beta = {"beta_use": em["beta_u"], "beta_ignore": em["beta_a"]}
    first = em_routing(**em, inverse_temperature=1.0, iterations=1, eps=0.1)
    second = heinsen_routing(em["votes"], score, **beta, iterations=1, eps=0.1)
    assert_near(first.pose, second.pose)
    assert_near(first.variance, second.variance)


def test_gradients_of_many_iterations() -> None:
    for name in ("dynamic", "heinsen"):
        case = CASES[name]
        longer = replace(case, options=case.options | {"iterations": 6})
        assert_gradients(longer, case.draw(1, 3, 2, 2))
