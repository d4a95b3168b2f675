"""Which spellings count as the same problem."""

import contextlib

import pyarrow
import pyarrow.parquet
import pytest

from gtpo_verl.data.contamination import comparison_key, problems_by_split
from gtpo_verl.tasks.data_files import DataFileError


@pytest.mark.parametrize(
    "spelling",
    [
        r"Find $x$ with $\frac{x}{2}=(3+4)$.",
        r"find \(x\)  with" + "\n" + r"\[ \dfrac{x}{2} = \left( 3 + 4 \right) \]",
        r"FIND $x$ with $\tfrac{x}{2}\,=\;(3\ +\quad 4)$",
        "Find x with \\frac{x}{2}=(3+４).",  # noqa: RUF001 - a full-width digit
        r"Find $\displaystyle x$ with $\frac{x}{2}=\big(3+4\big)$.",
    ],
)
def test_typesetting_does_not_matter(spelling):
    assert comparison_key(spelling) == comparison_key(r"Find $x$ with $\frac{x}{2}=(3+4)$.")


@pytest.mark.parametrize(
    ("one", "other"),
    [("Find 1+2", "Find 1-2"), ("x<1", "x>1"), (r"\leftarrow", r"\rightarrow"), ("f(x)=2", "f(x)=3"), ("1.5", "15")],
)
def test_content_matters(one, other):
    assert comparison_key(one) != comparison_key(other)


def test_files_that_say_nothing_about_splits_say_nothing(tmp_path):
    path = tmp_path / "a.parquet"
    for rows in (
        [{"x": 1}],
        [{"prompt": "text", "extra_info": "text"}],
        [{"prompt": [{"content": "x"}], "extra_info": {"index": 1}}],
        [{"prompt": "text", "extra_info": {"split": "train"}}],
        [{"prompt": ["text"], "extra_info": {"split": "train"}}],
        [{"prompt": [{"content": "x"}], "extra_info": {"split": None}}],
    ):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        assert problems_by_split(path) == {}, rows


def test_an_unreadable_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(DataFileError, match=r"a\.parquet: not a readable"):
        problems_by_split(path)


def test_damage_anywhere_in_the_file_is_refused_or_harmless(tmp_path, samples):
    path = tmp_path / "a.parquet"
    rows = [{"prompt": [{"role": "user", "content": f"{n}"}], "extra_info": {"split": "train"}} for n in range(5)]
    content = samples.parquet(rows)
    for position in range(0, len(content), max(1, len(content) // 200)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        with contextlib.suppress(DataFileError):
            problems_by_split(path)
