"""The development lock fits pyproject.toml, and every dependency there has a lower bound."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CHOSEN = sorted({extra for text in EXTRAS["dev"] for extra in Requirement(text).extras} | {"dev"})
WANTED = [*PROJECT["dependencies"], *(text for extra in CHOSEN for text in EXTRAS[extra])]


def test_the_lock_is_plain_pins() -> None:
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"#.*|[a-z0-9][a-z0-9-]*==[0-9][\w.!]*", line) for line in lines)


@pytest.mark.parametrize("text", [text for text in WANTED if not text.startswith("flashcaps")])
def test_every_dependency_has_a_lower_bound_and_is_pinned_within_its_bounds(text: str) -> None:
    requirement = Requirement(text)
    assert any(s.operator in (">=", "==", "~=") for s in requirement.specifier)
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    pin = re.search(rf"^{re.escape(canonicalize_name(requirement.name))}==(.*)$", lock, re.M)
    assert pin is not None
    assert requirement.specifier.contains(pin[1], prereleases=True)
