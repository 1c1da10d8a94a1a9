"""The documentation is true: Python blocks run as printed and in order, links and anchors lead somewhere, commands can
be typed as they stand, and what is made from files is up to date."""

import importlib
import os
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from docs import numbers, site
from flashcaps.cli import app
from flashcaps.models import list_models
from flashcaps.routing import ROUTING
from flashcaps.training.recipe import list_recipes, read_recipe

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = sorted(str(path.relative_to(ROOT)) for path in FILES)
GUIDES = [page for page in PAGES if page.startswith("docs/")]
MADE = "docs/api.md"  # from docstrings, by mkdocstrings
WITHOUT_CODE = {"docs/index.md", "docs/multi_machine.md", "docs/scaling.md", MADE}
README_LINES = 140
COMMAND = r"(?:flashcaps|torchrun|make|pip|python -m)\b"
NO_CODE = {
    "src/flashcaps/": "the tree",
    "image -> a few convolutions": "a drawing",
    "t(n) = t_compute": "a formula",
    '[project.entry-points."flashcaps.routing"]': "of a pyproject.toml; tests/test_plugins.py has such a package",
    "options:": "mkdocstrings' own",
}  # the first line of an indented block, and what it is
CLUSTER = """
scontrol() { echo first; }
ssh() { bash -c "$2"; }
srun() { "$@"; }
torchrun() { echo torchrun "$@"; }
export -f torchrun
"""  # programs that say what they would start


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.S | re.M)


def unfenced(page: str) -> str:
    """Without fences; commands that go on are one line."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M).replace("\\\n", " ")


def test_guides_show_code() -> None:
    assert {page for page in GUIDES if not blocks(page)} <= WITHOUT_CODE


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_every_block_runs(page: str, here: Path) -> None:
    known, namespace = dict(ROUTING), {"__name__": "guide"}
    try:
        for k, block in enumerate(blocks(page)):
            exec(compile(block, f"{page}, block {k + 1}", "exec", dont_inherit=True), namespace)
    finally:
        ROUTING.clear()
        ROUTING.update(known)


def test_no_code_is_left_out() -> None:
    """Fences hold Python or a script, indented blocks commands, but for those that need another repository."""
    known = "|".join(map(re.escape, NO_CODE))
    for page in PAGES:
        assert text_of(page).count("\n```") == 2 * len(blocks(page) + blocks(page, "sh")), page
        outside = re.sub(r"^Before:\n\n(?:    .*\n)+", "", unfenced(page), flags=re.M)
        for block in re.findall(r"(?:^    .*\n)+", outside, re.M):
            lines = block.removeprefix("    ").splitlines()
            assert re.match(known, lines[0]) or all(re.match(rf"(?:    )?{COMMAND}", line) for line in lines), block


def test_readme_is_read_in_one_sitting() -> None:
    """Short; a picture, the installation and ten lines of code come on its first screen."""
    lines = text_of("README.md").splitlines()
    assert len(lines) < README_LINES
    pictures = [m.group(1) for line in lines[:40] if (m := re.search(r"\((docs/images/\S+)\)", line))]
    assert pictures
    assert all((ROOT / picture).stat().st_size > 10_000 for picture in pictures)
    assert any("pip install" in line for line in lines[:40])
    assert any(line.startswith("```python") for line in lines[:40])
    assert len([line for line in blocks("README.md")[0].splitlines() if line.strip()]) <= 11


def test_every_network_that_readme_names_was_measured() -> None:
    named = set(re.findall(r"[a-z]+\w*_\w+", text_of("README.md"))) & {*list_recipes(), *list_models()}
    assert named
    assert not [name for name in named if not list((ROOT / "results" / "runs" / name).glob("*.json"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    here, prose = ROOT / page, re.sub(r"^    .*$", "", unfenced(page), flags=re.M)  # in code brackets mean others
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        place, _, anchor = target.partition("#")
        goal = here if not place else here.parent / place
        assert goal.exists(), f"{page}: no {target}"
        if anchor:  # the name a forge gives to a heading
            found = re.findall(r"^#+ (.+)$", goal.read_text(), re.M)
            names = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}
            assert anchor in names, f"{page}: no heading {target}"


@pytest.mark.parametrize("page", GUIDES)
def test_lines_fit_a_screen(page: str) -> None:
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", text_of(page), flags=re.S)  # tables, as they are made
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]


def commands(page: str) -> list[str]:
    """The lines of indented blocks that call a program."""
    return re.findall(rf"^    ({COMMAND}.*)$", unfenced(page), re.M)


def check_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        target = next((word for word in words[1:] if "=" not in word), "help")
        assert re.search(f"^{target}:", text_of("Makefile"), re.M), line
        return
    if words[0] in ("torchrun", "python"):
        module = words.index("-m") + 1
        assert find_spec(words[module]), line
        words = words[module:]
    if words[0] != "flashcaps" or len(words) == 1:
        return
    group = typer.main.get_command(app)
    with group.make_context("flashcaps", [words[1]], resilient_parsing=True) as context:
        command = group.get_command(context, words[1])  # type: ignore[attr-defined]
        assert command is not None, f"no command {words[1]}"
        given = command.make_context(words[1], words[2:], parent=context).params
    recipe = given.get("recipe")
    if words[1] == "train" and recipe in list_recipes():
        read_recipe(recipe, given["overrides"] or [])
    elif words[1] == "train" and recipe is not None:
        assert recipe.endswith(".toml") or "=" in recipe or recipe == "RECIPE", line


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_are_ones_there_are(page: str) -> None:
    for line in commands(page):
        check_command(line)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")])
def test_scripts_start_commands_there_are(page: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    names = os.environ | {"SLURM_JOB_NODELIST": "first", "SLURM_NNODES": "4", "SLURM_JOB_ID": "7"}
    for script in blocks(page, "sh"):
        words = ["bash", "-euc", CLUSTER + script]
        started = subprocess.run(words, cwd=tmp_path, env=names, capture_output=True, text=True, check=True).stdout
        assert started.startswith("torchrun ")
        for line in started.splitlines():
            check_command(line)


@pytest.mark.parametrize("line", ["make nothing", "python -m tools.nothing", "torchrun -m flashcaps train no_recipe"])
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        check_command(line)


def test_the_reference_names_what_there_is() -> None:
    """mkdocstrings leaves out in silence what a module does not have."""
    entry = re.compile(r"^::: (\S+)\n(?:    options:\n      members: \[(.*?)\])?", re.S | re.M)
    for path, members in entry.findall(text_of(MADE)):
        module = importlib.import_module(path)
        missing = [name for name in re.findall(r"\w+", members) if not hasattr(module, name)]
        assert not missing, f"{path}: no {missing}"


def test_every_page_is_in_the_contents_and_on_the_site() -> None:
    """The menu of the site lists every page and notebook, and nothing else."""
    contents = set(re.findall(r"\]\(([^)\s#]+)\)", text_of("docs/index.md")))
    assert {page.removeprefix("docs/") for page in GUIDES} - {"index.md"} <= contents
    listed = re.findall(r"([\w/]+\.(?:md|ipynb))$", text_of("mkdocs.yml"), re.M)
    books = [str(path.relative_to(ROOT)) for path in (DOCS / "notebooks").glob("*.ipynb")]
    pages = [*GUIDES, *books, "index.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "results/README.md",
             "results/attempts.md", "results/trials/README.md"]  # fmt: skip
    assert sorted(listed) == sorted(pages)


def test_formulas_become_mathml() -> None:
    page = site.on_page_content(r'<p><span class="arithmatex">\(a &lt; b_i\)</span></p>')
    assert "<msub>" in page
    assert "arithmatex" not in page


@pytest.mark.parametrize("page", numbers.SECTIONS)
def test_tables_are_those_of_the_files(page: str) -> None:
    assert text_of(page) == numbers.filled(page), "run python -m docs"


def test_a_page_without_its_markers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("# no markers\n")
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="expected one <!-- headline -->"):
        numbers.filled("README.md")
