"""A recipe for somebody's own texts: heinsen's head over the frozen hidden states of a transformer.

    recipe, why = own_text_recipe("reviews.csv", "path/to/transformer")

Hidden states are computed batch by batch, when they are asked for, and never stored: a sentence of 64 tokens in a
transformer of 13 layers of 768 takes 2.5 MB, so ten thousand of them would take 25 GB.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..data.listing import Listing, assign, list_text
from ..data.user_images import count_classes
from ..routing.checks import check_choice
from .recipe import Recipe, make_recipe

# What each algorithm's class scores are trained with: one class a text, several at once. discriminative keeps a number
# per child, and texts have any number of tokens.
LOSSES = {"heinsen": ("cross_entropy", "bce"), "attention": ("cross_entropy", "bce"), "dynamic": ("margin", "margin"),
          "em": ("spread", "margin")}  # fmt: skip
STEPS, EPOCHS, BATCHES = 800, (3, 40), (32, 16, 8, 4, 2)
TOKENS = 64  # of a text, at most
WORD_PIECES = 1.5  # tokens a word, roughly, in the vocabularies of published transformers


def own_text_recipe(
    path: str, transformer: str, overrides: Iterable[str] = (), *, routing: str = "heinsen"
) -> tuple[Recipe, tuple[str, ...]]:
    """(recipe, a line on every choice) for a table of texts. transformer: a folder, or a name found on this machine."""
    check_choice("routing", routing, LOSSES)
    if not transformer:
        raise ValueError("--transformer: expected a folder or name of a transformer, got none; --text needs one, whose "
                         "hidden states are routed")  # fmt: skip
    listing = list_text(path)
    classes, several = len(listing.class_names), listing.multilabel
    folder = Path(transformer).expanduser()
    parts = assign(listing, 0)
    train = parts.count("train")
    batch = next((b for b in BATCHES if train >= 8 * b), max(1, min(2, train)))
    epochs = min(max(STEPS * batch // max(train, 1), EPOCHS[0]), EPOCHS[1])
    model: dict[str, Any] = {"classes": classes} | ({} if routing == "heinsen" else {"routing": routing})
    options = {"path": str(Path(path).expanduser().resolve()), "class_names": list(listing.class_names),
               "examples": len(listing.files)}  # fmt: skip
    content = {
        "name": "".join(c if c.isalnum() else "_" for c in Path(path).stem) or "text",
        "about": f"{len(listing.files):,} texts of {classes} classes",
        "model": {"name": "heinsen_sst2", "overrides": model},
        "data": {"name": "text", "transformer": str(folder.resolve()) if folder.is_dir() else transformer,
                 "tokens": TOKENS, "options": options | ({"multilabel": True} if several else {})},
        "loss": {"kind": LOSSES[routing][several]},
        "optimiser": {"kind": "adamw", "lr": 0.002, "weight_decay": 0.01},
        "schedule": {"kind": "cosine", "warmup": 0.1},
        "train": {"epochs": epochs, "batch": batch, "precision": "fp32", "capture": False, "log_every": 10,
                  "clip": 1.0, "select": "validation" if "validation" in parts else "last"},
    }  # fmt: skip
    recipe = make_recipe(content, overrides)
    return recipe, _why(listing, train, recipe, routing)


def _why(listing: Listing, train: int, recipe: Recipe, routing: str) -> tuple[str, ...]:
    counts = count_classes(listing).values()
    several = ", several at once" if listing.multilabel else ""
    cut = sum(len(text.split()) * WORD_PIECES > recipe.data.tokens for text in listing.files)
    tokens = f"tokens: the first {recipe.data.tokens} of each text"
    tokens += f"; about {cut:,} texts are longer, data.tokens={2 * recipe.data.tokens} reads on" if cut else ""
    return (
        f"data: {train:,} texts to train on; {len(counts)} classes{several} of {min(counts):,} to {max(counts):,}",
        f"transformer: {recipe.data.transformer}, its weights as they are; every layer's hidden state of every token "
        "becomes a capsule, computed batch by batch",
        tokens,
        f"capsules: 64 of 2, then {len(counts)} classes, routed by {routing}",
        f"training: {recipe.train.epochs} epochs, batch {recipe.train.batch}, {recipe.loss.kind} loss; key=value "
        "changes any of it",
    )
