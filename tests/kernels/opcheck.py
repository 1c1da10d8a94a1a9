"""What torch wants of an operator whose gradient is asked of its first output alone."""

from typing import Any

import torch

STATIC = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def opcheck(operator: Any, *arguments: Any) -> None:
    torch.library.opcheck(operator, arguments, test_utils=STATIC)
