"""flashcaps demo."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

import pytest

import flashcaps
from flashcaps.cli import main
from flashcaps.demo import serve
from flashcaps.demo.serve import DEMO
from flashcaps.training.checkpoint import save_weights
from tests.demo.served import models, start_demo, wait_for


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["demo", "--no-browser", *words])
    assert left.value.code == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    return said


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["demo", "--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    for word in ("--host", "--port", "--no-browser", "flashcaps demo runs/tiny-0"):
        assert word in said


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = error_of(capsys, "--port", str(port))
    assert f"port {port}" in said
    assert f"--port {port + 1}" in said


def test_a_checkpoint_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs/nothing is neither a run folder" in error_of(capsys, "runs/nothing", "--port", "0")


def test_a_server_that_is_not_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else found(name, *a))
    assert "pip install 'flashcaps[demo]'" in error_of(capsys)


def test_own_checkpoints_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "DEMO", ("demo_em",))
    model = flashcaps.create_model("capsnet_tiny")
    for folder in (tmp_path / "a" / "run", tmp_path / "b" / "run"):
        save_weights(folder / "last.safetensors", model, {})
    result = {"metric": "test_error_percent", "value": 3.5, "split": "test"}
    (tmp_path / "a" / "run" / "result.json").write_text(json.dumps(result | {"weights": "last"}))
    monkeypatch.setattr("flashcaps.demo.explainer.card_of", lambda *a: "")
    monkeypatch.setattr(serve, "card_of", lambda *a: "card")
    found = serve.open_models([str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "demo_dynamic"])
    assert [x.name for x in found] == ["run", "run-2", "demo_dynamic", "demo_em"]
    assert found[0].info()["result"] == {"error": 3.5, "split": "test"}
    assert found[1].info()["result"] is None
    assert found[0].title == "Dynamic routing: run"


def test_no_models_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "shipped_files", dict)
    with pytest.raises(FileNotFoundError, match="give a run folder"):
        serve.open_models()


def test_small_models_are_those_of_the_papers() -> None:
    assert tuple(models()) == DEMO


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", "http://127.0.0.1:80/"), ("::1", "http://[::1]:80/"),
                                            ("0.0.0.0", "http://127.0.0.1:80/")])  # fmt: skip
def test_addresses(host: str, said: str) -> None:
    assert serve.address(host, 80) == said


def test_the_command_serves_until_it_is_stopped() -> None:
    url, process = start_demo()
    try:
        assert wait_for(url, process)["models"] == len(DEMO)
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=30)
    assert f"{url}   6 models" in out
