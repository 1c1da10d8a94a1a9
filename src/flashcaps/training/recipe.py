"""Recipes: everything a training run is made of, as TOML, checked against the dataclasses below.

    recipe = read_recipe("capsnet_mnist", ["epochs=3", "model.iterations=1"])
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .limits import check_limits, parse_toml, read_toml, short

LossKind = Literal["margin", "spread", "cross_entropy", "bce"]
OptimiserKind = Literal["adam", "adamw", "sgd", "radam", "muon"]
ScheduleKind = Literal["constant", "exponential", "steps", "one_cycle", "cosine"]
Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Model:
    """name, and whatever else create_model(name) takes."""

    name: str
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """name, and whatever else load_data(name) takes.

    validation: examples held out of training (0: none, train on everything; published validation sets are used as
    they are). held: options that differ for the held-out examples. resize: side of the images, made once on loading.
    test: images of a composed test set. transformer: whose hidden states text becomes. tokens: of a text, at most.
    keep: "no" computes hidden states for every batch; "fp32", "fp16" or "bf16" computes all of them once and keeps them
    so on the device, which train.capture needs (on a GPU the transformer runs in half precision for the last two).
    """

    name: str
    validation: int = 0
    resize: int = 0
    test: int = 10_000
    transformer: str = ""
    tokens: int = 64
    keep: Literal["no", "fp32", "fp16", "bf16"] = "no"
    held: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Augment:
    """shift: pixels each way. crop: side, of the image padded by `padding`; evaluation takes the centre.

    alternate: flip mirrors each image in every second epoch, by chance the even or the odd ones, so that both of its
    faces come equally often. cutout: side of a square that is blanked. cutmix: how likely a box of another image is
    pasted in, and its label with it.
    """

    shift: int = 0
    crop: int = 0
    padding: int = 0
    flip: bool = False
    alternate: bool = False
    brightness: float = 0.0
    contrast: tuple[float, ...] = ()
    cutout: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0


@dataclass(frozen=True)
class Loss:
    """reconstruction: the factor on the sum of squares per image; 0 makes no reconstruction.

    spread_margin: "linear" 0.2 -> 0.9 over the run, or "steps", the public code's sigmoid of the step.
    """

    kind: LossKind = "margin"
    reconstruction: float = 0.0
    label_smoothing: float = 0.0
    spread_margin: Literal["linear", "steps"] = "linear"


@dataclass(frozen=True)
class Optimiser:
    """momentum belongs to sgd and muon; betas and eps to all but sgd. sharpness: radius of sharpness-aware steps."""

    kind: OptimiserKind = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    sharpness: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Of the learning rate, from the optimiser's lr.

    exponential: times `factor` every `every` steps, at once or smoothly. steps: times `factor` at the epochs
    `milestones`. one_cycle: linear from `start_lr` to lr over the share `warmup` of the run, cosine back to it;
    `momentum` goes from its first to its second value and back. cosine: linear warm-up, then cosine to `end_lr`.
    """

    kind: ScheduleKind = "constant"
    factor: float = 0.96
    every: int = 2000
    staircase: bool = True
    milestones: tuple[int, ...] = ()
    warmup: float = 0.0
    start_lr: float = 0.0
    end_lr: float = 0.0
    momentum: tuple[float, ...] = ()


@dataclass(frozen=True)
class Train:
    """How long, how large, how.

    steps, when not 0, count instead of epochs. batch: images per process and optimiser step, in `accumulate` parts.
    ema: decay of the averaged weights, 0 for none. evaluate_every: epochs. select: which weights are tested at the
    end: the last, the best on validation data, or (as some papers do) the best on the test data, evaluated all along.
    stop_error: end as soon as the error on validation data, in percent, is at most this. mirror: evaluation sees every
    image and its mirror image, nudge: and moved by so many pixels along each diagonal, and takes their mean score.
    save_seconds: time between two states to resume from. capture: the step as a CUDA graph, on one GPU.
    channels_last: the memory order of convolutions on a GPU. rollback: how often, after NaN or Inf, a run goes back
    to its last state and on with half the learning rate (at most 3; 0: it stops at once).
    """

    epochs: int = 10
    steps: int = 0
    batch: int = 128
    seed: int = 0
    ema: float = 0.0
    precision: Precision = "tf32"
    compile: bool = False
    capture: bool = True
    channels_last: bool = True
    accumulate: int = 1
    clip: float = 0.0
    evaluate_every: int = 1
    select: Literal["last", "validation", "test"] = "last"
    stop_error: float = 0.0
    mirror: bool = False
    nudge: int = 0
    log_every: int = 50
    save_seconds: float = 120.0
    rollback: int = 0


@dataclass(frozen=True)
class Claim:
    """What the paper reports: a place, one number, and how many runs it is the mean of.

    on: the data it was measured on, where the recipe has a stand-in. public: the best that public code is known to
    reach with the same network. accuracy: what is told of a run where no paper has a number.
    """

    paper: str = ""
    on: str = ""
    test_error_percent: float | None = None
    test_accuracy_percent: float | None = None
    public: float | None = None
    trials: int = 1
    accuracy: bool = False
    note: str = ""

    @property
    def metric(self) -> str:
        accuracy = self.accuracy or self.test_accuracy_percent is not None
        return "test_accuracy_percent" if accuracy else "test_error_percent"

    @property
    def value(self) -> float | None:
        return getattr(self, self.metric)

    def __str__(self) -> str:
        where = f" on {self.on}" if self.on else ""
        return "" if self.value is None else f"{self.value:g} % {self.metric.split('_')[1]}{where}"


@dataclass(frozen=True)
class Recipe:
    name: str
    about: str
    model: Model
    data: Data
    augment: Augment = Augment()
    loss: Loss = Loss()
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Schedule()
    train: Train = Train()
    claim: Claim = Claim()
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_limits({name: vars(getattr(self, name)) for name in SECTIONS})
        if self.train.batch % self.train.accumulate:
            raise ValueError(f"train.accumulate: expected a divisor of train.batch={self.train.batch}, "
                             f"got {self.train.accumulate}")
        if self.schedule.momentum and (len(self.schedule.momentum) != 2 or self.optimiser.kind != "radam"):
            raise ValueError("schedule.momentum: expected two values and optimiser.kind='radam', got "
                             f"{self.schedule.momentum} and {self.optimiser.kind!r}")
        if self.loss.label_smoothing and self.loss.kind != "cross_entropy":
            raise ValueError("loss.label_smoothing: expected loss.kind='cross_entropy' beside it, got "
                             f"{self.loss.kind!r}")
        if self.augment.padding and not self.augment.crop:
            raise ValueError("augment.padding: expected augment.crop beside it, the side of what is cropped, got none")
        if self.augment.alternate and not self.augment.flip:
            raise ValueError("augment.alternate: expected augment.flip=true beside it, got false")
        if len(self.augment.contrast) not in (0, 2):
            raise ValueError(f"augment.contrast: expected two values, lowest and highest, got {self.augment.contrast}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"


SECTIONS = {f.name: f for f in dataclasses.fields(Recipe) if f.name not in ("name", "about", "overrides")}
_TYPES: dict[str, type] = {name: get_type_hints(Recipe)[name] for name in SECTIONS}
_OPEN = {"model": "overrides", "data": "options"}  # sections whose other keys go to create_model and load_data


def list_recipes() -> list[str]:
    """The names of the recipes that come with flashcaps."""
    return sorted(p.name.removesuffix(".toml") for p in files("flashcaps").joinpath("recipes").iterdir()
                  if p.name.endswith(".toml"))


def read_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe `name`, or of a .toml file, with fields replaced by KEY=VALUE overrides."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"recipe: no file {name}")
        content, stem = read_toml(path), path.stem
    else:
        stem = name.replace("-", "_")
        if stem not in list_recipes():
            raise ValueError(f"recipe: no {name!r}{_nearest(stem, list_recipes())}; `flashcaps recipes` lists them")
        content = parse_toml(files("flashcaps").joinpath("recipes", f"{stem}.toml").read_text(encoding="utf-8"), name)
    return make_recipe({"name": stem, **content}, overrides)


def make_recipe(content: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """From nested dicts, as TOML gives them or Recipe.to_dict wrote them."""
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    before = _typed(tree.pop("overrides", ()), tuple[str, ...], "overrides")
    for key in tree:
        if key not in SECTIONS and key not in ("name", "about"):
            raise ValueError(f"{key}: no such section{_nearest(key, SECTIONS)}")
    for section, option in _OPEN.items():
        tree.setdefault(section, {})
        tree[section] = _gather(tree[section], _TYPES[section], option)
    pairs = [_split(text) for text in overrides]
    for key, value in pairs:
        section, leaf = _resolve(key, tree)
        place = tree.setdefault(section, {})
        first, *rest = leaf.split(".")
        if first not in _fields(section):
            first, *rest = [_OPEN[section], first, *rest]
        for name in rest:  # model.options.rate=0.1
            inner = dict(place.get(first, {}))  # a copy: the source is not changed
            place[first], place, first = inner, inner, name
        place[first] = value
    sections = {name: _make(_TYPES[name], tree.get(name, {}), name) for name in SECTIONS}
    texts = {key: _typed(tree.get(key, ""), str, key) for key in ("name", "about")}
    return Recipe(**texts, **sections, overrides=before + tuple(f"{k}={_plain(v)}" for k, v in pairs))


def _fields(section: str) -> list[str]:
    return [f.name for f in dataclasses.fields(_TYPES[section]) if f.name != _OPEN.get(section)]


def _gather(content: dict[str, Any], kind: type, option: str) -> dict[str, Any]:
    """Keys the dataclass does not have become its options."""
    if not isinstance(content, Mapping) or not isinstance(content.get(option, {}), Mapping):
        raise ValueError(f"{kind.__name__.lower()}: expected a table, and one in its {option}, got {short(content)}")
    names = {f.name for f in dataclasses.fields(kind)}
    options = {**content.get(option, {}), **{k: v for k, v in content.items() if k not in names}}
    return {**{k: v for k, v in content.items() if k in names}, option: options}


def _split(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{short(text)}: expected key=value, as in epochs=3 or model.iterations=1")
    try:
        return key, tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):
        return key, value  # a bare word is a string


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _resolve(key: str, tree: dict[str, Any]) -> tuple[str, str]:
    """(section, field) of "train.epochs", or of "epochs" where only one section has it."""
    section, dot, leaf = key.partition(".")
    if dot:
        if section not in SECTIONS:
            raise ValueError(f"{key}: no section {section!r}{_nearest(section, SECTIONS)}")
        if leaf.partition(".")[0] not in _fields(section) and section not in _OPEN:
            raise ValueError(f"{key}: no such field{_nearest(leaf, _fields(section), section)}")
        return section, leaf
    homes = [s for s in SECTIONS if key in _fields(s) or key in tree.get(s, {}).get(_OPEN.get(s, ""), {})]
    if not homes and key in _model_overrides(tree["model"].get("name", "")):
        homes = ["model"]
    if len(homes) == 1:
        return homes[0], key
    if homes:
        raise ValueError(f"{key}: in several sections, say which: {', '.join(f'{s}.{key}' for s in homes)}")
    known = [f"{s}.{f}" for s in SECTIONS for f in _fields(s)]
    close = get_close_matches(key, [k.partition(".")[2] for k in known], 1)
    hint = next((k for k in known if close and k.endswith("." + close[0])), None)
    raise ValueError(f"{key}: no such field; did you mean {hint}?" if hint else
                     f"{key}: no such field; model.{key}=... goes to the model, and there are {', '.join(known)}")


def _model_overrides(name: str) -> Iterable[str]:
    from ..models.registry import MODELS

    return MODELS[name]().changes if name in MODELS else ()


def _nearest(key: str, known: Iterable[str], section: str = "") -> str:
    known = list(known)
    close = get_close_matches(key, known, 1, cutoff=0.5)
    prefix = f"{section}." if section else ""
    return f"; did you mean {prefix}{close[0]}?" if close else f"; there are {', '.join(known)}"


def _make(kind: type, content: Any, section: str) -> Any:
    if not isinstance(content, Mapping):
        raise ValueError(f"{section}: expected a table, got {short(content)}")
    hints = get_type_hints(kind)
    for key in content:
        if key not in hints:
            raise ValueError(f"{section}.{key}: no such field{_nearest(key, hints, section)}")
    values = {key: _typed(value, hints[key], f"{section}.{key}") for key, value in content.items()}
    if "name" in hints and not values.get("name"):
        raise ValueError(f"{section}.name: expected a name, got none")
    return kind(**values)


def _typed(value: Any, hint: Any, key: str) -> Any:
    """value, of the type `hint`; an int is a float, a list is a tuple, nothing else is changed."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        expected = f"one of {', '.join(args)}{_nearest(str(value), args) if isinstance(value, str) else ''}"
    elif origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        return _typed(value, next(a for a in args if a is not NoneType), key)
    elif origin is tuple:
        fixed = Ellipsis not in args
        if isinstance(value, list | tuple) and (not fixed or len(value) == len(args)):
            return tuple(_typed(v, args[0], f"{key}[{i}]") for i, v in enumerate(value))
        expected = f"a list of {len(args) if fixed else 'any number of'} {args[0].__name__}s"
    elif origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
        expected = "a table"
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint:
        return value
    else:
        expected = f"{hint.__name__}"
    raise ValueError(f"{key}: expected {expected}, got {short(value)}")
