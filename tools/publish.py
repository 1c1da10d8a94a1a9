"""Publish the weights of a finished run as part of flashcaps:

    python -m tools.publish runs/demo_dynamic-0 demo_dynamic --data DIR

It stores the weights the run was tested with in half precision, tests them again as stored, and writes a card
beside them. Every number in the card is from the run's result.json, from that test, or the size of the file. That is
NAME.safetensors, or NAME.safetensors.xz where xz saves more than a tenth.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from flashcaps.deploy.hub import describe_model, describe_result, describe_training, portable, read_result
from flashcaps.models.shipped import FOLDER
from flashcaps.models.stored import SUFFIX, compress, weights_bytes
from flashcaps.training.checkpoint import load, write_atomic
from flashcaps.training.evaluate import Evaluation, evaluate_as
from flashcaps.training.loader import open_sources
from flashcaps.training.recipe import make_recipe

from .runs import plain_command

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
WORTH = 0.9  # the share of its size below which a file is stored compressed


def publish(
    run: str | Path, name: str, *, dtype: str = "float16", data: str | None = None, folder: Path = FOLDER
) -> Path:
    """weights/NAME.safetensors or NAME.safetensors.xz, and NAME.md, from a finished run. data: where test data lie."""
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
    small, plain, packed = compress(raw), folder / f"{name}.safetensors", folder / f"{name}.safetensors{SUFFIX}"
    worth = len(small) < WORTH * len(raw)
    path, content, other = (packed, small, plain) if worth else (plain, raw, packed)
    file = f"`{path.name}`, {len(content):,} bytes" + (f" ({len(raw):,} unpacked)" if content is not raw else "")
    write_atomic(path, content)
    write_atomic(folder / f"{name}.md", make_card(name, model, config, file))
    other.unlink(missing_ok=True)
    return path


def measure(model: Any, data: str | None) -> Evaluation:
    """On the test set its recipe names, with the weights as they will be stored."""
    recipe = make_recipe(model.config["recipe"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = evaluate_as(recipe, model.to(device), open_sources(recipe, data, device, None).test)
    model.cpu()
    return found


def make_card(name: str, model: Any, config: dict[str, Any], file: str) -> str:
    """What it is, what it was trained on, how good it is, how to use and how to repeat it. file: its name and size."""
    result, stored = config["result"], config["result"]["stored"]
    low, high = stored["interval"]
    what = result["metric"].removesuffix("_percent").replace("_", " ")
    both = config["recipe"]["data"]["name"] == "multimnist"
    note = " An image counts as right only where both digits are." if both else ""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    parts = [
        f"# {name}",
        describe_model(model),
        f'```python\nmodel = flashcaps.load("{name}")\n```',
        describe_training(config["recipe"]).replace("`config.json`", "the header of the weights file"),
        describe_result(result),
        f"As stored here ({stored['dtype']}): {what} {stored['value']:.2f} % ({low:.2f} to {high:.2f} %) on "
        f"{stored['examples']:,} images.{note}",
        f"File: {file}.",
        f"## Reproduce\n\n    {result['command']}\n"
        f"    python -m tools.publish RUN {name} --dtype {stored['dtype']}",
        f"Seed {result['seed']}, commit {result['commit'] or 'unknown'}, {versions}.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.publish", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("name", help="what flashcaps.load will find them by")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float16")
    parser.add_argument("--data", help="where data sets lie")
    given = parser.parse_args()
    path = publish(given.run, given.name, dtype=given.dtype, data=given.data)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
