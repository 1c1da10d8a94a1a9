"""flashcaps demo."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import torch
import typer

from .console import console, say


def demo(
    checkpoints: Annotated[list[str] | None, typer.Argument(help="run folders or weights files of your own")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; the default is this machine alone")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one")] = 8000,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
) -> None:
    """The Capsule Explainer: draw a digit and watch its routing, on a local page that needs no network.

    \b
    flashcaps demo
    flashcaps demo runs/tiny-0 runs/tiny-1
    flashcaps demo --port 8080 --no-browser
    """
    for module in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"the page is served by {module}: pip install 'flashcaps[demo]'")
    from ..demo.serve import LOCAL, address, open_models, serve, take_port

    torch.set_num_threads(1)  # the models are too small to gain from a second thread
    place = take_port(host, port)
    with console.status("opening") as status:
        models = open_models(checkpoints or [], lambda name: status.update(f"opening {name}"))
    say(f"{address(host, place.getsockname()[1])}   {len(models)} models; stop with Ctrl+C")
    if host not in LOCAL:
        say("reachable from other machines, without a password")
    serve(models, place, host, browser=browser)
