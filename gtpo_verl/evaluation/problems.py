"""Problems to evaluate on: files in verl's form (parquet, JSON lines, JSON), or in MATH's (problem, answer)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from gtpo_verl.data.command import Request, make
from gtpo_verl.data.errors import DownloadError, first_line
from gtpo_verl.data.fetching import SUFFIXES
from gtpo_verl.data.sources import REASONING_GYM_PREFIX, SOURCES
from gtpo_verl.rewards.prompts import DAPO_PROMPT
from gtpo_verl.rewards.truth import problem_with_truth
from gtpo_verl.tasks.data_files import UNREADABLE, DataFileError, problem_with_row

PLACEHOLDER = "{problem}"
_QUESTIONS = ("problem", "question")


@dataclass(frozen=True)
class Problem:
    """One row of a file.

    Attributes:
        row: its number, from 0.
        data_source: what chooses the reward's rule; the file's name for a file in MATH's form.
        messages: the chat, ``role`` and ``content``.
        truth: ``reward_model.ground_truth``.
        extra_info: what the reward is given besides.
    """

    row: int
    data_source: str
    messages: list[dict[str, Any]]
    truth: str | int | float
    extra_info: dict[str, Any] | None


@dataclass(frozen=True)
class ProblemFile:
    """The problems of one file.

    Attributes:
        name: of the data set, as a folder's name.
        path: of the file.
        problems: in the file's order, each once.
        templated: whether the prompts come from the template.
        repeated: rows that are left out, as they repeat a problem: they would make intervals over problems too narrow.
    """

    name: str
    path: Path
    problems: list[Problem]
    templated: bool
    repeated: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change with any problem."""
        digest = hashlib.blake2b(digest_size=16)
        for problem in self.problems:
            digest.update(json.dumps(asdict(problem), sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()


def read_all(names: Sequence[str], template: str | None, data_dir: Path, cache_dir: Path) -> list[ProblemFile]:
    """The problems of files and of data sets that ``gtpo-verl data`` knows.

    Args:
        names: paths of files, or data sets, which are taken from ``data_dir/<name>.parquet`` or made there; of a task
            of reasoning-gym its validation file.
        template: of the prompts of files in MATH's form, with ``{problem}``; None for DAPO's.
        cache_dir: where downloads are kept.

    Raises:
        DataFileError: a file is missing, unreadable or of another form; names file and row.
        ValueError: two of a name, or a template without ``{problem}`` or of no use.
        gtpo_verl.data.errors.DownloadError, OSError: a data set cannot be had.
    """
    if template is not None and PLACEHOLDER not in template:
        raise ValueError(f"--template: does not say where the problem goes: no {PLACEHOLDER} in it")
    files = [read(_path(name, data_dir, cache_dir), template) for name in names]
    for index, file in enumerate(files):
        for other in files[:index]:
            if other.name == file.name:
                raise ValueError(f"--data: {other.path} and {file.path} are both named {file.name}; rename one")
    if template is not None and not any(file.templated for file in files):
        raise ValueError(
            "--template: no file here is in MATH's form (problem, answer); verl's form holds whole prompts"
        )
    return files


def _path(name: str, data_dir: Path, cache_dir: Path) -> Path:
    task = name.removeprefix(REASONING_GYM_PREFIX)
    if name not in SOURCES and task == name:
        path = Path(name).expanduser()
        if not path.is_file():
            known = ", ".join([*SOURCES, f"{REASONING_GYM_PREFIX}<task>"])
            raise DataFileError(f"--data {name}: no such file, and no data set of gtpo-verl data ({known})")
        return path
    path = data_dir / (f"{name}.parquet" if task == name else f"reasoning-gym-{task}-validation.parquet")
    if not path.is_file():
        try:
            make(Request([name], output=data_dir, cache_dir=cache_dir))
        except DownloadError as error:
            place = f"`gtpo-verl data {name} --output {data_dir}`"
            raise DownloadError(f"--data {name}: {error}, an option of {place}, which makes {path}") from error
    return path


def read(path: Path, template: str | None = None) -> ProblemFile:
    """The problems of one file; see `read_all`."""
    if path.suffix not in SUFFIXES:
        raise DataFileError(f"{path}: neither of {', '.join(SUFFIXES)}")
    unit, rows = ("row", _parquet(path)) if path.suffix == ".parquet" else _json(path)
    if not rows:
        raise DataFileError(f"{path}: no rows")
    columns = list(rows[0][1])
    if "prompt" in columns and "reward_model" in columns:
        problems = [_verl(f"{path}: {unit} {number}", index, row) for index, (number, row) in enumerate(rows)]
        return _without_repetitions(path, problems, templated=False)
    question = next((name for name in _QUESTIONS if name in columns), None)
    if question is None or "answer" not in columns:
        raise DataFileError(
            f"{path}: neither verl's columns (data_source, prompt, reward_model) nor MATH's (problem, answer); "
            f"there are {', '.join(columns) or 'none'}"
        )
    problems = [
        _math(f"{path}: {unit} {number}", index, row, question, path.stem, template or DAPO_PROMPT)
        for index, (number, row) in enumerate(rows)
    ]
    return _without_repetitions(path, problems, templated=True)


def _without_repetitions(path: Path, problems: list[Problem], templated: bool) -> ProblemFile:
    """Of rows with the same source, chat and truth the first: DAPO's published AIME 2024 has each problem 32 times."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(json.dumps([problem.data_source, problem.messages, problem.truth], default=str), problem)
    return ProblemFile(path.stem, path, list(first.values()), templated, len(problems) - len(first))


def _parquet(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        table = pyarrow.parquet.read_table(path)
        table.validate(full=True)  # parquet says that text is UTF-8; nothing has checked it
        return list(enumerate(table.to_pylist()))
    except (OSError, *UNREADABLE) as error:
        raise DataFileError(f"{path}: not a readable parquet file ({first_line(error)})") from error


def _json(path: Path) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
    """How rows are counted in messages, and each with its number."""
    try:
        text = path.read_text("utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise DataFileError(f"{path}: not readable as text ({first_line(error)})") from error
    if text.lstrip().startswith("["):
        try:
            unit, rows = "row", list(enumerate(json.loads(text)))
        except (ValueError, RecursionError) as error:
            raise DataFileError(f"{path}: not JSON ({first_line(error)})") from error
    else:
        unit, rows = "line", []
        for number, line in enumerate(text.split("\n"), 1):
            try:
                rows += [(number, json.loads(line))] if line.strip() else []
            except (ValueError, RecursionError) as error:
                raise DataFileError(f"{path}: line {number}: not JSON ({first_line(error)})") from error
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataFileError(f"{path}: {unit} {number}: not a JSON object")
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise DataFileError(f"{path}: {unit} {number}: half of a surrogate pair, which is no text") from error
    return unit, rows


def _verl(where: str, index: int, row: Mapping[str, Any]) -> Problem:
    missing = [name for name in ("data_source", "prompt", "reward_model") if name not in row]
    problem = f"missing {', '.join(missing)}" if missing else problem_with_row(row, "prompt", "data_source")
    if problem:
        raise DataFileError(f"{where}: {problem}")
    messages = [dict(message) for message in row["prompt"]]
    return Problem(index, row["data_source"], messages, row["reward_model"]["ground_truth"], row.get("extra_info"))


def _math(where: str, index: int, row: Mapping[str, Any], question: str, source: str, template: str) -> Problem:
    text, answer = row.get(question), row.get("answer")
    if not isinstance(text, str) or not text.strip():
        raise DataFileError(f"{where}: {question} is not a text")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise DataFileError(f"{where}: answer is neither text nor a number")
    if reason := problem_with_truth(answer):
        raise DataFileError(f"{where}: the answer cannot be graded: {reason}")
    content = template.replace(PLACEHOLDER, text.strip())
    return Problem(index, source, [{"role": "user", "content": content}], answer, {"index": index})
