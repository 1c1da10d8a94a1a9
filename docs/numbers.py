"""The parts of pages that are made from files: claims from the recipes, numbers from results. python -m docs"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashcaps.routing import ROUTING
from flashcaps.training.recipe import list_recipes, read_recipe
from flashcaps.training.results import read_results
from tools.results import RESULTS
from tools.runs import changes, gain, is_full, mean, read_groups, value_in_words
from tools.tables import Cell, Table, fill, label, lead, lines, links, our_number, paper_number, read_tables, rivals

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BENCH = RESULTS / "bench"
ATTACKED = {"mnist": "MNIST", "cifar10": "CIFAR-10"}  # data sets whose networks were attacked
ACCURATE = "attention_resnet_cifar10_fast"  # of the headline
DIGITS = {"without reconstruction": ("capsnet_mnist_r1_norec", "capsnet_mnist_norec"),
          "with it": ("capsnet_mnist_r1", "capsnet_mnist_original")}  # of Table 1, with one iteration and with three
NOTHING = "Not measured yet: `flashcaps bench --save results/bench` writes its file, and `python -m docs` this table."


def claims() -> str:
    """One row per recipe that a paper's number belongs to, papers in order."""
    rows = ["| paper | recipe | what it is | the paper's |", "| --- | --- | --- | --- |"]
    recipes = [recipe for recipe in map(read_recipe, list_recipes()) if recipe.claim.value is not None]
    names = list(ROUTING)
    for recipe in sorted(recipes, key=lambda r: (names.index(r.claim.paper.split(",")[0]), r.claim.paper, r.name)):
        rows.append(f"| {recipe.claim.paper} | `{recipe.name}` | {recipe.about} | {recipe.claim} |")
    return "\n".join(rows)


def _cells() -> list[tuple[Table, Cell]]:
    """Every cell of the papers' tables that was run."""
    groups = read_groups(RESULTS)
    return [(table, cell) for table in read_tables(RESULTS) for cell in fill(table, groups) if cell.runs]


def _layer(routing: str, point: str) -> dict[str, Any]:
    """What one layer was measured at on the first GPU, fused."""
    wanted = f"{routing}/{point}", "triton", "tf32"
    rows = _gpus()[0]["sweep"]
    return next(row for row in rows if (row["workload"], row["backend"], row["dtype"]) == wanted)


def which() -> str:
    """The algorithms side by side: two small problems with one network each, and a layer on a GPU."""
    from benchmarks.sweeps import BASE

    runs = {cell.spec: cell.runs for _, cell in _cells()}
    rows = []
    for name in ROUTING:
        cells = []
        for spec in (f"demo_{name}", f"pairs_{name} model.iterations=3"):
            found = runs.get(spec)
            cells += [f"{mean(found):.2f}", f"{found[0]['parameters']:,}"] if found else ["", ""]
        row, votes = _layer(name, "J/32"), 32 * BASE[name]["I"] * BASE[name]["batch"]
        cost = [f"{1e6 * row['time_ms'] / votes:.2f}", f"{2**20 * row['peak_mib'] / votes:.1f}"]
        rows.append([f"`{name}`", *cells, *cost])
    return lines(["algorithm", "digits, % wrong", "parameters", "pairs of digits, % wrong", "parameters",
                  "layer, ns per vote", "bytes per vote"], rows)  # fmt: skip


def iterations() -> str:
    """What three iterations take off the error of one, and what they cost a layer."""
    cells = {cell.spec: cell.runs for table, cell in _cells() if table.gain}
    rows, won = [], []
    for name in ROUTING:
        one, three = (cells.get(f"pairs_{name} model.iterations={n}") for n in (1, 3))
        if one and three:
            less = gain(one, three)
            won += [f"`{name}`"] * (less[1] > 0)
            times = [f"{_layer(name, f'iterations/{n}')['time_ms']:.2f} ms" for n in (1, 3)]
            errors = [f"{mean(one):.2f}", f"{mean(three):.2f}", "{:.2f} ({:.2f} to {:.2f})".format(*less)]
            rows.append([f"`{name}`", *errors, *times])
    head = ["algorithm", "one, % wrong", "three, % wrong", "less by (95 % interval)", "layer with one", "with three"]
    runs, said = {cell.spec: cell.runs for _, cell in _cells()}, []
    for words, (one, three) in DIGITS.items():
        if one in runs and three in runs:
            said.append("{:.2f} ({:.2f} to {:.2f}) ".format(*gain(runs[one], runs[three])) + words)
    digits = " and by ".join(said) or "(not run)"
    return (f"{lines(head, rows)}\n\nThree iterations beat one by more than the interval: {', '.join(won) or 'none'}. "
            f"On single digits, Table 1 of the first paper, the error is lower by {digits}.")


def summary() -> str:
    """Of the cells that the tables mark for README, those trained for the whole of a recipe."""
    rows = []
    for table, cell in _cells():
        if cell.column in cell.row.readme and is_full(read_recipe(cell.spec.split()[0]), cell.runs):
            rows.append([f"{cell.claim.paper.split(',')[0]}, {table.title}", f"{label(table, cell)}, {table.unit}",
                         paper_number(table, cell), our_number(table, cell), f"{cell.runs[0]['epochs']:.3g}",
                         links(cell.runs, "results/")])  # fmt: skip
    return lines(["paper", "network", "the paper's", "ours", "epochs", "runs"], rows)


def rivals_met() -> str:
    """Every network of capsules beside the plain one that its table compares it with."""
    rows, groups = [], read_groups(RESULTS)
    for table in read_tables(RESULTS):
        for cell, other in rivals(fill(table, groups)):
            found = lead(table, cell, other)
            names = [f"{c.row.name} ({c.runs[0]['parameters']:,})" for c in (cell, other)]
            where = ", ".join(filter(None, (table.title, table.columns[cell.column], table.unit)))
            numbers = f"{found.own:.2f}", f"{found.its:.2f}", f"{found.ahead:+.2f}"
            rows.append([where, names[0], numbers[0], names[1], *numbers[1:], found.verdict])
    return lines(["table", "capsules (parameters)", "%", "beside (parameters)", "%", "points", "capsules are"], rows)


def attacks() -> str:
    """Accuracy by the largest change of a pixel, for every network that was attacked."""
    from flashcaps.analysis.adversarial import mean_curve

    tables = []
    for data, title in ATTACKED.items():
        rows: list[str] = []
        for record in (r for r in read_results(RESULTS, "robustness") if r["data"] == data):
            for attack in ("fgsm", "pgd"):
                points = mean_curve([record], attack)
                if not rows:
                    sizes = " | ".join(_size(e, data) for e in points)
                    rows += [f"| {title} | attack | {sizes} |", "|" + " --- |" * (2 + len(points))]
                cells = " | ".join(f"{value:.1f}" for value in points.values())
                rows.append(f"| `{record['model']}` ({record['parameters'] / 1e6:.1f}M) | {attack.upper()} | {cells} |")
        tables.append("\n".join(rows))
    return "\n\n".join(tables)


def _size(epsilon: float, data: str) -> str:
    """Of a colour picture, as is usual, in steps of its 255."""
    return f"{epsilon:g}" if data == "mnist" or not epsilon else f"{round(255 * epsilon)}/255"


def cpu() -> str:
    from benchmarks.table import table

    return table(json.loads((BENCH / "cpu.json").read_text()))


def _gpus() -> list[dict[str, Any]]:
    """What was measured on GPUs, one record for each kind."""
    records = [json.loads(path.read_text()) for path in sorted(BENCH.glob("*.json")) if not path.name.startswith("cpu")]
    return [record for record in records if record.get("rows") and "workloads" in record]


def gpu() -> str:
    from benchmarks.table import on_gpu

    return on_gpu(_gpus()) if _gpus() else NOTHING


def short() -> str:
    """Four workloads of the first GPU."""
    from benchmarks.table import short

    return short(_gpus()[0])


def headline() -> str:
    """Speed, memory and accuracy, one number each, with the page that has all of them."""
    from benchmarks.table import headlines

    record = _gpus()[0]
    workloads = list(headlines(record).values())
    faster = [h.faster for h in workloads]
    largest = max(workloads, key=lambda h: h.public_gb or 0)
    table, best = next((table, cell) for table, cell in _cells() if cell.row.readme and ACCURATE in cell.row.recipes)
    said = [
        f"**Speed**: {min(faster):.0f} to {max(faster):.0f} times as fast as the fastest public code, on one "
        f"{record['hardware']} ([Performance](docs/performance.md)).",
        f"**Memory**: {largest.ours_mib:.0f} MiB where public code takes {largest.public_gb:g} GB, for "
        f"{largest.title.split()[0]} routing ([Performance](docs/performance.md#on-a-gpu)).",
        f"**Accuracy**: {mean(best.runs):.2f} % on CIFAR-10 by attention routing in {best.runs[0]['epochs']:g} epochs, "
        f"{table.views} views of each test image; the paper has {best.claim.value:g} % in {table.paper_epochs:g} "
        f"([Results](results/README.md)).",
    ]
    return "\n".join(f"- {line}" for line in said)


def em_iterations() -> str:
    """Loss of a small em network by iterations, for each form of its E-step: the mean over seeds."""
    trial = json.loads((RESULTS / "trials" / "em_h200_iterations.json").read_text())
    rows = ["| log density times | 1 | 2 | 3 | 4 | 5 |", "| --- | --- | --- | --- | --- | --- |"]
    losses: dict[str, dict[int, list[float]]] = {}
    for row in trial["rows"]:
        if row["standardised"]:
            losses.setdefault(row["sharpness"], {})[row["iterations"]] = row["loss_50"]
    for form, by_iterations in losses.items():
        cells = [f"{statistics.fmean(by_iterations[k]):.3f}" for k in range(1, 6)]
        rows.append(f"| {'1 (Procedure 1)' if form == 'none' else form} | {' | '.join(cells)} |")
    return "\n".join(rows)


EVEN = 1.5  # times 1 / J: below it couplings are called even


def routing() -> str:
    """What routing does in networks that come along, after the last iteration of the class layer."""
    rows = ["| network | images | largest coupling, times J | entropy, of ln J | more votes for the answer, times J "
            "| error after the first iteration | after the last | the answer changes in | first wrong, last right "
            "| first right, last wrong |",
            "|" + " --- |" * 10]  # fmt: skip
    even = []
    for path in sorted((RESULTS / "routing").glob("*.json")):
        found = json.loads(path.read_text())["routing"]
        top, images = found["layers"][-1], found["examples"]
        errors = [f"{100 * n / images:.2f} %" for n in (found["wrong"][0], found["wrong"][-1])]
        counts = [f"{found[name]:,}" for name in ("changed", "righted", "spoiled")]
        cells = ["", errors[1], "", "", ""] if found["fixed"] else [*errors, *counts]
        rows.append(f"| `{path.stem}` | {images:,} | {top['largest'][-1]:.2f} | {top['entropy'][-1]:.3f} "
                    f"| {'' if found['fixed'] else format(found['attracted'][-1], '.2f')} | {' | '.join(cells)} |")
        if top["largest"][-1] < EVEN and not found["fixed"]:
            even.append(f"`{path.stem}`")
    said = f"Couplings are nearly even, the largest below {EVEN} / J on average, in {', '.join(even) or 'none'}."
    return "\n".join(rows) + f"\n\n{said}"


def children() -> str:
    """Pilots with one and with three iterations, by algorithm and number of children."""
    pilots = json.loads((RESULTS / "trials" / "pairs_pilots.json").read_text())["rows"]
    rows = ["| routing | children | error with one iteration | with three | largest coupling, times J "
            "| of 2,000, first wrong, last right | first right, last wrong |", "|" + " --- |" * 7]  # fmt: skip
    errors = {(x["routing"], x["children"], x["iterations"]): x["validation_error_percent"] for x in pilots}
    for x in pilots:
        if x["iterations"] == 3:
            measured = x.get("measured")
            cells = ["", "", ""]
            if measured is not None:
                largest = measured["layers"][-1]["largest"][-1]
                cells = [f"{largest:.2f}", str(measured["righted"]), str(measured["spoiled"])]
            one = errors[x["routing"], x["children"], 1]
            rows.append(f"| {x['routing']} | {x['children']} | {one:.1f} % | {x['validation_error_percent']:.1f} % "
                        f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def pairs(recipe: str) -> str:
    """Error of a small network on pairs of digits by its iterations, and whether several beat one, seed by seed."""
    errors: dict[int, dict[int, dict[str, Any]]] = {}
    for run in read_results(RESULTS):
        if run["recipe"] == recipe and not changes(run, "model.iterations"):
            iterations = read_recipe(recipe, run["overrides"]).model.overrides["iterations"]
            errors.setdefault(iterations, {})[run["seed"]] = run
    if len(errors) < 2 or 1 not in errors:
        return f"Not measured yet: `flashcaps train {recipe} model.iterations=1`, and with more, writes the runs."
    rows = ["| iterations | seeds | images with a wrong digit, % | less than with one, 95 % interval "
            "| first wrong, last right | first right, last wrong |", "|" + " --- |" * 6]  # fmt: skip
    verdicts = []
    for n, by_seed in sorted(errors.items()):
        runs = [by_seed[seed] for seed in sorted(by_seed)]
        less = ""
        if n > 1 and len(errors[1].keys() & by_seed.keys()) > 1:
            middle, low, high = gain([*errors[1].values()], runs)
            less = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            verdicts.append(f"{n} iterations {'beat' if low > 0 else 'do not beat'} one")
        counts = [_share(runs, name) for name in ("righted", "spoiled")]
        rows.append(f"| {n} | {len(runs)} | {value_in_words(runs)} | {less} | {' | '.join(counts)} |")
    return "\n".join(rows) + f"\n\nBy more than the interval: {'; '.join(verdicts)}."


def _share(runs: list[dict[str, Any]], name: str) -> str:
    """The mean over runs of the images counted under `name`, in percent; nothing where it was not measured."""
    found = [run["routing"] for run in runs if "routing" in run]
    return f"{statistics.fmean(100 * x[name] / x['examples'] for x in found):.2f} %" if found else ""


def tested() -> str:
    """The versions of runs in which no test failed: all that need no GPU, and those that do."""
    runs = {"CPUs": json.loads((RESULTS / "versions.json").read_text()),
            "GPUs": [json.loads((RESULTS / "gpu_tests.json").read_text())]}
    parts = []
    for where, found in runs.items():
        passed = [run for run in found if not {"failed", "error"} & set(run["outcomes"])]
        pairs = [f"Python {minor(run['versions']['python'])} and PyTorch {minor(run['versions']['torch'])} "
                 f"(commit {run['commit'][:7]})" for run in passed]  # fmt: skip
        parts.append(f"on {where} with {', '.join(pairs)}")
    return f"It runs on CPUs and on NVIDIA GPUs. Its tests passed\n{'; '.join(parts)}."


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


SECTIONS: dict[str, dict[str, Callable[[], str]]] = {  # page -> marker -> what makes the text between
    "README.md": {"headline": headline, "tested": tested, "bench": short, "results": summary},
    "docs/reproduce.md": {"which": which, "iterations": iterations, "rivals": rivals_met, "claims": claims,
                          "attacks": attacks},
    "docs/capsules.md": {"routing": routing, "children": children},
    "docs/algorithms/dynamic.md": {"pairs": lambda: pairs("pairs_dynamic")},
    "docs/algorithms/em.md": {"em iterations": em_iterations, "pairs": lambda: pairs("pairs_em")},
    "docs/algorithms/attention.md": {"pairs": lambda: pairs("pairs_attention")},
    "docs/algorithms/heinsen.md": {"pairs": lambda: pairs("pairs_heinsen")},
    "docs/performance.md": {"cpu": cpu, "gpu": gpu},
}


def filled(name: str) -> str:
    """A page with every section between its markers made anew."""
    text = (ROOT / name).read_text()
    for marker, make in SECTIONS[name].items():
        start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{name}: expected one {start} and one {end}")
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{make()}\n{end}{rest.partition(end)[2]}"
    return text
