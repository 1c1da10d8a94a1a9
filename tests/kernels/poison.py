"""Memory that kernels do not write stays NaN."""

from typing import Any

import pytest
import torch
from torch import Tensor


def poison_memory(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """torch.NAME fills what it makes with NaN, for each of the constructors `names`."""
    for name in names:
        function = getattr(torch, name)

        def poisoned(*args: Any, _make: Any = function, **options: Any) -> Tensor:
            x = _make(*args, **options)
            return x.fill_(float("nan")) if x.is_floating_point() and not x.is_meta else x

        monkeypatch.setattr(torch, name, poisoned)
