import json
import subprocess
import sys

import pytest

from flashcaps.data import DATA, data_root, load_data
from tests.own_pictures import write_pictures

OWN = {"images", "table", "text", "numbers", "hub"}
MADE = {"digits", "synthetic_norb"}  # come along, or are rendered


@pytest.mark.parametrize(("name", "options", "message"), [
    ("mnits", {}, "no data set 'mnits'; did you mean 'mnist'"),
    ("zzzzzzzz", {}, "there are mnist, fashion_mnist"),
    ("images", {}, "path: expected with images, got none"),
    ("mnist", {"colour": 1}, "colour: no option of mnist, which has none"),
    ("synthetic_norb", {"colour": 1}, "colour: no option of synthetic_norb, which has seed, size"),
    ("hub", {"colour": 1}, "colour: no option of hub, which has path, size, channels"),
])  # fmt: skip
def test_wrong_names_and_options_are_answered_with_those_there_are(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_data(name, **options)


def test_what_is_read_from_the_root_is_declared_and_a_missing_file_says_which_where_and_what_to_type(tmp_path):
    declared = {name for name, load in DATA.items() if getattr(load, "published", ())}
    assert declared == set(DATA) - OWN - MADE
    for name in declared:
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


def test_a_fresh_interpreter_reads_own_pictures_and_loads_nothing_heavy(tmp_path):
    write_pictures(tmp_path, 12, 8, 8)
    code = f"""
import json, sys
from flashcaps.data import load_data
heavy = [m for m in ("scipy", "matplotlib", "PIL", "datasets", "pyarrow") if m in sys.modules]
print(json.dumps([heavy, load_data("images", path={str(tmp_path)!r}).class_names]))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == [[], ["bar", "disc", "ring"]]
