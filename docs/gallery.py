"""Make docs/gallery.md and its pictures: python -m docs.gallery

Draws most figures from weights that come along, and trains the models of the others where they are not there yet. Names
of figures draw those again and leave the rest of the page as it is:

    python -m docs.gallery                                   # everything, runs in runs/
    python -m docs.gallery --runs DIR margin parse_tree      # two of them
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from flashcaps.analysis import FIGURES, DoesNotApply, Drawn, Run, open_run
from flashcaps.analysis.report import title_of

DOCS = Path(__file__).parent
PAGE, IMAGES = DOCS / "gallery.md", DOCS / "images" / "gallery"
WIDTH = 118
NO_BREAK = "\x00"  # between words that stay on one line
DPI, COLOURS, FRAME_COLOURS, FRAME_SCALE = 80, 96, 32, 0.8  # the page is looked at, not printed

MODELS: dict[str, str] = {  # folder -> what follows `flashcaps train`; {data}: a folder with what cannot come along
    "tiny-0": "tiny",
    "tiny-r1": "tiny model.iterations=1",
    "tiny-l1": "tiny model.routing=discriminative model.options.penalty=l1 model.options.strength=0.01 epochs=5",
    "tiny-l2-norec": "tiny model.routing=discriminative model.decoder=false loss.reconstruction=0 epochs=5",
    "toys": "heinsen_synthetic_norb model.name=capsnet_tiny model.routing=heinsen model.classes=5 "
    "'model.image=[2,32,32]' 'model.backbone={name=\"resnet\",stages=[[16,1,2],[48,1,2]]}' "
    "'model.primary={types=8,dim=16,kernel=3,stride=2}' model.decoder=false data.size=32 'data.lightings=[0,3]' "
    "augment.crop=32 augment.padding=2 augment.mixup=0 optimiser.kind=muon lr=0.005 optimiser.momentum=0.95 "
    "weight_decay=0.05 'schedule.momentum=[]' epochs=20 batch=64 ema=0.99 precision=bf16 evaluate_every=20",
    "sentences": "heinsen_sst2 data.transformer=FOLDER data.tokens=32 train.steps=400 precision=fp32",
}
DRAWN_OF = {  # a model above, or weights that come along; the others of tiny-0
    "architecture": "capsnet_mnist", "reconstructions": "capsnet_mnist", "perturbations": "capsnet_mnist",
    "dimensions": "capsnet_mnist", "margin": "capsnet_mnist", "adversarial": "capsnet_mnist",
    "segmentation": "demo_pairs", "parse_tree": "demo_pairs", "animation": "demo_pairs",
    "agreement": "demo_dynamic", "vote_distances": "demo_em",
    "sparsity": "tiny-l1", "credit": "sentences",
    "pose_trajectories": "toys", "pose_azimuth": "toys", "pose_elevation": "toys",
    "ablation": "attention_resnet_cifar10", "diverse": "attention_resnet_cifar10", "novel_viewpoints": "demo_em",
}  # fmt: skip
BESIDE = ("training_loss", "convergence", "error_curves", "iterations", "borrowed_decoder", "sparsity")
FROM_RESULTS = ("ablation", "diverse", "novel_viewpoints", "adversarial")  # of results/, whatever is opened

HEAD = """# Gallery

Everything below was drawn by `flashcaps figures`; the page is made by `python -m docs.gallery`. Most figures are of
weights that come along and of their test data, which `flashcaps data mnist` gets; the other models train on a laptop
in minutes. The same commands draw any other run. Captions are what the commands wrote, mostly about 500 test images,
on a busy two-core machine: examples of output, not results, which are files under `results/` and nowhere else.
{from_results} draw those, in a checkout.

    flashcaps figures                      # the list
    flashcaps figures runs/tiny-0          # all that apply: report.html, PNG and SVG, light and dark, in its figures/
    flashcaps figures runs/tiny-0 --against runs/tiny-r1 --out both      # two checkpoints side by side

In a notebook, data and figure come apart, of a run's folder or of weights that come along:

```python
from flashcaps.analysis import FIGURES, open_run

data, figure, caption = FIGURES["architecture"](open_run("demo_dynamic"))
```

The models trained for this page:

{models}
"""


def command_of(name: str) -> str:
    beside = " --beside runs" if name in BESIDE else ""
    return f"flashcaps figures {place_of(name)} {name}{beside}"


def place_of(name: str, runs: Path = Path("runs")) -> str:
    """What a figure is drawn of: weights that come along, by their name, or the folder of a run."""
    drawn_of = DRAWN_OF.get(name, "tiny-0")
    return (runs / drawn_of).as_posix() if drawn_of in MODELS else drawn_of


def train_command(folder: str) -> str:
    words = f"flashcaps train {MODELS[folder]}"
    return words if folder == "tiny-0" else f"{words} --out{NO_BREAK}runs/{folder}"


def head() -> str:
    lines = [textwrap.fill(train_command(folder), 112, initial_indent="    ", subsequent_indent="        ",
                           break_long_words=False, break_on_hyphens=False).replace("\n", " \\\n").replace(NO_BREAK, " ")
             for folder in MODELS]  # fmt: skip
    *names, last = (f"`{name}`" for name in FROM_RESULTS)
    return HEAD.format(models="\n".join(lines), from_results=f"{', '.join(names)} and {last}")


def needed(names: list[str]) -> list[str]:
    """The models that figures are drawn of, and the small ones they compare with."""
    folders = {DRAWN_OF.get(name, "tiny-0") for name in names}
    compared = {folder for folder in MODELS if folder.startswith("tiny")} if set(names) & set(BESIDE) else set()
    return [folder for folder in MODELS if folder in folders | compared]


def ensure_trained(folder: str, runs: Path, data: str | None, transformer: str | None) -> Path:
    """The run's folder, trained now where it is not there."""
    place = runs / folder
    if not (place / "result.json").is_file():
        words = [w.replace("FOLDER", transformer or "FOLDER") for w in shlex.split(MODELS[folder])]
        more = ["--data", data] if data else []
        subprocess.run([sys.executable, "-m", "flashcaps", "train", *words, "--out", str(place), *more], check=True)
    return place


def save_picture(drawn: Drawn, name: str) -> Path:
    """The figure, small: few colours, screen resolution."""
    from PIL import Image

    IMAGES.mkdir(parents=True, exist_ok=True)
    moving = drawn.data.get("gif")
    if moving is None:
        raw = io.BytesIO()
        drawn.figure.savefig(raw, format="png", dpi=DPI)
        Image.open(raw).convert("RGB").quantize(COLOURS).save(IMAGES / f"{name}.png", optimize=True)
        return IMAGES / f"{name}.png"
    film: Any = Image.open(io.BytesIO(moving))
    frames, waits = [], []
    for k in range(film.n_frames):
        film.seek(k)
        waits.append(film.info["duration"])
        frame = film.convert("RGB")
        size = (int(frame.width * FRAME_SCALE), int(frame.height * FRAME_SCALE))
        frames.append(frame.resize(size, Image.Resampling.LANCZOS).quantize(FRAME_COLOURS))
    path = IMAGES / f"{name}.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=waits, loop=0)
    return path


def part_of(name: str, run: Run) -> str:
    """Draw one figure, and its part of the page; where it does not apply, the reason takes the picture's place."""
    start = f"## {name}\n\n{title_of(name)}.\n\n    {command_of(name)}\n\n"
    try:
        drawn = FIGURES[name](run)
    except DoesNotApply as why:
        return start + textwrap.fill(f"Not drawn yet: {why}.", WIDTH) + "\n"
    picture = save_picture(drawn, name).relative_to(DOCS).as_posix()
    return f"{start}![{title_of(name)}]({picture})\n\n{textwrap.fill(drawn.caption, WIDTH)}\n"


def parts_of_page(text: str) -> dict[str, str]:
    """The figures of a page that is there, by name."""
    pieces = re.split(r"^(?=## )", text, flags=re.M)[1:]
    return {piece.splitlines()[0].removeprefix("## "): piece.rstrip("\n") + "\n" for piece in pieces}


def page(parts: dict[str, str]) -> str:
    return head() + "\n" + "\n".join(parts[name] for name in FIGURES if name in parts)


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("names", nargs="*", metavar="FIGURE", help="draw these, leave the rest of the page (default: all)")
    ask.add_argument("--runs", type=Path, default=Path("runs"), help="where the models are, or will be")
    ask.add_argument("--data", help="where data sets lie")
    ask.add_argument("--transformer", help="folder of a transformer, for the figure of text")
    given = ask.parse_args()
    wrong = [name for name in given.names if name not in FIGURES]
    if wrong:
        ask.error(f"no figure {wrong[0]!r}; there are {', '.join(FIGURES)}")
    parts = parts_of_page(PAGE.read_text()) if given.names and PAGE.is_file() else {}
    names = given.names or list(FIGURES)
    for folder in needed(names):
        ensure_trained(folder, given.runs, given.data, given.transformer)
    opened: dict[str, Run] = {}
    for name in names:
        place = place_of(name, given.runs)
        if place not in opened:
            opened[place] = open_run(place, data=given.data, beside=[given.runs])
        parts[name] = part_of(name, opened[place])
        print(name)
    PAGE.write_text(page(parts))


if __name__ == "__main__":
    main()
