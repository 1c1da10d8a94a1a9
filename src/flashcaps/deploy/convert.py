"""Converts checkpoints of other repositories to models of flashcaps with the same outputs.

    model = flashcaps.convert("trained_model.pkl", "XifengGuo/CapsNet-Pytorch")

Each repository has a `Layout`: new names of its tensors, changes to them, and the model that their shapes belong to.
Where the code of a repository differs from the paper, the model has an option.
"""

import math
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..models import Model, create_model
from ..routing.checks import nearest
from ..training.recipe import read_recipe

WRAPPERS = ("net", "state_dict", "model_state_dict", "model")  # keys that training scripts store a state under
CIFAR = [[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]]  # mean and std of torchvision's examples


class Checkpoint(dict[str, Tensor]):
    """Tensors by name; one that is missing is an error that says so."""

    def __init__(self, path: Path, address: str, content: Mapping[str, Tensor]) -> None:
        super().__init__(content)
        self.path, self.address = path, address

    def __missing__(self, key: str) -> Tensor:
        raise ValueError(f"{self.path}: expected {key}, which checkpoints of {self.address} have, found none")


class Target(NamedTuple):
    """What a checkpoint becomes: a model with overrides, on the data of a recipe."""

    model: str
    overrides: dict[str, Any]
    recipe: str


@dataclass(frozen=True)
class Layout:
    """names: (pattern, replacement) pairs for `re.sub`, applied in order; a tensor whose new name is "" is left out.

    changes: functions of a tensor, by a pattern of its new name. Tensors with the same new name are passed together.
    """

    target: Callable[[Checkpoint], Target]
    names: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
    changes: dict[str, Callable[..., Tensor]] = field(default_factory=dict)


def convert(path: str | os.PathLike[str], name: str, **overrides: Any) -> Model:
    """The model in a checkpoint that the code of another repository wrote, in eval mode.

    name: a key of `LAYOUTS`, its owner or its repository. overrides: what checkpoints do not say, as iterations=2.
    Reading a checkpoint cannot run code. `save_weights(path, model, model.config)` writes what `load` and the command
    line take.
    """
    words = {word.lower(): address for address in LAYOUTS for word in (address, *address.split("/"))}
    if name.lower() not in words:
        known = ", ".join(LAYOUTS)
        raise ValueError(f"--from: expected one of {known}, got {name!r}{nearest(name.lower(), words)}")
    address = words[name.lower()]
    layout = LAYOUTS[address]
    state = read_checkpoint(Path(path), address)
    target = layout.target(state)
    for key in overrides:
        if key in target.overrides:
            raise ValueError(f"{key}: expected what checkpoints leave open, as iterations=2; this one says it itself")
    model: Any = create_model(target.model, **target.overrides, **overrides)
    model.load_state_dict(renamed(state, layout, model))
    recipe = read_recipe(target.recipe).to_dict()
    recipe |= {"model": {"name": model.name, "overrides": model.overrides}, "claim": {}}
    model.config = {"recipe": recipe, "converted_from": address}
    return model.eval()


def read_checkpoint(path: Path, address: str) -> Checkpoint:
    """The state dict in a file of torch.save, without wrappers and without the prefix of DataParallel."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError):
        # PyTorch's own message advises weights_only=False
        raise ValueError(f"{path}: refused: expected tensors alone, as torch.save(model.state_dict(), FILE) writes "
                         "them; it is damaged, or a pickled model, which could run code") from None
    while isinstance(content, Mapping) and (wrapper := next((k for k in WRAPPERS if k in content), None)):
        content = content[wrapper]
    if not isinstance(content, Mapping) or not any(isinstance(x, Tensor) for x in content.values()):
        raise ValueError(f"{path}: expected tensors by name, or those under {', '.join(WRAPPERS)}, found neither")
    tensors = {str(key).removeprefix("module."): x for key, x in content.items() if isinstance(x, Tensor)}
    return Checkpoint(path, address, tensors)


def renamed(state: Checkpoint, layout: Layout, model: Model) -> dict[str, Tensor]:
    """The tensors of a checkpoint as the model's state; an error names the first that does not fit."""
    sources: dict[str, list[str]] = {}
    for key in state:
        name = key
        for pattern, ours in layout.names:
            name = re.sub(pattern, ours, name)
        if name:
            sources.setdefault(name, []).append(key)
    own, found = model.state_dict(), {}
    for name in own.keys() | sources.keys():
        if name not in own or name not in sources:
            what = f"nothing like {sources[name][0]}" if name not in own else f"what becomes {name}"
            raise ValueError(f"{state.path}: expected {what} in a {model.name} of {state.address}")
    for name, keys in sources.items():
        change = next((c for pattern, c in layout.changes.items() if re.fullmatch(pattern, name)), lambda x: x)
        try:
            found[name] = change(*(state[key] for key in keys))
        except (RuntimeError, IndexError, TypeError):  # axes that are not there, or parts that do not go together
            found[name] = state[keys[0]].new_empty(0)
        if found[name].shape != own[name].shape:
            raise ValueError(f"{state.path}: {keys[0]}: expected a shape that becomes {tuple(own[name].shape)}, {name} "
                             f"of {model.name}, got {tuple(state[keys[0]].shape)}")
    return found


def heinsen(state: Checkpoint) -> Target:
    classes = state["routings.1.W"].shape[1]
    if "depth_emb" not in state:
        return Target("heinsen_smallnorb", {"classes": classes}, "heinsen_smallnorb")
    layers, width = state["depth_emb"].shape
    name = "heinsen_sst2" if classes == 2 else "heinsen_sst5"
    return Target(name, {"classes": classes, "layers": layers, "width": width}, name)


def capsnet(state: Checkpoint, classes: int, options: dict[str, Any], grouping: str) -> Target:
    """The network of dynamic's Fig. 1, with plain squash, for the square images that its decoder draws."""
    channels = state["conv1.weight"].shape[1]
    side = math.isqrt(len(state["decoder.4.bias"]) // channels)
    numbers = {"image": [channels, side, side], "classes": classes, "options": options,
               "primary": {"shares": 0, "grouping": grouping}}  # fmt: skip
    return Target("capsnet_mnist", numbers, "capsnet_mnist" if channels == 1 else "capsnet_svhn")


def tsai(state: Checkpoint) -> Target:
    top = max(int(key.split(".")[1]) for key in [*state, "capsule_layers.0"] if key.startswith("capsule_layers."))
    name = "attention_resnet_cifar10" if top < 3 else "attention_resnet_cifar100"
    classes = state[f"capsule_layers.{top}.w"].shape[-1]
    backbone = {"normalise": CIFAR}  # before a convolution that pads with 0, so that no weight can stand for it
    return Target(name, {"classes": classes, "backbone": backbone, "options": {"scrambled": True}}, name)


def order(*axes: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x.permute(axes)


def swap(axis: int) -> Callable[[Tensor], Tensor]:
    """Swaps the last two channels, which are coordinates: y before x becomes x before y."""
    return lambda x: torch.cat([x.narrow(axis, 0, x.shape[axis] - 2), x.narrow(axis, -2, 2).flip(axis)], axis)


def moved(name: str, by: int) -> Callable[[re.Match[str]], str]:
    return lambda match: f"{name}.{int(match[1]) + by}."


def of_windows(x: Tensor) -> Tensor:
    """(I, d, h, J), or (k, k, types, d, h, J) of a convolution, whose children are (types, k, k) here."""
    return (x.permute(2, 0, 1, 3, 4, 5).flatten(0, 2) if x.ndim == 6 else x).permute(3, 1, 0, 2)


WEIGHT = r"capsules\.layers\.\d+\.weight"  # (J, d, I, h)
LAYOUTS: dict[str, Layout] = {
    "glassroom/heinsen_routing_2019_paper": Layout(
        heinsen,
        (
            (r"^convolve\.(\d+)\.", moved("backbone", 1)),  # ours begins with the coordinates
            (r"^compute_a\.", "primary.activation."),
            (r"^compute_mu\.", "primary.pose."),
            (r"^depth_emb$", "depth"),
            (r"^detect_parts\.0\.", "linear."),
            (r"^detect_parts\.2\.", "norm."),
            (r"^routings\.(\d+)\.W$", r"capsules.layers.\1.weight"),
            (r"^routings\.(\d+)\.B$", r"capsules.layers.\1.bias"),
            (r"^routings\.(\d+)\.beta_use$", r"capsules.layers.\1.learned.beta_use"),
            (r"^routings\.(\d+)\.beta_ign$", r"capsules.layers.\1.learned.beta_ignore"),
            (r".*\.CONST_one$", ""),
        ),
        {
            r"backbone\.1\.(weight|bias|running_.*)": swap(0),
            r"backbone\.2\.weight": swap(1),
            r"capsules\.layers\.\d+\.(weight|bias)": order(1, 2, 0, 3),
            r"capsules\.layers\.0\.learned\..*": lambda x: x.squeeze(0),  # of any number of children
        },
    ),
    "XifengGuo/CapsNet-Pytorch": Layout(
        lambda state: capsnet(state, len(state["digitcaps.weight"]), {"detach": True}, "places"),
        (
            (r"^conv1\.", "backbone.0."),
            (r"^primarycaps\.conv2d\.", "primary.pose."),
            (r"^digitcaps\.weight$", "capsules.layers.0.weight"),
            (r"^decoder\.", "decoder.layers."),
        ),
        {WEIGHT: order(0, 3, 1, 2)},
    ),
    "gram-ai/capsule-networks": Layout(
        lambda state: capsnet(state, len(state["digit_capsules.route_weights"]), {"over_children": True}, "channels"),
        (
            (r"^conv1\.", "backbone.0."),
            (r"^primary_capsules\.capsules\.\d+\.", "primary.pose."),
            (r"^digit_capsules\.route_weights$", "capsules.layers.0.weight"),
            (r"^decoder\.", "decoder.layers."),
        ),
        {
            r"backbone\.0\.weight": lambda x: x * 255 if x.shape[1] == 3 else x,  # its house numbers are bytes
            r"primary\.pose\..*": lambda *x: torch.stack(x, 1).flatten(0, 1),  # a convolution for each dimension
            WEIGHT: order(0, 2, 1, 3),
        },
    ),
    "apple/ml-capsules-inverted-attention-routing": Layout(
        tsai,
        (
            (r"^pre_caps\.pre_caps\.([01])\.", moved("backbone", 1)),  # ours begins with the normalisation
            (r"^pre_caps\.pre_caps\.3\.(\d+)\.", moved("backbone", 4)),
            (r"^pre_caps\.pre_caps\.4\.(\d+)\.", moved("backbone", 7)),
            *((rf"\.{part}\.", f".body.{k}.") for part, k in (("conv1", 0), ("bn1", 1), ("conv2", 3), ("bn2", 4))),
            (r"^pc_layer\.", "primary.pose."),
            (r"^nonlinear_act\.", "primary.norm."),
            (r"^capsule_layers\.(\d+)\.w$", r"capsules.layers.\1.weight"),
            (r"^capsule_layers\.(\d+)\.nonlinear_act\.", r"capsules.layers.\1.learned."),
            (r"^final_fc\.", "head.linear."),
        ),
        {WEIGHT: of_windows},
    ),
}
