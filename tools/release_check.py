"""Tries what a release promises, from a wheel in an environment of its own: python -m tools.release_check WHEEL FOLDER

Makes the environment in FOLDER, installs the wheel as a user would, and runs this file with its Python, where neither
the sources nor the tools of development are: the digits, own pictures (trained, fine-tuned, predicted, exported, read
by onnxruntime alone), an algorithm of another package, a torch Dataset, and checkpoints of other repositories.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "median"
version = "1"
[project.entry-points."flashcaps.routing"]
median = "median:Median"
"""
READER = """
import json, sys
import numpy, onnxruntime
from PIL import Image
file, picture = sys.argv[1:]
session = onnxruntime.InferenceSession(file)
told = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
channels, height, width = told["image"]
pixels = numpy.asarray(Image.open(picture).convert({1: "L", 3: "RGB"}[channels]), dtype=numpy.float32)
assert pixels.shape[:2] == (height, width)
images = (pixels * told["scale"]).reshape(1, height, width, channels).transpose(0, 3, 1, 2).astype(numpy.float32)
scores = session.run(["scores"], {session.get_inputs()[0].name: images})[0]
assert not {"torch", "flashcaps"} & set(sys.modules)
print(told["class_names"][int(scores.argmax())])
"""


def run(*words: object) -> str:
    """What a command prints; one that fails ends the check with what it said."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, env=clean())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def clean() -> dict[str, str]:
    away = ("PYTHONPATH", "VIRTUAL_ENV", "FLASHCAPS_DATA", "FLASHCAPS_COMMIT")
    return {key: value for key, value in os.environ.items() if key not in away}


def flashcaps(*words: object) -> str:
    return run(Path(sys.executable).with_name("flashcaps"), *words)


def check_digits() -> None:
    flashcaps("train", "tiny", "--dev", "--device", "cpu")
    flashcaps("evaluate", "runs/dev-tiny-0", "--device", "cpu")


def check_pictures() -> None:
    flashcaps("train", "--images", "two", "epochs=2", "--out", "my shapes", "--device", "cpu")
    flashcaps("train", "--images", "three", "--from", "my shapes", "epochs=2", "--out", "tuned", "--device", "cpu")
    picture = "three/disc/0001.png"
    found = json.loads(flashcaps("predict", "tuned", picture, "--json"))
    flashcaps("export", "tuned", "--out", "tuned.onnx")
    told = run(sys.executable, "-c", READER, "tuned.onnx", picture).strip()
    if found["answer"] != [told]:
        raise SystemExit(f"tuned.onnx: onnxruntime says {told}, flashcaps predict {found['answer']}")


def check_algorithm() -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "./package")
    code = ("import torch, flashcaps; layer = flashcaps.DenseCapsules('median', in_capsules=4, in_dim=2, "
            "out_capsules=3, out_dim=5); assert layer(torch.rand(2, 4, 2)).pose.shape == (2, 3, 5)")
    run(sys.executable, "-c", code)
    flashcaps("train", "tiny", "model.routing=median", "--dev", "--device", "cpu", "--out", "median")


def check_dataset() -> None:
    import torch

    loop, recipes = (importlib.import_module(f"flashcaps.training.{name}") for name in ("loop", "recipe"))
    images, labels = torch.rand(240, 3, 20, 20), torch.arange(240) % 3
    halves = {"train": slice(0, 120), "test": slice(120, 240)}
    parts = {name: torch.utils.data.TensorDataset(images[half], labels[half]) for name, half in halves.items()}
    recipe = recipes.read_recipe("tiny", ["steps=3", "data.validation=0"])
    outcome = loop.train(recipe, loop.RunOptions("cpu", "dataset"), data=parts)
    if outcome.test.examples != 120:
        raise SystemExit(f"train(data=): expected 120 examples tested, got {outcome.test.examples}")


def check_conversions() -> None:
    """Every checkpoint of the folder, named after its repository: converted; those of digits evaluated, too."""
    import torch

    import flashcaps as library

    for file in sorted(Path("checkpoints").glob("*.pt")):
        told = json.loads(file.with_suffix(".json").read_text())
        out = Path(f"{file.stem}.safetensors")
        flashcaps("convert", file, "--from", told["address"], "--out", out, *told["overrides"])
        model: Any = library.load(out)
        with torch.no_grad():
            scores = model(torch.rand(2, *told["input"])).scores
        if scores.shape != (2, model.classes) or not scores.isfinite().all():
            raise SystemExit(f"{file}: expected finite scores of {model.classes} classes, got {scores}")
        if told["input"] == [1, 28, 28]:
            flashcaps("evaluate", out, "data.name=digits", "data.validation=0", "--device", "cpu")


CHECKS = (check_digits, check_pictures, check_algorithm, check_dataset, check_conversions)


def write_files(place: Path) -> None:
    """As the tests have them: pictures of two and of three shapes, the guide's algorithm, checkpoints to convert."""
    import torch

    names = ("own_pictures", "docs.test_guides", "deploy.test_convert")
    pictures, guides, tests = (importlib.import_module(f"tests.{name}") for name in names)
    for shapes in ("two", "three"):
        pictures.write_pictures(place / shapes, 60, 20, 20)
    shutil.rmtree(place / "two" / "ring")
    (place / "package").mkdir()
    (place / "package" / "pyproject.toml").write_text(PROJECT)
    (place / "package" / "median.py").write_text(guides.blocks("docs/write_routing.md")[0])
    folder = place / "checkpoints"
    folder.mkdir()
    for name, (address, shapes, _, size, overrides) in tests.CASES.items():
        file = folder / f"{name.replace(' ', '_')}.pt"
        torch.save(tests.drawn(shapes), file)
        told: dict[str, Any] = {"address": address, "input": size[1:]}
        told["overrides"] = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
        file.with_suffix(".json").write_text(json.dumps(told))


def main(wheel: str, folder: str) -> None:
    place, package = Path(folder), Path(wheel).resolve()
    place.mkdir(parents=True)  # a new one, so that nothing is left from an earlier check
    write_files(place)
    venv.create(place / "env", with_pip=True)
    python = str((place / "env" / "bin" / "python").absolute())
    install = [python, "-m", "pip", "install", "-q", "-c", "constraints.txt", f"{package}[export]"]
    subprocess.run(install, check=True, env=clean())
    subprocess.run([python, Path(__file__).resolve()], cwd=place, check=True, env=clean())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        for check in CHECKS:
            check()
            print(f"{check.__name__}: ok", flush=True)
