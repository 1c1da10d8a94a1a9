"""What the page says, against the numbers it says it of: every sample through every network, every iteration."""

import math
import re
from typing import Any

import pytest

from .page_server import Asked, Visits, expect

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
      label, steps, predicted: route.predicted, signed: route.routing.signed, measure: captions.measureOf(answer),
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
CHANGE = re.compile(r"(rises|falls) from (−?\d+\.\d+)(\u202f%)? to (−?\d+\.\d+)(\u202f%)?")


@pytest.fixture(scope="module")
def told(ask: Asked) -> dict[str, list[dict[str, Any]]]:
    """By network of single digits: what was measured and said of each sample."""
    return {m["name"]: ask.page.evaluate(TELL, m["name"]) for m in ask("models")["models"] if not m["pairs"]}


def leader(step: dict[str, Any]) -> int:
    return max(range(len(step["activation"])), key=step["activation"].__getitem__)


def share(step: dict[str, Any], k: int) -> float:
    return sum(abs(row[k]) for row in step["flow"]) / sum(abs(v) for row in step["flow"] for v in row)


def as_printed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−") if float(f"{value:.{digits}f}") else f"{0:.{digits}f}"


def said(name: str, before: float, now: float, digits: int, unit: str = "") -> str:
    """The one way a change may be told."""
    a, b = (as_printed(v, digits) + unit for v in (before, now))
    return f"{name} stays at {b}" if a == b else f"{name} {'rises' if now > before else 'falls'} from {a} to {b}"


def test_no_caption_claims_what_the_numbers_do_not_have(told: Any) -> None:
    gains = 0
    for name, samples in told.items():
        for sample in samples:
            for way, a, _, b, _ in CHANGE.findall(" ".join([sample["lead"], sample["verdict"], *sample["stories"]])):
                low, high = (float(v.replace("−", "-")) for v in (a, b))
                assert low < high if way == "rises" else low > high, (name, sample["stories"])
                gains += 1
            steps, k = sample["steps"], sample["predicted"][0]
            for t, story in enumerate(sample["stories"]):
                assert f"Ahead after this iteration: {leader(steps[t])}," in story or sample["signed"]
                if sample["signed"] or t == 0:
                    assert not CHANGE.search(story)
                    continue
                before, now = steps[t - 1], steps[t]
                percent = said(f"The share of all votes that capsule {k} gets", 100 * share(before, k),
                               100 * share(now, k), 1, "\u202f%")  # fmt: skip
                active = said(f"its {sample['measure']}", before["activation"][k], now["activation"][k], 3)
                entropy = said("The [entropy] of the couplings", before["entropy"], now["entropy"], 3)
                assert f"{percent}, and {active}. {entropy}. An even split has 2.303." in story, (name, story)
    assert gains > 300  # and there was something to check


def margin(step: dict[str, Any]) -> float:
    first, second = sorted(step["activation"], reverse=True)[:2]
    return float(first - second)


def stands(step: dict[str, Any]) -> bool:
    """Would anybody say that a class leads: by 0.05, as printed."""
    return margin(step) >= 0.045


def test_the_first_sentence_says_what_happened(told: Any) -> None:
    found = {"Watch it change its mind": 0, "Watch it make up its mind": 0, "Look at": 0}
    for samples in told.values():
        for sample in samples:
            steps, lead = sample["steps"], sample["lead"]
            leaders = [leader(step) for step in steps]
            if sample["signed"]:
                continue
            changed = any(stands(step) and k != leaders[-1] for step, k in zip(steps, leaders, strict=True))
            begin = "Watch it change its mind" if changed else "Watch it make up its mind"
            if len(set(leaders)) == 1 and stands(steps[0]):
                begin = "Look at"
                assert f"Look at {leaders[0]}: it leads after each" in lead
            assert lead.startswith(begin)
            found[begin] += 1
            for k, t, by in re.findall(r"Iteration (\d+): (\d) is ahead by (\d\.\d\d)", lead):
                step = steps[int(k) - 1]
                assert (int(t), by) == (leader(step), as_printed(margin(step), 2))
            for t, step in enumerate(steps) if begin != "Look at" else ():
                assert stands(step) == (f"Iteration {t + 1}: {leaders[t]} is ahead" in lead), lead
                assert stands(step) or f"Iteration {t + 1}: no class" in lead or not stands(steps[t - 1])
    assert min(found.values()) > 10


def test_the_tour_says_what_the_network_does(told: Any) -> None:
    for samples in told.values():
        for sample in samples:
            text = " ".join(sample["lessons"])
            ahead = [str(leader(step)) if stands(step) else "none yet" for step in sample["steps"]]
            assert f"Ahead after each iteration: {', '.join(ahead)}." in text
            assert sample["signed"] != ("give more to the classes their votes agree with" in text)
            assert sample["arrows"][-1] in text
            assert f"{sample['field']} × {sample['field']} pixels" in text


def test_what_is_said_of_agreement_is_what_was_measured(told: Any) -> None:
    """Arrows in all dimensions, and agreement as the algorithm has it; it says where the class ahead has not most."""
    ranks = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
    others = 0
    for name, samples in told.items():
        for sample in samples:
            for step, chains, arrows, closest in zip(
                sample["steps"], sample["chains"], sample["arrows"], sample["closest"], strict=True
            ):
                order = sorted(range(10), key=step["agreement"].__getitem__, reverse=True)
                assert closest.startswith(f"Largest for {order[0]}")
                assert stands(step) != ("no class stands out" in closest)
                if stands(step) and order[0] != leader(step):
                    rank = ranks[order.index(leader(step))]
                    assert f"for {leader(step)}, which is ahead, {rank}: " in closest
                    others += 1
                if name in ("demo_em", "demo_heinsen"):
                    assert closest[1:] in arrows
                    continue
                share = [chain["share"] for chain in chains]
                order = sorted(range(10), key=share.__getitem__, reverse=True)
                said = [f"{k}{' with' if n else ':'} {100 * share[k]:.0f}" for n, k in enumerate(order[:2])]
                assert all(words in arrows for words in said), (said, arrows)
                if stands(step) and order[0] != leader(step):
                    assert f"Ahead is {leader(step)}, {ranks[order.index(leader(step))]} with" in arrows
                elif stands(step):
                    assert f"{order[0]} is also the class ahead" in arrows
            if not sample["signed"]:
                left = 100 * sample["steps"][-1]["entropy"] / math.log(10)
                assert f" {left:.0f}\u202f% as undecided" in sample["decided"]
    assert others > 30  # there was something to tell


def test_blank_paper_is_explained_and_samples_are_digits(told: Any) -> None:
    explained = [s["blank"][-1] for s in told["demo_em"] if s["blank"][-1]]
    assert len(explained) > len(told["demo_em"]) / 2
    assert all(int(re.match(r"(\d+)", text)[1]) >= 40 and "no ink" in text for text in explained)
    assert not any(s["blank"][-1] for s in told["demo_attention"])  # whose capsules do not say how active they are
    standing = [s["standing"]["digit"] for samples in told.values() for s in samples]
    assert standing.count("no") <= 0.05 * len(standing)


def test_the_page_opens_where_routing_changes_its_mind(told: Any, visit: Visits) -> None:
    """Of all networks and samples whose first iteration is wrong and whose last is right: the one that passes through
    most answers, and of these the one that is surest of a wrong one on the way."""
    best: tuple[Any, ...] = (0,)
    for name, samples in told.items():
        for n, sample in enumerate(samples):
            leaders = [leader(step) for step in sample["steps"]]
            if leaders[0] != sample["label"] == leaders[-1]:
                tops = zip((max(step["activation"]) for step in sample["steps"]), leaders, strict=True)
                wrong = max(top for top, k in tops if k != sample["label"])
                best = max(best, (len(set(leaders)), wrong, name, n))
    _, page = visit("#v=draw")
    opening = page.evaluate("async () => (await import('./page/opening.js')).OPENING")
    assert opening == {"model": best[2], "sample": best[3]}, f"page/opening.js: expected {best[2:]}"
    expect(page.get_by_test_id("lead")).to_contain_text("change its mind")
