"""The command line, on top of the library; only this package imports typer and rich."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from .. import __version__
from ..training.distributed import Stopped, leave_workers
from .attack import attack
from .bench import bench
from .checks import checks
from .convert import convert
from .data import data
from .demo import demo
from .export import export
from .figures import figures
from .lists import models, recipes
from .predict import predict
from .train import evaluate, train

EXAMPLES = """\
flashcaps: capsule networks at the speed of the hardware. Five things to try:

  flashcaps train tiny                      a small network on 4,000 digits, a minute on a laptop
  flashcaps figures runs/tiny-0             what it learned: a report with figures
  flashcaps predict runs/tiny-0 digit.png   its prediction for a picture of yours
  flashcaps train --images pets/            your own pictures, a folder per class; the network is sized for them
  flashcaps recipes                         the papers' networks and claims

flashcaps COMMAND --help explains a command; flashcaps --install-completion completes names in your shell.
"""

app = typer.Typer(rich_markup_mode="rich", no_args_is_help=False,
                  help="Capsule networks at the speed of the hardware.")


def print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flashcaps {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version")]


@app.callback(invoke_without_command=True)
def examples(context: typer.Context, version: Version = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(EXAMPLES, nl=False)


COMMANDS: dict[str, Callable[..., None]] = {
    "models": models,
    "recipes": recipes,
    "data": data,
    "train": train,
    "evaluate": evaluate,
    "attack": attack,
    "predict": predict,
    "figures": figures,
    "export": export,
    "convert": convert,
    "bench": bench,
    "demo": demo,
    "checks": checks,
}
for name, command in COMMANDS.items():
    app.command(name=name)(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with code 0, or with one line that says what to do."""
    code = 0
    try:
        with warnings.catch_warnings():
            # one line, without the position in the code
            warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
            code = app(args=arguments, prog_name="flashcaps", standalone_mode=False) or 0
    except Stopped as stopped:
        complain(str(stopped))
        code = stopped.code
    except KeyboardInterrupt:
        code = 130
    except typer.Abort:
        code = 1
    except Exception as error:
        if os.environ.get("FLASHCAPS_TRACEBACK"):
            raise
        code = _explain(error)
    finally:
        leave_workers()
    sys.exit(code)


def complain(line: str) -> None:
    """Print one line to stderr as it is."""
    Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)


def _explain(error: Exception) -> int:
    """Print an error in one line and return the exit code, which click's own errors have."""
    message = getattr(error, "format_message", lambda: str(error))()
    ours = ValueError | TypeError | OSError | ImportError | RuntimeError
    expected = isinstance(error, ours) or hasattr(error, "exit_code")
    line = " ".join(message.split()) or type(error).__name__
    command = getattr(getattr(error, "ctx", None), "command_path", None)  # of a wrong option or argument
    if command:
        line = f"{line.removesuffix('.')}; see {command} --help"
    complain(f"error: {'' if expected else f'{type(error).__name__}: '}{line}")
    if not expected:
        complain("FLASHCAPS_TRACEBACK=1 shows where it came from")
    return int(getattr(error, "exit_code", 1))
