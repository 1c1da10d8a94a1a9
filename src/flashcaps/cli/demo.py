import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer

from .common import console, say


def demo(
    checkpoints: Annotated[list[str] | None, typer.Argument(help="run folders or weights files of your own")] = None,
    folder: Annotated[Path | None, typer.Option("--build", help="write the page here, for any static host")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0 takes any free one")] = 8000,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
) -> None:
    """The Capsule Explainer: draw a digit and watch its routing, on a page that needs no network.

    \b
    flashcaps demo
    flashcaps demo runs/tiny-0 runs/tiny-1
    flashcaps demo --build site
    flashcaps demo --port 8080 --no-browser
    """
    from ..demo.build import build
    from ..demo.serve import address, make_server, serve

    torch.set_num_threads(1)  # the models are too small to gain from a second thread
    with tempfile.TemporaryDirectory() as temporary, console.status("building") as status:
        server = None if folder else make_server(Path(temporary), port)  # a port in use is told at once
        names = build(folder or Path(temporary), checkpoints or [], lambda name: status.update(f"building {name}"))
        status.stop()
        if server is None:
            say(f"{folder}   {len(names)} models; python3 -m http.server -d {shlex.quote(str(folder))} serves it")
            return
        say(f"{address(server)}   {len(names)} models; stop with Ctrl+C")
        serve(server, browser=browser)
