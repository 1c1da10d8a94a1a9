"""Make the tables of the pages from recipes and results: python -m docs"""

from __future__ import annotations

from . import numbers


def main() -> None:
    for name in numbers.SECTIONS:
        (numbers.ROOT / name).write_text(numbers.filled(name))


if __name__ == "__main__":
    main()
