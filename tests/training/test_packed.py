"""Hidden states that are kept: the batches of states computed anew, in memory that is counted before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flashcaps.data import Split
from flashcaps.training import packed
from flashcaps.training.batches import Share
from flashcaps.training.recipe import Augment
from flashcaps.training.text import (
    HeldText,
    KeptPhrases,
    PackedStates,
    Phrases,
    TextStream,
    open_phrases,
    pack,
    parts_of_like_length,
)

from ..small_transformer import Letters, write_transformer

TEXTS = ("a film", "of two", "friends", "a", "the city is a story of friends", "", "one", "a film")


def split(texts: tuple[str, ...] = TEXTS) -> Split:
    images = torch.zeros(len(texts), 0, 0, 0, dtype=torch.uint8)
    return Split(images, torch.arange(len(texts)) % 2, {}, texts)


@pytest.fixture(autouse=True)
def _none_alive() -> Iterator[None]:
    yield
    gc.collect()


def packed_of(*texts: str, keep: str = "fp32", tokens: int = 8) -> PackedStates:
    return PackedStates(texts, Letters(), tokens, keep)  # type: ignore[arg-type]


def test_rows_lie_one_after_the_other_without_padding() -> None:
    states = packed_of("abc", "z", "abc", "de")
    assert states.number == {"abc": 0, "z": 1, "de": 2}
    assert states.length.tolist() == [3, 1, 2]
    assert states.first.tolist() == [1, 4, 5]
    assert states.rows.shape == (7, 3, 6)
    letters: Any = Letters()
    expected = torch.cat([letters.states(*letters.encode([text], 8))[0] for text in ("abc", "z", "de")])
    torch.testing.assert_close(states.rows[1:], expected)
    assert not states.rows[0].any()


@pytest.mark.parametrize("tokens", [1, 4, 64])
@pytest.mark.parametrize("at_a_time", [1, 16, 1 << 14])
def test_batches_are_those_of_states_computed_anew(tokens: int, at_a_time: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(packed, "TOKENS", at_a_time)
    anew, kept = (open_phrases(split(), Letters(), tokens, keep) for keep in ("no", "fp32"))  # type: ignore[arg-type]
    assert isinstance(kept, KeptPhrases)
    assert len(kept) == len(anew) == 8
    for index in (torch.tensor([4, 0, 5]), torch.tensor([5]), torch.arange(8)):
        for a, b in zip(anew.batch(index), kept.batch(index), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    torch.testing.assert_close(anew.ids, kept.ids)


@pytest.mark.parametrize(("keep", "near"), [("fp16", 2e-3), ("bf16", 1e-2)])
def test_half_of_the_memory_is_nearly_as_good(keep: str, near: float) -> None:
    anew, kept = (open_phrases(split(), Letters(), 64, k) for k in ("no", keep))  # type: ignore[arg-type]
    assert isinstance(kept, KeptPhrases)
    assert kept.packed.rows.element_size() == 2
    a, b = anew.batch(torch.arange(8)), kept.batch(torch.arange(8))
    assert b.inputs.dtype == torch.float32
    torch.testing.assert_close(a.inputs, b.inputs, rtol=0, atol=near)
    torch.testing.assert_close(a.mask, b.mask)


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


def test_a_real_transformer_gives_the_same_batches_both_ways(tmp_path: Any) -> None:
    from flashcaps.training.text import load_transformer

    transformer = load_transformer(str(write_transformer(tmp_path / "bert")), "cpu")
    anew, kept = (open_phrases(split(TEXTS[:5]), transformer, 16, keep) for keep in ("no", "fp32"))
    a, b = anew.batch(torch.arange(5)), kept.batch(torch.arange(5))
    torch.testing.assert_close(a.inputs, b.inputs, rtol=0, atol=1e-6)
    torch.testing.assert_close(a.mask, b.mask)
    half = open_phrases(split(TEXTS[:5]), transformer, 16, "fp16").batch(torch.arange(5))
    torch.testing.assert_close(a.inputs, half.inputs, rtol=2e-3, atol=2e-3)


def test_held_text_is_the_same_both_ways() -> None:
    anew, kept = (HeldText(open_phrases(split(), Letters(), 8, k), 2) for k in ("no", "fp32"))  # type: ignore[arg-type]
    for a, b in zip(anew.batches(3), kept.batches(3), strict=True):
        torch.testing.assert_close(a.inputs, b.inputs)
        assert a.targets.tolist() == b.targets.tolist()


def test_texts_that_another_run_holds_are_not_computed_again() -> None:
    letters: Any = Letters()
    first = pack(TEXTS, letters, 8, "fp32")
    read = letters.read
    assert pack(TEXTS[2:4], letters, 8, "fp32") is first
    assert pack(TEXTS, Letters(device="cpu:0"), 8, "fp32") is first  # type: ignore[arg-type]
    assert letters.read == read
    assert pack((*TEXTS, "new"), letters, 8, "fp32") is not first
    for other in (pack(TEXTS, letters, 7, "fp32"), pack(TEXTS, letters, 8, "bf16"),
                  pack(TEXTS, Letters("others"), 8, "fp32")):  # type: ignore[arg-type]  # fmt: skip
        assert other is not first


def test_states_go_with_the_last_that_holds_them() -> None:
    letters: Any = Letters("gone")
    phrases = open_phrases(split(), letters, 8, "fp32")
    read = letters.read
    del phrases
    gc.collect()
    open_phrases(split(), letters, 8, "fp32")
    assert letters.read == 2 * read


def test_the_longest_are_read_first_and_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "TOKENS", 12)
    length = torch.tensor([3, 20, 0, 5, 4, 3, 1])
    parts = [(part.tolist(), n) for part, n in parts_of_like_length(length)]
    assert parts == [([1], 20), ([3, 4], 5), ([0, 5, 6], 3)]  # the empty one has nothing to read


def test_what_does_not_fit_is_told_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "memory_free", lambda device: 3 << 20)
    monkeypatch.setattr(Letters, "states", None)
    texts = tuple("x" * 60 + str(k) for k in range(1000))
    with pytest.raises(ValueError, match=r"data\.keep: 62,891 tokens x 3 layers x 6 in fp32 need 4 MiB, 3 MiB are free "
                                         r"on cpu; data\.keep=no .*data\.phrases=false"):  # fmt: skip
        pack(texts, Letters(), 64, "fp32")  # type: ignore[arg-type]


@pytest.mark.parametrize(("keep", "scale", "remedy"), [("fp16", 1e5, "bf16"), ("bf16", float("inf"), "no")])
def test_numbers_past_the_end_of_a_precision_are_told(keep: str, scale: float, remedy: str, monkeypatch: Any) -> None:
    plain = Letters.states
    monkeypatch.setattr(Letters, "states", lambda self, ids, mask: plain(self, ids, mask) * scale)
    with pytest.raises(ValueError, match=rf"hold numbers that {keep} does not; data\.keep={remedy}"):
        pack(TEXTS, Letters("large"), 8, keep)  # type: ignore[arg-type]


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
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = stream.batch(index, noise)
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
