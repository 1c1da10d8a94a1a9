"""Figures that read finished runs: what they find, group and say."""

from dataclasses import replace

import pytest

from flashcaps.analysis import DoesNotApply, Run, ablation, diverse, novel_viewpoints
from flashcaps.analysis.comparisons import ablated, convergence, error_curves, facts, iterations, reroute, training_loss
from flashcaps.analysis.figure import accuracy
from flashcaps.training.recipe import read_recipe
from tests.analysis.conftest import small_run


def record(recipe="tiny", overrides=(), value=2.0, metric="test_error_percent", seed=0, **more):
    curve = [{"step": 10 * k, "epoch": k - 1, "error": 20.0 / k, "split": "validation"} for k in (1, 2, 3)]
    return {"recipe": recipe, "variant": ",".join(overrides) or "default", "overrides": list(overrides), "seed": seed,
            "metric": metric, "value": value, "parameters": 1000, "curve": curve, **more}


def losses(first: float) -> list[dict]:
    return [{"kind": "train", "step": k, "loss": first / k, "error": 1.0} for k in (1, 2, 4)]


def tiny(records, recipe="tiny") -> Run:
    run = small_run(12)
    run.recipe, run.records = read_recipe(recipe), records
    run.model.overrides = {}
    return run


def test_facts_know_algorithm_and_iterations():
    assert facts(record())[1:] == ("dynamic", 3, {})
    assert facts(record(overrides=["model.iterations=1"]))[1:] == ("dynamic", 1, {})
    assert facts(record(overrides=["model.routing=em"])).algorithm == "em"
    assert facts(record("cnn_mnist")).algorithm == ""
    assert facts(record("of another version")) is None
    assert accuracy(record(value=3.0)) == 97
    assert accuracy(record(value=83.0, metric="test_accuracy_percent")) == 83


def test_training_loss_with_one_and_three_iterations():
    run = tiny([record(metrics=losses(1.0)), record(overrides=["model.iterations=1"], metrics=losses(2.0))])
    data, _, caption = training_loss(run)
    assert data["last"] == pytest.approx({1: (2 + 1 + 0.5) / 3, 3: (1 + 0.5 + 0.25) / 3})
    assert "lowest is with 3" in caption
    run = tiny([record(metrics=losses(1.0))])
    with pytest.raises(DoesNotApply, match=r"flashcaps train tiny model.iterations=1"):
        training_loss(run)
    own = replace(run.recipe.data, name="images", options={"path": "my pets", "size": [8, 9]})
    run.recipe = replace(run.recipe, data=own)
    with pytest.raises(DoesNotApply, match=r"flashcaps train --images 'my pets' --size 8 9 model.iterations=1"):
        training_loss(run)


def test_rerouted_accuracy_is_the_models_own_at_its_own_number():
    run = tiny([record(value=4.0), record(value=2.0, seed=1), record(overrides=["model.routing=em"], value=10.0)])
    data, _, _ = iterations(run, most=3)
    assert data["rerouted"][3] == pytest.approx(100 * float(run.right.float().mean()))
    assert data["trained"] == {"dynamic": {3: [96.0, 98.0]}, "em": {3: [90.0]}}
    run.layer().set_iterations(1)
    once = 100 * float(Run(run.model, run.batch).right.float().mean())
    run.layer().set_iterations(3)
    assert reroute(run, 1) == {1: pytest.approx(once)}


def test_convergence_groups_by_algorithm_and_error_curves_take_the_best():
    run = tiny([record(), record(value=1.0, seed=1), record(overrides=["model.routing=em"]), record("capsnet_mnist")])
    data, figure, _ = convergence(run)
    assert [axis.get_title() for axis in figure.axes] == ["dynamic", "em"]
    assert len(data["curves"]) == 3  # mnist is other data
    best, figure, caption = error_curves(run)
    assert set(best["curves"]) == {"dynamic", "em"}
    assert best["curves"]["em"] == ([10, 20, 30], [20.0, 10.0, 20 / 3])
    assert figure.axes[0].get_yscale() == "log"
    assert "6.67" in caption


def test_ablations_by_what_was_changed():
    def kind(*overrides):
        return ablated(facts(record("attention_simple_cifar10", overrides)))

    assert kind() == "attention"
    assert kind("model.options.norm=false") == "A: no LayerNorm"
    assert kind("model.concurrent=false", "model.iterations=3") == "B: sequential"
    assert kind("model.options.activation=true") == "C: activations"
    assert kind("model.options.norm=false", "model.concurrent=false") == ""
    assert ablated(facts(record())) == ""


def test_ablation_bars():
    name = "attention_simple_cifar10"
    runs = [record(name, [], 15.0), record(name, [], 17.0, seed=1), record(name, ["model.options.norm=false"], 60.0)]
    data, _, caption = ablation(tiny(runs))
    assert data["accuracy"] == {"attention": {2: 84.0}, "A: no LayerNorm": {2: 40.0}}
    assert "84.00" in caption
    assert "B: sequential (attention_simple_cifar10 model.concurrent=false)" in caption
    assert "A: no" not in caption.partition("Not measured yet")[2]


def test_ablation_bars_are_of_runs_that_were_trained_alike():
    name, short = "attention_simple_cifar10", ["epochs=10", "lr=0.05"]
    runs = [record(name, [], 15.0), record(name, ["epochs=20"], 20.0), record(name, short, 30.0),
            record(name, [*short, "model.concurrent=false"], 33.0)]  # fmt: skip
    data, _, _ = ablation(tiny(runs))
    assert data["accuracy"] == {"attention": {2: 70.0}, "B: sequential": {2: 67.0}}


def test_diverse_bars_beside_the_papers():
    kind = "test_accuracy_percent"
    run = tiny([record("dynamic_diverse", [], 80.0, kind), record("cnn_diverse_pool", [], 75.0, kind)])
    data, _, caption = diverse(run)
    assert data["rows"]["dynamic_diverse"]["paper"] == 83.39
    assert caption.index("dynamic_diverse") < caption.index("cnn_diverse_pool")
    assert "attention_diverse_wide" in caption.partition("Not measured yet")[2]
    short = [record(name, ["steps=9"], 20.0, kind) for name in ("cnn_diverse_fc", "dynamic_diverse")]
    longer = record("dynamic_diverse", [], 80.0, kind)
    assert diverse(tiny([longer, *short])).data["rows"]["dynamic_diverse"]["values"] == [20.0], "no mean over both"


def views(recipe, familiar, novel, *overrides, seed=0):
    curve = [{"step": 10 * k, "epoch": k, "error": e, "split": "validation"} for k, e in enumerate((50.0, familiar))]
    return record(recipe, overrides, novel, seed=seed) | {"curve": curve}


def of_views(*records):
    return tiny(list(records), "em_views_azimuth")


def test_errors_on_familiar_and_novel_viewpoints_are_means_over_seeds():
    run = of_views(views("em_views_azimuth", 4.0, 12.0), views("em_views_azimuth", 6.0, 14.0, seed=1),
                   views("cnn_views_azimuth", 5.0, 20.0), views("cnn_views_elevation", 3.0, 9.0))  # fmt: skip
    data, figure, caption = novel_viewpoints(run)
    assert data["azimuth"]["em_views_azimuth"] == {"familiar": 5.0, "novel": 13.0, "seeds": 2, "parameters": 1000}
    assert data["elevation"] == {"cnn_views_elevation": {"familiar": 3.0, "novel": 9.0, "seeds": 1, "parameters": 1000}}
    assert caption.index("em 5.0 -> 13.0 %") < caption.index("cnn 5.0 -> 20.0 %")
    assert "heinsen_views_azimuth" in caption.partition("Not measured yet")[2]
    assert len(figure.axes) == 2


def test_runs_with_other_schedules_data_or_models_are_left_out():
    run = of_views(views("em_views_azimuth", 4.0, 12.0), views("cnn_views_azimuth", 5.0, 20.0),
                   views("em_views_azimuth", 40.0, 60.0, "epochs=3"), views("em_synthetic_norb", 1.0, 2.0),
                   views("em_views_azimuth", 2.0, 6.0, "model.iterations=2"),
                   views("cnn_views_azimuth", 9.0, 9.0, "data.name=smallnorb"))  # fmt: skip
    table = novel_viewpoints(run).data["azimuth"]
    assert {name: row["novel"] for name, row in table.items()} == {"em_views_azimuth": 12.0, "cnn_views_azimuth": 20.0}
    run.recipe = read_recipe("em_views_azimuth", ["data.name=smallnorb"])
    assert list(novel_viewpoints(run).data["azimuth"]) == ["cnn_views_azimuth"]
    with pytest.raises(DoesNotApply, match=r"viewpoints held out are needed.*not measured yet.*em_views_azimuth"):
        novel_viewpoints(of_views(views("em_synthetic_norb", 1.0, 2.0)))
