"""requirements-dev.lock: the exact versions of everything `pip install -e ".[dev]"` brought here.

    python -m tools.lock
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FILE = ROOT / "requirements-dev.lock"
HEADER = """\
# The versions development uses: pip install -r requirements-dev.lock, then pip install --no-deps -e .
# Made by `python -m tools.lock` from an environment that `make` built; not edited by hand.
"""


def wanted(extra: str = "dev") -> list[Requirement]:
    """What pyproject.toml asks for: the dependencies, and those of an extra, extras within it resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    names = [extra]
    for name in names:
        for text in project["optional-dependencies"][name]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                names += [e for e in sorted(requirement.extras) if e not in names]
            else:
                found.append(requirement)
    return found


def applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    environment = {key: str(value) for key, value in default_environment().items()}
    return marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in extras or {""})


def closure(requirements: list[Requirement]) -> dict[str, str]:
    """name -> version of all of these and of what they need, as installed here."""
    found: dict[str, str] = {}
    rest = [r for r in requirements if applies(r, set())]
    while rest:
        requirement = rest.pop()
        name = canonicalize_name(requirement.name)
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            raise SystemExit(f"{requirement.name}: not installed; pip install -e '.[dev]' first") from None
        if name in found and not requirement.extras:
            continue
        found[name] = installed.version.partition("+")[0]  # a local build tag names a build, not a release
        rest += [r for text in installed.requires or () if applies(r := Requirement(text), requirement.extras)]
    return found


def lock() -> str:
    pins = closure(wanted())
    return HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


if __name__ == "__main__":
    FILE.write_text(lock(), encoding="utf-8")
