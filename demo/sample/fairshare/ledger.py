"""The list of what was paid on a trip."""

import csv
from pathlib import Path
from typing import NamedTuple


class Expense(NamedTuple):
    """One bill."""

    date: str
    what: str
    cents: int
    people: int


def read_ledger(path: Path) -> list[Expense]:
    """All bills of a trip, in the order in which they were paid."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return [Expense(row["date"], row["what"], int(row["cents"]), int(row["people"])) for row in rows]
