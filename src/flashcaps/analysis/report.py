"""Writes the figures of a checkpoint into a folder, with one HTML page that contains them and needs no network."""

import base64
import html
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from string import Template
from typing import NamedTuple

from ..routing.checks import nearest
from .figure import DoesNotApply, Run
from .style import darken

DPI = 110
Tell = Callable[[str, str], None]  # (name, reason why it is not drawn or "")

PAGE = Path(__file__).with_name("report.html")  # $title, $width, $body


class Written(NamedTuple):
    """One figure of one run: its pictures for light and dark pages, or why it was not drawn."""

    name: str
    caption: str = ""
    pictures: tuple[Path, ...] = ()
    why: str = ""


def write_figures(run: Run, out: str | Path, names: Iterable[str] = (), tell: Tell = lambda name, why: None) -> Path:
    """Draw `names` (all by default) into `out`: NAME.png, NAME-dark.png, the same as .svg, and report.html."""
    return _write({Path(out): run}, Path(out), names, tell, "62rem")


def compare(a: Run, b: Run, out: str | Path, names: Iterable[str] = (), tell: Tell = lambda name, why: None) -> Path:
    """Two checkpoints side by side: the figures of each in a folder of its own, and one report for both."""
    return _write({Path(out) / "left": a, Path(out) / "right": b}, Path(out), names, tell, "100rem")


def _write(runs: dict[Path, Run], out: Path, names: Iterable[str], tell: Tell, width: str) -> Path:
    """The figures of each run into its folder, and a report into `out`."""
    found = [[write_figure(run, name, folder, tell) for folder, run in runs.items()] for name in choose(names)]
    shown = [row for row in found if not all(w.why for w in row)]
    hidden = [row[0] for row in found if all(w.why for w in row)]
    given = list(runs.values())
    links = "".join(f'<a href="#{row[0].name}">{row[0].name}</a>' for row in shown)
    body = f"{header(given)}<nav><p>{links}</p></nav>\n" + "".join(section(row, given) for row in shown)
    if hidden:
        lines = "".join(f"<li>{w.name}: {html.escape(w.why)}</li>" for w in hidden)
        body += f'<section class="muted"><h2>Not drawn for this model</h2><ul>{lines}</ul></section>\n'
    title = " beside ".join(run.name for run in given)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    page = Template(PAGE.read_text(encoding="utf-8"))
    path.write_text(page.substitute(title=html.escape(title), body=body, width=width), encoding="utf-8")
    return path


def choose(names: Iterable[str]) -> list[str]:
    from . import FIGURES

    wanted = [names] if isinstance(names, str) else list(names) or list(FIGURES)
    for name in wanted:
        if name not in FIGURES:
            hint = nearest(name, FIGURES) or f"; there are {', '.join(FIGURES)}"
            raise ValueError(f"name: no figure {name!r}{hint}")
    return wanted


def title_of(name: str) -> str:
    """The first line of the figure function's docstring."""
    from . import FIGURES

    return (FIGURES[name].__doc__ or name).split("\n")[0].rstrip(".")


def write_figure(run: Run, name: str, folder: Path, tell: Tell = lambda name, why: None) -> Written:
    """Writes the files of one figure, or none if it does not apply to this model."""
    from . import FIGURES

    try:
        drawn = FIGURES[name](run)
    except ImportError:
        raise
    except Exception as error:  # an error in one figure must not cost the others
        why = str(error) if isinstance(error, DoesNotApply) else f"failed: {type(error).__name__}: {error}"
        tell(name, why)
        return Written(name, why=why)
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("", "-dark"):
        if ending:
            darken(drawn.figure)
        drawn.figure.savefig(folder / f"{name}{ending}.png", dpi=DPI)
        drawn.figure.savefig(folder / f"{name}{ending}.svg", dpi=DPI, metadata={"Date": None})
    (folder / f"{name}.txt").write_text(drawn.caption + "\n")
    tell(name, "")
    if "gif" in drawn.data:
        (folder / f"{name}.gif").write_bytes(drawn.data["gif"])
        return Written(name, drawn.caption, (folder / f"{name}.gif",))
    return Written(name, drawn.caption, (folder / f"{name}.png", folder / f"{name}-dark.png"))


def header(runs: list[Run]) -> str:
    """The names of the runs, and a table about them."""
    tested = [next((m for m in reversed(r.metrics) if m["kind"] == "test"), None) for r in runs]
    rows = {
        "model": [r.model.name for r in runs],
        "changed": [", ".join(f"{k}={v}" for k, v in r.model.overrides.items()) for r in runs],
        "parameters": [f"{r.parameters:,}" for r in runs],
        "trained on": [r.recipe.data.name if r.recipe else "" for r in runs],
        "test error": [f"{m['error']:.2f} %" if m else "" for m in tested],
        "figures use": [f"{len(r.batch.inputs)} test examples" if r.batch else "no examples" for r in runs],
    }
    table = "".join(f"<tr><th>{k}</th>" + "".join(f"<td>{html.escape(x)}</td>" for x in row) + "</tr>"
                    for k, row in rows.items() if any(row))
    names = " beside ".join(html.escape(r.name) for r in runs)
    return f"<h1>{names}</h1>\n<table>{table}</table>\n"


def section(found: list[Written], runs: list[Run]) -> str:
    """One figure, of each run."""
    cells, name = [], found[0].name
    for w, run in zip(found, runs, strict=True):
        if w.why:
            cells.append(f'<p class="muted">{html.escape(run.name)}: not drawn: {html.escape(w.why)}</p>')
            continue
        light, *dark = (f"data:image/{path.suffix[1:]};base64,{base64.b64encode(path.read_bytes()).decode()}"
                        for path in w.pictures)
        source = "".join(f'<source media="(prefers-color-scheme: dark)" srcset="{data}">' for data in dark)
        cells.append(f'<figure><picture>{source}<img src="{light}" alt="{html.escape(title_of(name))}"></picture>'
                     f"<figcaption>{html.escape(w.caption)}</figcaption></figure>")
    inner = cells[0] if len(cells) == 1 else f'<div class="pair">{"".join(f"<div>{c}</div>" for c in cells)}</div>'
    words = shlex.join(["flashcaps", "figures", str(runs[0].folder or runs[0].name), name])
    command = f"<p><code>{html.escape(words)}</code></p>"
    return f'<section id="{name}"><h2>{html.escape(title_of(name))}</h2>{inner}{command}</section>\n'
