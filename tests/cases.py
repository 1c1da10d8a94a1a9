"""Every routing function with every option, as data: tests run over `CASES` instead of naming algorithms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck

from flashcaps import functional as F
from flashcaps.routing import Routed

from .conftest import assert_near
from .routing import oracles
from .routing.oracles import Result

# B, I, J, D. In the second a table (J,) could be read as (I,).
SHAPES = [(2, 4, 3, 2), (1, 3, 3, 4), (2, 1, 3, 2), (2, 3, 1, 2), (2, 3, 2, 1), (1, 1, 1, 1)]

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A routing function, its oracle, the axes of its tensors ("b", "i", "j", "d" each), and its other options."""

    function: Callable[..., Routed]
    oracle: Callable[..., Result]
    axes: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("pose", "activation")  # those in the caller's dtype

    def draw(
        self, b: int, i: int, j: int, d: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, size: float = 1.0
    ) -> Tensors:
        """Random arguments; `size` multiplies the votes."""
        generator = torch.Generator().manual_seed(seed)
        sizes = {"b": b, "i": i, "j": j, "d": d}
        tensors = {}
        for name, axes in self.axes.items():
            x = torch.randn([sizes[a] for a in axes], generator=generator, dtype=torch.float64)
            if name == "votes":
                x = x * size
            if name == "activation":  # a probability
                x = x.sigmoid()
            tensors[name] = x > -0.7 if name == "mask" else x.to(dtype)
        return tensors

    def __call__(self, tensors: Tensors, **options: Any) -> Routed:
        return self.function(**tensors, **(self.options | options))


_votes = {"votes": "bijd"}
_em = _votes | {"activation": "bi", "beta_u": "j", "beta_a": "j"}
_heinsen = _votes | {"score": "bi"}
_pose = {"pose": "bjd", "weight": "d", "bias": "d"}


def _dynamic(axes: dict[str, str], **options: Any) -> Case:
    return Case(F.dynamic_routing, oracles.dynamic, _votes | axes, options)


def _gaussian(axes: dict[str, str], **options: Any) -> Case:
    return Case(F.em_routing, oracles.em, _em | axes, options)


def _attention(axes: dict[str, str], outputs: tuple[str, ...] = ("pose",), **options: Any) -> Case:
    return Case(F.attention_routing, oracles.attention, _votes | axes, options, outputs=outputs)


def _scored(axes: dict[str, str]) -> Case:
    return Case(F.heinsen_routing, oracles.heinsen, _heinsen | axes, {"eps": 0.05})


CASES = {
    "dynamic": _dynamic({}),
    "dynamic, once": _dynamic({}, iterations=1),
    "dynamic, priors and bias": _dynamic({"logits": "ij", "bias": "jd"}),
    "dynamic, shared priors": _dynamic({"logits": "j"}),
    "dynamic, leaky": _dynamic({"logits": "ij"}, leaky=True),
    "dynamic, detach": _dynamic({"logits": "ij"}, detach=True),
    "em": _gaussian({}, inverse_temperature=(0.3, 0.6, 1.0), eps=0.05),
    "em, tempered": _gaussian({}, inverse_temperature=0.7, sharpness=0.4, eps=0.05),
    "em, once": _gaussian({}, inverse_temperature=1.0, iterations=1, eps=1e-8),
    "em, beta per element": _gaussian({"beta_u": "jd"}, inverse_temperature=0.7, eps=0.05),
    "em, mask": _gaussian({"mask": "ij"}, inverse_temperature=0.7, eps=0.05),
    "attention": _attention(_pose),
    "attention, first": _attention({}),
    "attention, no norm": _attention({"pose": "bjd"}, norm=False, scale=0.5),
    "attention, activations": _attention(_em | _pose, outputs=("pose", "activation"), scale=0.5),
    "heinsen": _scored({"beta_use": "ij", "beta_ignore": "ij"}),
    "heinsen, any input": _scored({"beta_use": "j", "beta_ignore": "j"}),
    "heinsen, start": _scored({"beta_use": "j", "beta_ignore": "ij", "start": "ij"}),
    "discriminative": Case(F.discriminative_routing, oracles.discriminative, _votes | {"coefficients": "ij"}),
}


def lists(tensors: Tensors) -> dict[str, Any]:
    """Tensors as the nested lists oracles take."""
    return {name: x.tolist() for name, x in tensors.items()}


def assert_routed(routed: Routed, expected: Result) -> None:
    """Every field the oracle gives, and every iteration that was recorded."""
    assert_near(routed.pose, expected.pose, what="pose")
    assert_near(routed.coupling, expected.coupling, what="coupling")
    for name in ("activation", "variance"):
        actual, wanted = getattr(routed, name), getattr(expected, name)
        assert (actual is None) == (wanted is None), f"{name}: {actual}, expected {wanted}"
        if actual is not None:
            assert_near(actual, wanted, what=name)
    if routed.history is not None:
        assert len(routed.history) == len(expected.steps[0])
        for t, step in enumerate(routed.history):
            assert_near(step.coupling, [s[t][0] for s in expected.steps], what=f"coupling at {t}")
            assert_near(step.pose, [s[t][1] for s in expected.steps], what=f"pose at {t}")


def assert_oracle(case: Case, tensors: Tensors, **options: Any) -> None:
    """A routing function and its oracle agree, iteration by iteration."""
    options = case.options | options
    assert_routed(case.function(**tensors, **options, record=True), case.oracle(**lists(tensors), **options))


def leaves(tensors: Tensors) -> Tensors:
    """Copies that ask for a gradient, where one exists."""
    return {k: x.clone().requires_grad_() if x.is_floating_point() else x for k, x in tensors.items()}


def results(routed: Routed) -> list[Tensor]:
    """The tensors of a result."""
    return [x for x in (routed.pose, routed.activation, routed.coupling, routed.variance) if x is not None]


def assert_gradients(case: Case, tensors: Tensors) -> None:
    """Analytic against numerical gradients: every output by every argument."""
    names, fixed = [k for k in tensors if k != "mask"], {k: x for k, x in tensors.items() if k == "mask"}

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(x for x in results(case(dict(zip(names, arguments, strict=True)) | fixed)) if x.requires_grad)

    inputs = tuple(tensors[k].clone().requires_grad_() for k in names)
    assert gradcheck(function, inputs, check_undefined_grad=False, atol=1e-6, rtol=1e-5)


def backward(case: Case, tensors: Tensors, **options: Any) -> tuple[Routed, Tensors]:
    """The result, and the gradient of a fixed random combination of pose and activation by every argument."""
    inputs = leaves(tensors)
    routed = case(inputs, **options)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for name in ("pose", "activation"):
        x = getattr(routed, name)
        if x is not None:
            weight = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
            loss = loss + (x * weight).double().sum()
    loss.backward()
    return routed, {k: x.grad for k, x in inputs.items() if x.requires_grad and x.grad is not None}
