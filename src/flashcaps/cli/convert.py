from pathlib import Path
from typing import Annotated, Any

import typer

from ..deploy.convert import LAYOUTS
from ..deploy.convert import convert as convert_checkpoint
from ..training.checkpoint import save_weights
from ..training.recipe import read_override
from .common import say


def convert(
    file: Annotated[Path, typer.Argument(help="a checkpoint written by torch.save")],
    source: Annotated[str, typer.Option("--from", help=f"{', '.join(LAYOUTS)}, or one's owner",
                                        autocompletion=lambda: list(LAYOUTS))],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value that the file lacks: iterations=2")] = None,
    out: Annotated[Path | None, typer.Option(help="the file to write (default: FILE with .safetensors)")] = None,
) -> None:
    """Convert a checkpoint of another repository to weights that evaluate, predict and load take.

    \b
    flashcaps convert trained_model.pkl --from XifengGuo/CapsNet-Pytorch
    flashcaps convert ckpt.pth iterations=2 --from apple --out cifar10.safetensors
    """
    model: Any = convert_checkpoint(file, source, **dict(map(read_override, overrides or [])))
    path = out or file.with_suffix(".safetensors")
    save_weights(path, model, model.config)
    weights = sum(p.numel() for p in model.parameters())
    say(f"{path}: {model.name}, {weights:,} weights; next: flashcaps evaluate {path}")
