"""The documentation is true: Python blocks run as printed and in order, links and anchors lead somewhere, commands are
ones the command line takes, and what is made from files is up to date."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from docs import api, numbers
from flashcaps.cli import app
from flashcaps.routing import ROUTING
from flashcaps.training.recipe import list_recipes, read_recipe

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = sorted(str(path.relative_to(ROOT)) for path in FILES)
GUIDES = [page for page in PAGES if page.startswith("docs/")]
MADE = "docs/api.md"  # its signatures are as long as they are
WITHOUT_CODE = {"docs/index.md", "docs/gallery.md", "docs/multi_machine.md", "docs/scaling.md", MADE}


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text_of(page), re.S | re.M)


def prose(page: str) -> str:
    """Without code, in which brackets mean something else."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M)
    return re.sub(r"^    .*$", "", text, flags=re.M)


def anchors(page: Path) -> set[str]:
    """The names a forge gives to headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [page for page in GUIDES if blocks(page)])
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known, namespace = dict(ROUTING), {"__name__": "guide"}
    try:
        for k, block in enumerate(blocks(page)):
            exec(compile(block, f"{page}, block {k + 1}", "exec", dont_inherit=True), namespace)
    finally:
        ROUTING.clear()
        ROUTING.update(known)


@pytest.mark.parametrize("page", [page for page in GUIDES if page not in WITHOUT_CODE])
def test_guides_show_code(page: str) -> None:
    assert blocks(page)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        place, _, anchor = target.partition("#")
        goal = here if not place else here.parent / place
        assert goal.exists(), f"{page}: no {target}"
        if anchor:
            assert anchor in anchors(goal), f"{page}: no heading {target}"


def test_every_page_is_in_the_contents() -> None:
    listed = set(re.findall(r"\]\(([^)\s#]+)\)", text_of("docs/index.md")))
    assert {page.removeprefix("docs/") for page in GUIDES} - {"index.md"} <= listed


@pytest.mark.parametrize("page", [page for page in GUIDES if page != MADE])
def test_lines_fit_a_screen(page: str) -> None:
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", text_of(page), flags=re.S)  # tables, as they are made
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]


def commands(page: str) -> list[str]:
    """The lines of indented blocks that call flashcaps, joined where they go on."""
    text = text_of(page).replace("\\\n", " ")
    return re.findall(r"^    (flashcaps(?: .*)?)$", text, re.M)


def parsed(words: list[str]) -> typer.Context:
    group = typer.main.get_command(app)
    with group.make_context("flashcaps", [words[0]], resilient_parsing=True) as context:
        command = group.get_command(context, words[0])  # type: ignore[attr-defined]
        assert command is not None, f"no command {words[0]}"
        return command.make_context(words[0], list(words[1:]), parent=context)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_are_ones_there_are(page: str) -> None:
    for line in commands(page):
        words = shlex.split(line, comments=True)[1:]
        if not words:
            continue
        given = parsed(words).params
        recipe = given.get("recipe")
        if words[0] == "train" and recipe in list_recipes():
            read_recipe(recipe, given["overrides"] or [])
        elif words[0] == "train" and recipe is not None:
            assert recipe.endswith(".toml") or "=" in recipe or recipe == "RECIPE", line


def test_the_reference_is_that_of_these_docstrings() -> None:
    assert api.PAGE.read_text() == api.page(), "run python -m docs"


@pytest.mark.parametrize("page", numbers.SECTIONS)
def test_tables_are_those_of_the_files(page: str) -> None:
    assert (DOCS / page).read_text() == numbers.filled(page), "run python -m docs"


def test_a_page_without_its_markers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reproduce.md").write_text("# no markers\n")
    monkeypatch.setattr(numbers, "DOCS", tmp_path)
    with pytest.raises(ValueError, match="expected one <!-- claims -->"):
        numbers.filled("reproduce.md")
