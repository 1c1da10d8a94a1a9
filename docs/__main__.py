"""Make what is made: docs/api.md from the docstrings, tables from recipes and results. python -m docs"""

from __future__ import annotations

from . import api, numbers


def main() -> None:
    api.PAGE.write_text(api.page())
    for name in numbers.SECTIONS:
        (numbers.DOCS / name).write_text(numbers.filled(name))


if __name__ == "__main__":
    main()
