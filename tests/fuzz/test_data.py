"""Data files, damaged or of any form: their rows are read, or the file is refused by its name and the row.

``GTPO_VERL_FUZZ_MINUTES`` gives the long budget (`budget`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from budget import tried
from damage import DAMAGE, JSON, SCALARS, damaged
from hypothesis import assume, given
from hypothesis import strategies as st

from gtpo_verl.configuration.data_checks import check_data
from gtpo_verl.data.cleaning import clean
from gtpo_verl.data.contamination import problems_by_split
from gtpo_verl.data.reading import read_problems
from gtpo_verl.evaluation.problems import ProblemFile, read
from gtpo_verl.rewards.truth import problem_with_truth
from gtpo_verl.tasks.data_files import DataFileError, check_data_file

TEXT = st.text(max_size=12)
TRUTHS = st.one_of(st.integers(-99, 999).map(str), st.sampled_from([r"\frac12", "x+1", "(1,2)", r"\text{east}"]))


@contextmanager
def file(name: str, content: bytes = b"") -> Iterator[Path]:
    with TemporaryDirectory(prefix="fuzz-data-") as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        yield path


def verl_row(text: str, truth: Any, **changes: Any) -> dict[str, Any]:
    return {
        "data_source": "x",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0, "split": "train"},
        **changes,
    }


def parquet(rows: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def lines(rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def cleaned(path: Path) -> int:
    found = clean(read_problems(path, batch_rows=2), path)
    assert all(problem.text and problem.truth for problem in found.problems)
    return found.rows


def evaluated(path: Path) -> int:
    found: ProblemFile = read(path)
    assert len(found.fingerprint) == 32
    assert all(message.keys() >= {"role"} for problem in found.problems for message in problem.messages)
    return len(found.problems) + found.repeated


def checked(path: Path) -> int:
    return check_data_file(path, problem_with_truth=problem_with_truth)


def compared(path: Path) -> int:
    return sum(len(keys) for keys in problems_by_split(path).values())


def trained(path: Path) -> int:
    return check_data("data.train_files", str(path), "prompt", "data_source", problem_with_truth)


READERS: dict[str, tuple[Callable[[Path], int], tuple[str, ...]]] = {
    "clean": (cleaned, ("parquet", "jsonl")),
    "evaluate": (evaluated, ("parquet", "jsonl", "json")),
    "check": (checked, ("parquet",)),
    "compare": (compared, ("parquet",)),
}
ALL = [(name, ending) for name, (_, endings) in READERS.items() for ending in endings]


def rows_or_refused(reader: Callable[[Path], int], path: Path) -> int | str:
    """How many rows were read, or what the refusal says."""
    try:
        rows = reader(path)
    except DataFileError as error:
        assert str(path) in str(error)
        return str(error)
    assert rows >= 0
    return rows


# Good files -----------------------------------------------------------------------------------------------------------

PROBLEMS = st.lists(st.tuples(TEXT.filter(lambda text: text.strip()), TRUTHS), min_size=1, max_size=6)


@tried(40)
@given(problems=PROBLEMS, form=st.sampled_from(["verl", "math", "question"]), how=st.sampled_from(ALL))
def test_good_rows_are_all_read(problems: Any, form: str, how: tuple[str, str]) -> None:
    reader, (name, ending) = READERS[how[0]][0], how
    key = {"math": "problem", "question": "question"}.get(form)
    rows = [verl_row(*pair) if key is None else {key: pair[0], "answer": pair[1]} for pair in problems]
    assume(form == "verl" or name in ("clean", "evaluate"))
    content = parquet(rows) if ending == "parquet" else json.dumps(rows).encode() if ending == "json" else lines(rows)
    with file(f"a.{ending}", content) as path:
        found = rows_or_refused(reader, path)
    if name == "compare":
        assert isinstance(found, int)
    else:
        assert found == len(rows)


BAD = st.sampled_from(
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [{"role": "", "content": "x"}]}, "prompt"),
        ({"reward_model": None}, "ground_truth"),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "ground_truth"),
        ({"reward_model": {"style": "rule", "ground_truth": "see solution"}}, "see solution"),
        ({"reward_model": {"style": "rule", "ground_truth": "0/0"}}, "0/0"),
    ]
)


@tried(40)
@given(problems=PROBLEMS, bad=BAD, place=st.integers(0, 6), how=st.sampled_from(ALL[:5]))
def test_a_bad_row_is_named(problems: Any, bad: Any, place: int, how: tuple[str, str]) -> None:
    reader, (name, ending) = READERS[how[0]][0], how
    change, words = bad
    assume(name != "evaluate" or words in ("prompt", "ground_truth"))  # verl's truths are its reward's affair
    assume(name != "compare")
    rows = [verl_row(*pair) for pair in problems]
    place = min(place, len(rows))
    rows.insert(place, verl_row("bad", "1", **change))
    rows.append(verl_row("good", "1"))
    content = parquet(rows) if ending == "parquet" else json.dumps(rows).encode() if ending == "json" else lines(rows)
    with file(f"a.{ending}", content) as path:
        found = rows_or_refused(reader, path)
    where = f"line {place + 1}" if ending == "jsonl" and words in ("prompt", "ground_truth") else f"row {place}"
    assert isinstance(found, str)
    assert f"{where}: " in found or f"{where} " in found, found
    assert words in found


# Any file -------------------------------------------------------------------------------------------------------------


@tried(120, share=4)
@given(problems=PROBLEMS, damage=DAMAGE, form=st.booleans(), how=st.sampled_from(ALL))
def test_a_damaged_file_is_read_or_named(problems: Any, damage: Any, form: bool, how: tuple[str, str]) -> None:
    name, ending = how
    rows = [verl_row(*pair) if form else {"problem": pair[0], "answer": pair[1]} for pair in problems]
    content = parquet(rows) if ending == "parquet" else json.dumps(rows).encode() if ending == "json" else lines(rows)
    with file(f"a.{ending}", damaged(content, damage)) as path:
        rows_or_refused(READERS[name][0], path)


KEYS = ["prompt", "reward_model", "data_source", "extra_info", "problem", "question", "answer", "other"]
VALUES = st.one_of(
    SCALARS,
    JSON.map(json.loads),
    st.builds(lambda role, content: [{"role": role, "content": content}], SCALARS, SCALARS),
    SCALARS.map(lambda truth: {"ground_truth": truth}),
    st.sampled_from(
        ["x", [], {}, [{}], [{"role": "user", "content": "1+1="}], {"ground_truth": "2"}, {"split": "train"}]
    ),
)
ROWS = st.lists(
    st.one_of(
        JSON.map(json.loads),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), TEXT), VALUES, max_size=6),
        st.fixed_dictionaries(dict.fromkeys(KEYS[:4], VALUES)),
        st.fixed_dictionaries(dict.fromkeys(("problem", "answer"), VALUES)),
    ),
    max_size=3,
)


@tried(120, share=3)
@given(rows=ROWS, deep=st.integers(0, 3), how=st.sampled_from([one for one in ALL if one[1] != "parquet"]))
def test_any_json_is_read_or_named(rows: Any, deep: int, how: tuple[str, str]) -> None:
    name, ending = how
    content = json.dumps(rows).encode() if ending == "json" else lines(rows)
    if deep == 3:
        content += b"[" * 50_000 + b"\n" + content
    with file(f"a.{ending}", content) as path:
        rows_or_refused(READERS[name][0], path)


_BASIC = [
    *(
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.binary(),
        pyarrow.int64(),
        pyarrow.uint8(),
    ),
    *(pyarrow.float64(), pyarrow.float32(), pyarrow.bool_(), pyarrow.null(), pyarrow.timestamp("ns", "UTC")),
    *(pyarrow.date32(), pyarrow.duration("s"), pyarrow.time64("us"), pyarrow.decimal128(9, 2)),
    *(pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), pyarrow.timestamp("s")),
]
_FIELDS = st.sampled_from(["role", "content", "ground_truth", "split", "index", "x"])
TYPES = st.recursive(
    st.sampled_from(_BASIC),
    lambda inner: st.one_of(
        inner.map(pyarrow.list_),
        inner.map(pyarrow.large_list),
        inner.map(lambda kind: pyarrow.list_(kind, 1)),
        inner.map(lambda kind: pyarrow.map_(pyarrow.string(), kind)),
        st.dictionaries(_FIELDS, inner, min_size=1, max_size=3).map(
            lambda fields: pyarrow.struct(list(fields.items()))
        ),
    ),
    max_leaves=4,
)
MESSAGES = st.one_of(
    st.just(pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())]))),
    st.builds(lambda a, b: pyarrow.list_(pyarrow.struct([("role", a), ("content", b)])), TYPES, TYPES),
)
TRUTH_TYPES = TYPES.map(lambda kind: pyarrow.struct([("ground_truth", kind)]))


def values_of(draw: Any, kind: pyarrow.DataType) -> Any:
    """A value that Arrow takes for the type, at times null, at times far out of what Python can say."""
    kinds = pyarrow.types
    if kinds.is_null(kind) or draw(st.integers(0, 9)) == 0:
        return None
    if kinds.is_struct(kind):
        return {field.name: values_of(draw, field.type) for field in kind}
    if kinds.is_map(kind):
        return [(text, values_of(draw, kind.item_type)) for text in draw(st.lists(st.just("k"), max_size=1))]
    if kinds.is_fixed_size_list(kind):
        return [values_of(draw, kind.value_type)]
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return [values_of(draw, kind.value_type) for _ in range(draw(st.integers(0, 2)))]
    if kinds.is_boolean(kind):
        return draw(st.booleans())
    if kinds.is_floating(kind):
        return draw(st.floats(width=32))
    if kinds.is_binary(kind):
        return draw(st.binary(max_size=4))
    if kinds.is_decimal(kind):
        return draw(st.decimals(-99, 99, places=2))
    if kinds.is_uint8(kind):
        return draw(st.integers(0, 255))
    if kinds.is_integer(kind) or kinds.is_temporal(kind):
        return draw(st.one_of(st.integers(0, 99), st.sampled_from([2**31 - 1, 0])))
    return draw(st.one_of(st.sampled_from(["user", "1", "1+1=", "train", ""]), TEXT))


@st.composite
def tables(draw: Any) -> pyarrow.Table:
    chosen = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True))
    if draw(st.booleans()):
        chosen = draw(st.sampled_from([KEYS[:4], KEYS[:3], ["problem", "answer"]]))
    rows = draw(st.integers(0, 3))
    columns, names = [], []
    for name in chosen:
        own = {"prompt": MESSAGES, "reward_model": TRUTH_TYPES, "data_source": st.just(pyarrow.string())}
        kind = draw(st.one_of(own.get(name, TYPES), own.get(name, TYPES), TYPES))
        values = [values_of(draw, kind) for _ in range(rows)]
        try:
            columns.append(pyarrow.array(values, kind))
        except (pyarrow.ArrowException, OverflowError, TypeError, UnicodeEncodeError):
            assume(False)
        names.append(name if draw(st.integers(0, 19)) else KEYS[0])  # at times twice
    return pyarrow.table(columns, names)


@tried(100, share=4)
@given(table=tables(), name=st.sampled_from(list(READERS)))
def test_any_table_is_read_or_named(table: pyarrow.Table, name: str) -> None:
    try:
        content = parquet(table)
    except pyarrow.ArrowException:  # a type that parquet has not
        assume(False)
    with file("a.parquet", content) as path:
        rows_or_refused(READERS[name][0], path)


FAR = pyarrow.table(
    {
        **pyarrow.Table.from_pylist([verl_row("1+1=", "2")]).to_pydict(),
        "extra_info": pyarrow.array([{"index": 2**31 - 1}], pyarrow.struct([("index", pyarrow.date32())])),
    }
)


@pytest.mark.parametrize("name", READERS)
def test_dates_that_python_has_not(name: str) -> None:
    with file("a.parquet", parquet(FAR)) as path:
        found = rows_or_refused(READERS[name][0], path)
    read_without_them = {"clean": 1, "compare": 0}
    assert found == read_without_them[name] if name in read_without_them else isinstance(found, str)


# As verl reads them ---------------------------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """datasets keeps what it has read in a cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)


@tried(3, share=3)
@given(problems=PROBLEMS, damage=st.one_of(st.just([]), DAMAGE), ending=st.sampled_from(["parquet", "jsonl", "json"]))
@pytest.mark.usefixtures("library")
def test_a_damaged_file_is_trained_on_or_named(problems: Any, damage: Any, ending: str) -> None:
    rows = [verl_row(*pair) for pair in problems]
    content = parquet(rows) if ending == "parquet" else lines(rows)
    with file(f"a.{ending}", damaged(content, damage)) as path:
        found = rows_or_refused(trained, path)
    assert damage or found == len(rows)


@tried(3, share=3)
@given(table=tables())
@pytest.mark.usefixtures("library")
def test_any_table_is_trained_on_or_named(table: pyarrow.Table) -> None:
    try:
        content = parquet(table)
    except pyarrow.ArrowException:
        assume(False)
    with file("a.parquet", content) as path:
        rows_or_refused(trained, path)
