"""Memory that kernels do not write stays NaN."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


def poison_memory(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """torch.NAME fills what it makes, for each of the constructors `names`, plans' workspaces (bytes) among them."""
    for name in names:
        function = getattr(torch, name)

        def poisoned(*args: Any, _make: Any = function, **options: Any) -> Tensor:
            x = _make(*args, **options)
            with _disable_current_modes():  # a plan that is recorded has no such line, and is poisoned as it runs
                if not x.is_meta and (x.is_floating_point() or x.dtype == torch.uint8):
                    x.fill_(float("nan") if x.is_floating_point() else 255)  # of which NaN is made, too
            return x

        monkeypatch.setattr(torch, name, poisoned)
