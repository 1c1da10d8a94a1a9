"""Recipes: everything a training run is made of, as TOML, checked against the dataclasses below.

    recipe = read_recipe("capsnet_mnist", ["epochs=3", "model.iterations=1"])

A recipe may name another as its base and say only what differs:

    base = "capsnet_mnist"              # or a .toml file, found from the folder of this one
    model.iterations = 1

Sections merge key by key; the value of a key is replaced, also a list or an inline table. [claim] is inherited as a
whole, or replaced as a whole if the recipe has its own.
"""

import copy
import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..models.registry import MODELS
from ..routing.checks import nearest

RECIPES = Path(__file__).parents[1] / "recipes"
FILE_BYTES = 1 << 20
TEXT = 10_000  # characters of one string
DEPTH = 16  # of tables and lists in each other
BELOW_1 = math.nextafter(1.0, 0.0)
LARGEST = 2**31 - 1
FLOAT = 3e38  # about the most that float32 holds

# Former fields that stored recipes still hold; at these values they have no effect.
RETIRED: dict[str, tuple[Any, ...]] = {
    "optimiser.sharpness": (0.0,), "schedule.staircase": (True,), "schedule.end_lr": (0.0,), "augment.cutmix": (0.0,),
    "train.rollback": (0,), "train.channels_last": (True, False),
}  # fmt: skip


def number(default: Any, least: float, most: float) -> Any:
    """A field for numbers from `least` to `most`; others are refused before anything is allocated."""
    return field(default=default, metadata={"limits": (least, most)})


@dataclass(frozen=True)
class Model:
    """name, and any other argument of create_model(name)."""

    name: str
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """name, and any other argument of load_data(name).

    validation: the number of examples held out of training, 0 for none; a published validation set is used as it is.
    held: options of load_data that differ for the held-out examples. resize: side that images are resized to on
    loading. test: images of a composed test set. transformer: its hidden states stand for a text. tokens: of a text, at
    most. keep: "no" computes hidden states for every batch; "fp32", "fp16" or "bf16" computes all of them once, and
    keeps them on the device in this precision, which train.capture needs (on a GPU the transformer runs in half
    precision for the last two).
    """

    name: str
    validation: int = number(0, 0, LARGEST)
    resize: int = number(0, 0, 4096)
    test: int = number(10_000, 1, LARGEST)
    transformer: str = ""
    tokens: int = number(64, 1, 100_000)
    keep: Literal["no", "fp32", "fp16", "bf16"] = "no"
    held: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Augment:
    """shift: pixels in each direction. crop: its side, from images padded by `padding`; evaluation takes the centre.

    alternate: flip mirrors each image in every second epoch, half of the images in even epochs and half in odd ones, so
    that both forms are seen equally often. clamp: pixels that brightness and contrast move out of [0, 1] are cut off
    there. cutout: side of a square that is blanked.
    """

    shift: int = number(0, 0, 4096)
    crop: int = number(0, 0, 4096)
    padding: int = number(0, 0, 4096)
    flip: bool = False
    alternate: bool = False
    brightness: float = number(0.0, 0, 255)
    contrast: tuple[float, ...] = number((), 0, 1000)
    clamp: bool = True
    cutout: int = number(0, 0, 4096)
    mixup: float = number(0.0, 0, 1000)


@dataclass(frozen=True)
class Loss:
    """reconstruction: factor of the sum of squared errors of an image; 0 for no reconstruction.

    class_weights: a factor for each class, by which the loss of its examples is multiplied. balanced: the factors
    N / (K N_k), which compensate for classes of different sizes. spread_margin: "linear" from 0.2 to 0.9 over the run,
    or "steps", a sigmoid of the step as in public code.
    """

    kind: Literal["margin", "spread", "cross_entropy", "logit_cross_entropy", "bce"] = "margin"
    reconstruction: float = number(0.0, 0, 1e6)
    label_smoothing: float = number(0.0, 0, BELOW_1)
    spread_margin: Literal["linear", "steps"] = "linear"
    class_weights: tuple[float, ...] = number((), 0, 1e6)
    balanced: bool = False


@dataclass(frozen=True)
class Optimiser:
    """momentum is for sgd and muon; betas and eps are for all but sgd.

    transforms: muon takes the weight (J, d, G, h) of a capsule layer as the matrix of its map, (J h) x (d G), not as
    J x (d G h), which is better on held-out pairs for three algorithms of four (results/trials/muon_transforms.json).
    """

    kind: Literal["adam", "adamw", "sgd", "radam", "muon"] = "adam"
    lr: float = number(1e-3, 0, 1e6)
    betas: tuple[float, float] = number((0.9, 0.999), 0, BELOW_1)
    eps: float = number(1e-8, 0, 1)
    weight_decay: float = number(0.0, 0, 1e3)
    momentum: float = number(0.0, 0, BELOW_1)
    nesterov: bool = False
    transforms: bool = True


@dataclass(frozen=True)
class Schedule:
    """The schedule of the learning rate, which starts from the optimiser's lr.

    exponential: times `factor` every `every` steps, in stairs or `smooth`, down to `floor`. steps: times `factor` at
    the epochs `milestones`. one_cycle: linear from `start_lr` to lr over the share `warmup` of the run, then cosine
    back; `momentum` goes from its first value to its second and back. cosine: linear warm-up, then cosine to 0.
    """

    kind: Literal["constant", "exponential", "steps", "one_cycle", "cosine"] = "constant"
    factor: float = number(0.96, 0, 1e3)
    every: int = number(2000, 1, LARGEST)
    smooth: bool = False
    floor: float = number(0.0, 0, 1e6)
    milestones: tuple[int, ...] = number((), 0, LARGEST)
    warmup: float = number(0.0, 0, 1)
    start_lr: float = number(0.0, 0, 1e6)
    momentum: tuple[float, ...] = number((), 0, BELOW_1)


@dataclass(frozen=True)
class Train:
    """How long and how a run trains, and when it is evaluated.

    steps: if not 0, they count instead of epochs. batch: images per process and optimiser step, in `accumulate` parts.
    ema: decay of the averaged weights, 0 for none. evaluate_every: in epochs. select: which weights are tested at the
    end, the last, the best on validation data, or (as in some papers) the best on the test data. stop_error: the run
    ends when the error on validation data, in percent, is at most this. patience: it ends after so many epochs without
    a lower error, 0 for never (select = "validation" tests the best weights). test_curve: every evaluation scores the
    test data, too, only to show what a model that stopped there would have reached. mirror, nudge: scores are the mean
    over every image, its mirror image, and both moved by so many pixels along each diagonal. save_seconds: time between
    two states to resume from. capture: on a GPU, the step is a CUDA graph.
    """

    epochs: int = number(10, 1, 10**6)
    steps: int = number(0, 0, 10**9)
    batch: int = number(128, 1, 10**6)
    seed: int = number(0, 0, LARGEST)
    ema: float = number(0.0, 0, BELOW_1)
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    compile: bool = False
    capture: bool = True
    accumulate: int = number(1, 1, 10**6)
    clip: float = number(0.0, 0, 1e9)
    evaluate_every: int = number(1, 1, LARGEST)
    select: Literal["last", "validation", "test"] = "last"
    stop_error: float = number(0.0, 0, 100)
    patience: int = number(0, 0, LARGEST)
    test_curve: bool = False
    mirror: bool = False
    nudge: int = number(0, 0, 16)
    log_every: int = number(50, 1, LARGEST)
    save_seconds: float = number(120.0, 0, 1e9)


@dataclass(frozen=True)
class Claim:
    """What a paper reports: where, one number, and the number of runs it is the mean of.

    on: the data it was measured on, if the recipe has a stand-in for them. public: the best known number of public code
    with the same network. accuracy: whether runs report accuracy if no paper has a number.
    """

    paper: str = ""
    on: str = ""
    test_error_percent: float | None = number(None, 0, 100)
    test_accuracy_percent: float | None = number(None, 0, 100)
    public: float | None = number(None, 0, 100)
    trials: int = number(1, 1, 10**6)
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
        for section in SECTIONS:
            content = getattr(self, section)
            for f in dataclasses.fields(content):
                limits = f.metadata.get("limits", (-LARGEST, LARGEST))
                _check_limits(f"{section}.{f.name}", getattr(content, f.name), *limits)
        train, augment, momentum, kind = self.train, self.augment, self.schedule.momentum, self.optimiser.kind
        two_values = len(momentum) == 2 and kind == "radam"
        for key, wrong, expected, got in (
            ("train.accumulate", train.batch % train.accumulate, f"a divisor of train.batch={train.batch}",
             train.accumulate),
            ("schedule.momentum", momentum and not two_values, "two values and optimiser.kind='radam'",
             f"{momentum} and {kind!r}"),
            ("loss.label_smoothing", self.loss.label_smoothing and self.loss.kind != "cross_entropy",
             "loss.kind='cross_entropy' beside it", repr(self.loss.kind)),
            ("loss.balanced", self.loss.balanced and self.loss.class_weights, "no loss.class_weights beside it",
             self.loss.class_weights),
            ("augment.padding", augment.padding and not augment.crop,
             "augment.crop beside it, the side of what is cropped", "none"),
            ("augment.alternate", augment.alternate and not augment.flip, "augment.flip=true beside it", "false"),
            ("augment.contrast", len(augment.contrast) not in (0, 2), "two values, lowest and highest",
             augment.contrast),
        ):  # fmt: skip
            if wrong:
                raise ValueError(f"{key}: expected {expected}, got {got}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_toml(self) -> str:
        """A file for `read_recipe` with every field, including those of the base and defaults."""
        lines = [f"about = {_literal(self.about)}"]
        for section in SECTIONS:
            content = dict(vars(getattr(self, section)))
            content |= content.pop(_OPEN.get(section, ""), {})
            lines += ["", f"[{section}]"]
            lines += [f"{_key(key)} = {_literal(value)}" for key, value in content.items() if value is not None]
        return "\n".join(lines) + "\n"


SECTIONS: dict[str, Any] = {k: kind for k, kind in get_type_hints(Recipe).items() if dataclasses.is_dataclass(kind)}
_OPEN = {"model": "overrides", "data": "options"}  # sections whose other keys go to create_model and load_data


def list_recipes() -> list[str]:
    """The names of the recipes that come with flashcaps."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe `name`, or that of a .toml file, with fields replaced by KEY=VALUE overrides."""
    return make_recipe(_resolved(name, "recipe", Path(), ()), overrides)


def _resolved(name: str, asked: str, folder: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    """The content of a recipe merged with its base. asked: who names it, for errors. chain: the recipes above it."""
    if name.endswith(".toml"):
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"{asked}: no file {path}")
    else:
        known = name.replace("-", "_")
        if known not in list_recipes():
            raise ValueError(f"{asked}: no {name!r}{nearest(known, list_recipes())}; `flashcaps recipes` lists them")
        path = RECIPES / f"{known}.toml"
    content, stem, chain = read_toml(path), path.stem, (*chain, path.resolve())
    if path.resolve() in chain[:-1]:
        raise ValueError(f"{asked}: {' -> '.join(p.stem for p in chain)} goes in a circle")
    base = content.pop("base", None)
    if base is None:
        return {"name": stem, **content}
    if not isinstance(base, str):
        raise ValueError(f"base of {stem}: expected the name of a recipe, got {_short(base)}")
    below = _resolved(base, f"base of {stem}", path.parent, chain)
    merged = {section: {**below[section], **table} for section, table in content.items()
              if section != "claim" and isinstance(table, Mapping) and isinstance(below.get(section), Mapping)}
    return {**below, "name": stem, **content, **merged}


def make_recipe(content: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from nested dicts, as in TOML or from Recipe.to_dict."""
    tree = copy.deepcopy(dict(content))
    before = _typed(tree.pop("overrides", ()), tuple[str, ...], "overrides")
    for key in tree:
        if key not in SECTIONS and key not in ("name", "about"):
            raise ValueError(f"{key}: no such section{_hint(key, SECTIONS)}")
    for section, option in _OPEN.items():
        tree[section] = _gather(tree.get(section, {}), section, option)
    pairs = [read_override(text) for text in overrides]
    for key, value in pairs:
        section, leaf = _find(key, tree)
        *path, last = leaf.split(".")  # model.options.rate=0.1
        if section in _OPEN and leaf.partition(".")[0] not in _fields(section):
            path = [_OPEN[section], *path]
        table = tree
        for name in (section, *path):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ValueError(f"{key}: expected a table in {name}, got {_short(table)}")
        table[last] = value
    sections = {name: _make(name, tree.get(name, {})) for name in SECTIONS}
    texts = {key: _typed(tree.get(key, ""), str, key) for key in ("name", "about")}
    written = tuple(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in pairs)
    return Recipe(**texts, **sections, overrides=before + written)


def _fields(section: str) -> list[str]:
    return [f.name for f in dataclasses.fields(SECTIONS[section]) if f.name != _OPEN.get(section)]


def _gather(content: Any, section: str, option: str) -> dict[str, Any]:
    """Moves the keys that the dataclass does not have into its options."""
    if not isinstance(content, Mapping) or not isinstance(content.get(option, {}), Mapping):
        raise ValueError(f"{section}: expected a table, and one in its {option}, got {_short(content)}")
    own = {key: content[key] for key in content if key in _fields(section)}
    others = {key: content[key] for key in content if key not in own and key != option}
    return {**own, option: {**content.get(option, {}), **others}}


def read_override(text: str) -> tuple[str, Any]:
    """(key, value) of key=value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{_short(text)}: expected key=value, as in epochs=3 or model.iterations=1")
    try:
        return key, tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):
        return key, value  # a bare word is a string


def _find(key: str, tree: dict[str, Any]) -> tuple[str, str]:
    """(section, field) of "train.epochs", or of "epochs" where only one section has it."""
    section, dot, leaf = key.partition(".")
    if dot:
        if section not in SECTIONS:
            raise ValueError(f"{key}: no section {section!r}{_hint(section, SECTIONS)}")
        return section, leaf
    homes = [s for s in SECTIONS if key in _fields(s) or (s in _OPEN and key in tree[s][_OPEN[s]])]
    model = tree["model"].get("name", "")
    if not homes and model in MODELS and key in MODELS[model].changes:
        homes = ["model"]
    if len(homes) == 1:
        return homes[0], key
    if homes:
        raise ValueError(f"{key}: in several sections, say which: {', '.join(f'{s}.{key}' for s in homes)}")
    hint = nearest(key, [name for s in SECTIONS for name in _fields(s)])
    hint = hint or f"; `flashcaps recipes NAME` shows all; model.{key}=... goes to the model"
    raise ValueError(f"{key}: no such field{hint}")


def _hint(key: str, known: Iterable[str]) -> str:
    known = list(known)
    return nearest(key, known) or f"; there are {', '.join(known)}"


def _make(section: str, content: Any) -> Any:
    if not isinstance(content, Mapping):
        raise ValueError(f"{section}: expected a table, got {_short(content)}")
    hints, values = get_type_hints(SECTIONS[section]), {}
    for key, value in content.items():
        full = f"{section}.{key}"
        if value in RETIRED.get(full, ()):
            continue
        if key not in hints:
            raise ValueError(f"{full}: no such field{_hint(key, hints)}")
        values[key] = _typed(value, hints[key], full)
    if "name" in hints and not values.get("name"):
        raise ValueError(f"{section}.name: expected a name, got none")
    return SECTIONS[section](**values)


def _typed(value: Any, hint: Any, key: str) -> Any:
    """`value` as the type `hint`: an int becomes a float and a list a tuple, other types must match."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        expected = f"one of {', '.join(args)}{nearest(value, args) if isinstance(value, str) else ''}"
    elif origin is UnionType:  # float | None
        return None if value is None else _typed(value, args[0], key)
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
    raise ValueError(f"{key}: expected {expected}, got {_short(value)}")


def _check_limits(key: str, value: Any, low: float, high: float, depth: int = DEPTH) -> None:
    """Raises for a number outside its limits, a text that is too long, or tables and lists nested too deep."""
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise ValueError(f"{key[:100]}: expected at most {DEPTH} tables or lists in each other, got more")
        inner = ({f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping)
                 else {f"{key}[{place}]": item for place, item in enumerate(value)})  # fmt: skip
        for name, item in inner.items():
            _check_limits(name, item, low, high, depth - 1)
        return
    if isinstance(value, str) and len(value) > TEXT:
        raise ValueError(f"{key}: expected at most {TEXT:,} characters, got {len(value):,}")
    if isinstance(value, float) and high == LARGEST:  # has no limits of its own, such as the mean of a column
        low, high = -FLOAT, FLOAT
    if isinstance(value, bool) or not isinstance(value, int | float) or low <= value <= high:
        return
    if high == BELOW_1:
        expected = f"at least {low:g} and below 1"
    elif value < low:
        expected = f"at least {low:.10g}"
    else:
        expected = f"at most {high:.10g}" if value > high else f"a number from {low:.10g} to {high:.10g}"
    raise ValueError(f"{key}: expected {expected}, got {_short(value)}")


def _short(value: Any) -> str:
    """repr, cut after a few dozen characters."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:180]}... ({len(text):,} characters)"


def read_toml(path: Path) -> dict[str, Any]:
    """A file's tables; an error names the file."""
    if path.stat().st_size > FILE_BYTES:
        raise ValueError(f"{path}: expected at most {FILE_BYTES:,} bytes of TOML, got {path.stat().st_size:,}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, thousands of digits, or nested too deep
        raise ValueError(f"{path}: not TOML ({error})") from None


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key, ensure_ascii=False)


def _literal(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_literal(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False)
