"""The commands of README and quick start, run as printed where no network is needed: train, look, predict, export."""

import shlex
from pathlib import Path

import pytest
from PIL import Image

from flashcaps.data import load_data
from tests.conftest import Say
from tests.docs.test_guides import commands

PAGES = ("README.md", "docs/quickstart.md")
ELSEWHERE = ("demo", "bench", "data")  # a server, minutes, the network: they have tests of their own
COMMANDS = {"train", "evaluate", "checks", "recipes", "predict", "figures", "export"}


def printed() -> list[str]:
    """Each command once, in order; no placeholder such as DIR or RECIPE in it."""
    found = dict.fromkeys(line.partition("  #")[0].strip() for page in PAGES for line in commands(page))
    words = {line: shlex.split(line, comments=True)[1:] for line in found}
    here = {line: said for line, said in words.items() if said and said[0] not in ELSEWHERE}
    return [line for line, said in here.items() if not any(map(str.isupper, said))]


@pytest.mark.slow
def test_they_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHCAPS_DATA", str(tmp_path / "nothing"))
    Image.fromarray(load_data("digits").test.images[0, 0].numpy()).save(tmp_path / "digit.png")
    done, without_data = [], []
    for line in sorted(printed(), key=lambda line: "train tiny" not in line):  # the others look at what it leaves
        said = say(*shlex.split(line, comments=True)[1:])
        if said.code:
            assert said.err.startswith("error: "), line
            assert said.err.count("\n") == 1, line
            without_data.append(line)
        else:
            done.append(line)
    assert {shlex.split(line)[1] for line in done} == COMMANDS
    assert all("mnist" in line for line in without_data)  # which is not here
    assert (tmp_path / "runs" / "tiny-0" / "figures" / "report.html").is_file()
    assert (tmp_path / "runs" / "tiny-0" / "ema.onnx").is_file()
