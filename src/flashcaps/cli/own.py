"""flashcaps train --images, --table, --dataset, --text: makes a recipe for your own data and prints what it chose."""

from collections.abc import Sequence

from ..training.autosize import own_recipe, own_text_recipe
from ..training.distributed import find_device
from ..training.memory import memory_warning
from ..training.recipe import Recipe
from .console import say

KINDS = {"--images": "images", "--table": "table", "--dataset": "hub", "--text": "text"}


def own_fields(
    given: dict[str, str | None],
    words: Sequence[str],
    *,
    routing: str | None,
    size: Sequence[int],
    device: str,
    transformer: str | None = None,
    backbone: str | None = None,
    start: str | None = None,
) -> Recipe | None:
    """The recipe for the one of --images, --table, --dataset and --text that was given; None for none of them.

    words: the positional ones, all overrides. routing None: dynamic for pictures, heinsen for texts. start: --from.
    """
    named = [(flag, path) for flag, path in given.items() if path is not None]
    if not named:
        return None
    if len(named) > 1:
        raise ValueError(f"{' and '.join(flag for flag, _ in named)}: expected one of them")
    wrong = next((word for word in words if "=" not in word), None)
    flag, path = named[0]
    if not path:
        raise ValueError(f"{flag}: expected the path of your data, got an empty one")
    if wrong is not None:
        raise ValueError(f"{wrong}: {flag} makes the recipe itself; expected key=value after it, as epochs=3")
    if transformer is not None and flag != "--text":
        raise ValueError(f"--transformer: expected with --text, got {flag}; pictures take none")
    if start is not None and (flag == "--text" or routing or size or backbone):
        raise ValueError("--from: expected with pictures, and without --routing, --size and --backbone, which are "
                         "those of the network it names")  # fmt: skip
    if flag == "--text":
        recipe, why = own_text_recipe(path, transformer or "", words, routing=routing or "heinsen")
    else:
        algorithm, network = routing or "dynamic", backbone or ""
        recipe, why = own_recipe(KINDS[flag], path, words, routing=algorithm, size=size, backbone=network,
                                 start=start or "")  # fmt: skip
    for line in why:
        say(line)
    warning = memory_warning(recipe, find_device(device))
    if warning is not None:
        say(f"warning: {warning}")
    return recipe
