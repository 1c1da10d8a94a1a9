"""Tables of what was measured, from records made by hand."""

from benchmarks.table import cheaper, headlines, origin, short, table


def test_a_line_gives_the_ratios_of_its_rows():
    rows = [
        {"workload": "em", "variant": v, "seconds": s, "peak_mib": m}
        for v, s, m in (("public-style", 8.0, 4000), ("reference", 4.0, 1000), ("matrix", 2.0, 400))
    ]
    layer = {"in_capsules": 9, "out_capsules": 3}
    record = {
        "hardware": "a CPU", "versions": {"torch": "2"}, "commit": "abc", "command": "x", "rows": rows,
        "workloads": {"em": {"batch": 5, "layer": layer}},
    }
    last = table(record).splitlines()[-1]
    assert last == "| em, 9 -> 3, batch 5 | 8.00 s, 4,000 MiB | 4.00 s, 1,000 MiB | 2.00 s, 400 MiB | 4.0 x | 10% |"


def test_the_short_table_has_the_slowest_workload_of_each_algorithm():
    goal = {"public_ms": 90.0, "compiled_ms": None, "public_gb": 2.0}
    goals = {"em_small": {**goal, "public_ms": 40.0}, "em_large": {**goal, "compiled_ms": 60.0}, "dynamic": goal,
             "no_memory": {**goal, "public_gb": None}}  # fmt: skip
    rows = [{"workload": w, "backend": "triton", "dtype": "tf32", "time_ms": 3.0, "peak_mib": 50.0} for w in goals]
    record = {"rows": rows, "workloads": {name: {"title": name, "goal": goal} for name, goal in goals.items()}}
    assert short(record).splitlines()[2:] == [
        "| em_large | 60 ms | 3 ms | 20 x | 2 GB | 50 MiB |", "| dynamic | 90 ms | 3 ms | 30 x | 2 GB | 50 MiB |",
    ]  # fmt: skip
    assert headlines(record)["no_memory"].faster == 30


def test_what_discriminative_routing_saves_is_counted_from_its_rows():
    times = {
        ("discriminative_mnist", "triton", "tf32"): 0.05, ("dynamic_mnist", "triton", "tf32"): 0.2,
        ("discriminative_step", "triton", "bf16"): 0.9, ("capsnet_mnist", "triton", "bf16"): 1.0,
        ("capsnet_mnist", "no capsules", "bf16"): 0.8,
    }  # fmt: skip
    rows = [{"workload": w, "backend": b, "dtype": d, "time_ms": t} for (w, b, d), t in times.items()]
    told = cheaper({"rows": rows})
    assert "takes 75% less time" in told
    assert "in bf16 10% less" in told
    assert told.endswith("50% less.")
    assert cheaper({"rows": rows[1:]}) == ""


def test_one_command_is_named_and_several_are_counted():
    rows = [{"commit": "abc", "command": "x"}, {"commit": "abc", "command": "x"}, {"commit": "def", "command": "y"}]
    record = {"hardware": "a GPU", "versions": {"torch": "2"}, "rows": rows[:2]}
    assert origin(record) == "a GPU, torch 2, commit `abc`, made by `x`"
    told = origin(record | {"rows": rows}).partition(", commits ")[2]
    assert told == "`abc`, `def`, made by 2 runs of `python -m benchmarks`; the JSON file has the commands"
