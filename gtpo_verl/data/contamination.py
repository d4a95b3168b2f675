"""Validation problems among training problems.

Texts are compared without what typesetting changes: case, white space, spacing and size commands of LaTeX, the signs
around formulas, Unicode variants. A problem that was worded differently is not recognised.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from gtpo_verl.data.cleaning import unwrapped
from gtpo_verl.data.errors import first_line
from gtpo_verl.tasks.data_files import UNREADABLE, DataFileError

_TYPESETTING = re.compile(
    r"\\(?:left|right|displaystyle|qquad|quad|bigg|Bigg|big|Big)(?![a-zA-Z])"
    r"|\\[,;:!> ()\[\]]|[$~\s]"
)
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")


def comparison_key(problem: str) -> str:
    """Returns what two spellings of one problem have in common."""
    text = _FRACTION.sub(r"\\frac", unicodedata.normalize("NFKC", problem))
    return _TYPESETTING.sub("", text).casefold().rstrip(".")


def problems_by_split(path: Path) -> dict[str, dict[str, int]]:
    """Returns, for each split that a file of verl's form names in ``extra_info.split``, comparison keys and their rows.

    A file without that field says nothing about splits: the result is empty.

    Raises:
        DataFileError: the file is not readable parquet.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if not {"prompt", "extra_info"} <= set(schema.names):
                return {}
            info = schema.field("extra_info").type
            if not pyarrow.types.is_struct(info) or info.get_field_index("split") < 0:
                return {}
            table = file.read(columns=["prompt", "extra_info"])
            names = pyarrow.compute.struct_field(table.column("extra_info"), "split").to_pylist()
            prompts = table.column("prompt").to_pylist()
    except (OSError, *UNREADABLE) as error:
        raise DataFileError(f"{path}: not a readable parquet file ({first_line(error)})") from error
    splits: dict[str, dict[str, int]] = {}
    for row, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        if isinstance(name, str) and isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
            key = comparison_key(unwrapped(str(prompt[-1].get("content"))))
            splits.setdefault(name, {}).setdefault(key, row)
    return splits
