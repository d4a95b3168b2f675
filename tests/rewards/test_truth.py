from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from gtpo_verl.configuration.refusals import check_data, truth_check
from gtpo_verl.rewards.math import compute_score
from gtpo_verl.rewards.truth import problem_with_truth

PROSE = "We add both equations and see that the two unknowns are equal, so that the answer is 18."


@pytest.mark.parametrize(
    "truth",
    [
        *(
            13,
            -2,
            0,
            13.5,
            1e3,
            "13",
            "1,234",
            "$13$",
            r"\boxed{13}",
            r"\frac12",
            "1 1/4",
            "x^2+1",
            "(1,2)",
            r"\{1,2\}",
        ),
        *(
            r"\text{east}",
            "No",
            "B",
            "(C)",
            r"\text{two lines}",
            "June 20",
            "8:34 p.m.",
            "52_8",
            r"5 \text{ cm}",
            "50\\%",
        ),
        *(
            r"[0,\infty)",
            r"\infty",
            r"x \in [1,2]",
            "y = 2x+3",
            "-2 < x < 7",
            r"\begin{pmatrix}1\\2\end{pmatrix}",
            "xy",
        ),
        *("Does not exist", "no solution", "None", "undefined", "infinitely many", r"\emptyset", r"\overline{CD}"),
    ],
)
def test_what_responses_can_be_graded_against(truth: object) -> None:
    assert problem_with_truth(truth) is None
    assert compute_score("any", f"Answer: {truth}", truth)["acc"] == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("truth", "reason"),
    [
        *((None, "not NoneType"), (True, "not bool"), (["13"], "not list"), ({"answer": "13"}, "not dict")),
        *(("", "empty"), ("   ", "empty"), ("$$", "empty"), (r"\boxed{}", "empty"), (r"\text{}", ""), (".", "empty")),
        *(("9" * 2001, "2001 characters"), ("(" * 17 + "1" + ")" * 17, "nested")),
        *((PROSE, "words"), ("So we get 6 * 3 = 18\n#### 18", "graded"), ("#### 18", "")),
        *((r"\text{See solution}", "no answer"), ("See the explanation above", "no answer"), ("N/A", "no answer")),
        *(("Answers will vary", "no answer"), ("The answer is 5.", "no answer"), ("To be determined", "no answer")),
        *(("http://example.org/5", ""), ("answer key", "no answer")),
        *(("Proof.", "no answer"), ("Answers may vary", "no answer"), ("See https://example.org", "no answer")),
        *((r"\frac{1}{0}", "value"), ("0/0", "value"), (r"\infty - \infty", "value"), (r"\frac{0}{0}", "value")),
        *((r"\frac{1}{2", "graded"), ("12 13", "graded"), ("(1,2", "graded"), (r"\sqrt{", "graded"), ("1 +", "graded")),
        *(("nan", ""), (float("nan"), ""), (float("inf"), ""), (r"\foo{13}", "graded"), ("{'answer': 13}", "")),
    ],
)
def test_what_they_cannot_is_said_with_its_reason(truth: object, reason: str) -> None:
    problem = problem_with_truth(truth)
    assert problem is not None
    assert reason in problem
    assert len(problem) < 200


@given(
    st.one_of(st.text(max_size=80), st.integers(), st.floats(), st.none(), st.lists(st.text(max_size=3), max_size=3))
)
@settings(deadline=None)
def test_anything_is_answered_and_nothing_raised(truth: object) -> None:
    assert isinstance(problem_with_truth(truth), str | None)


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**6))
@settings(deadline=None)
def test_every_number_is_a_truth(above: int, below: int) -> None:
    assert problem_with_truth(above) is None
    assert problem_with_truth(f"{above:,}") is None
    assert problem_with_truth(rf"\frac{{{above}}}{{{below}}}") is None


def test_asking_needs_neither_sympy_nor_a_worker() -> None:
    code = (
        "import sys; from gtpo_verl.rewards.truth import problem_with_truth as p; p(r'\\frac{x}{2}');"
        "print(sorted({'sympy', 'math_verify', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_start_asks_where_this_reward_grades_and_names_the_rows(tmp_path: Path) -> None:
    ours, other = (
        OmegaConf.create({"reward": {"custom_reward_function": {"path": path}}})
        for path in ("pkg://gtpo_verl.rewards.math", "pkg://gtpo_verl.tasks.rewards")
    )
    rows = [
        {
            "data_source": "math",
            "prompt": [{"role": "user", "content": "?"}],
            "reward_model": {"style": "rule", "ground_truth": truth},
        }
        for truth in ("13", "x^2", "See solution")
    ]
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    check_data("data.train_files", str(path), "prompt", "data_source", truth_check(other))
    check_data("data.train_files", str(path), "prompt", "data_source", truth_check(OmegaConf.create({})))
    with pytest.raises(ValueError, match=r"train\.parquet: 1 of 3 ground truths cannot be graded: row 2: .*no answer"):
        check_data("data.train_files", str(path), "prompt", "data_source", truth_check(ours))
