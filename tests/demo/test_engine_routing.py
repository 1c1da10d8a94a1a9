"""engine/routing.js in Chromium against `flashcaps.functional`, on random votes; layers are in test_engine.py."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps import functional as F
from flashcaps.routing import ROUTING, Routed
from tests.conftest import assert_near
from tests.demo.served import Asked

pytestmark = pytest.mark.browser

I, J, D, T = 7, 4, 6, 3
RUN = """async ([name, votes, sizes, options]) => {
  const { route } = await import("./page/engine/routing.js");
  const plain = (step) => Object.fromEntries(
    Object.entries(step).filter(([k, v]) => k !== "steps" && v).map(([k, v]) => [k, Array.from(v)]));
  const { steps, ...last } = route(name, Float32Array.from(votes), sizes, options);
  return { last: plain(last), steps: steps.map(plain) };
}"""


@pytest.fixture
def run(ask: Asked) -> Callable[..., Any]:
    def inner(name: str, votes: Tensor, options: dict[str, Any]) -> Any:
        sizes = dict(zip(("places", "children", "parents", "dim"), votes.shape, strict=True))
        options = {k: v.flatten().tolist() if isinstance(v, Tensor) else v for k, v in options.items()}
        return ask.page.evaluate(RUN, [name, votes.flatten().tolist(), sizes, options])

    return inner


def compare(found: dict[str, Any], expected: Routed) -> None:
    assert len(found["steps"]) == len(expected.history or ())
    for name in ("pose", "activation", "coupling", "variance"):
        x = getattr(expected, name)
        if x is not None:
            assert_near(torch.tensor(found["last"][name], dtype=torch.float64).view(x.shape), x, 1e-6, name)
    for got, step in zip(found["steps"], expected.history or (), strict=True):
        for name in ("coupling", "pose", "activation"):
            x = getattr(step, name)
            if x is None:
                continue
            assert_near(torch.tensor(got[name], dtype=torch.float64).view(x.shape), x, 1e-6, f"step's {name}")


def double(*shape: int) -> Tensor:
    return torch.randn(*shape).double()  # as float32 has it, which is what the page reads


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Algorithms and options that the functions take as the page does."""
    torch.manual_seed(1)
    beta, betas, prior, bias = double(J), double(I, J), double(I, J), double(J, D)
    a, score = torch.rand(1, I).double(), double(1, I)
    em = {"activation": a, "beta_u": beta, "beta_a": -beta}
    return [
        ("dynamic", {}),
        ("dynamic", {"logits": prior}),
        ("dynamic", {"logits": beta, "bias": bias, "leaky": True}),
        ("em", em | {"inverse_temperature": 0.7}),
        ("em", em | {"inverse_temperature": [0.1, 0.2, 0.3], "sharpness": 0.2}),
        ("em", em | {"inverse_temperature": 0.1, "beta_u": bias, "eps": 1e-3}),
        ("attention", {"iterations": T, "scale": 0.4, "weight": double(D), "bias": double(D)}),
        ("attention", em | {"norm": False, "pose": bias[None]}),
        ("heinsen", {"score": score, "beta_use": betas, "beta_ignore": prior}),
        ("heinsen", {"score": score, "beta_use": beta, "beta_ignore": -beta, "start": prior, "eps": 0.1}),
        ("discriminative", {"coefficients": betas}),
    ]


CASES = cases()


def test_every_algorithm_has_a_case() -> None:
    assert {name for name, _ in CASES} == set(ROUTING)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_route(run: Callable[..., Any], case: int) -> None:
    name, options = CASES[case]
    votes = double(1, I, J, D)
    compare(run(name, votes, options), getattr(F, f"{name}_routing")(votes, record=True, **options))


def test_agreement_and_logits_make_the_next_coupling(run: Callable[..., Any]) -> None:
    steps = run("dynamic", double(1, I, J, D), {"iterations": 10})["steps"]
    for step, after in pairwise(steps):
        logit = torch.tensor(step["logit"]) + torch.tensor(step["agreement"])
        assert_near(torch.tensor(after["coupling"]).view(I, J), logit.view(I, J).softmax(-1).double())


def test_unknown_names_and_wrong_sizes_are_told(run: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=r"routing: expected one of dynamic, em, .*, got toString"):
        run("toString", double(1, I, J, D), {})
