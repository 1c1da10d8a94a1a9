"""Write the CPU table of README.md from results/bench/cpu.json: python -m benchmarks.table"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "results" / "bench" / "cpu.json"


def table(record: dict[str, Any]) -> str:
    """One line per algorithm: each backend's time and memory, and how they compare with the public-style layer."""
    lines = [
        f"Forward + backward of one layer, fp32, {record['hardware']}, torch {record['versions']['torch']}, commit "
        f"`{record['commit'][:12]}`, made by `{record['command']}`:",
        "",
        "| layer | public style | reference | matrix | faster | of its memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, work in record["workloads"].items():
        rows = {row["variant"]: row for row in record["rows"] if row["workload"] == name}
        if not rows:
            continue
        ordered = [rows[v] for v in ("public-style", "reference", "matrix")]
        cells = [f"{row['seconds']:.2f} s, {row['peak_mib']:,.0f} MiB" for row in ordered]
        faster = rows["public-style"]["seconds"] / rows["matrix"]["seconds"]
        memory = rows["matrix"]["peak_mib"] / rows["public-style"]["peak_mib"]
        layer = work["layer"]
        children = layer["in_capsules"] or "any number of"
        title = f"{name}, {children} -> {layer['out_capsules']}, batch {work['batch']}"
        lines.append(f"| {title} | {' | '.join(cells)} | {faster:.1f} x | {memory:.0%} |")
    return "\n".join(lines)


def main() -> None:
    readme = ROOT / "README.md"
    text = f"<!-- bench -->\n{table(json.loads(SOURCE.read_text()))}\n<!-- /bench -->"
    readme.write_text(re.sub(r"<!-- bench -->.*<!-- /bench -->", lambda _: text, readme.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
