"""Writes the page: its own files, and a file for each network, into a folder that any static host serves.

A network's file is 16 bytes (magic, length of the header, CRC-32 of all that follows), a header in JSON, and its
tensors in half precision, one after the other: offsets of the header count numbers.
"""

import base64
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..deploy.predict import unique
from ..models.shipped import shipped_files
from ..models.stored import find_weights
from ..routing import ROUTING
from ..training.checkpoint import load
from .facts import card_of, facts_of
from .network import Description

PAGE = Path(__file__).with_name("page")
SAMPLES = Path(__file__).with_name("samples.npz")
MAGIC = b"flashcap"
Json = dict[str, Any]
DEMO = (*(f"demo_{name}" for name in ROUTING), "demo_pairs")


def build(folder: Path, checkpoints: Iterable[str] = (), tell: Callable[[str], None] = lambda name: None) -> list[str]:
    """Writes the page with the given checkpoints, then the other small models of the package; their names.

    A folder that holds something other than an earlier page is an error.
    """
    models = folder / "models"
    if folder.exists() and any(folder.iterdir()) and not (models / "index.json").is_file():
        raise FileExistsError(f"--build: expected an empty folder or an earlier page; {folder} holds other files")
    given = list(dict.fromkeys(str(c) for c in checkpoints))
    there = [name for name in DEMO if name in shipped_files() and name not in given]
    if not given and not there:
        raise FileNotFoundError("checkpoint: no models come with this copy of flashcaps; give a run folder, as in "
                                "flashcaps demo runs/tiny-0")  # fmt: skip
    (digits, labels), files = read_samples(), dict[str, tuple[Json, bytes]]()
    for checkpoint in [*given, *there]:
        tell(checkpoint)
        path, model = find_weights(checkpoint), cast(Any, load(checkpoint))
        shipped = checkpoint in shipped_files()
        name = unique(checkpoint if shipped else Path(checkpoint).name, files)
        beside = path.with_name("result.json")
        model.config.setdefault("result", json.loads(beside.read_text()) if beside.is_file() else None)
        files[name] = network_file(name, model, digits, card=card_of(name, model, path.parent), own=not shipped)
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir(parents=True)
    for name, (_, content) in files.items():
        (models / f"{name}.caps").write_bytes(content)
    samples = [{"id": k, "label": label, "image": base64.b64encode(image.numpy().tobytes()).decode("ascii")}
               for k, (image, label) in enumerate(zip(digits, labels.tolist(), strict=True))]  # grey bytes row by row
    index = {"models": [info for info, _ in files.values()], "samples": samples}
    (models / "index.json").write_text(to_json(index), encoding="utf-8")
    shutil.copytree(PAGE, folder / "page", dirs_exist_ok=True, ignore=shutil.ignore_patterns("index.html"))
    shutil.copyfile(PAGE / "index.html", folder / "index.html")
    return list(files)


def read_samples() -> tuple[Tensor, Tensor]:
    """Thirty digits to try, three of each, from MNIST's test set, which tools/demo_samples.py chose: images uint8
    (30, 28, 28), labels (30,)."""
    with np.load(SAMPLES, allow_pickle=False) as stored:
        return torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()


def network_file(name: str, model: Any, digits: Tensor, card: str = "", own: bool = False) -> tuple[Json, bytes]:
    """The entry of a model in the list, and its file. own: its title has its name. digits: see `facts_of`."""
    described = Description(name, model)
    facts = facts_of(name, model, digits, card=card, own=own)
    return facts["info"], pack(facts | described.layers, described.tensors)


def pack(header: Json, tensors: dict[str, Tensor]) -> bytes:
    """A network's file."""
    offset, places, numbers = 0, dict[str, Any](), list[bytes]()
    for name, x in tensors.items():
        half = x.to(torch.float16).contiguous()
        if not torch.isfinite(half).all():
            raise ValueError(f"{name}: expected finite numbers within half precision, got up to {float(x.abs().max())}")
        places[name] = {"shape": list(x.shape), "offset": offset}
        offset += x.numel()
        numbers.append(half.numpy().tobytes())
    text = to_json({"format": 1, **header, "tensors": places}).encode()
    rest = b"".join([text + b" " * (len(text) % 2), *numbers])
    return MAGIC + struct.pack("<II", len(text) + len(text) % 2, zlib.crc32(rest)) + rest


def to_json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)
