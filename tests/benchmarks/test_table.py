"""The table in README.md is what the measurements say."""

from __future__ import annotations

import json
import re

from benchmarks.table import ROOT, SOURCE, table


def test_readme_shows_the_stored_measurements():
    shown = re.search(r"<!-- bench -->\n(.*)\n<!-- /bench -->", (ROOT / "README.md").read_text(), re.S)
    assert shown is not None
    assert shown.group(1) == table(json.loads(SOURCE.read_text()))


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
