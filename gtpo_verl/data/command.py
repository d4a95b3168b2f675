"""``gtpo-verl data``: fetch, clean, keep training apart from validation, write, report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow

from gtpo_verl import __version__
from gtpo_verl.data.cleaning import Problem, clean
from gtpo_verl.data.contamination import comparison_key, problems_by_split
from gtpo_verl.data.errors import DownloadError, RequestError
from gtpo_verl.data.fetching import comes_from_hub, fetch, is_place, names_one_file
from gtpo_verl.data.reading import read_problems
from gtpo_verl.data.sources import REASONING_GYM_PREFIX, SOURCES, Source, near_matches
from gtpo_verl.data.summary import Counts, Summary, show
from gtpo_verl.data.writing import (
    MANIFEST_SUFFIX,
    MATHS_SCHEMA,
    REASONING_SCHEMA,
    DataSet,
    output_folder,
    write_all,
)
from gtpo_verl.runtime.tables import console
from gtpo_verl.tasks import reasoning
from gtpo_verl.tasks.data_files import DataFileError

_SHOWN = 3
_ROWS = {"train": 2048, "validation": 128}


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        names: keys of `SOURCES`, or ``reasoning-gym:<task>``.
        output: folder of the files.
        place: where published files come from, as `gtpo_verl.data.fetching.fetch` takes it.
        revision: of the hub's repository; None for ``main``.
        rows, validation_rows, seed: of reasoning-gym's tasks; None for 2048, 128 and 0.
        cache_dir: where downloads are kept.
    """

    names: Sequence[str]
    output: Path = Path("data")
    place: str | None = None
    revision: str | None = None
    rows: int | None = None
    validation_rows: int | None = None
    seed: int | None = None
    cache_dir: Path = Path(".cache/gtpo-verl")


@dataclass
class _Made:
    """A data set on its way: its problems beside its rows, before either is dropped."""

    name: str
    split: str
    schema: pyarrow.Schema
    source: dict[str, Any]
    counts: Counts
    problems: list[str]
    rows: list[dict[str, Any]]
    remarks: list[str] = field(default_factory=list)
    dropped: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def main(request: Request) -> int:
    """Runs the command and returns its exit code; an error is one line on standard error."""
    try:
        summaries = make(request)
    except (DataFileError, DownloadError, RequestError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; downloads go on where they were when the command runs again", file=sys.stderr)
        return 130
    show(summaries, console())
    print(f"written to {request.output}, each with its manifest")
    return 0


def make(request: Request) -> list[Summary]:
    """Makes all data sets of a request, or none.

    Raises:
        RequestError: unknown names, options that do not go together, or an output that must not be replaced.
        DataFileError: a file is not what it should be, or a training file already in the folder holds problems of a
            validation set that is being made.
        DownloadError: a file cannot be had.
        OSError: the folder cannot be written.
    """
    names = list(dict.fromkeys(request.names))
    _check_names(names)
    _check_options(request, names)
    _check_output(request.output, names)
    made: list[_Made] = []
    for name in names:
        if name in SOURCES:
            made.append(_published(SOURCES[name], request))
        else:
            made.extend(_generated(name.removeprefix(REASONING_GYM_PREFIX), request))
    # Nobody else may add a file between the look at the others and the writing.
    with output_folder(request.output):
        _check_output(request.output, names)
        _separate(made, request.output)
        for data_set in made:
            for index, row in enumerate(data_set.rows):
                row["extra_info"]["index"] = index
            data_set.counts.rows_out = len(data_set.rows)
            if not data_set.rows:
                raise DataFileError(f"{data_set.name}: no row is left: {data_set.counts.as_manifest()}")
        write_all([_as_file(data_set) for data_set in made], request.output)
    return [Summary(data_set.name, data_set.counts, data_set.remarks) for data_set in made]


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        task = name.removeprefix(REASONING_GYM_PREFIX)
        if task != name:
            try:
                reasoning.tagged_task(task)
            except ImportError as error:
                raise RequestError(f"{name}: {error}; pip install reasoning-gym") from error
            except ValueError as error:
                raise RequestError(f"{name}: {error}{near_matches(task, reasoning.task_names())}") from error
        elif name not in SOURCES:
            known = [*SOURCES, f"{REASONING_GYM_PREFIX}<task>"]
            raise RequestError(f"{name}: unknown data set{near_matches(name, known)}; there are {', '.join(known)}")


def _check_options(request: Request, names: Sequence[str]) -> None:
    """An option that would do nothing is refused: it was meant to do something."""
    published = [name for name in names if name in SOURCES]
    if request.place is not None:
        if not published:
            raise RequestError("--from: none of these data sets is fetched")
        if not is_place(request.place):
            raise RequestError(f"--from {request.place!r}: no mirror, URL of a file, file or folder")
        if len(published) > 1 and names_one_file(request.place):
            raise RequestError(f"--from {request.place}: one file cannot be {' and '.join(published)}; name a folder")
    if request.revision is not None:
        if len(published) != 1:
            raise RequestError("--revision: each repository has its own; name one data set of the hub")
        if not comes_from_hub(request.place):
            raise RequestError(f"--revision: {request.place} is no hub, it has none")
        if not request.revision.strip():
            raise RequestError("--revision: empty; it takes a branch, a tag or a commit")
    least = {"rows": (request.rows, 1), "validation-rows": (request.validation_rows, 1), "seed": (request.seed, 0)}
    for option, (value, minimum) in least.items():
        if value is not None and len(published) == len(names):
            raise RequestError(f"--{option}: for tasks of reasoning-gym only; published data sets are taken whole")
        if value is not None and value < minimum:
            raise RequestError(f"--{option} {value}: too small")


def _check_output(output: Path, names: Sequence[str]) -> None:
    """Refuses what can be known to fail, or to destroy a file of the user, before anything is downloaded."""
    if output.exists() and not output.is_dir():
        raise RequestError(f"--output {output}: not a folder")
    existing = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RequestError(f"--output {output}: {existing} cannot be written")
    for name in names:
        for file_name in _file_names(name):
            path = output / f"{file_name}.parquet"
            manifest = path.with_suffix(MANIFEST_SUFFIX)
            for there in (path, manifest):
                if there.exists() and not (there.is_file() and manifest.is_file()):
                    raise RequestError(f"{there}: not written by this command; move it, or choose another --output")


def _file_names(name: str) -> list[str]:
    task = name.removeprefix(REASONING_GYM_PREFIX)
    return [name] if task == name else [f"reasoning-gym-{task}-{split}" for split in _ROWS]


def _published(source: Source, request: Request) -> _Made:
    file = fetch(source, request.place, request.revision or "main", request.cache_dir)
    if file.path.resolve() == (request.output / f"{source.name}.parquet").resolve():
        raise RequestError(f"{file.path}: would be replaced by what is read from it; choose another --output")
    cleaned = clean(read_problems(file.path), file.path)
    if cleaned.conflicts and source.split == "validation":
        first = cleaned.conflicts[0]
        answers = ", ".join(f"{answer!r} in row {row}" for answer, row in first.answers.items())
        raise DataFileError(f"{file.path}: a problem of this validation set has different answers: {answers}")
    made = _Made(
        name=source.name,
        split=source.split,
        schema=MATHS_SCHEMA,
        source={
            "repository": source.repository,
            "file": source.file,
            "origin": file.origin,
            "revision": file.revision,
            "commit": file.commit,
            "sha256": file.sha256,
        },
        counts=Counts(cleaned.rows, duplicates=cleaned.duplicates, conflicting=cleaned.conflicting),
        problems=[problem.text for problem in cleaned.problems],
        rows=[_row(source, problem) for problem in cleaned.problems],
    )
    if source.problems is not None and len(cleaned.problems) != source.problems:
        made.remarks.append(f"{len(cleaned.problems)} different problems; {source.problems} were published")
    if cleaned.conflicts:
        made.dropped["conflicting"] = [
            {"problem": problem.text, "rows": problem.rows, "answers": problem.answers} for problem in cleaned.conflicts
        ]
        made.remarks.append(
            f"dropped, because their answers contradict each other: {_counted(cleaned.conflicts)} "
            f"({_listed([f'row {problem.row}' for problem in cleaned.conflicts])})"
        )
    return made


def _row(source: Source, problem: Problem) -> dict[str, Any]:
    return {
        "data_source": source.data_source,
        "prompt": [{"role": "user", "content": problem.prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.truth},
        "extra_info": {"split": source.split, "index": 0, "source_row": problem.row},
    }


def _generated(name: str, request: Request) -> list[_Made]:
    task = reasoning.tagged_task(name)
    made = []
    counts = {"train": request.rows, "validation": request.validation_rows}
    seed = request.seed or 0
    for split, file_name in zip(_ROWS, _file_names(REASONING_GYM_PREFIX + name), strict=True):
        count = counts[split] or _ROWS[split]
        try:
            rows = reasoning.rows(split, count, seed, [task])
        except ValueError as error:
            raise RequestError(f"{REASONING_GYM_PREFIX}{name}: {error}") from error
        made.append(
            _Made(
                name=file_name,
                split=split,
                schema=REASONING_SCHEMA,
                source={"library": "reasoning-gym", "task": name, "seed": seed},
                counts=Counts(count),
                problems=[row["prompt"][-1]["content"] for row in rows],
                rows=rows,
            )
        )
    return made


def _separate(made: Sequence[_Made], output: Path) -> None:
    """Drops training problems that a validation set holds, of this command or already in the folder."""
    held: dict[str, str] = {}
    training: list[tuple[Path, dict[str, int]]] = []
    replaced = {f"{data_set.name}.parquet" for data_set in made}
    for path in sorted(output.glob("*.parquet")):
        if path.name not in replaced:
            splits = problems_by_split(path)
            if not splits:
                made[0].remarks.append(
                    f"not compared with {path.name}, which does not say in extra_info.split what it is"
                )
            for split, keys in splits.items():
                if split == "train":
                    training.append((path, keys))
                else:
                    held.update((key, path.name) for key in keys)
    for data_set in made:
        if data_set.split == "validation":
            keys_here = {comparison_key(problem): data_set.name for problem in data_set.problems}
            for path, keys in training:
                shared = [row for key, row in keys.items() if key in keys_here]
                if shared:
                    raise DataFileError(
                        f"{path}: row {shared[0]}: holds {_counted(shared)} of {data_set.name}; make it again in one "
                        f"command with {data_set.name}, or write to another folder with --output"
                    )
            held.update(keys_here)
    for data_set in made:
        if data_set.split == "train":
            _drop_held(data_set, held)


def _drop_held(data_set: _Made, held: dict[str, str]) -> None:
    holders = [held.get(comparison_key(problem)) for problem in data_set.problems]
    dropped = [(index, holder) for index, holder in enumerate(holders) if holder is not None]
    if not dropped:
        return
    data_set.counts.contaminating = len(dropped)
    data_set.dropped["in_validation"] = [
        {"problem": data_set.problems[index], "validation": holder} for index, holder in dropped
    ]
    where = sorted({holder for _, holder in dropped})
    data_set.remarks.append(f"dropped, because validation holds them: {_counted(dropped)} (of {', '.join(where)})")
    data_set.rows = [row for row, holder in zip(data_set.rows, holders, strict=True) if holder is None]


def _as_file(data_set: _Made) -> DataSet:
    manifest = {
        "split": data_set.split,
        "source": data_set.source,
        "counts": data_set.counts.as_manifest(),
        "dropped": data_set.dropped,
        "gtpo_verl": __version__,
    }
    return DataSet(data_set.name, data_set.rows, data_set.schema, manifest)


def _counted(things: Sequence[Any]) -> str:
    return f"{len(things):,} problem{'s' if len(things) != 1 else ''}"


def _listed(things: Sequence[str]) -> str:
    return ", ".join(things[:_SHOWN]) + (", ..." if len(things) > _SHOWN else "")
