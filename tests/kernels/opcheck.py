"""What torch wants of an operator whose gradient is asked of its first output alone."""

from typing import Any
from unittest import mock

import torch
from torch import Tensor

from flashcaps.kernels.common.rows import Parts, memory_for

STATIC = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def opcheck(operator: Any, *arguments: Any) -> None:
    """Bytes between the tensors that share memory are compared, too, so they are 0."""

    def zeros_for(like: Tensor, parts: Parts) -> Tensor:
        return memory_for(like, parts).zero_()

    modules = "flashcaps.kernels.attend.triton", "flashcaps.kernels.fit.op"
    with mock.patch(f"{modules[0]}.memory_for", zeros_for), mock.patch(f"{modules[1]}.memory_for", zeros_for):
        torch.library.opcheck(getattr(operator, "overload", operator), arguments, test_utils=STATIC)
