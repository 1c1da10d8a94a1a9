"""What the page says, against the numbers it says it of: every sample through every network, every iteration."""

import math
import re
from typing import Any

import pytest

from .page_server import OPENING, Asked

pytestmark = pytest.mark.browser
TELL = """async (name) => {
  const load = (file) => import(`./page/${file}`);
  const [{ api }, codec, captions, measures, { LESSONS }] =
    await Promise.all(['api.js', 'codec.js', 'captions.js', 'measures.js', 'lessons.js'].map(load));
  const { models, samples } = await api.models();
  const model = models.find((m) => m.name === name);
  const [, height, width] = model.image;
  const found = [];
  for (const { label, image } of samples) {
    const pixels = codec.place(codec.fromBase64(image), height, width);
    const route = await api.route(name, codec.asPicture(pixels, height, width));
    const answer = { route, model, pixels };
    const steps = route.routing.steps.map(({ activation, entropy, flow, agreement }) =>
      ({ activation, entropy, flow, agreement }));
    found.push({
      label, steps, predicted: route.predicted, signed: route.routing.signed,
      lead: captions.lead(answer), verdict: captions.verdict(answer), standing: measures.standing(answer),
      stories: steps.map((_, t) => captions.story(answer, t).join(' ')),
      blank: steps.map((_, t) => captions.blankPaper(answer, t)), chains: route.routing.plane.chains,
      field: route.routing.field.size,
      arrows: steps.map((_, t) => captions.agreementSays(answer, t)),
      lessons: LESSONS.filter((x) => x.own !== false).map((x) => x.words(answer).join(' ')),
      closest: steps.map((_, t) => captions.closest(answer, t)), decided: captions.decided(answer),
    });
  }
  return found;
}"""
CHANGE = re.compile(r"(rises|falls) from (-?\d+\.\d+)[\u202f%]* to (-?\d+\.\d+)|stays at (-?\d+\.\d+)")


@pytest.fixture(scope="module")
def told(ask: Asked) -> list[dict[str, Any]]:
    """What was measured and said of each sample by each network of single digits."""
    names = [m["name"] for m in ask("models")["models"] if not m["pairs"]]
    return [{"name": name, "n": n} | said for name in names for n, said in enumerate(ask.page.evaluate(TELL, name))]


def leader(step: dict[str, Any]) -> int:
    return max(range(len(step["activation"])), key=step["activation"].__getitem__)


def share(step: dict[str, Any], k: int) -> float:
    return 100 * sum(abs(row[k]) for row in step["flow"]) / sum(abs(v) for row in step["flow"] for v in row)


def as_printed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if float(f"{value:.{digits}f}") else f"{0:.{digits}f}"


def changes(text: str) -> list[tuple[str, str]]:
    """Before and after of each change in a text, each in the direction that its verb says."""
    found = []
    for way, before, now, same in CHANGE.findall(text.replace("−", "-")):
        if way:
            assert float(before) < float(now) if way == "rises" else float(before) > float(now), text
        found.append((before or same, now or same))
    return found


def test_no_caption_claims_what_the_numbers_do_not_have(told: Any) -> None:
    count = 0
    for sample in told:
        steps, k = sample["steps"], sample["predicted"][0]
        count += len(changes(f"{sample['lead']} {sample['verdict']}"))
        for t, (now, story) in enumerate(zip(steps, sample["stories"], strict=True)):
            assert f"Ahead after this iteration: {leader(now)}," in story or sample["signed"]
            if sample["signed"] or t == 0:
                assert not changes(story)
                continue
            was = steps[t - 1]
            pairs = [(share(was, k), share(now, k), 1), (was["activation"][k], now["activation"][k], 3),
                     (was["entropy"], now["entropy"], 3)]  # fmt: skip
            assert changes(story) == [(as_printed(a, digits), as_printed(b, digits)) for a, b, digits in pairs], story
            assert as_printed(math.log(10), 3) in story  # the entropy of an even split
            count += 3
    assert count > 300  # and there was something to check


def margin(step: dict[str, Any]) -> float:
    first, second = sorted(step["activation"], reverse=True)[:2]
    return float(first - second)


def stands(step: dict[str, Any]) -> bool:
    """Would anybody say that a class leads: by 0.05, as printed."""
    return margin(step) >= 0.045


def test_the_first_sentence_and_the_tour_say_who_was_ahead(told: Any) -> None:
    found = {"change its mind": 0, "make up its mind": 0, "Look at": 0}
    for sample in told:
        steps, lead, tour = sample["steps"], sample["lead"], " ".join(sample["lessons"])
        leaders = [leader(step) for step in steps]
        ahead = [str(leader(step)) if stands(step) else "none yet" for step in steps]
        assert f"Ahead after each iteration: {', '.join(ahead)}." in tour
        assert sample["arrows"][-1] in tour
        assert f"{sample['field']} × {sample['field']} pixels" in tour
        if sample["signed"]:
            continue
        changed = any(stands(step) and k != leaders[-1] for step, k in zip(steps, leaders, strict=True))
        begin = "change its mind" if changed else "make up its mind"
        if len(set(leaders)) == 1 and stands(steps[0]):
            begin = "Look at"
            assert f"Look at {leaders[0]}:" in lead
        assert begin in lead
        found[begin] += 1
        if begin != "Look at":
            leads = [(str(t + 1), str(k), as_printed(margin(step), 2))
                     for t, (step, k) in enumerate(zip(steps, leaders, strict=True)) if stands(step)]  # fmt: skip
            assert re.findall(r"Iteration (\d+): (\d) is ahead by (\d\.\d\d)", lead) == leads
            none = [str(t + 1) for t, step in enumerate(steps) if not stands(step) and (t == 0 or stands(steps[t - 1]))]
            assert re.findall(r"Iteration (\d+): no class", lead) == none
    assert min(found.values()) > 10


def test_what_is_said_of_agreement_is_what_was_measured(told: Any) -> None:
    """Arrows in all dimensions, and agreement as the algorithm has it; it says where the class ahead has not most."""
    ranks = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
    others = 0
    for sample in told:
        for step, chains, arrows, closest in zip(
            sample["steps"], sample["chains"], sample["arrows"], sample["closest"], strict=True
        ):
            ahead, compared = leader(step), [(step["agreement"], closest)]
            if sample["name"] in ("demo_em", "demo_heinsen"):
                assert closest[1:] in arrows
            else:
                shares = [chain["share"] for chain in chains]
                compared.append((shares, arrows))
                assert re.findall(r"(\d+)\u202f%", arrows)[:2] == [f"{100 * v:.0f}" for v in sorted(shares)[:-3:-1]]
            for values, text in compared:
                order = sorted(range(10), key=values.__getitem__, reverse=True)
                rank = order.index(ahead)
                assert re.search(rf"for {order[0]}\b", text)
                assert stands(step) != ("no class stands out" in text.lower())
                if stands(step) and rank:
                    assert re.search(rf"{ahead}, (which is ahead, )?{ranks[rank]}\b", text), text
                    others += 1
        if not sample["signed"]:
            left = 100 * sample["steps"][-1]["entropy"] / math.log(10)
            assert f" {left:.0f}\u202f%" in sample["decided"]
    assert others > 30  # there was something to tell


def test_samples_are_digits_that_are_recognised_and_blank_paper_is_explained(told: Any) -> None:
    assert all(s["predicted"] == [s["label"]] for s in told)
    assert [s["standing"]["digit"] for s in told].count("no") <= 0.05 * len(told)
    blank = {name: [s["blank"][-1] for s in told if s["name"] == name] for name in ("demo_em", "demo_attention")}
    explained = [int(re.match(r"(\d+)", text)[1]) for text in blank["demo_em"] if text]
    assert len(explained) > len(blank["demo_em"]) / 2
    assert min(explained) >= 40
    assert not any(blank["demo_attention"])  # whose capsules do not say how active they are


def test_the_page_opens_where_routing_changes_its_mind(told: Any, ask: Asked) -> None:
    """Of all networks and samples whose first iteration is wrong and whose last is right: the one that passes through
    most answers, and of these the one that is surest of a wrong one on the way."""
    best: tuple[Any, ...] = (0,)
    for sample in told:
        leaders = [leader(step) for step in sample["steps"]]
        if leaders[0] != sample["label"] == leaders[-1]:
            tops = zip((max(step["activation"]) for step in sample["steps"]), leaders, strict=True)
            wrong = max(top for top, k in tops if k != sample["label"])
            best = max(best, (len(set(leaders)), wrong, sample["name"], sample["n"]))
    expected = {"model": best[2], "sample": best[3]}
    assert ask.page.evaluate(OPENING) == expected, f"page/opening.js: expected {expected}"
