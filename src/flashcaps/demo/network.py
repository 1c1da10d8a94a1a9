"""A model as the page's engine runs it: layers as JSON, tensors apart. Whatever it does not run is an error."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..kernels.common.stem import ImageConv2d
from ..models.network import CapsuleNetwork
from ..models.specs import GatedLinear
from ..nn.backbones import Coordinates, Layers, ResidualBlock, Standardise
from ..nn.capsules import CapsuleLayer, ConvCapsules, DenseCapsules, PrimaryCapsules
from ..nn.heads import Activations, Lengths, SharedLinear
from ..routing import Routing, Sizes

# Options that page/engine/routing.js takes by their names, and those that are in learned tensors or matter in training.
OPTIONS: dict[str, tuple[set[str], set[str]]] = {
    "dynamic": ({"leaky"}, {"detach", "prior", "bias"}),
    "em": ({"inverse_temperature", "eps", "relative", "sharpness"}, {"norm_activation", "beta_u", "beta_a"}),
    "attention": ({"scale", "norm"}, {"activation", "initial"}),
    "heinsen": ({"eps"}, {"tied", "one_to_one"}),
    "discriminative": (set(), {"rate", "strength", "penalty", "bounded"}),
}
HEADS = {Lengths: "lengths", Activations: "activations", SharedLinear: "linear", GatedLinear: "gated_linear"}

Layer = dict[str, Any]


class Description:
    """A model's layers for the page, and its tensors by name."""

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        if getattr(model, "image", None) is None:
            raise ValueError(f"{name}: expected a model of images; this one reads text")
        if not isinstance(model, CapsuleNetwork):
            raise ValueError(f"{name}: expected a capsule network; {model.name} has no capsules to watch")
        stack, decoder = model.capsules, cast(Any, model.decoder)
        layers = stack.capsule_layers()
        if not isinstance(layers[-1], DenseCapsules):
            raise ValueError(f"{name}: expected a dense class layer; that of {model.name} is convolutional")
        self.layers: Layer = {
            "backbone": self.plain("backbone", model.backbone),
            "primary": self.primary("primary", model.primary),
            "stack": {
                "iterations": stack.iterations,
                "concurrent": stack.concurrent,
                "layers": [self.capsules(f"capsules.layers.{k}", layer) for k, layer in enumerate(layers)],
            },
            "head": self.head("head", model.head),
            "decoder": None if decoder is None else self.plain("decoder.layers", decoder.layers),
        }

    def refuse(self, where: str, what: object) -> ValueError:
        return ValueError(f"{self.name}: the page does not run {where}, {what}")

    def keep(self, name: str, x: Tensor) -> str:
        self.tensors[name] = x.detach().to("cpu", torch.float32)
        return name

    def matrix(self, path: str, module: Any) -> Layer:
        """The weight of a convolution or a linear layer, and its bias."""
        bias = None if module.bias is None else self.keep(f"{path}.bias", module.bias)
        weight = self.keep(f"{path}.weight", module.weight)
        return {"shape": list(module.weight.shape[:2]), "weight": weight, "bias": bias}

    def norm(self, path: str, module: Any) -> Layer:
        """The tensors of a batch normalisation in evaluation, or of a LayerNorm."""
        names = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
        there = {key: getattr(module, own) for key, own in names.items() if hasattr(module, own)}
        if any(x is None for x in there.values()):
            raise self.refuse(path, f"{module} without weights or running statistics")
        return {key: self.keep(f"{path}.{names[key]}", x) for key, x in there.items()} | {"eps": module.eps}

    def plain(self, path: str, module: nn.Module) -> list[Layer]:
        """Layers of a plain network, one after the other."""
        if type(module) in (nn.Sequential, Layers):
            return [layer for key, part in module.named_children() for layer in self.plain(f"{path}.{key}", part)]
        if type(module) is nn.Identity:
            return []
        made = PLAIN[type(module)](self, path, module) if type(module) in PLAIN else None
        if made is None:
            raise self.refuse(path, module)
        return [made]

    def primary(self, path: str, module: nn.Module) -> Layer:
        if type(module) is not PrimaryCapsules:
            raise self.refuse(path, module)
        parts = {"pose": self.plain(f"{path}.pose", module.pose)}
        if module.activation is not None:
            parts["activation"] = self.plain(f"{path}.activation", module.activation)
        norm = {} if module.norm is None else {"norm": self.norm(f"{path}.norm", module.norm)}
        own = {key: getattr(module, key) for key in ("types", "dim", "form", "shares", "shift")}
        return {"type": "primary"} | own | parts | norm

    def head(self, path: str, module: nn.Module) -> Layer:
        if type(module) not in HEADS:
            raise self.refuse(path, module)
        named = {key: self.keep(f"{path}.{key}", x) for key, x in module.state_dict().items()}
        return {"type": HEADS[type(module)]} | {key.removeprefix("linear."): name for key, name in named.items()}

    def capsules(self, path: str, layer: CapsuleLayer) -> Layer:
        """A dense or convolutional capsule layer: transforms as (G, J, d, h), biases of votes as (G, J, rows, h)."""
        if layer.parents is None:
            raise self.refuse(path, "a layer of any number of parents")
        routing = layer.routing
        options, learned, per_child = self.routing(path, layer, routing)
        weight = layer.weight.permute(2, 0, 1, 3)
        found = {
            "type": "dense",
            "routing": layer.name,
            "takes": routing.input_activation,
            "makes": routing.output_activation,
            "iterations": routing.iterations,
            "parents": layer.parents,
            "dim": layer.out_dim,
            "rows": layer.rows,
            "shape": list(weight.shape),
            "weight": self.keep(f"{path}.weight", weight),
            "bias": None if layer.bias is None else self.keep(f"{path}.bias", layer.bias.permute(2, 0, 1, 3)),
            "options": options,
            "learned": learned,
            "per_child": per_child,
        }
        if layer.output_norm is not None:
            norm = list(layer.output_norm.children())
            if [type(part) for part in norm] != [nn.BatchNorm1d, nn.Sigmoid]:
                raise self.refuse(f"{path}.output_norm", layer.output_norm)
            found["output_norm"] = self.norm(f"{path}.output_norm.0", norm[0])
        if isinstance(layer, ConvCapsules):
            own = {key: getattr(layer, key) for key in ("kernel", "stride", "padding", "over")}
            return found | {"type": "conv"} | own
        assert isinstance(layer, DenseCapsules)
        return found | {"coordinates": layer.coordinates}

    def routing(self, path: str, layer: CapsuleLayer, routing: Routing) -> tuple[Layer, dict[str, str], list[str]]:
        """Options, learned tensors by their names in the file, and which of these are repeated for every child."""
        if layer.name not in OPTIONS:
            raise self.refuse(path, f"which routes by {layer.name!r}; it has {', '.join(OPTIONS)}")
        taken, elsewhere = OPTIONS[layer.name]
        options: Layer = {}
        for field in dataclasses.fields(routing):
            value = getattr(routing, field.name)
            if field.name in taken and value is not None:
                options[field.name] = value
            elif field.name not in taken | elsewhere | {"iterations"} and value != field.default:
                raise self.refuse(path, f"whose {layer.name} routing has {field.name}={value!r}")
        specs = routing.learned(Sizes(layer.groups, layer.parents or 1, layer.out_dim))
        learned = {
            name: self.keep(f"{path}.learned.{name}", layer.get_buffer(name) if spec.state else layer.learned[name])
            for name, spec in specs.items()
        }
        if layer.name == "attention":
            options.setdefault("scale", layer.out_dim**-0.5)
        if layer.name == "heinsen":
            learned.setdefault("beta_ignore", learned["beta_use"])
            one_to_one = getattr(routing, "one_to_one", None)
            if one_to_one is not None:
                options["start"] = (one_to_one * torch.eye(layer.parents or 1)).flatten().tolist()
        per_child = [name for name, stored in learned.items() if specs[stored.rpartition(".")[2]].per_child]
        return options, learned, per_child


def conv(to: Description, path: str, module: Any) -> Layer | None:
    square = all(len(set(pair)) == 1 for pair in (module.kernel_size, module.stride, module.padding))
    if not square or module.groups != 1 or module.dilation != (1, 1) or module.padding_mode != "zeros":
        return None
    window = {"kernel": module.kernel_size[0], "stride": module.stride[0], "padding": module.padding[0]}
    return {"type": "conv"} | window | to.matrix(path, module)


def pool(to: Description, path: str, module: Any) -> Layer | None:
    """Over windows side by side, or over all places."""
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return {"type": "pool", "max": False, "kernel": None} if module.output_size == 1 else None
    if module.kernel_size != module.stride or module.padding != 0 or module.ceil_mode:
        return None
    most = isinstance(module, nn.MaxPool2d)
    return {"type": "pool", "max": most, "kernel": module.kernel_size, "stride": module.stride}


def residual(to: Description, path: str, module: Any) -> Layer:
    parts = {key: to.plain(f"{path}.{key}", getattr(module, key)) for key in ("body", "shortcut")}
    return {"type": "residual"} | parts


PLAIN: dict[type, Callable[[Description, str, Any], Layer | None]] = {
    nn.Conv2d: conv,
    ImageConv2d: conv,
    nn.Linear: lambda to, path, module: {"type": "linear"} | to.matrix(path, module),
    nn.BatchNorm2d: lambda to, path, module: {"type": "batch_norm"} | to.norm(path, module),
    nn.ReLU: lambda to, path, module: {"type": "relu"},
    nn.LeakyReLU: lambda to, path, module: {"type": "leaky_relu", "slope": module.negative_slope},
    nn.SiLU: lambda to, path, module: {"type": "swish"},
    nn.Sigmoid: lambda to, path, module: {"type": "sigmoid"},
    nn.MaxPool2d: pool,
    nn.AvgPool2d: pool,
    nn.AdaptiveAvgPool2d: pool,
    Standardise: lambda to, path, module: {"type": "standardise"},
    Coordinates: lambda to, path, module: {"type": "coordinates"},
    ResidualBlock: residual,
}
