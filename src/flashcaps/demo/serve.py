"""Starts the page: loads models, binds a port, serves until stopped."""

from __future__ import annotations

import json
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..models.shipped import shipped_files
from ..routing import ROUTING
from ..training.checkpoint import find_weights, load
from .explainer import Explainer, card_of, check_model
from .samples import read_samples
from .wording import title_of

DEMO = (*(f"demo_{name}" for name in ROUTING), "demo_pairs")
LOCAL = ("127.0.0.1", "localhost", "::1")


def open_models(
    checkpoints: Iterable[str] = (), tell: Callable[[str], None] = lambda name: None
) -> list[Explainer]:
    """The given checkpoints, then the other small models of the package."""
    given = list(dict.fromkeys(str(c) for c in checkpoints))
    there = [name for name in DEMO if name in shipped_files() and name not in given]
    if not given and not there:
        raise FileNotFoundError("checkpoint: no models come with this copy of flashcaps; give a run folder, as in "
                                "flashcaps demo runs/tiny-0")  # fmt: skip
    samples, found, taken = read_samples()[0], [], set[str]()
    for checkpoint in [*given, *there]:
        tell(checkpoint)
        path = find_weights(checkpoint)
        model: Any = load(checkpoint)
        name = unique(Path(checkpoint).name if checkpoint not in shipped_files() else checkpoint, taken)
        taken.add(name)
        check_model(name, model)
        model.config.setdefault("result", result_beside(path))
        own = "" if checkpoint in shipped_files() else f"{title_of(model.capsules.layers[-1].name)}: {name}"
        found.append(Explainer(name, model, samples, card=card_of(name, model, path.parent), title=own))
    return found


def unique(name: str, taken: set[str]) -> str:
    """Makes the names of two runs in different folders distinct."""
    k, wanted = 2, name
    while name in taken:
        name, k = f"{wanted}-{k}", k + 1
    return name


def result_beside(weights: Path) -> dict[str, Any] | None:
    """The result in a run folder, if there is one."""
    path = weights.with_name("result.json")
    return json.loads(path.read_text()) if path.is_file() else None


def take_port(host: str, port: int) -> socket.socket:
    """A listening socket; OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves 40 ms of Nagle on
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
        place.listen(256)  # now, so that a second server fails at once
    except OSError as error:
        place.close()
        raise OSError(f"--port: cannot listen on {host}, port {port} ({error.strerror}); is the page open already? "
                      f"Another port: --port {port + 1 if port else 8001}") from None  # fmt: skip
    return place


def address(host: str, port: int) -> str:
    name = "127.0.0.1" if host in ("", "0.0.0.0") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/"


def serve(explainers: list[Explainer], place: socket.socket, host: str, *, browser: bool = True) -> None:
    """Serves until interrupted. browser: open the page once the server listens."""
    import uvicorn

    from .app import create_app

    hosts = () if host in LOCAL else ("*",)
    config = uvicorn.Config(create_app(explainers, hosts=hosts), log_level="warning", access_log=False,
                            timeout_keep_alive=30, timeout_graceful_shutdown=5, backlog=256)  # fmt: skip
    server = uvicorn.Server(config)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address(host, place.getsockname()[1])]).start()
    server.run(sockets=[place])
