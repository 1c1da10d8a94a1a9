"""What a recipe may say: the lowest and highest value of every number, and how much text is read at all.

A value outside is a slip of the hand or worse: it is refused with its key before anything is loaded or allocated.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE_BYTES = 1 << 20
TEXT = 10_000  # characters of one string
DEPTH = 16
BELOW_1 = math.nextafter(1.0, 0.0)
LARGEST = 2**31 - 1

LIMITS: dict[str, tuple[float, float]] = {
    "data.validation": (0, LARGEST),
    "data.resize": (0, 4096),
    "data.test": (1, LARGEST),
    "data.tokens": (1, 100_000),
    "augment.shift": (0, 4096),
    "augment.crop": (0, 4096),
    "augment.padding": (0, 4096),
    "augment.cutout": (0, 4096),
    "augment.brightness": (0, 255),
    "augment.contrast": (0, 1000),
    "augment.mixup": (0, 1000),
    "augment.cutmix": (0, 1),
    "loss.reconstruction": (0, 1e6),
    "loss.label_smoothing": (0, BELOW_1),
    "optimiser.lr": (0, 1e6),
    "optimiser.betas": (0, BELOW_1),
    "optimiser.eps": (0, 1),
    "optimiser.weight_decay": (0, 1e3),
    "optimiser.momentum": (0, BELOW_1),
    "optimiser.sharpness": (0, 1e3),
    "schedule.factor": (0, 1e3),
    "schedule.every": (1, LARGEST),
    "schedule.milestones": (0, LARGEST),
    "schedule.warmup": (0, 1),
    "schedule.start_lr": (0, 1e6),
    "schedule.end_lr": (0, 1e6),
    "schedule.momentum": (0, BELOW_1),
    "train.epochs": (1, 10**6),
    "train.steps": (0, 10**9),
    "train.batch": (1, 10**6),
    "train.seed": (0, LARGEST),
    "train.ema": (0, BELOW_1),
    "train.accumulate": (1, 10**6),
    "train.clip": (0, 1e9),
    "train.evaluate_every": (1, LARGEST),
    "train.stop_error": (0, 100),
    "train.nudge": (0, 16),
    "train.log_every": (1, LARGEST),
    "train.save_seconds": (0, 1e9),
    "train.rollback": (0, 3),
    "claim.test_error_percent": (0, 100),
    "claim.test_accuracy_percent": (0, 100),
    "claim.public": (0, 100),
    "claim.trials": (1, 10**6),
}


def check_limits(sections: Mapping[str, Any]) -> None:
    """Raise for the first number outside its limits, text without end, or nesting without bottom."""
    for section, content in sections.items():
        for key, value in content.items():
            limits = LIMITS.get(f"{section}.{key}", (-LARGEST, LARGEST))
            for name, leaf in _leaves(f"{section}.{key}", value, DEPTH):
                _check(name, leaf, *limits)


def _leaves(key: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every value under `key` that holds no others, with its full name."""
    if isinstance(value, Mapping):
        inner = [(f"{key}.{name}", item) for name, item in value.items()]
    elif isinstance(value, list | tuple):
        inner = [(f"{key}[{place}]", item) for place, item in enumerate(value)]
    else:
        yield key, value
        return
    if depth == 0:
        raise ValueError(f"{key[:100]}: expected at most {DEPTH} tables or lists in each other, got more")
    for name, item in inner:
        yield from _leaves(name, item, depth - 1)


def _check(key: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, str) and len(value) > TEXT:
        raise ValueError(f"{key}: expected at most {TEXT:,} characters, got {len(value):,}")
    if isinstance(value, bool) or not isinstance(value, int | float) or low <= value <= high:
        return
    if high == BELOW_1:
        expected = f"at least {low:g} and below 1"
    elif value < low:
        expected = f"at least {low:.10g}"
    else:
        expected = f"at most {high:.10g}" if value > high else f"a number from {low:.10g} to {high:.10g}"
    raise ValueError(f"{key}: expected {expected}, got {short(value)}")


def short(value: Any) -> str:
    """repr, of which a few dozen characters say enough."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:180]}... ({len(text):,} characters)"


def read_toml(path: Path) -> dict[str, Any]:
    """A file's tables; an error names the file."""
    if path.stat().st_size > FILE_BYTES:
        raise ValueError(f"{path}: expected at most {FILE_BYTES:,} bytes of TOML, got {path.stat().st_size:,}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not TOML ({error})") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{name}: not TOML that can be read: tables or lists nested without bottom") from None
    except ValueError as error:  # TOMLDecodeError is one, and so are numbers of thousands of digits
        raise ValueError(f"{name}: not TOML ({error})") from None
