"""A run's folder: config.json, metrics.jsonl, weights, states to resume from, pictures, result.json; and its lock."""

import contextlib
import errno
import hashlib
import json
import shlex
import time
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from .checkpoint import list_states, load_state, room_for, save_state, save_weights, write_atomic
from .guard import REPORT, first_bad
from .recipe import SECTIONS, Data, Model, Recipe
from .step import TrainStep

LOCK = "run.lock"
WRITTEN = ("config.json", "resume.txt", "metrics.jsonl", "result.json", REPORT, "state-*.pt", "best.safetensors",
           "last.safetensors", "ema.safetensors", "curve.csv", "curve.png", "reconstructions.png")  # fmt: skip
MAY_CHANGE = ("train.save_seconds", "train.log_every")  # when a run resumes, as no number depends on them
EXPLAINED = {"data.examples": "data.examples (a checksum: files or rows were added, removed, renamed, moved or "
                              "relabelled)"}  # fmt: skip


def variant(recipe: Recipe) -> str:
    """A short name of the overrides that is valid in file names; "default" if there are none."""
    text = ",".join(o for o in recipe.overrides if not o.startswith(("train.seed=", "seed=")))
    safe = "".join(c if c.isalnum() or c in "=,._-" else "_" for c in text)
    if len(safe) > 60:
        safe = f"{safe[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return safe or "default"


def run_name(recipe: Recipe) -> str:
    """RECIPE-SEED or RECIPE-VARIANT-SEED."""
    middle = "" if variant(recipe) == "default" else f"-{variant(recipe)}"
    return f"{recipe.name}{middle}-{recipe.train.seed}"


def changed_fields(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The fields of a recipe, and the options inside them, whose values differ and decide on a run's numbers."""
    default = json.loads(Recipe("", "", Model(""), Data("")).to_json())  # for fields that are newer than the run
    changed = []
    for section in (s for s in now if s in SECTIONS and s != "claim"):
        for key, new in now[section].items():
            old = before.get(section, {}).get(key, default[section][key])
            if key in ("overrides", "options"):  # which users give by their own names, model.NAME and data.NAME
                changed += [f"{section}.{name}" for name in old | new if old.get(name) != new.get(name)]
            elif old != new:
                changed.append(f"{section}.{key}")
    return [EXPLAINED.get(name, name) for name in changed if name not in MAY_CHANGE]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's metrics.jsonl; a process that was killed may have left half of one."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class RunFolder:
    """Writes a run's files: every line of metrics immediately, weights and states whole or not at all."""

    def __init__(self, path: Path, recipe: Recipe, command: list[str]) -> None:
        self.path, self.recipe, self.command = path, recipe, command
        self.best: dict[str, Any] = {}  # error and epoch of the weights in best.safetensors
        self.class_names: tuple[str, ...] = ()  # of the data; stored with the weights
        self.seconds = 0.0  # trained before this process
        self.started = self.saved = time.monotonic()
        self.lock = FileLock(path / LOCK)

    @property
    def resume_command(self) -> str:
        if not self.command:
            return f"the same call of train, with RunOptions(out={str(self.path)!r}, resume=True)"
        return shlex.join([*self.command, "--resume"])

    @property
    def wall_s(self) -> float:
        return self.seconds + time.monotonic() - self.started

    @property
    def begun(self) -> bool:
        """Whether a run was started here and did not finish."""
        return (self.path / "config.json").is_file() and not (self.path / "result.json").is_file()

    def claim(self, resume: bool, fresh: bool, chosen: bool) -> None:
        """Locks the folder for this process.

        An unfinished run in it is overwritten only with `fresh`, and a finished run of other values only with `fresh`
        or in a folder that the user has `chosen`: runs of other values may have the same default folder.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.acquire(timeout=0)
        except Timeout:
            raise FileExistsError(f"{self.path} is in use by another process, which holds {self.path / LOCK}; wait for "
                                  "it to end, or choose another folder with --out") from None
        if list_states(self.path) and not resume and not fresh:
            raise FileExistsError(f"{self.path} holds an unfinished run; continue it with --resume, start over with "
                                  "--fresh, or choose another folder with --out")
        if (self.path / "config.json").is_file():
            self._check_config(resume, fresh or chosen)

    def release(self) -> None:
        """Unlocks the folder, and removes it where it is empty."""
        if self.lock.is_locked:
            (self.path / LOCK).unlink(missing_ok=True)  # while it is held, which a process that waits notices
            self.lock.release()
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def newest(self) -> dict[str, Any] | None:
        """The state to resume from; None if the run was killed before it saved one, so that it starts over."""
        if self.begun and not list_states(self.path):
            return None
        if (self.path / "result.json").is_file() and not list_states(self.path):
            raise FileExistsError(f"--resume: the run in {self.path} is finished; its result is in result.json. "
                                  "Without --resume it is trained again in the same folder")
        return load_state(self.path)

    def open(self, resume: bool) -> None:
        """Prepares the folder. A run that does not resume deletes the files of an earlier run, and no others."""
        for pattern in () if resume or not (self.path / "config.json").is_file() else WRITTEN:
            for old in self.path.glob(pattern):
                old.unlink()
        write_atomic(self.path / "config.json", self.recipe.to_json())
        write_atomic(self.path / "resume.txt", f"{self.resume_command}\n")

    def _check_config(self, resume: bool, overwrites: bool) -> None:
        """Raises if config.json belongs to another program, or to a run of other values to resume or overwrite."""
        try:
            before = json.loads((self.path / "config.json").read_bytes())
        except ValueError:
            before = None
        if not isinstance(before, dict) or not before.keys() >= {"model", "data", "train"}:
            raise FileExistsError(f"{self.path} holds a config.json that is no run's; choose another folder with --out")
        if overwrites and not resume:
            return
        changed = changed_fields(before, json.loads(self.recipe.to_json()))
        if changed and not resume:
            raise FileExistsError(f"{self.path} holds a run with other values of {', '.join(changed)}; choose another "
                                  "folder with --out, or overwrite it with --fresh")
        if changed:
            raise ValueError(f"--resume: the run in {self.path} was started with other values of {', '.join(changed)}; "
                             "give the same, or start another run")

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Appends a line to metrics.jsonl in one write. Readers ignore a line without its newline."""
        entry = {"kind": kind, "step": step, "seconds": round(self.wall_s, 3), **values}
        line, path = json.dumps(entry).encode() + b"\n", self.path / "metrics.jsonl"
        with room_for(path, len(line)), path.open("ab", buffering=0) as out:
            if out.write(line) < len(line):
                raise OSError(errno.ENOSPC, "")

    def weights(self, which: str, model: nn.Module, step: int) -> None:
        named = {"class_names": list(self.class_names)} if self.class_names else {}
        config = {"recipe": self.recipe.to_dict(), "step": step} | named
        save_weights(self.path / f"{which}.safetensors", model, config)

    def save_due(self) -> bool:
        return time.monotonic() - self.saved >= self.recipe.train.save_seconds

    def save(self, step: TrainStep, at: int) -> None:
        """Writes all that a run needs to resume, unless there was NaN or Inf, at which the next check stops the run."""
        self.saved = time.monotonic()
        if not step.guard.healthy or first_bad(step.model.state_dict().items()):
            return
        cuda = torch.cuda.get_rng_state(step.workers.device) if step.workers.device.type == "cuda" else None
        images = step.stream.share.batch * step.workers.world
        state = {"at": at, "step": step.state_dict(), "best": self.best, "seconds": self.wall_s, "images": images,
                 "examples": step.stream.examples, "random": torch.get_rng_state(), "random_cuda": cuda}
        save_state(self.path, state, at)
        self.saved = time.monotonic()

    def restore(self, step: TrainStep, state: dict[str, Any] | None) -> int:
        """Loads a state and drops the lines of metrics written after it. Returns the number of steps done.

        The first process restores its random state; the others, whose state was not saved, are seeded by rank.
        """
        self.best, at, workers = {}, 0, step.workers
        if state is not None:
            step.load_state_dict(state["step"])
            self.best, self.seconds, at = state["best"], state["seconds"], state["at"]
            self.started = time.monotonic()
            if workers.rank > 0:
                torch.manual_seed(self.recipe.train.seed + workers.rank + at * workers.world)
            else:
                torch.set_rng_state(state["random"])
            if workers.rank == 0 and workers.device.type == "cuda" and state["random_cuda"] is not None:
                torch.cuda.set_rng_state(state["random_cuda"], workers.device)
        if workers.rank == 0:
            kept = [json.dumps(line) + "\n" for line in read_metrics(self.path) if line["step"] <= at]
            write_atomic(self.path / "metrics.jsonl", "".join(kept))
        return at

    def finish(self, result: dict[str, Any]) -> None:
        write_atomic(self.path / "result.json", json.dumps(result, indent=2) + "\n")
        for state in list_states(self.path):
            state.unlink()
