"""Wrong arguments are answered at the boundary, by name: what was expected, what came, and the remedy."""

import inspect
import re
from functools import partial

import pytest
import torch

from flashcaps.functional import attention_routing
from flashcaps.nn.capsules import DenseCapsules
from flashcaps.routing import ROUTING, checks

from ..cases import CASES

SIZES = (2, 4, 3, 5)  # four different ones, so that no wrong axis passes by luck
FUNCTIONS = list({case.function: name for name, case in reversed(CASES.items())}.values())  # one case of each
# One case for each argument, and each shape it may have.
TENSORS = {
    (case.function, name, axes): (label, name) for label, case in CASES.items() for name, axes in case.axes.items()
}
GIVEN = [(case, name) for case, name in TENSORS.values() if name != "votes"]
ITERATED = [case for case in FUNCTIONS if "iterations" in inspect.signature(CASES[case].function).parameters]


def rejected(case: str, name: str, message: str, **arguments) -> None:
    """A ValueError whose text starts with the argument's name and holds `message`."""
    with pytest.raises(ValueError, match=rf"^{name}: .*{message}"):
        CASES[case](CASES[case].draw(*SIZES) | arguments)


@pytest.mark.parametrize("case", FUNCTIONS)
@pytest.mark.parametrize("shape", [(2, 4, 15), (1, 2, 4, 3, 5), ()])
def test_votes_of_the_wrong_rank(case: str, shape: tuple[int, ...]) -> None:
    got = re.escape(str(shape))
    message = rf"expected \(B, I, J, D\), got {got}; did you forget .view\(B, I, J, D\)\?"
    rejected(case, "votes", message, votes=torch.zeros(shape))


@pytest.mark.parametrize(("case", "name"), GIVEN)
def test_a_tensor_of_the_wrong_size_or_rank(case: str, name: str) -> None:
    good = CASES[case].draw(*SIZES)[name]
    for wrong in (good.new_zeros([*good.shape[:-1], good.shape[-1] + 1]), good[None], good[:1]):
        rejected(case, name, rf"expected .*got {re.escape(str(tuple(wrong.shape)))}", **{name: wrong})


@pytest.mark.parametrize(("case", "name"), [(c, n) for c, n in TENSORS.values() if n != "mask"])
def test_an_integer_tensor(case: str, name: str) -> None:
    whole = CASES[case].draw(*SIZES)[name].long()
    rejected(case, name, r"floating.*got torch.int64; convert it", **{name: whole})


@pytest.mark.parametrize("iterations", [0, -1])
def test_fewer_than_one_iteration(iterations: int) -> None:
    functions = [partial(CASES[case], CASES[case].draw(*SIZES)) for case in ITERATED]
    for function in (*functions, *ROUTING.values()):
        with pytest.raises(ValueError, match=rf"^iterations: expected at least 1, got {iterations}"):
            function(iterations=iterations)


@pytest.mark.parametrize("case", FUNCTIONS)
@pytest.mark.parametrize("axis", ["i", "j", "d"])
def test_an_empty_capsule_axis(case: str, axis: str) -> None:
    sizes = {"b": 2, "i": 4, "j": 3, "d": 5} | {axis: 0}
    tensors = CASES[case].draw(**sizes)
    with pytest.raises(ValueError, match=rf"^votes: axis {axis.upper()} .*empty"):
        CASES[case](tensors)


@pytest.mark.parametrize(("case", "name"), GIVEN)
def test_a_tensor_on_another_device(case: str, name: str) -> None:
    elsewhere = CASES[case].draw(*SIZES)[name].to("meta")
    rejected(case, name, r"cpu.*got meta; move it", **{name: elsewhere})


@pytest.mark.parametrize("case", FUNCTIONS)
def test_votes_that_are_no_tensor(case: str) -> None:
    with pytest.raises(TypeError, match=r"^votes: expected a torch.Tensor, got list"):
        CASES[case](CASES[case].draw(*SIZES) | {"votes": [[[[1.0]]]]})


@pytest.mark.parametrize("missing", ["beta_u", "beta_a"])
def test_one_beta_without_the_other(missing: str) -> None:
    """Ablation C needs both: one alone would silently give no activation."""
    tensors = CASES["attention, activations"].draw(*SIZES)
    del tensors[missing]
    with pytest.raises(ValueError, match=f"^{missing}: "):
        attention_routing(**tensors)


def test_a_device_that_nothing_was_tested_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the CPU stands for Apple's, whose tensors this machine cannot make."""
    assert "mps" not in checks.DEVICES
    layer = DenseCapsules(in_capsules=3, in_dim=2, out_capsules=2, out_dim=4)
    monkeypatch.setattr(checks, "DEVICES", ("cuda",))
    for call in (lambda: layer(torch.rand(2, 3, 2)), lambda: attention_routing(torch.rand(2, 3, 4, 5))):
        with pytest.raises(ValueError, match=r"expected on cpu or cuda, got cpu, on which nothing is tested; move it"):
            call()


def test_an_old_torch_is_refused_with_the_remedy() -> None:
    oldest = ".".join(map(str, checks.OLDEST_TORCH))
    with pytest.raises(ImportError, match=f"needs PyTorch {oldest} or later, got 2.6.0.*pip install 'torch>={oldest}'"):
        checks.check_torch("2.6.0+cu124")
    checks.check_torch("2.11.0a0+git")
