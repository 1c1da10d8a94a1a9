"""Stanford Sentiment Treebank (Socher et al. 2013): 8,544 / 1,101 / 2,210 sentences as PTB trees.

Training uses every unique phrase of the training trees, evaluation the root sentences only. Labels run from
very negative (0) to very positive (4); the binary task drops the neutral 2 and leaves 6,920 / 872 / 1,821 roots.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from .files import Member, Published, Remote, Root, locate, published, read_bytes, wrong
from .split import Dataset, Split

# checksums computed from a copy
_FILES = Published("sst", (Remote(
    "trainDevTestTrees_PTB.zip", ("https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",), 789_539,
    "sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
    members=tuple(
        Member(f"trees/{part}.txt", f"trees/{part}.txt", size, f"sha256:{sha}")
        for part, size, sha in (
            ("train", 2_160_058, "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7"),
            ("dev", 280_825, "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40"),
            ("test", 559_614, "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761"),
        )
    ),
),))  # fmt: skip

FINE = ("very negative", "negative", "neutral", "positive", "very positive")
BINARY = ("negative", "positive")
_TOKEN = re.compile(r"\(\d+|\)|[^\s()]+")
_ESCAPED = {"-LRB-": "(", "-RRB-": ")"}


class Phrase(NamedTuple):
    text: str
    label: int
    root: bool


def parse_tree(line: str) -> list[Phrase]:
    """Every phrase of one tree, `(3 (2 It) (4 (2 's) (4 good)))`, the root last."""
    words: list[str] = []
    open_nodes: list[tuple[int, int]] = []  # (label, first word)
    phrases: list[Phrase] = []
    at = 0
    for token in _TOKEN.finditer(line):
        if line[at : token.start()].strip() or (phrases and phrases[-1].root):
            raise ValueError(f"one tree of '(LABEL ...)' nodes, got {line[at:][:40]!r} after column {at}")
        at = token.end()
        piece = token.group()
        if piece[0] == "(":
            open_nodes.append((int(piece[1:]), len(words)))
        elif not open_nodes:
            raise ValueError(f"'(LABEL', got {piece!r} at column {token.start()}")
        elif piece == ")":
            label, first = open_nodes.pop()
            if not 0 <= label <= 4 or first == len(words):
                raise ValueError(f"labels 0 to 4 over words, got {label} over {words[first:]}")
            phrases.append(Phrase(" ".join(words[first:]), label, root=not open_nodes))
        else:
            words.append(_ESCAPED.get(piece) or piece.replace("\\/", "/").replace("\\*", "*"))
    if open_nodes or not phrases or line[at:].strip():
        raise ValueError(f"a closed tree, got {len(open_nodes)} open nodes at the end")
    return phrases


def read_trees(path: Path) -> Iterator[list[Phrase]]:
    """The phrases of each tree, one tree a line."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise wrong(path, "UTF-8 text", error) from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield parse_tree(line)
            except ValueError as error:
                expected, _, found = str(error).partition(", got ")
                raise wrong(path, f"{expected} in line {number}", found) from None


def _sst(name: str, root: Root, binary: bool, phrases: bool, counts: tuple[int, ...] | None) -> Dataset:
    splits = []
    for number, part in enumerate(("train", "dev", "test")):
        path = locate(name, root, ("sst/trees", "sst", "trees"), (f"{part}.txt",))
        trees = list(read_trees(path))
        if counts is not None and len(trees) != counts[number]:
            raise wrong(path, f"{counts[number]:,} trees", f"{len(trees):,}")
        wanted = [tree[-1] for tree in trees]
        if part == "train" and phrases:  # each (text, label) once, in order, as a root if it is one anywhere
            seen = dict.fromkeys(((p.text, p.label) for p in chain.from_iterable(trees)), False)
            seen |= {(p.text, p.label): True for p in wanted}
            wanted = [Phrase(text, label, root) for (text, label), root in seen.items()]
        if binary:
            wanted = [phrase._replace(label=int(phrase.label > 2)) for phrase in wanted if phrase.label != 2]
        labels = torch.tensor([phrase.label for phrase in wanted], dtype=torch.int64)
        is_root = torch.tensor([phrase.root for phrase in wanted], dtype=torch.bool)
        images = torch.empty(len(wanted), 0, 0, 0, dtype=torch.uint8)
        splits.append(Split(images, labels, {"root": is_root}, tuple(phrase.text for phrase in wanted)))
    names = BINARY if binary else FINE
    train, dev, test = splits
    return Dataset(name, train, test, classes=len(names), shape=(0, 0, 0), class_names=names, validation=dev)


_PUBLISHED = (8_544, 1_101, 2_210)


@published(_FILES)
def sst5(root: Root = None, *, phrases: bool = True, counts: tuple[int, ...] | None = _PUBLISHED) -> Dataset:
    """root/sst/trees/{train,dev,test}.txt, five classes. phrases=False trains on root sentences alone.

    Nothing in a tree file says how many there should be: `counts` does (None: any number).
    """
    return _sst("sst5", root, False, phrases, counts)


@published(_FILES)
def sst2(root: Root = None, *, phrases: bool = True, counts: tuple[int, ...] | None = _PUBLISHED) -> Dataset:
    """As sst5, without the neutral phrases: negative (0, 1) and positive (3, 4)."""
    return _sst("sst2", root, True, phrases, counts)
