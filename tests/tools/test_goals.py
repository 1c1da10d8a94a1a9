"""Goals and the attempts at them, counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from flashcaps.training.recipe import list_recipes
from tools.goals import Goal, attempts, make_goals, read_goals
from tools.results import RESULTS, make_attempts
from tools.runs import Groups, grouped


def run(value: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    return {"recipe": "net", "variant": "default", "overrides": [f"train.seed={seed}"], "seed": seed, "value": value,
            "metric": "test_error_percent", "images": 1000, "wall_s": 30.0, "beside": "", **more}  # fmt: skip


def groups_of(*runs: dict[str, Any]) -> Groups:
    return grouped(runs)


def test_the_best_attempt_comes_first_and_only_enough_seeds_count() -> None:
    groups = groups_of(run(0.3), run(0.2, 1), run(0.1, variant="lr=1"), run(0.05, recipe="other"))
    single, both = attempts(Goal("x", ("net",), at_most=0.25, seeds=2), groups)
    assert (single.value, single.reached) == (0.1, False)  # one seed
    assert (both.value, both.reached) == (0.25, True)
    assert [a.reached for a in attempts(Goal("x", ("net",), at_most=0.25), groups)] == [True, True]
    assert [a.value for a in attempts(Goal("x", ("net",), at_least=0.2), groups)] == [0.25, 0.1]  # more is better


@pytest.mark.parametrize(("more", "reached"), [({}, True), ({"wall_s": 41.0}, False), ({"beside": "others"}, False)])
def test_time_counts_where_it_is_bounded(more: dict[str, Any], reached: bool) -> None:
    [attempt] = attempts(Goal("x", ("net",), at_most=1.0, within_s=40), groups_of(run(0.5, **more)))
    assert attempt.reached is reached


def test_ahead_of_the_best_rival_with_the_same_changes_or_none() -> None:
    accuracy: dict[str, Any] = {"metric": "test_accuracy_percent"}
    groups = groups_of(
        run(80, **accuracy), run(85, variant="a=1", **accuracy), run(86, variant="b=1", **accuracy),
        run(70, recipe="pool", **accuracy), run(90, recipe="pool", variant="a=1", **accuracy),
        run(75, recipe="mix", **accuracy),
    )  # fmt: skip
    goal = Goal("x", ("net",), at_least=10, against=("pool", "mix"))
    found = {a.runs[0]["variant"]: (a.value, a.reached) for a in attempts(goal, groups)}
    assert found == {"default": (5, False), "a=1": (-5, False), "b=1": (11, True)}


def test_ahead_is_less_error_and_of_nothing_where_a_rival_is_missing() -> None:
    groups = groups_of(run(3.0), run(5.0, recipe="pool"), run(4.5, recipe="mix"))
    [attempt] = attempts(Goal("x", ("net",), at_least=1, against=("pool", "mix")), groups)
    assert (attempt.value, attempt.reached) == (1.5, True)
    assert attempts(Goal("x", ("net",), at_least=1, against=("pool", "none")), groups) == []


def test_every_goal_has_a_line_with_the_best_attempt(tmp_path: Path) -> None:
    groups = groups_of(run(0.3, beside="others"), run(0.2, variant="lr=1", overrides=["lr=1", "train.seed=0"]))
    assert make_goals(tmp_path, groups) == ""
    (tmp_path / "goals.toml").write_text(
        '[[goal]]\nabout = "Digits"\nrecipes = ["net"]\nat_most = 0.25\nnote = "Why."\n'
        '[[goal]]\nabout = "Fewer"\nrecipes = ["net"]\nat_most = 0.1\n'
        '[[goal]]\nabout = "More"\nrecipes = ["none"]\nat_least = 3\nseeds = 2\nwithin_s = 9\n'
    )
    best = "The best: 0.20 by `net`, changed: lr=1; 1 seed, 30 s."
    assert make_goals(tmp_path, groups).splitlines()[-3:] == [
        f"- **Digits, at most 0.25 %**: reached. {best} Why.",
        f"- **Fewer, at most 0.1 %**: missed in 2 attempts. {best}",
        "- **More, at least 3 % in 9 s, mean of 2 seeds**: not tried.",
    ]
    assert "## Goals" in make_attempts(tmp_path)


def test_a_goal_has_one_limit() -> None:
    with pytest.raises(ValueError, match="expected at_most or at_least, got none"):
        Goal("x", ())
    with pytest.raises(ValueError, match="got both"):
        Goal("x", (), at_most=1, at_least=2)


def test_the_goals_here_name_recipes() -> None:
    goals = read_goals(RESULTS)
    named = {name for g in goals for name in (*g.recipes, *g.against)}
    assert goals
    assert named <= set(list_recipes())
