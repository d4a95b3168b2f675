"""Adds rows to a store and makes one file of them, for ever; says how many there are after each addition."""

import sys
from pathlib import Path
from typing import Any

from gtpo_verl.evaluation.store import Store


def row(number: int) -> dict[str, Any]:
    """Row i is sample i % 4 of problem i // 4, and its text is i."""
    return {"problem": number // 4, "sample": number % 4, "text": str(number), "tokens": 1, "right": True}


if __name__ == "__main__":
    store = Store(Path(sys.argv[1]))
    store.open({"model": "a1"})
    number = len(store.responses())
    while True:
        store.append([row(number + i) for i in range(3)])
        number += 3
        print(number, flush=True)
        if number % 5 == 0:
            store.compact()
