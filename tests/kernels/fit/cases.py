"""Sizes of fits, and the Triton form beside its definition in float64."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashcaps.kernels.fit.matrix import Fit, Rule
from flashcaps.kernels.fit.triton import TritonFit
from flashcaps.kernels.votes import Votes, Windows, add_bias, covered, patches
from flashcaps.routing.math import OverPositions, Softmax, over_parents

from ...conftest import TOLERANCE, assert_near

EPS = 0.01


class Case(NamedTuple):
    """Sizes of u (B, G, R, C, d) and W (J, d, G, h), and what the fit is given besides.

    betas: "" none, and logits are em's; else heinsen's, "ij" one for each child and parent, "j" one for each parent,
    "mixed". positions: the rows are the 4 places of a 2 x 2 output that looks at 3 x 3 places, and G is in types.
    """

    b: int
    g: int
    r: int
    c: int
    d: int
    h: int
    j: int
    steps: int = 2
    start: bool = False
    betas: str = ""
    positions: bool = False
    bias: bool = False

    def softmax(self, device: str) -> Softmax:
        child = covered(3, 3, 2, 1, torch.device(device))
        return OverPositions(child, 9, (3, 3, 2, 1)) if self.positions else over_parents

    def rule(self, x: dict[str, Tensor]) -> Rule:
        scales = (0.3, 0.5, 0.6)[: self.steps]
        if self.betas:
            return Rule((1.0,) * len(scales))
        taus = tuple(0.4 + 0.3 * t for t in range(len(scales)))
        return Rule(scales, x["offset"], x["cost"], spread=True, sharpness=taus)

    def draw(self, device: str) -> dict[str, Tensor]:
        b, g = (4 * self.b, 4 * self.g) if self.positions else (self.b, self.g)
        i, j = g * self.r, self.j
        x = {
            "u": torch.randn(b, g, self.r, self.c, self.d),
            "weight": torch.randn(j, self.d, g, self.h) / self.d**0.5,  # votes are of one size, however wide poses are
            "gate": torch.rand(b, i),
        }
        x["gate"][0] = 0  # an example of which nothing is there
        if self.bias:
            x["bias"] = torch.randn(j, self.c, g, self.h)
        if self.start:
            x["start"] = torch.randn(i, j)
        if self.betas:
            x["use"] = torch.randn(j) if self.betas == "j" else torch.randn(i, j)
            x["ignore"] = torch.randn(i, j) if self.betas == "ij" else torch.randn(j)
        else:
            x |= {"offset": torch.randn(j), "cost": torch.randn(j)}
        return {name: y.to(device) for name, y in x.items()}


# Children with a transform each, of one group, of several; over positions.
MADE = [
    Case(2, 5, 1, 2, 2, 2, 5, steps=1),
    Case(2, 5, 1, 2, 2, 2, 5),
    Case(2, 3, 1, 1, 2, 3, 7, steps=3, betas="ij"),
    Case(3, 3, 1, 1, 2, 3, 5, steps=1, start=True, betas="ij"),
    Case(2, 1, 7, 2, 3, 2, 7, start=True, betas="j"),
    Case(2, 2, 3, 2, 2, 1, 9, start=True),
    Case(1, 1, 1, 2, 2, 2, 5, positions=True),
    Case(1, 2, 1, 1, 1, 2, 3, positions=True, betas="mixed"),
    Case(1, 1, 1, 1, 2, 2, 5, positions=True, steps=1, start=True, betas="ij"),
    Case(1, 1, 1, 1, 2, 2, 5, positions=True, start=True, betas="ij", bias=True),
    Case(2, 1, 7, 2, 2, 2, 7, betas="j", bias=True),
    Case(2, 1, 3, 1, 2, 1, 9, steps=1, start=True, bias=True),
    Case(2, 5, 1, 2, 2, 2, 5, betas="ij", bias=True),
    Case(2, 2, 3, 2, 2, 1, 9, betas="mixed", bias=True),
    Case(1, 2, 1, 4, 1, 5, 3),
    Case(2, 1, 3, 3, 1, 6, 5, betas="j", bias=True),
]

# Votes that are stored because they are few.
STORED = [
    Case(1, 1, 1, 1, 1, 1, 1, betas="j"),
    Case(2, 3, 1, 2, 9, 2, 5, steps=1, start=True, betas="ij"),
    Case(1, 1, 1, 1, 9, 1, 3, positions=True),
    Case(2, 1, 5, 1, 9, 2, 3, steps=3, betas="j", bias=True),
    Case(2, 3, 1, 2, 9, 2, 5, start=True, betas="ij", bias=True),
    Case(3, 2, 3, 2, 9, 2, 5),
]
CASES = MADE + STORED

# Wide poses, of 3 to 64 elements: dense, of one group, of several; over positions; and stored because they are few.
WIDE = [
    Case(3, 4, 1, 6, 6, 6, 2),
    Case(3, 3, 1, 8, 8, 8, 2, betas="ij"),
    Case(3, 3, 1, 3, 9, 6, 3, steps=1, start=True, betas="ij", bias=True),
    Case(3, 1, 4, 6, 6, 6, 3, betas="j", bias=True),
    Case(3, 2, 2, 4, 8, 5, 3, start=True, betas="mixed", bias=True),
    Case(2, 1, 1, 1, 12, 11, 5, positions=True),
    Case(2, 1, 1, 1, 13, 10, 6, positions=True, steps=1, start=True, betas="ij", bias=True),
    Case(3, 3, 1, 1, 20, 17, 4, betas="ij", bias=True),
    Case(2, 3, 1, 1, 65, 3, 97),
]

# Real layers, for a GPU: their examples go one, two or a few at a time, and the last part may be a smaller one.
WIDE_LAYERS = [
    Case(37, 800, 1, 6, 6, 6, 32),
    Case(10, 800, 1, 8, 8, 8, 32),
    Case(10, 800, 1, 6, 6, 6, 32, betas="ij", bias=True),
    Case(37, 800, 1, 8, 8, 8, 32, betas="ij", bias=True),
    Case(5, 1, 1297, 8, 8, 8, 33, betas="j", bias=True),
    Case(5, 72, 1, 6, 6, 6, 32, positions=True),
]


def names(case: Case) -> str:
    flags = [name for name in ("start", "positions", "bias") if getattr(case, name)]
    return "-".join(["x".join(map(str, case[:8])), *flags, *([case.betas] if case.betas else [])])


def run(kind: type, case: Case, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs of a fit, and the gradient of a fixed combination of them by every tensor."""
    device = tensors["u"].device
    x = {name: y.to(dtype).requires_grad_() for name, y in tensors.items()}
    betas = (x["use"], x["ignore"]) if case.betas else None
    votes, more = Votes(x["u"], x["weight"]), {}
    if case.bias:
        votes, more = (votes, {"bias": x["bias"]}) if kind is TritonFit else (add_bias(votes, x["bias"]), {})
    fit = kind(votes, x["gate"], start=x.get("start"), betas=betas, softmax=case.softmax(str(device)), **more)
    steps = fit.route(case.rule(x), EPS)
    out = {f"{name} {t}": y for t, step in enumerate(steps) for name, y in step._asdict().items()}
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for y in out.values():
        weight = torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=device).sin().view(y.shape)
        loss = loss + (weight * y.double()).sum()
    gradients = torch.autograd.grad(loss, list(x.values()))
    return {**out, **{f"gradient of {name}": y for name, y in zip(x, gradients, strict=True)}}


def assert_twin(case: Case, dtype: torch.dtype, device: str = "cpu") -> None:
    """TritonFit in `dtype` equals Fit in float64 on the same, rounded, numbers."""
    tensors = {name: x.to(dtype) for name, x in case.draw(device).items()}
    actual, expected = run(TritonFit, case, tensors, dtype), run(Fit, case, tensors, torch.float64)
    for name, y in actual.items():
        given = name.removeprefix("gradient of ")
        assert y.dtype == (tensors[given].dtype if given in tensors and given != name else torch.float32), name
        tolerance = TOLERANCE[dtype].gradient if given != name else TOLERANCE[dtype].output
        assert_near(y, expected[name], tolerance, name)


def operator_inputs(case: Case) -> tuple[Any, ...]:
    x = {name: y.requires_grad_() for name, y in case.draw("cpu").items()}
    b, i = x["gate"].shape
    softmax = case.softmax("cpu")
    grid = list(softmax.grid or ()) if isinstance(softmax, OverPositions) else []
    first_z = torch.randn(b, i, requires_grad=True) if grid else None
    first = x["start"].detach().softmax(-1).requires_grad_() if case.start else None
    learned = (x.get(name) for name in ("use", "ignore", "offset", "cost"))
    given = (x["u"], x["weight"], x.get("bias"), x["gate"], first_z, first, *learned)
    taus = [] if case.betas else [0.6] * case.steps
    return *given, [0.5] * case.steps, not case.betas, grid, [], EPS, taus, case.steps


def assert_image_twin(image: Tensor, j: int, window: tuple[int, int], over: str) -> None:
    """TritonFit on an image (B, T, H, W, 4) equals Fit in float64 on its patches."""
    i = image.shape[1] * window[0] ** 2
    x = {"image": image, "weight": torch.randn(j, 2, i, 2), "gate": torch.rand(image.shape[:4])}
    x |= {"offset": torch.randn(j), "cost": torch.rand(j)}
    x = {name: y.to(image.device) for name, y in x.items()}
    expected = _run_image({name: y.double() for name, y in x.items()}, window, over, kernels=False)
    for a, e in zip(_run_image(x, window, over, kernels=True), expected, strict=True):
        assert_near(a, e, TOLERANCE[torch.float32].gradient)


def _run_image(x: dict[str, Tensor], window: tuple[int, int], over: str, kernels: bool) -> list[Tensor]:
    """Parents after two iterations, and the gradients of all in x."""
    y = {name: value.detach().clone().requires_grad_() for name, value in x.items()}
    (h, w), device = y["image"].shape[2:4], y["image"].device
    grid = OverPositions(covered(h, w, *window, device), h * w, (h, w, *window))
    u, gate = (patches(z, *window).flatten(0, 2) for z in (y["image"], y["gate"][..., None]))
    gate = gate[..., 0]
    votes: Votes | Windows = Votes(u.unflatten(-1, (2, 2))[:, :, None], y["weight"])
    if kernels:
        votes, gate = Windows(y["image"], y["weight"], 2, *window), y["gate"]
    rule = Rule((0.5, 0.7), y["offset"], y["cost"], spread=True, sharpness=(0.6, 1.0))
    fit: Any = TritonFit if kernels else Fit
    out = fit(votes, gate, softmax=grid if over == "positions" else over_parents).route(rule, EPS)[-1]
    loss = (out.mean * torch.linspace(-1, 1, 4, dtype=out.mean.dtype, device=device)).sum()
    loss = loss + out.variance.sum() + out.logit.cos().sum()
    return [*out, *torch.autograd.grad(loss, list(y.values()))]
