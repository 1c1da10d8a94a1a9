import subprocess
import sys

import pytest

from flashcaps.data import DATA, data_root, load_data
from flashcaps.data.urls import NEEDS, SOURCES

OWN = {"images", "table", "text", "hub"}  # a person's own, which nobody publishes


def test_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"no data set 'mnits'; did you mean mnist"):
        load_data("mnits")
    with pytest.raises(ValueError, match="there are mnist, fashion_mnist"):
        load_data("zzzzzzzz")


@pytest.mark.parametrize(("name", "has"), [("mnist", "none"), ("digits", "seed"), ("synthetic_norb", "seed, size")])
def test_an_option_it_does_not_have_is_answered_with_those_it_has(name, has):
    with pytest.raises(ValueError, match=f"colour: no option of {name}, which has {has}"):
        load_data(name, colour=1)


def test_hyphens_are_as_good_as_underscores(digit_root):
    assert load_data("translated-mnist", digit_root).name == "translated_mnist"


def test_missing_file_says_which_where_and_what_to_type(tmp_path):
    for name in set(DATA) - OWN - {"digits", "synthetic_norb"}:
        with pytest.raises(FileNotFoundError) as error:
            load_data(name, tmp_path)
        message = str(error.value)
        assert str(tmp_path) in message
        assert "`flashcaps data " in message
        assert "--from DIR" in message
        assert "\n" not in message


def test_root_is_argument_then_environment_then_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHCAPS_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.delenv("FLASHCAPS_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "flashcaps"


def test_every_data_set_says_where_its_files_come_from():
    assert set(NEEDS) == set(DATA) - OWN
    assert {folder for folders in NEEDS.values() for folder in folders} == set(SOURCES)


def test_import_loads_nothing_heavy():
    heavy = ("scipy", "mlxtend", "matplotlib", "PIL")
    code = f"import sys, flashcaps.data; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
