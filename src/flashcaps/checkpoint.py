"""Files of a run: weights (safetensors with their config inside) and states to resume from (checked, two kept).

Every file is written beside its place, synced and renamed: whatever stops the process, the old file or the new one is
there, whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

KEPT = 2  # states to resume from
PREFERRED = ("ema", "last", "best")  # which weights of a run stand for it where nothing else is said


def write_atomic(path: Path, content: bytes | str) -> None:
    """The whole content or, if anything goes wrong, what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as out:
        out.write(content.encode() if isinstance(content, str) else content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename, too, must survive a power cut
    finally:
        os.close(folder)


def save_weights(path: Path, model: nn.Module, config: dict[str, Any]) -> None:
    """The model's weights, and in the same file what it takes to build it again."""
    own = {"model": {"name": model.name, "overrides": model.overrides}}
    plain = {name: x.detach().cpu().contiguous().clone() for name, x in model.state_dict().items()}
    write_atomic(path, safetensors_bytes(plain, metadata={"flashcaps": json.dumps(own | config)}))


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(weights, config) of a file; an error names what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as stored:
            text = (stored.metadata() or {}).get("flashcaps")
            weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}); get or train it again") from None
    if text is None:
        raise ValueError(f"{path}: expected weights that flashcaps saved, got safetensors without its config")
    for name, x in weights.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{path}: {name}: expected finite weights, got {int((~x.isfinite()).sum())} NaN or Inf")
    return weights, json.loads(text)


def load(name: str | os.PathLike[str], *, weights: str | None = None, device: torch.device | str = "cpu") -> nn.Module:
    """The model of a run folder, a weights file, or a name that ships with flashcaps, ready to use (eval mode).

    weights: "ema", "last" or "best" of a run folder; by default those the run was tested with.
    """
    from .models import create_model

    stored, config = read_weights(find_weights(name, weights))
    model: Any = create_model(config["model"]["name"], **config["model"]["overrides"])
    model.load_state_dict(stored)
    model.config = config
    return model.to(device).eval()


def find_weights(name: str | os.PathLike[str], weights: str | None = None) -> Path:
    """The file that `load` reads."""
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return _in_folder(path, weights)
    shipped = {p.name.removesuffix(".safetensors"): p for p in _shipped()}
    if str(name) in shipped:
        return Path(str(shipped[str(name)]))
    close = get_close_matches(str(name), shipped, 1)
    hint = f"did you mean {close[0]}?" if close else f"by name there are {', '.join(sorted(shipped)) or 'none'}"
    raise FileNotFoundError(f"name: {name} is neither a run folder, a weights file nor a shipped name; {hint}")


def _shipped() -> list[Any]:
    folder = files("flashcaps").joinpath("weights")
    return [p for p in folder.iterdir() if p.name.endswith(".safetensors")] if folder.is_dir() else []


def _in_folder(folder: Path, weights: str | None) -> Path:
    result = folder / "result.json"
    tested = (json.loads(result.read_text()).get("weights"),) if result.is_file() else ()
    for which in (weights,) if weights else (*tested, *PREFERRED):
        path = folder / f"{which}.safetensors"
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder}: no {weights or 'ema, last or best'}.safetensors; is the run finished?")


def save_state(folder: Path, state: dict[str, Any], step: int) -> None:
    """One state to resume from: state-STEP.pt, its checksum in states.json, the one before it kept."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    name = f"state-{step:08d}.pt"
    write_atomic(folder / name, content)
    entry = {"file": name, "step": step, "sha256": hashlib.sha256(content).hexdigest()}
    known = [entry] + [e for e in _manifest(folder) if e["file"] != name]
    write_atomic(folder / "states.json", json.dumps(known[:KEPT], indent=2) + "\n")
    kept = {e["file"] for e in known[:KEPT]}
    for old in folder.glob("state-*.pt"):
        if old.name not in kept:
            old.unlink()


def _manifest(folder: Path) -> list[dict[str, Any]]:
    path = folder / "states.json"
    return json.loads(path.read_text()) if path.is_file() else []


def load_state(folder: Path) -> dict[str, Any]:
    """The newest whole state of a run, on the CPU; a damaged one is named and the one before it taken."""
    for entry in _manifest(folder):
        path = folder / entry["file"]
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() == entry["sha256"]:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        warnings.warn(f"{path} is damaged or gone; going back to the state before it", stacklevel=2)
    raise FileNotFoundError(f"--resume: no whole state in {folder}; leave --resume out to start anew")


def forget_states(folder: Path) -> None:
    """A finished run needs none."""
    for path in [*folder.glob("state-*.pt"), folder / "states.json"]:
        path.unlink(missing_ok=True)
