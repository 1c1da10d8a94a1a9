"""Files of weights: safetensors with their config inside and a checksum over both; a damaged one is never loaded.

Weights may be compressed with xz, without loss: a third smaller in bfloat16, an eighth in float16. Their unpacked size
is bounded. One of a number's two bytes holds sign and exponent, which repeat, and the other is noise: lp = pb = 1 keeps
the statistics of the two apart.
"""

import hashlib
import json
import lzma
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from ..routing.checks import nearest
from .shipped import shipped_files

PREFERRED = ("ema", "last", "best")  # which weights of an unfinished run are loaded by default
SUFFIX = ".xz"
MAGIC = b"\xfd7zXZ\0"
LIMIT = 1 << 30  # bytes of weights a file may unpack to
MEMORY = 128 << 20  # bytes of working memory a file may ask for; preset 9 asks for 65 MiB


def weights_bytes(model: nn.Module, config: dict[str, Any]) -> bytes:
    """A safetensors file: the state of the model, the config and the digest of both."""
    plain = {name: x.detach().cpu().contiguous().clone() for name, x in model.state_dict().items()}
    whole = {"model": {"name": model.name, "overrides": model.overrides}} | config
    whole |= {"sha256": weights_digest(plain, whole)}  # in the config: the order of two keys of metadata may change
    return save_bytes(plain, metadata={"flashcaps": json.dumps(whole)})


def weights_digest(weights: dict[str, Tensor], config: dict[str, Any]) -> str:
    """SHA-256 of the config and of every tensor with its name, type and shape."""
    h = hashlib.sha256(json.dumps(config).encode())
    for name in sorted(weights):
        x = weights[name].contiguous()
        h.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        h.update(x.flatten().view(torch.uint8).numpy().data)
    return h.hexdigest()


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(weights, config) of a file, compressed or not; an error names what is wrong with it."""
    try:
        with path.open("rb") as stream:
            compressed = stream.read(len(MAGIC)) == MAGIC  # whatever the name; no safetensors file begins so
        raw = decompress(path) if compressed else path.read_bytes()
        weights = load_bytes(raw)  # checks the header, too, but returns no metadata
        metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, OSError, KeyError, TypeError) as error:  # the last two: a dtype, a size torch lacks
        why = str(error).partition("\n")[0]  # torch adds where in C++ it was
        raise ValueError(f"{path}: not a whole safetensors file ({why}); get or train it again") from None
    if "flashcaps" not in metadata:
        raise ValueError(f"{path}: expected weights that flashcaps saved, got safetensors without its config")
    try:
        config = json.loads(metadata["flashcaps"])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the config in it is damaged ({error}); get or train it again") from None
    if not isinstance(config, dict) or "model" not in config:
        raise ValueError(f"{path}: the config in it names no model; get or train it again")
    digest = config.pop("sha256", None)
    if digest is not None and (found := weights_digest(weights, config)) != digest:
        raise ValueError(f"{path}: expected sha256 {digest}, found {found}; the file is damaged, get or train it again")
    for name, x in weights.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{path}: {name}: expected finite weights, got {int((~x.isfinite()).sum())} NaN or Inf")
    return weights, config


def compress(raw: bytes) -> bytes:
    """xz of the bytes, deterministic, with a checksum."""
    if len(raw) > LIMIT:
        raise ValueError(f"weights: expected at most {LIMIT:,} bytes to compress, got {len(raw):,}; leave out {SUFFIX}")
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]
    return lzma.compress(raw, format=lzma.FORMAT_XZ, filters=filters)


def decompress(path: Path) -> bytes:
    """The content of a compressed file, whole and at most LIMIT bytes, or an error that names the file."""
    with path.open("rb") as stream:
        packed = stream.read(LIMIT + 1)
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        raw = decoder.decompress(packed, max_length=LIMIT + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"{path}: does not unpack ({error}); the file is damaged, get it again") from None
    if max(len(packed), len(raw)) > LIMIT:
        raise ValueError(f"{path}: expected at most {LIMIT:,} bytes of weights, found more; refused")
    if not decoder.eof:
        raise ValueError(f"{path}: ends after {len(packed):,} bytes, too early; the file is damaged, get it again")
    if decoder.unused_data:
        raise ValueError(f"{path}: expected nothing after the weights, found {len(decoder.unused_data):,} bytes; "
                         "the file is damaged, get it again")  # fmt: skip
    return raw


def find_weights(name: str | os.PathLike[str], weights: str | None = None) -> Path:
    """The file that `load` reads. A folder without weights, such as one of figures, does not hide a shipped name."""
    path, shipped = Path(name), shipped_files()
    if path.is_file():
        return path
    if path.is_dir():
        result = path / "result.json"
        tested = (json.loads(result.read_text()).get("weights"),) if result.is_file() else ()
        for which in (weights,) if weights else (*tested, *PREFERRED):
            if (found := path / f"{which}.safetensors").is_file():
                return found
        if str(name) not in shipped:
            raise FileNotFoundError(f"{path}: no {weights or 'ema, last or best'}.safetensors; is the run finished?")
    if str(name) in shipped:
        return shipped[str(name)]
    hint = nearest(str(name), shipped) or f"; by name there are {', '.join(sorted(shipped)) or 'none'}"
    raise FileNotFoundError(f"name: {name} is neither a run folder, a weights file nor a shipped name{hint}")
