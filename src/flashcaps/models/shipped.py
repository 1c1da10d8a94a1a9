"""Trained weights that come with flashcaps: models/weights/NAME.safetensors, or .safetensors.xz, with a card NAME.md.

    model = flashcaps.load("demo_dynamic")
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "weights"
ENDINGS = (".safetensors", ".safetensors.xz")


def shipped_files() -> dict[str, Path]:
    """Name -> file, sorted by name. If a name has both forms, the file that needs no unpacking."""
    found: dict[str, Path] = {}
    for path in sorted(FOLDER.iterdir()) if FOLDER.is_dir() else []:
        if path.name.endswith(ENDINGS):
            found.setdefault(path.name.partition(".")[0], path)
    return found
