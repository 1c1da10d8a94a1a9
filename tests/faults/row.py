"""One line of the table: how often a fault was tried, and each time something was lost."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    number: int
    fault: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    note: str = ""

    def count(self, *wrong: str) -> None:
        """One trial; what was wrong about it, or nothing."""
        self.tried += 1
        faults = [w for w in wrong if w]
        if faults:
            self.lost.append("; ".join(faults))

    @property
    def survived(self) -> int:
        return self.tried - len(self.lost)
