"""Make docs/api.md from the docstrings, and the tables of other pages from recipes and results: python -m docs"""

from __future__ import annotations

from . import api, numbers


def main() -> None:
    api.PAGE.write_text(api.page())
    for name in numbers.SECTIONS:
        (numbers.ROOT / name).write_text(numbers.filled(name))


if __name__ == "__main__":
    main()
