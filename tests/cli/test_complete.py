"""The shell's Tab: names by what is typed so far."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flashcaps.analysis import FIGURES
from flashcaps.cli import main
from flashcaps.cli.common import run_names


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What bash would be told for the last of some words."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["flashcaps"])
        monkeypatch.setenv("_FLASHCAPS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("flashcaps", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out.split()

    return ask


def test_names_of_all_kinds(offered: Callable[..., list[str]]) -> None:
    assert offered("fig") == ["figures"]
    assert "capsnet_mnist_fast" in offered("train", "capsnet_mn")
    assert offered("train", "zzz") == []
    assert offered("models", "em_resnet") == ["em_resnet_cifar10", "em_resnet_cifar100"]
    assert offered("data", "fash") == ["fashion_mnist"]
    assert offered("figures", "runs/tiny-0", "") == list(FIGURES)
    assert offered("train", "--routing", "he") == ["heinsen"]
    assert set(offered("evaluate", "x", "--weights", "")) == {"ema", "last", "best"}


def test_run_folders_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: Callable[..., list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny-0", "tiny-1", "empty"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / "runs" / name / "config.json").write_text("{}")
    for name in ("mine.safetensors", "small.safetensors.xz", ".other.safetensors.part"):
        (tmp_path / name).write_bytes(b"")
    assert run_names("") == ["runs/tiny-0", "runs/tiny-1", "mine.safetensors", "small.safetensors.xz"]
    assert offered("predict", "runs/tiny-1") == ["runs/tiny-1"]
