"""The published data sets that ``gtpo-verl data`` knows, and where they lie."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation"]

REASONING_GYM_PREFIX = "reasoning-gym:"


@dataclass(frozen=True)
class Source:
    """A data set on the Hugging Face hub.

    Attributes:
        name: on the command line, and of the file that is written.
        repository: the hub's data set repository.
        file: the file's path in it; parquet or JSON lines.
        split: what it is for.
        data_source: the rows' ``data_source``, under which verl reports validation metrics.
        problems: how many different problems were published, where that is known.
    """

    name: str
    repository: str
    file: str
    split: Split
    data_source: str
    problems: int | None = None

    @property
    def file_name(self) -> str:
        return self.file.rsplit("/", 1)[-1]


SOURCES = {
    source.name: source
    for source in (
        Source("dapo-math-17k", "BytedTsinghua-SIA/DAPO-Math-17k", "data/dapo-math-17k.parquet", "train", "math_dapo"),
        Source("aime24", "BytedTsinghua-SIA/AIME-2024", "data/aime-2024.parquet", "validation", "aime24", 30),
        Source("aime25", "math-ai/aime25", "test.jsonl", "validation", "aime25", 30),
        Source("math500", "HuggingFaceH4/MATH-500", "test.jsonl", "validation", "math500", 500),
    )
}


def near_matches(name: str, known: list[str]) -> str:
    """Returns ``"; did you mean a, b?"`` for other names like ``name``, or an empty text."""
    found = difflib.get_close_matches(name.lower(), [other for other in known if other != name], n=3, cutoff=0.5)
    return f"; did you mean {', '.join(found)}?" if found else ""
