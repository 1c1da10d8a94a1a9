"""Weights that come along: found by name, and made from a finished run by one command.

    model = flashcaps.load("demo_dynamic")
    python -m flashcaps.deploy.shipped runs/demo_dynamic-0 demo_dynamic --data DIR

The command stores the weights the run was tested with in half precision, tests them again as stored, and writes a card
beside them. Every number in the card is from the run's result.json, from that test, or the size of the file. That is
NAME.safetensors, or NAME.safetensors.xz where xz saves more than a tenth.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from ..training.checkpoint import SUFFIX, compress, load, shipped_files, weights_bytes, write_atomic
from ..training.evaluate import Evaluation, evaluate_as
from ..training.recipe import make_recipe
from ..training.results import plain_command

FOLDER = Path(__file__).parents[1] / "models" / "weights"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
WORTH = 0.9  # of its size: a file that xz makes smaller than that is stored so
DEMO = ("demo_dynamic", "demo_em", "demo_attention", "demo_heinsen", "demo_discriminative", "demo_pairs")


def shipped_names() -> list[str]:
    """What `flashcaps.load` finds by name."""
    return sorted(shipped_files())


def ship(run: str | Path, name: str, *, dtype: str = "float16", data: str | None = None, folder: Path = FOLDER) -> Path:
    """weights/NAME.safetensors or NAME.safetensors.xz, and NAME.md, from a finished run. data: where test data lie."""
    from .hub import portable, read_result

    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if not name.isidentifier():
        raise ValueError(f"name: expected letters, digits and _, got {name!r}")
    result = read_result(run)
    model: Any = load(run)
    if model.config["recipe"]["name"] != result["recipe"]:
        raise ValueError(f"run: its weights are of {model.config['recipe']['name']}, its result of {result['recipe']}")
    model.to(DTYPES[dtype])
    for key, x in model.state_dict().items():
        if not x.isfinite().all():
            raise ValueError(f"dtype: {key} does not fit into {dtype}; bfloat16 has the range of float32")
    model.float()
    test = measure(model, data)
    value, interval = test.metric(result["metric"])
    stored = {"dtype": dtype, "value": round(value, 4), "interval": [round(x, 4) for x in interval],
              "examples": test.examples}  # fmt: skip
    kept = {k: x for k, x in result.items() if k not in ("curve", "command")}
    config = portable(model.config) | {"result": kept | {"command": plain_command(result["command"]), "stored": stored}}
    raw = weights_bytes(model.to(DTYPES[dtype]), config)
    path, content, other = choose_form(folder / f"{name}.safetensors", raw)
    file = f"`{path.name}`, {len(content):,} bytes" + (f" ({len(raw):,} unpacked)" if content is not raw else "")
    write_atomic(path, content)
    write_atomic(folder / f"{name}.md", make_card(name, model, config, file))
    other.unlink(missing_ok=True)
    return path


def choose_form(plain: Path, raw: bytes) -> tuple[Path, bytes, Path]:
    """(path, content) of the file to store, compressed where that is worth it; and the path of the form not taken."""
    small, packed = compress(raw), plain.with_name(plain.name + SUFFIX)
    return (packed, small, plain) if len(small) < WORTH * len(raw) else (plain, raw, packed)


def measure(model: Any, data: str | None) -> Evaluation:
    """On the test set its recipe names, with the weights as they will be stored."""
    from ..training.loader import open_sources

    recipe = make_recipe(model.config["recipe"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    held = open_sources(recipe, data, device, None).test
    found = evaluate_as(recipe, model.to(device), held)
    model.cpu()
    return found


def make_card(name: str, model: Any, config: dict[str, Any], file: str) -> str:
    """What it is, what it was trained on, how good it is, how to use and how to repeat it. file: its name and size."""
    from .hub import _about, _data, _result

    result, stored = config["result"], config["result"]["stored"]
    low, high = stored["interval"]
    what = result["metric"].removesuffix("_percent").replace("_", " ")
    both = config["recipe"]["data"]["name"] == "multimnist"
    note = " An image counts as right only where both digits are." if both else ""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    parts = [
        f"# {name}",
        _about(model),
        f'```python\nmodel = flashcaps.load("{name}")\n```',
        _data(config["recipe"]).replace("`config.json`", "the header of the weights file"),
        _result(result),
        f"As stored here ({stored['dtype']}): {what} {stored['value']:.2f} % ({low:.2f} to {high:.2f} %) on "
        f"{stored['examples']:,} images.{note}",
        f"File: {file}.",
        f"## Reproduce\n\n    {result['command']}\n"
        f"    python -m flashcaps.deploy.shipped RUN {name} --dtype {stored['dtype']}",
        f"Seed {result['seed']}, commit {result['commit'] or 'unknown'}, {versions}.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    what = ("Ship the weights of a run as NAME.safetensors, or as NAME.safetensors.xz where xz saves more than a "
            "tenth, with a card NAME.md.")  # fmt: skip
    parser = argparse.ArgumentParser(prog="python -m flashcaps.deploy.shipped", description=what)
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("name", help="what flashcaps.load will find them by")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float16")
    parser.add_argument("--data", help="where data sets lie")
    given = parser.parse_args()
    path = ship(given.run, given.name, dtype=given.dtype, data=given.data)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
