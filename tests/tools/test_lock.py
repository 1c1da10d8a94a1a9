"""The development lock fits pyproject.toml, and every dependency there has a lower bound."""

from __future__ import annotations

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import FILE, applies, wanted


def pins() -> dict[str, str]:
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][\w.!]*", line) for line in lines)
    return dict(line.split("==") for line in lines)


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    locked = pins()
    for requirement in wanted():
        if applies(requirement, set()):
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement}, locked {version}"


def test_every_dependency_has_a_lower_bound() -> None:
    for requirement in wanted():
        assert any(s.operator in (">=", "==", "~=") for s in requirement.specifier), str(requirement)


def test_the_lock_names_no_place_to_get_packages_from() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    assert Requirement("torch>=2.6").specifier.contains(pins()["torch"])
