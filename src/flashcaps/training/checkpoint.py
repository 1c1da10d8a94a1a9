"""Files of a run: weights (safetensors with their config inside) and the last two states to resume from.

Every file is written under another name, synced and renamed: whatever stops the process, either the old file or the new
one is there, and it is whole. Every file has a checksum: a damaged one is named and never loaded.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..models.base import Model
from ..models.registry import create_model, fill
from ..models.stored import SUFFIX, compress, find_weights, read_weights, weights_bytes
from ..models.timm import for_loading

KEPT = 2  # states to resume from
CHECK = 16  # hex digits of the checksum in the name of a state


def write_atomic(path: Path, content: bytes | str) -> None:
    """Writes all of the content or, if anything fails, leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    raw = content.encode() if isinstance(content, str) else content
    try:
        with room_for(path, len(raw)), part.open("wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the rename, too, survives a power cut
    finally:
        os.close(folder)


@contextmanager
def room_for(path: Path, size: int) -> Iterator[None]:
    """Errors for a full disk, a quota or a limit on file sizes name the path and the bytes to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(path.parent).free
        raise OSError(error.errno, f"{path}: no room for {size:,} bytes ({os.strerror(error.errno)}, {free:,} bytes "
                                   "free there); what was saved before is whole, make room and resume") from None


def save_weights(path: Path, model: nn.Module, config: dict[str, Any]) -> None:
    """Writes the model's weights and the config that builds it again to one file, compressed if it ends in .xz."""
    raw = weights_bytes(model, config)
    write_atomic(path, compress(raw) if path.suffix == SUFFIX else raw)


def load(
    name: str | os.PathLike[str],
    *,
    weights: str | None = None,
    device: torch.device | str = "cpu",
    backbone: nn.Module | None = None,
    classes: int | None = None,
) -> Model:
    """The model of a run folder, a weights file, or a name that ships with flashcaps, ready to use (eval mode).

    weights: "ema", "last" or "best" of a run folder; by default those the run was tested with. backbone: the module
    that the model was built on, if it was your own; a network of timm is built again by its name. classes: the number
    of classes of your own data; the class layer is then new, and must be trained.
    """
    path = find_weights(name, weights)
    stored, config = read_weights(path)
    overrides = for_loading(config["model"]["overrides"], backbone)
    if classes is None:
        model: Any = create_model(config["model"]["name"], **overrides)
        model.load_state_dict(stored)
        model.config = config
    else:
        model = fill(config["model"]["name"], overrides | {"classes": classes}, stored, path, new_classes=True)
    return model.to(device).eval()


def list_states(folder: Path) -> list[Path]:
    """state-STEP-CHECK.pt, the newest first; CHECK begins the checksum of the file."""
    return sorted(folder.glob("state-*.pt"), key=lambda p: (len(p.name), p.name), reverse=True)


def save_state(folder: Path, state: dict[str, Any], step: int) -> None:
    """Writes a state with its checksum in its name, and deletes all but the one before it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content, stem = buffer.getvalue(), f"state-{step:08d}-"
    path = folder / f"{stem}{hashlib.sha256(content).hexdigest()[:CHECK]}.pt"
    write_atomic(path, content)
    others = [p for p in list_states(folder) if p != path]
    kept = [p for p in others if not p.name.startswith(stem)][: KEPT - 1]
    for old in others:
        if old not in kept:
            old.unlink()


def load_state(folder: Path) -> dict[str, Any]:
    """The newest whole state of a run, on the CPU. A damaged one is deleted with a warning."""
    for path in list_states(folder):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:CHECK] == path.stem[-CHECK:]:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        warnings.warn(f"{path} is damaged; going back to the state before it", stacklevel=2)
        path.unlink()  # otherwise the next save would keep it and delete a good one
    raise FileNotFoundError(f"--resume: no whole state in {folder}; leave --resume out to start over")
