"""What all routing functions share, run over every case, beside agreeing with an oracle (test_contract.py): dtypes,
layouts, numbers at the ends of their range."""


import pytest
import torch

from .cases import CASES, backward, results
from .conftest import TOLERANCE, assert_near

HALF = [torch.float16, torch.bfloat16]
every_case = pytest.mark.parametrize("name", CASES)


# ---- shapes and layouts


@every_case
def test_non_contiguous_inputs(name: str) -> None:
    """Every argument with its axes stored in reverse: same numbers, same gradients, nothing viewed away."""
    case = CASES[name]
    tensors = case.draw(2, 4, 3, 5)
    strided = {k: x.permute(*reversed(range(x.ndim))).contiguous() for k, x in tensors.items()}
    strided = {k: x.permute(*reversed(range(x.ndim))) for k, x in strided.items()}
    assert not strided["votes"].is_contiguous()
    (routed, gradients), (expected, wanted) = backward(case, strided), backward(case, tensors)
    for x, y in zip(results(routed), results(expected), strict=True):
        assert_near(x, y, 1e-12)
    for argument in wanted:
        assert_near(gradients[argument], wanted[argument], TOLERANCE[torch.float64].gradient, argument)


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
    """Only rounding of inputs and outputs is lost: the reference gets the same rounded inputs. Variances are fp32."""
    case = CASES[name]
    tensors = case.draw(2, 5, 3, 4, dtype=dtype)
    exact = {k: x.double() if x.is_floating_point() else x for k, x in tensors.items()}
    (routed, gradients), (expected, wanted) = backward(case, tensors), backward(case, exact)
    for what in case.outputs:
        assert getattr(routed, what).dtype == dtype, what
        assert_near(getattr(routed, what), getattr(expected, what), what=what)
    if expected.variance is not None:
        assert (routed.variance.dtype, expected.variance.dtype) == (torch.float32, torch.float64)
    for argument in wanted:
        assert gradients[argument].dtype == dtype
        assert_near(gradients[argument], wanted[argument], TOLERANCE[dtype].gradient, f"gradient of {argument}")


@pytest.mark.parametrize(("name", "eps"), [("em", 1e-8), ("heinsen", 1e-5)])
def test_no_density_is_multiplied_out(name: str, eps: float) -> None:
    """In 64 dimensions and fp32 every density underflows; logarithms do not."""
    tensors = CASES[name].draw(1, 6, 3, 64, dtype=torch.float32, size=50.0)
    routed, gradients = backward(CASES[name], tensors, eps=eps)
    assert_near(routed.coupling.sum(2), 1.0)
    assert all(x.isfinite().all() for x in (*results(routed), *gradients.values()))


@every_case
@pytest.mark.parametrize("default_eps", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_votes_of_ten_thousand_stay_finite_in_half_precision(name: str, dtype: torch.dtype, default_eps: bool) -> None:
    """Results, and every gradient that the dtype can hold."""
    case = CASES[name]
    tensors = case.draw(2, 5, 3, 4, dtype=dtype)
    tensors["votes"] = (1e4 * tensors["votes"].double().tanh()).to(dtype)
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
@pytest.mark.parametrize("absent", ["all children", "those of a parent"])
def test_absent_children_have_finite_results_and_gradients(absent: str, dtype: torch.dtype) -> None:
    case = CASES["em" if absent == "all children" else "em, mask"]
    tensors = case.draw(2, 4, 3, 2, dtype=dtype)
    if absent == "all children":
        tensors["activation"].zero_()
    else:
        tensors["mask"] = torch.tensor([[True, False, True]] * 4)
    routed, gradients = backward(case, tensors, eps=1e-8)
    assert all(x.isfinite().all() for x in (*results(routed), *gradients.values()))
    assert_near(routed.pose if absent == "all children" else routed.pose[:, 1], 0.0, 0.0)
