"""Runs `Twins` over the cases of the algorithm a test class names, and looks for data races in every kernel run."""

import os
from collections.abc import Iterator

import pytest

from ..layer_cases import cases, ids
from .twins import BIG


@pytest.fixture(autouse=True)
def no_races() -> Iterator[list[str]]:
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield []
        return
    from .races import watch

    with watch() as faults:
        yield faults
    assert not faults


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    routing = getattr(metafunc.cls, "routing", None)
    if routing is None:
        return
    plain = cases(routing, options=False)
    values = {
        "case": cases(routing),
        "plain": plain,
        "placed": [case for case in plain if len(case.children) == 3],
        "form": [form for form in BIG if not (routing == "discriminative" and form == "any")],
    }
    for name, chosen in values.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, chosen, ids=ids)
