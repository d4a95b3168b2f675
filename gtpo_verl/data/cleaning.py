"""One row per problem: repetitions are counted and dropped, problems with contradicting answers set aside.

Two prompts are the same problem if their texts differ in nothing but white space and the Unicode form of a character (é
in one code point or two). Answers are the same if the reward finds them equal without algebra
(`gtpo_verl.rewards.exact`): 7 and 7.0 are, 1/2 and 0.51 are not.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow

from gtpo_verl.rewards.exact import compare
from gtpo_verl.rewards.prompts import DAPO_PROMPT, dapo_prompt
from gtpo_verl.rewards.truth import problem_with_truth, truth_text
from gtpo_verl.tasks.data_files import DataFileError

_BEFORE, _AFTER = DAPO_PROMPT.split("{problem}")
# Two contradict each other; a file with thousands for one problem must not cost a comparison of each with each.
_ANSWERS_KEPT = 4


@dataclass
class Problem:
    """A problem and all answers that the file gives it.

    Attributes:
        text: the problem alone, without the prompt's instructions.
        prompt: what the model is asked.
        row: the first row it stands in, from 0.
        rows: how many rows it stands in.
        answers: the first different answers, each with the first row that has it.
    """

    text: str
    prompt: str
    row: int
    rows: int = 0
    answers: dict[str, int] = field(default_factory=dict)

    @property
    def truth(self) -> str:
        return next(iter(self.answers))


@dataclass
class Cleaned:
    """What a file holds.

    Attributes:
        rows: of the file.
        problems: those with one answer, in the order of the file.
        conflicts: those with several.
    """

    rows: int
    problems: list[Problem]
    conflicts: list[Problem]

    @property
    def duplicates(self) -> int:
        """Rows that repeat a kept problem."""
        return sum(problem.rows - 1 for problem in self.problems)

    @property
    def conflicting(self) -> int:
        """Rows of problems with several answers."""
        return sum(problem.rows for problem in self.conflicts)


def unwrapped(prompt: str) -> str:
    """Returns the problem within a prompt of DAPO's form; any other text as it is."""
    text = prompt.strip()
    return text.removeprefix(_BEFORE).removesuffix(_AFTER).strip() if _is_wrapped(text) else text


def clean(batches: Iterable[pyarrow.Table], path: Path) -> Cleaned:
    """Collects the problems of a file.

    Args:
        batches: from `gtpo_verl.data.reading.read_problems`.
        path: the file, for messages.

    Raises:
        DataFileError: a problem is empty, or an answer one that the reward cannot grade; the message names the row,
            from 0.
    """
    total = 0
    problems: dict[bytes, Problem] = {}
    keys: dict[str, bytes] = {}  # of texts seen before: most rows repeat one
    for batch in batches:
        total += len(batch)
        # Python sees each pair of a batch once; counting is left to Arrow.
        distinct = batch.group_by(["text", "truth"], use_threads=False).aggregate([("row", "min"), ("row", "count")])
        for row in distinct.sort_by("row_min").to_pylist():
            key = keys.get(row["text"])
            if key is None:
                key = keys[row["text"]] = _key(row["text"], path, row["row_min"])
            problem = problems.get(key)
            if problem is None:
                text = unwrapped(row["text"])
                prompt = row["text"] if _is_wrapped(row["text"]) else dapo_prompt(text)
                problem = problems[key] = Problem(text, prompt, row["row_min"])
            problem.rows += row["row_count"]
            _add_answer(problem, row["truth"].strip(), path, row["row_min"])
    return Cleaned(
        total,
        [problem for problem in problems.values() if len(problem.answers) == 1],
        [problem for problem in problems.values() if len(problem.answers) > 1],
    )


def _is_wrapped(text: str) -> bool:
    return text.startswith(_BEFORE) and text.endswith(_AFTER) and len(text) >= len(_BEFORE) + len(_AFTER)


def _key(text: str, path: Path, row: int) -> bytes:
    words = unwrapped(text).split()
    if not words:
        raise DataFileError(f"{path}: row {row}: the problem is empty")
    return hashlib.blake2b(unicodedata.normalize("NFC", " ".join(words)).encode(), digest_size=16).digest()


def _add_answer(problem: Problem, truth: str, path: Path, row: int) -> None:
    if truth in problem.answers:
        return
    if problem_with := problem_with_truth(truth):
        raise DataFileError(f"{path}: row {row}: {problem_with}")
    answer = truth_text(truth)
    if len(problem.answers) < _ANSWERS_KEPT and not any(
        compare(answer, truth_text(other)) for other in problem.answers
    ):
        problem.answers[truth] = row
