"""Checks of arguments. Their errors name the argument, what was expected, what came, and the remedy."""

import functools
import importlib
import inspect
import math
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from importlib import metadata
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

# As in pyproject.toml. Its torch.compile cannot trace isinstance(x, int | float), so checks in layers use tuples.
OLDEST_TORCH = (2, 9)
DEVICES = ("cpu", "cuda", "meta")  # no others, such as mps, have been tested
MOST_ITERATIONS = 1000  # more are a mistake, and would look like a hang
# The names of arguments in other layers of PyTorch, and the names that a capsule layer may have for them.
MEANT = {"kernel_size": ("kernel",), "in_features": ("in_dim", "in_channels"), "out_features": ("out_dim", "dim"),
         "in_channels": ("in_types",), "out_channels": ("out_types", "types")}  # fmt: skip

Init = TypeVar("Init", bound=Callable[..., None])


def check_torch(version: str) -> None:
    """Raises where PyTorch is older than the oldest that tests run with."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        remedy = shlex.join([sys.executable, "-m", "pip", "install", f"torch>={oldest}"])
        raise ImportError(f"torch: flashcaps needs PyTorch {oldest} or later, got {version}; {remedy}")


check_torch(torch.__version__)  # before operators are defined that an older one cannot read


def nearest(word: str, words: Iterable[str]) -> str:
    """'; did you mean X?', or '' where no word is near."""
    close = get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def install_command(**extras: str) -> str:
    """The pip command for extras of this package, extra=module, which names the packages that the extras consist of.

    `pip install flashcaps[...]` would ask an index for flashcaps, which may have been installed from a folder.
    """
    try:
        needs = [need.partition(";") for need in metadata.requires("flashcaps") or ()]
    except metadata.PackageNotFoundError:  # imported from its folder
        needs = []
    words = [need for need, _, marker in needs for extra in extras if f"extra == {extra!r}" in marker.replace('"', "'")]
    return shlex.join([sys.executable, "-m", "pip", "install", *(words or extras.values())])


def import_extra(module: str, extra: str, what: str) -> Any:
    """Imports a module of an extra of this package; where it is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package} ({error}): {install_command(**{extra: package})}") from None


def explained(init: Init) -> Init:
    """A constructor whose error for a wrong call shows the call that was probably meant."""
    signature = inspect.signature(init)
    known = {name: p for name, p in signature.parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    required = [name for name, p in known.items() if p.default is p.empty and name != "self"]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        try:
            signature.bind(self, *args, **options)
        except TypeError as error:
            words = {key: next((w for w in MEANT.get(key, ()) if w in known and w not in options), key)
                     for key in options}  # fmt: skip
            named = {words[key]: value for key, value in options.items() if words[key] in known}
            if "routing" in known and args and isinstance(args[0], str):
                named["routing"], args = args[0], args[1:]
            named |= dict(zip((name for name in required if name not in named), args, strict=False))
            order = [name for name in known if name in named or name in required]
            call = ", ".join(f"{name}={named[name]!r}" if name in named else f"{name}=..." for name in order)
            other = "".join(f", {key} is {word} here" for key, word in words.items() if key != word)
            name = type(self).__name__
            raise TypeError(f"{name}: {str(error).removesuffix('.')}{other}; call it as {name}({call})") from None
        init(self, *args, **options)

    return cast(Init, checked)


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:  # a list cannot be looked up in a dict
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name}: expected one of {known}, got {value!r}{nearest(str(value), choices)}")


def check_sizes(least: int = 1, **sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)):
            raise TypeError(f"{name}: expected a whole number, got {size!r}")
        if size < least:
            raise ValueError(f"{name}: expected at least {least}, got {size}")


def check_iterations(iterations: int) -> None:
    check_sizes(iterations=iterations)
    if iterations > MOST_ITERATIONS:
        raise ValueError(f"iterations: expected at most {MOST_ITERATIONS}, got {iterations}")


def check_number(name: str, value: float, least: float = -math.inf) -> None:
    """Raises unless `value` is a finite number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not (least <= value < math.inf and value > -math.inf):  # torch.compile cannot trace isfinite
        raise ValueError(f"{name}: expected a finite number{f' of at least {least:g}' * (least > -math.inf)}, "
                         f"got {value}")


def check_per_iteration(name: str, value: float | Sequence[float], iterations: int) -> tuple[float, ...]:
    """`value` as one number of at least 0 for each iteration."""
    if not isinstance(value, (list, tuple)):
        value = (cast(float, value),) * iterations
    if len(value) != iterations:
        raise ValueError(f"{name}: expected one number, or one for each of {iterations} iterations, got {len(value)}")
    for x in value:
        check_number(name, x, 0)
    return tuple(float(x) for x in value)


def check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.layout != torch.strided:
        raise ValueError(f"{name}: expected a dense tensor, got {x.layout}; convert it with .to_dense()")


def check_axis(name: str, axis: int, x: Tensor) -> None:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"{name}: expected a whole number, got {axis!r}")
    if not -max(x.ndim, 1) <= axis < max(x.ndim, 1):
        raise ValueError(f"{name}: expected an axis of {tuple(x.shape)}, got {axis}")


def check_floating(name: str, x: Tensor) -> None:
    check_tensor(name, x)
    if not x.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point tensor, got {x.dtype}; convert it with .float()")
    if x.device.type not in DEVICES:
        raise ValueError(f"{name}: expected on cpu or cuda, got {x.device}, on which nothing is tested; move it and "
                         "its module with .to('cpu')")


def check_dtype(name: str, x: Tensor, weight: Tensor) -> None:
    """Raises unless x has the dtype of a module's weights, or autocast converts it."""
    kind = x.device.type
    if x.dtype != weight.dtype and not (kind != "meta" and torch.is_autocast_enabled(kind)):
        raise ValueError(f"{name}: expected {weight.dtype} like the weights, got {x.dtype}; convert one with .to()")


def check_votes(votes: Tensor) -> tuple[int, int, int, int]:
    """(B, I, J, D) of explicit votes."""
    check_floating("votes", votes)
    if votes.ndim != 4:
        raise ValueError(f"votes: expected (B, I, J, D), got {tuple(votes.shape)}; did you forget .view(B, I, J, D)?")
    for axis, size, what in zip("IJD", votes.shape[1:], ("lower capsules", "upper capsules", "pose"), strict=True):
        if size == 0:
            raise ValueError(f"votes: axis {axis} ({what}) is empty in {tuple(votes.shape)}; routing needs some")
    b, i, j, d = votes.shape
    return b, i, j, d


def check_given(name: str, x: Tensor, shapes: tuple[int, ...] | list[tuple[int, ...]], what: str) -> None:
    """Raises unless `x` is floating point with one of these shapes."""
    check_floating(name, x)
    allowed = shapes if isinstance(shapes, list) else [shapes]
    if all(x.ndim != len(shape) or tuple(x.shape) != shape for shape in allowed):  # torch.export keeps comparisons
        raise ValueError(f"{name}: expected {' or '.join(map(str, allowed))} ({what}), got {tuple(x.shape)}")


def check_shape(name: str, x: Tensor | None, shape: tuple[int, ...], what: str) -> None:
    """As `check_given`, but None passes."""
    if x is not None:
        check_given(name, x, shape, what)


def check_devices(like: Tensor, **tensors: Tensor | None) -> None:
    for name, x in tensors.items():
        if x is not None and x.device != like.device:
            raise ValueError(f"{name}: expected on {like.device} like the rest, got {x.device}; move it with .to()")


def check_arguments(votes: Tensor, **arguments: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """(B, I, J, D) of votes. Raises unless every argument, name=(tensor, *shapes), has one of its shapes.

    A shape is a word, "BJD" for (B, J, D), or None for an argument that may be None.
    """
    sizes = check_votes(votes)
    for name, (x, *allowed) in arguments.items():
        if x is None and None in allowed:
            continue
        words = [word for word in allowed if word is not None]
        shapes = [tuple(sizes["BIJD".index(axis)] for axis in word) for word in words]
        check_given(name, x, shapes, " or ".join(" x ".join(word) for word in words))
        check_devices(votes, **{name: x})
    return sizes


def check_probability(name: str, x: Tensor) -> None:
    """Raises unless numbers lie from 0 to 1, but for rounding. Only on the CPU: reading them would stall a device."""
    if x.numel() and can_look(x):
        low, high = (float(v) for v in x.detach().aminmax())
        if low < -1e-3 or high > 1 + 1e-3:
            raise ValueError(f"{name}: expected probabilities from 0 to 1, got {low:g} to {high:g}; "
                             "give logits as .sigmoid()")


def is_transformed() -> bool:
    """Whether this runs inside vmap, grad or another transform of torch.func, or in forward mode."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def can_look(x: Tensor) -> bool:
    """Whether the numbers of `x` exist and can be read without waiting for a device."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    plain = type(x) is Tensor or type(x) is torch.nn.Parameter  # fake tensors have no numbers
    return plain and not is_transformed()  # and tensors under vmap have none, either


def check_labels(name: str, labels: Tensor, batch: int, classes: int) -> None:
    """Class indices (B,) or a multi-hot (B, classes)."""
    check_tensor(name, labels)
    if tuple(labels.shape) not in ((batch,), (batch, classes)):
        wanted = f"{(batch,)} class indices or {(batch, classes)} multi-hot"
        raise ValueError(f"{name}: expected {wanted}, got {tuple(labels.shape)}")
    if labels.is_complex() or (labels.ndim == 1 and labels.dtype.is_floating_point):
        raise ValueError(f"{name}: expected whole numbers as class indices, got {labels.dtype}")
    what, most = ("classes", classes - 1) if labels.ndim == 1 else ("numbers", 1)
    if labels.numel() and can_look(labels) and not -1e-3 <= labels.min() <= labels.max() <= most + 1e-3:
        raise ValueError(f"{name}: expected {what} from 0 to {most}, "
                         f"got {labels.min().item():g} to {labels.max().item():g}")


class TooLarge(ValueError):
    """Finite arguments that are too large for a finite result."""


def check_overflow(results: Iterable[Tensor | None], gradients: bool = True, /, **arguments: Tensor | None) -> None:
    """Raises where finite arguments are too large for finite results or gradients, and names the largest argument.

    NaN and Inf in the arguments may be in the results. Only on the CPU: reading numbers would stall a device.
    """
    seen = [x for x in results if x is not None]
    if not all(can_look(x) for x in (*seen, *arguments.values()) if x is not None):
        return
    given = {k: x for k, x in arguments.items() if x is not None and x.numel() and x.is_floating_point()}
    asked = gradients and torch.is_grad_enabled() and any(x.requires_grad for x in given.values())
    fine = all(bool(torch.isfinite(x).all()) for x in seen)
    if fine and not asked:
        return
    most = torch.finfo(seen[0].dtype).max ** 0.25  # a gradient of a square of a square
    sizes = {k: max(abs(end.item()) for end in x.detach().aminmax()) for k, x in given.items()}  # NaN where one is
    name = max(sizes, key=lambda k: sizes[k], default="")
    if not name or not all(map(math.isfinite, sizes.values())) or (fine and sizes[name] <= most):
        return
    raise TooLarge(f"{name}: expected numbers up to {most:.1e}, whose squares and gradients {seen[0].dtype} can "
                   f"hold, got {sizes[name]:.1e}; scale them down")
