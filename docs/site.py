"""The pages as a site, in build/site: python -m docs.site (needs the extra `docs`; `make site` installs it)

Files that pages link to are copied to build/pages under their own paths, so relative links mean the same in the
repository and on the site. Formulas become MathML, which browsers draw without a script. MkDocs loads this module as a
hook, too (`on_startup`, `on_nav`, `on_page_content`).
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
COPIED = ("*.md", "docs/images/*", "docs/notebooks/*.ipynb", "results/*.json", "results/trials/*.json", "LICENSE")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)


def assemble() -> None:
    """Copies what the site shows from what git tracks."""
    shutil.rmtree(PAGES, ignore_errors=True)
    tracked = subprocess.run(["git", "ls-files", "-z", *COPIED], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith("src/"):
            continue
        target = PAGES / ("index.md" if name == "README.md" else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)


def on_startup(**_: Any) -> None:
    """Kernels of notebooks are talked to with encryption; they warn of the default, which has none."""
    from jupyter_client.manager import KernelManager

    KernelManager.transport_encryption.default_value = "auto"


def on_nav(nav: Any, **_: Any) -> Any:
    """The explainer is a folder of the site, but no page of MkDocs."""
    from mkdocs.structure.nav import Link

    nav.items.append(Link("Explainer", "explainer/"))
    return nav


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, in place of the LaTeX that arithmatex marks."""
    from latex2mathml.converter import convert

    def drawn(found: re.Match[str]) -> str:
        source = html.unescape(found[2]).strip()
        return convert(source[2:-2].strip(), display="block" if found[1] == "div" else "inline")

    return FORMULA.sub(drawn, content)


def main() -> None:
    assemble()
    for command in (["mkdocs", "build", "--clean", "--quiet"], ["flashcaps", "demo", "--build", SITE / "explainer"]):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    print(f"{SITE}: python3 -m http.server -d {SITE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
