"""Reads the table of answers and verdicts."""

from __future__ import annotations

from pathlib import Path

import yaml


def read_cases() -> list[tuple[str, str, str, bool]]:
    """Rows of group, whole response, ground truth, verdict."""
    table = yaml.safe_load((Path(__file__).parent / "math_cases.yaml").read_text(encoding="utf-8"))
    rows = [
        (group, f"We compute.\n\nAnswer: {answer}", truth, verdict)
        for group, cases in table["answers"].items()
        for answer, truth, verdict in cases
    ]
    rows += [(group, *case) for group, cases in table["responses"].items() for case in cases]
    return rows
