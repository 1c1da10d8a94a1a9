"""Random arguments, most of them sound, some of them hostile."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

FLOATS = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.uint8, torch.bool, torch.complex64)
SIZES = ("normal", "normal", "normal", "zero", "one", "tiny", "large", "huge", "mixed")
POISON = ("nan", "inf", "-inf")
COUNTS = (0, -1, -(2**40), 1.5, "3", None, float("nan"))
NUMBERS = (-1.0, float("nan"), float("inf"), -float("inf"), "0.1", None)


class Draw:
    """Decisions of one case, all from one seed."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        self.poison = self.chance(0.1)  # whether NaN and Inf may be among the numbers of this case

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)

    def size(self, most: int = 5, empty: float = 0.03) -> int:
        return 0 if self.chance(empty) else self.random.randint(1, most)

    def dtype(self) -> torch.dtype:
        return self.pick(FLOATS)

    def numbers(self, shape: Sequence[int], dtype: torch.dtype, kind: str | None = None) -> Tensor:
        """A tensor of one kind of numbers; "large" is what half precision must take, "huge" whatever the dtype can."""
        kind = kind or self.pick(SIZES)
        x = torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64)
        most = torch.finfo(dtype).max
        if kind == "zero":
            x = torch.zeros_like(x)
        elif kind == "one":
            x = torch.ones_like(x)
        elif kind == "tiny":
            x = x * 10.0 ** -self.random.randint(3, 40)
        elif kind == "large":
            x = 1e4 * x.tanh()
        elif kind == "huge":
            x = x.clamp(-1, 1) * most * 10.0 ** -self.random.randint(0, 20)
        elif kind == "mixed":
            x = x * 10.0 ** torch.randint(-6, 5, x.shape, generator=self.generator)
        x = x.clamp(-most, most).to(dtype)
        if self.poison and x.numel():
            flat = x.view(-1)
            for _ in range(self.random.randint(1, 3)):
                flat[self.random.randrange(flat.numel())] = float(self.pick(POISON))
        return x

    def strided(self, x: Tensor) -> Tensor:
        """The same numbers, differently laid out in memory."""
        way = self.pick(("plain", "plain", "transposed", "sliced", "expanded", "offset"))
        if way == "transposed" and x.ndim > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if way == "sliced" and x.ndim:
            return x.repeat_interleave(2, -1)[..., ::2]
        if way == "expanded" and x.ndim and x.shape[0]:
            return x[:1].expand(x.shape)
        if way == "offset":
            return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)
        return x

    def tensor(self, shape: Sequence[int], dtype: torch.dtype | None = None, kind: str | None = None) -> Tensor:
        return self.strided(self.numbers(shape, dtype or self.dtype(), kind))

    def labels(self, batch: int, classes: int) -> Tensor:
        """Class indices, or multi-hot in some dtype."""
        if self.chance(0.6):
            return torch.randint(max(classes, 1), (batch,), generator=self.generator)
        hot = torch.rand(batch, classes, generator=self.generator) < 0.4
        return hot.to(self.pick((torch.float32, torch.bool, torch.int64, torch.float64)))

    def spoil(self, arguments: dict[str, Any], probability: float) -> None:
        """Make one argument wrong, in place, with this probability."""
        names = [k for k, v in arguments.items() if v is not None]
        if not names or not self.chance(probability):
            return
        name = self.pick(names)
        value = arguments[name]
        if isinstance(value, Tensor):
            arguments[name] = self.spoiled(value)
        elif isinstance(value, bool | str):
            arguments[name] = self.pick((None, "nonsense", 7, [], object()))
        elif isinstance(value, int):
            arguments[name] = self.pick(COUNTS)
        elif isinstance(value, float):
            arguments[name] = self.pick(NUMBERS)
        else:
            arguments[name] = self.pick((None, "nonsense", -3, [], ()))

    def spoiled(self, x: Tensor) -> Any:
        """A tensor of another shape, dtype or device, or none at all."""
        changes: list[Callable[[], Any]] = [
            lambda: x.reshape(-1),
            lambda: x[None],
            lambda: x.new_zeros([self.size(4, 0.2) for _ in range(self.random.randint(0, 6))]),
            lambda: torch.cat([x, x], -1) if x.ndim else x[None],
            lambda: x[..., :0] if x.ndim else x,
            lambda: x[:0] if x.ndim else x,
            lambda: x.to(self.pick(OTHERS)),
            lambda: x.to("meta"),
            lambda: x.detach().float().numpy() if not x.is_complex() else np.zeros(3),
            lambda: x.tolist(),
            lambda: self.pick((None, "tensor", 3.5)),
            lambda: x.to_sparse() if x.ndim else x,
        ]
        return self.pick(changes)()
