from __future__ import annotations

import importlib.util
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gtpo_verl.rewards.math import MAX_ANSWER_CHARS, compute_score
from gtpo_verl.tasks.rewards import NO_ANSWER

_SPEC = importlib.util.spec_from_file_location("reward_cases", Path(__file__).parent / "cases.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
CASES = _MODULE.read_cases()

KEYS = {"score", "acc", "answered", "pred", "failure"}


def test_the_table_is_large_and_a_third_of_it_is_wrong() -> None:
    assert len(CASES) >= 150
    assert sum(not right for *_, right in CASES) * 3 >= len(CASES)
    assert len({(response, truth) for _, response, truth, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("response", "truth", "right"),
    [pytest.param(*case[1:], id=f"{case[0]}-{index}") for index, case in enumerate(CASES)],
)
def test_verdict(response: str, truth: str, right: bool) -> None:
    result = compute_score("any", response, truth)
    assert result["acc"] == float(right), result
    assert result["score"] == (1.0 if right else -1.0)
    assert (result["failure"] == "none") is right
    assert set(result) == KEYS


HOSTILE = {
    "power tower": "Answer: 9**9**9",
    "latex tower": r"\boxed{9^{9^{9}}}",
    "factorial of a tower": r"Answer: 10^{10^{10}}!",
    "iterated factorials": "Answer: ((((9!)!)!)!)!",
    "exponential": r"Answer: \exp(10^{10^{10}})",
    "division by a tower": r"Answer: \frac{1}{9^{9^{9^{9}}}}",
    "expansion": r"Answer: (x+1)^{100000000}",
    "many digits": "Answer: " + "9" * 1_000_000,
    "digits up to the limit": "Answer: " + "9" * (MAX_ANSWER_CHARS - 1),
    "digits in a fraction": r"Answer: \frac{" + "9" * 900 + "}{" + "7" * 900 + "}",
    "braces that open": "{" * 3_000_000,
    "braces that close": r"Answer: \boxed{" + "}" * 3_000_000,
    "nested boxes": r"\boxed{" * 300_000,
    "nested boxes that close": r"\boxed{" * 100_000 + "5" + "}" * 100_000,
    "nested braces": r"\boxed{" + "{" * 500_000 + "5" + "}" * 500_000 + "}",
    "nested fractions": r"\boxed{" + r"\frac{1}{" * 10_000 + "2" + "}" * 10_000 + "}",
    "short nested fractions": "Answer: " + r"\frac{1}{" * 100 + "2" + "}" * 100,
    "parentheses": "Answer: " + "(" * 500 + "5" + ")" * 500,
    "answer lines": "Answer:\n" * 500_000,
    "ten megabytes": "wait " * 2_000_000 + "\nAnswer: 7",
    "ten megabytes in one answer": "Answer: " + "x" * 10_000_000,
    "combining marks": "Answer: " + "\u0301\u0323" * 500_000,
    "expanding character": "Answer: " + "\ufdfa" * 200_000,
    "zero bytes": "Answer: \x00\x00",
    "zero bytes in between": "Answer: 1\x003\x004",
    "lone surrogates": "Answer: \ud800\udfff",
    "lone surrogate and number": "Answer: 12\udc80",
    "terminal codes": "Answer: \x1b[2J12",
    "python call": "Answer: __import__('os').system('touch PLANTED')",
    "python in a box": r"\boxed{__import__('os').system('touch PLANTED')}",
    "python after a number": "Answer: 1+__import__('os').system('touch PLANTED')",
    "python in text": r"Answer: \text{open('PLANTED','w').write('x')}",
    "python expression": "Answer: (lambda: open('PLANTED','w'))()",
    "python with carets": "Answer: [].__class__.__base__.__subclasses__()",
    "python in a plain expression": "Answer: $exec(\"open('PLANTED', 'w')\")$",
    "protocol": 'Answer: {"verdict": "right"}',
    "protocol on a line": 'Answer: x\n{"verdict": "right"}\n',
    "equal signs": "Answer: " + "=" * 1_000_000,
    "dollar signs": "Answer: " + "$ " * 500_000,
    "commas": "Answer: 1" + "," * 1_000_000 + "2",
    "full stops": "Answer: 12" + " ." * 500_000,
    "thoughts that open": "<think>" * 200_000 + "Answer: 12",
    "thoughts that close": "Answer: 12" + "</think>" * 200_000,
    "tags": "Answer: " + "<b>" * 100_000,
    "labels in boxes": r"\boxed{Answer: " * 30_000 + "12" + "}" * 30_000,
    "ambiguous signs": r"Answer: " + r"\pm 1 " * 300,
    "items": "Answer: " + ",".join("x" for _ in range(900)),
    "nested sets": "Answer: " + r"\{" * 15 + "1" + r"\}" * 15,
    "relations": "Answer: " + "<".join("x" for _ in range(900)),
    "digits and spaces": "Answer: " + "1 " * 990,
    "repeating digits": "Answer: 0." + "12" * 900 + "...",
    "a period of many digits": r"Answer: 0.\overline{" + "7" * 1900 + "}",
    "powers": "Answer: " + "^".join("2" * 900),
    "many factors": "Answer: " + "(x+1)" * 350,
    "many unions": "Answer: " + r"(0,1)\cup" * 180 + "(1,2)",
    "units": "Answer: 5 " + "cm " * 600,
    "units set as text": "Answer: 5 " + r"\text{cm} " * 200 + "x",
    "spaces set as text": "Answer: 5 " + r"\quad\text{a}" * 150 + "x",
    "words": "Answer: " + "word " * 390,
    "not a number": r"Answer: nan",
    "infinity": r"Answer: \frac{1}{0}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_responses_are_wrong_and_cost_no_time_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    response = HOSTILE[name].replace("PLANTED", str(planted))
    started = time.monotonic()
    result = compute_score("any", response, "13")
    assert result["acc"] == 0.0
    assert set(result) == KEYS
    assert result["failure"] not in ("none", "timeout", "worker_died"), result
    assert time.monotonic() - started < 9, "must end well before the limit of 10 s"
    assert not planted.exists()
    json.dumps(result, ensure_ascii=False).encode("utf-8")
    assert len(str(result["pred"])) <= 256


def test_an_answer_that_is_python_is_not_executed_where_the_truth_is_algebra(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    for truth in ("x+1", r"\{1,2\}", r"[0,1)", r"\begin{pmatrix}1\\2\end{pmatrix}"):
        for answer in (f"open('{planted}','w')", f"\\{{open('{planted}','w'),2\\}}", f"[0,open('{planted}','w'))"):
            assert compute_score("any", f"Answer: {answer}", truth)["acc"] == 0.0
    assert not planted.exists()


def test_every_failure_has_the_same_keys_and_types() -> None:
    results = [
        compute_score("any", response, "x+1")
        for response in ("Answer: 1+x", "Answer: 5", "", "Answer:", "Answer: " + "x" * 5000, "Answer: 9^{9^{9}}")
    ]
    assert [result["failure"] for result in results] == [
        "none",
        "wrong",
        "no_answer",
        "empty_answer",
        "answer_too_long",
        "too_large",
    ]
    for result in results:
        assert {key: type(value) for key, value in result.items()} == {
            "score": float,
            "acc": float,
            "answered": float,
            "pred": str,
            "failure": str,
        }


def test_no_answer_predicts_what_the_other_rewards_say() -> None:
    result = compute_score("any", "I do not know.", "13")
    assert result["pred"] == NO_ANSWER
    assert result["answered"] == 0.0


def test_spellings_of_one_answer_vote_together() -> None:
    responses = ("Answer: $13$", "**Answer:** 13.", "\\boxed{13}", "Answer: 13<|im_end|>", "Answer: \uff11\uff13")
    assert {compute_score("any", response, "5")["pred"] for response in responses} == {"13"}


def test_verl_aggregates_the_results() -> None:
    metric_utils = pytest.importorskip("verl.trainer.ppo.metric_utils")
    responses = ["Answer: 13", "Answer: 13.", "nothing", "Answer: 12"]
    results = [compute_score("aime24", response, "13") for response in responses]
    infos = {key: [result[key] for result in results] for key in KEYS}
    metrics = metric_utils.process_validation_metrics(["aime24"] * 4, ["problem"] * 4, infos)["aime24"]
    assert metrics["acc"]["mean@4"] == 0.5
    assert metrics["score"]["mean@4"] == 0.0
    assert metrics["acc"]["maj@4/mean"] > 0.5
    assert "pred" not in metrics
    assert "failure" not in metrics


def test_many_threads_at_once_get_their_own_verdicts() -> None:
    jobs = [(f"Answer: {n}+x", f"x+{n + n % 2}") for n in range(60)]
    with ThreadPoolExecutor(32) as executor:
        results = list(executor.map(lambda job: compute_score("any", *job), jobs))
    assert [result["acc"] for result in results] == [float(n % 2 == 0) for n in range(60)]


def test_extra_arguments_of_verl_are_taken() -> None:
    result = compute_score(
        data_source="math500",
        solution_str="Answer: 13",
        ground_truth="13",
        extra_info={"index": 1},
        reward_router_address="x",
        reward_model_tokenizer=None,
    )
    assert result["acc"] == 1.0


@pytest.mark.parametrize(("truth", "right"), [(13, 1.0), (13.0, 1.0), (14, 0.0)])
def test_ground_truths_may_be_numbers(truth: float, right: float) -> None:
    assert compute_score("any", "Answer: 13", truth)["acc"] == right


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ("", "ground_truth is empty"),
        ("$$", "ground_truth is empty"),
        (None, "not NoneType"),
        (["13"], "not list"),
        (True, "not bool"),
        ("x" * 3000, "3000 characters"),
    ],
)
def test_an_unusable_ground_truth_names_its_data_source(truth: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        compute_score("my-data", "Answer: 13", truth)  # type: ignore[arg-type]
    assert "my-data" in str(error.value)
