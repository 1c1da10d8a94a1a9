"""Sharing on the Hugging Face hub: a folder with model.safetensors, config.json and README.md, and loading it again.

    save_pretrained(model, "shared", run="runs/tiny-0")
    model = from_pretrained("shared")                      # or "someone/tiny-capsules"
    push_to_hub(model, "someone/tiny-capsules", run="runs/tiny-0")

Weights are safetensors only, so that loading cannot run code.
"""

import copy
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..routing.checks import import_extra
from ..training.checkpoint import load, save_weights, write_atomic

WEIGHTS = "model.safetensors"
SAFE = ["*.safetensors", "*.json", "README.md"]  # patterns of files to download: no pickles

PathLike = str | os.PathLike[str]


def save_pretrained(model: nn.Module, folder: PathLike, *, run: PathLike | None = None, licence: str = "") -> Path:
    """Writes weights, config and model card to `folder`. run: the run folder, whose result goes into the card."""
    if not hasattr(model, "name"):
        raise ValueError("model: expected one that create_model or load made, which can be rebuilt by name")
    path, result = Path(folder), read_result(run)
    config = portable(getattr(model, "config", {}))
    save_weights(path / WEIGHTS, model, config)
    own = {"library_name": "flashcaps", "model": {"name": model.name, "overrides": model.overrides}}
    write_atomic(path / "config.json", json.dumps(own | config, indent=2) + "\n")
    write_atomic(path / "README.md", model_card(model, config, result, licence))
    return path


def from_pretrained(
    name: PathLike,
    *,
    revision: str | None = None,
    device: torch.device | str = "cpu",
    backbone: nn.Module | None = None,
) -> nn.Module:
    """Loads a model from a folder that `save_pretrained` wrote, or from a repository on the hub.

    backbone: as in `load`, for a model with a backbone of your own.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if str(name).count("/") != 1 or str(name).startswith((".", "/", "~")):
            raise FileNotFoundError(f"name: no folder {name}, and names on the hub look like someone/model")
        hub = import_extra("huggingface_hub", "hub", "a name like this")
        folder = Path(hub.snapshot_download(str(name), revision=revision, allow_patterns=SAFE))
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(f"{name}: no {WEIGHTS} in it; expected what save_pretrained writes")
    return load(folder / WEIGHTS, device=device, backbone=backbone)


def push_to_hub(
    model: nn.Module, repository: str, *, run: PathLike | None = None, licence: str = "", private: bool = False
) -> str:
    """Uploads what `save_pretrained` writes to someone/model, creating it if needed, and returns its address."""
    if repository.count("/") != 1:
        raise ValueError(f"repository: expected someone/model, got {repository!r}")
    api = import_extra("huggingface_hub", "hub", "the hub").HfApi()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, run=run, licence=licence)
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Weights, config and card")
    return str(address)


def read_result(run: PathLike | None) -> dict[str, Any]:
    """result.json of a finished run; {} for None."""
    if run is None:
        return {}
    path = Path(run) / "result.json"
    if not path.is_file():
        raise FileNotFoundError(f"run: no result.json in {run}; only a finished run has one")
    return json.loads(path.read_text())


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """A config without this machine's folders: absolute paths are cut to their last part."""
    config = copy.deepcopy(config)
    recipe = config.get("recipe", {})
    data, begun = recipe.get("data", {}), recipe.get("model", {}).get("overrides", {})
    for place, key in ((data.get("options", {}), "path"), (data, "transformer"), (begun, "pretrained")):
        if Path(str(place.get(key, ""))).is_absolute():  # a name such as someone/data stays
            place[key] = Path(place[key]).name
    return config


def model_card(
    model: Any, config: dict[str, Any] | None = None, result: dict[str, Any] | None = None, licence: str = ""
) -> str:
    """README.md for the hub: the model, its training data and result, how to use and how to reproduce it."""
    config, result = config or {}, result or {}
    recipe = config.get("recipe", {})
    title = f"{model.name} ({recipe['data']['name']})" if recipe else model.name
    image = model.image
    shape = "states (B, tokens, layers, width)" if image is None else f"images (B, {', '.join(map(str, image))})"
    use = ["## Use\n", "```python", "from flashcaps.deploy.hub import from_pretrained", "",
           'model = from_pretrained("someone/model")',
           f"output = model(x)  # {shape} -> scores (B, {model.classes}) and class capsules", "```"]  # fmt: skip
    parts = [_front(model, config, result, licence), f"# {title}", describe_model(model), "\n".join(use)]
    if recipe:
        parts.append(describe_training(recipe))
    if result:
        parts += [describe_result(result), _repeat(result)]
    versions = result.get("versions", {"python": platform.python_version(), "torch": torch.__version__})
    parts.append("Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".")
    return "\n\n".join(parts) + "\n"


def _front(model: Any, config: dict[str, Any], result: dict[str, Any], licence: str) -> str:
    """The YAML block the hub reads."""
    data = config.get("recipe", {}).get("data", {}).get("name", "")
    task = "text-classification" if model.image is None else "image-classification"
    lines = ["library_name: flashcaps", f"pipeline_tag: {task}", "tags:", "- capsule-network"]
    if licence:
        lines.append(f"license: {licence}")
    if result:
        accuracy = result["value"] if "accuracy" in result["metric"] else 100 - result["value"]
        lines += ["metrics:", "- accuracy", "model-index:", f"- name: {model.name}", "  results:", "  - task:",
                  f"      type: {task}", "    dataset:", f"      type: {data}", f"      name: {data}",
                  "    metrics:", "    - type: accuracy", f"      value: {accuracy / 100:.6g}"]  # fmt: skip
    return "\n".join(["---", *lines, "---"])


def describe_model(model: Any) -> str:
    count = sum(p.numel() for p in model.parameters())
    takes = "hidden states of text" if model.image is None else "{} x {} x {} images".format(*model.image)
    return f"A capsule network of flashcaps: `{model.name}`, {count:,} weights, {takes}, {model.classes} classes."


def describe_training(recipe: dict[str, Any]) -> str:
    names, transformer = recipe["data"].get("options", {}).get("class_names", []), recipe["data"].get("transformer")
    classes = f" Hidden states of {transformer}, frozen." if transformer else ""
    classes += f" Classes: {', '.join(names)}." if names else ""
    train, optimiser = recipe["train"], recipe["optimiser"]
    return (f"## Training\n\nData: {recipe['data']['name']}.{classes} Recipe `{recipe['name']}`: {recipe['about']}; "
            f"{recipe['loss']['kind']} loss, {optimiser['kind']} at {optimiser['lr']:g}, batch {train['batch']}, "
            f"seed {train['seed']}. All of it is in `config.json`.{_views(train)}")  # fmt: skip


def _views(train: dict[str, Any]) -> str:
    """The views over which the scores of a test image are averaged; "" for the image alone."""
    mirror, nudge = train.get("mirror", False), train.get("nudge", 0)
    views = ["itself"] + ["its mirror image"] * mirror + [f"each moved by {nudge} along each diagonal"] * bool(nudge)
    count = (1 + mirror) * (5 if nudge else 1)
    return f" Tested by the mean score of {count} views of each image: {', '.join(views)}." if count > 1 else ""


def describe_result(result: dict[str, Any]) -> str:
    low, high = result["interval"]
    what = result["metric"].removesuffix("_percent").replace("_", " ")
    return (f"## Result\n\n| {what} | 95 % interval | images | trained |\n| --- | --- | --- | --- |\n"
            f"| {result['value']:.2f} % | {low:.2f} to {high:.2f} % | {result['examples']:,} ({result['split']}) | "
            f"{result['epochs']:g} epochs on {result['hardware']} |")  # fmt: skip


def _repeat(result: dict[str, Any]) -> str:
    at = f" at commit {result['commit']}" if result.get("commit") else ""
    words = [w if "=" in w or not Path(w).is_absolute() else Path(w).name for w in result["command"].split(" ")]
    return f"## Reproduce\n\n    {' '.join(words)}\n\nwith flashcaps {result['versions'].get('flashcaps', '')}{at}."
