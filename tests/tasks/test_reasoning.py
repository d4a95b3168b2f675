"""reasoning-gym's tasks as verl's data, and its verifiers as rewards."""

import dataclasses
import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gtpo_verl.tasks import reasoning
from gtpo_verl.tasks.reasoning import STEPS_TASKS, TASKS, TRANSFER_TASKS, ReasoningTask
from gtpo_verl.tasks.rewards import compute_score

every_task = pytest.mark.parametrize(
    "task",
    [pytest.param(task, id=task.name) for task in TASKS]
    + [pytest.param(task, id=f"steps-{task.name}") for task in (*STEPS_TASKS, *TRANSFER_TASKS)],
)


def test_rows_take_turns_and_differ():
    rows = reasoning.rows("train", 40, 0)
    assert len({row["prompt"][-1]["content"] for row in rows}) == 40
    assert [row["data_source"] for row in rows[: len(TASKS)]] == [task.data_source for task in TASKS]
    assert [row["extra_info"]["index"] for row in rows] == list(range(40))


def test_the_seed_decides_the_rows():
    assert reasoning.rows("train", 10, 3) == reasoning.rows("train", 10, 3)
    assert reasoning.rows("train", 10, 3) != reasoning.rows("train", 10, 4)


def test_splits_are_disjoint_across_seeds():
    questions = {
        split: {row["prompt"][-1]["content"] for seed in (0, 1) for row in reasoning.rows(split, 40, seed)}
        for split in reasoning.SPLITS
    }
    assert not questions["train"] & questions["validation"]


@every_task
def test_the_librarys_verifier_accepts_its_own_answer_only(task):
    for row in reasoning.rows("train", 5, 0, [task]):
        truth = row["reward_model"]["ground_truth"]
        right = compute_score(row["data_source"], f"I think it is {truth}.", truth, row["extra_info"])
        wrong = compute_score(row["data_source"], f"It is {truth}. Or {int(truth) + 1}", truth, row["extra_info"])
        assert (right["acc"], right["score"], right["pred"]) == (1.0, 1.0, truth)
        assert wrong["acc"] == 0.0
        assert wrong["score"] < 0.5


@every_task
def test_examples_are_right_answers_to_questions_of_the_task(task):
    """And of the form that the library asks in, so that a new version of it that asks otherwise is seen."""
    made = reasoning.rows("train", 500, 0, [dataclasses.replace(task, examples=())])
    shapes = {shape(row["prompt"][-1]["content"]) for row in made}
    assert task.examples
    for question, answer in task.examples:
        assert shape(question) in shapes
        assert reasoning.extract_answer(answer) == truth(task, question)


def shape(question):
    """A question without its words, unknown and numbers of its own."""
    return re.sub(r"\d+", "0", re.sub(r"\b[a-z]\b", "x", re.sub(r'"[^"]*"', '""', question)))


def truth(task, question):
    if task.name in ("basic_arithmetic", "chain_sum"):
        return str(sum(int(term.replace(" ", "")) for term in re.findall(r"(?:[-+] )?\d+", question)))
    if task.name == "simple_equations":
        term, total = map(int, re.findall(r"\d+", question))
        return str(total - term)
    letter, text = re.findall(r'"([^"]*)"', question)
    return str(text.count(letter))


def value(expression):
    """Of one number, or of two with a sign between them."""
    first, sign, second = re.fullmatch(r"(-?\d+)(?: ([-+]) (\d+))?", expression).groups("")
    return int(first) + int(sign + second or 0)


@pytest.mark.parametrize("task", [*STEPS_TASKS, *TRANSFER_TASKS], ids=lambda task: task.name)
def test_each_step_of_an_example_is_right(task):
    for _, answer in task.examples:
        for line in answer.split("\n"):
            # What an equation asks for stands before the first sign of equality.
            numbers = [side for side in line.split(" = ") if not re.search("[a-z]", side)]
            assert len(numbers) == 2
            assert value(numbers[0]) == value(numbers[1])


def test_transfer_tasks_are_reported_apart():
    assert not {task.data_source for task in STEPS_TASKS} & {task.data_source for task in TRANSFER_TASKS}


def test_examples_are_turns_before_the_question_and_are_asked_by_no_row():
    task = TASKS[0]
    plain = [row["prompt"][-1]["content"] for row in reasoning.rows("train", 20, 0, [TASKS[0]])]
    shown = dataclasses.replace(task, examples=((plain[0], "first"), (plain[3], "second")))
    rows = reasoning.rows("train", 18, 0, [shown])
    assert [row["prompt"][-1]["content"] for row in rows] == [plain[1], plain[2], *plain[4:]]
    for row in rows:
        assert [turn["role"] for turn in row["prompt"]] == ["system", *["user", "assistant"] * 2, "user"]
        assert [turn["content"] for turn in row["prompt"][1:-1]] == [plain[0], "first", plain[3], "second"]


@pytest.mark.parametrize("response", ["", "none", "9" * 100_000, "\x00\ud800", "-", "1.2.3", "1,,,2", "٣"])
def test_any_response_gets_a_score(response):
    # 13 or more, and not a row of nines: what none of these is read as.
    row = next(row for row in reasoning.rows("train", 20, 0) if int(row["reward_model"]["ground_truth"]) > 12)
    result = compute_score(row["data_source"], response, row["reward_model"]["ground_truth"], row["extra_info"])
    assert set(result) == {"score", "acc", "answered", "pred"}
    assert result["acc"] == 0.0


def test_a_row_without_the_entry_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"extra_info\.entry"):
        compute_score("reasoning_gym/chain_sum", "4", "4", {"split": "train"})
    with pytest.raises(ValueError, match=r"extra_info\.entry"):
        compute_score("reasoning_gym/chain_sum", "4", "4", None)


def test_an_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="nonsense"):
        compute_score("reasoning_gym/nonsense", "4", "4", {"entry": json.dumps({"answer": "4"})})


def test_too_few_questions_and_unknown_splits_are_refused():
    few = ReasoningTask("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    with pytest.raises(ValueError, match="products holds too few"):
        reasoning.rows("validation", 100, 0, [few])
    with pytest.raises(ValueError, match="'test'"):
        reasoning.rows("test", 1, 0)


@pytest.mark.parametrize(
    ("response", "answer"),
    [("4 + 4 = 8", "8"), ("1,234.", "1234"), ("it is -7!", "-7"), ("2.50", "2.50"), ("x", None), ("", None)],
)
def test_extract_answer(response, answer):
    assert reasoning.extract_answer(response) == answer


def test_tagged_answers_are_what_the_last_tags_hold():
    row = reasoning.rows("train", 1, 0, [reasoning.tagged_task("spell_backward")])[0]
    truth = row["reward_model"]["ground_truth"]

    def acc(response):
        return compute_score(row["data_source"], response, truth, row["extra_info"])["acc"]

    assert acc(f"<answer>{truth}</answer>") == 1.0
    assert acc(f"<answer>x</answer> no: <answer> {truth}\n</answer>") == 1.0
    assert acc(f"<answer>{truth}</answer> no: <answer>x</answer>") == 0.0
    assert acc(f"<answer>x<answer>{truth}</answer>") == 1.0
    assert acc(truth) == acc(f"<answer>{truth}") == acc(f"</answer>{truth}<answer>") == 0.0
    assert acc(f"<answer>{truth}{' ' * 10_000}</answer>") == 0.0


def test_a_task_whose_verifier_runs_answers_takes_numbers_only():
    for name in reasoning.EVALUATED:
        with pytest.raises(ValueError, match="runs the answer as Python"):
            reasoning.tagged_task(name)
    info = {"entry": json.dumps({"answer": "4"}), "answer_format": "tag"}
    with pytest.raises(ValueError, match="runs the answer as Python"):
        compute_score("reasoning_gym/countdown", "<answer>4</answer>", "4", info)


def test_every_verifier_that_evaluates_text_is_known():
    """A new version of the library may add one; someone has to look at it."""
    from reasoning_gym.factory import DATASETS

    # They evaluate what the library made itself: the problem, or its answer.
    looked_at = {
        "basic_arithmetic",
        "bf",
        "bitwise_arithmetic",
        "codeio",
        "gsm_symbolic",
        "number_sorting",
        "propositional_logic",
    }
    evaluators = re.compile(
        r"\b(?:eval|exec|compile|parse_expr|parse_latex|sympify|S)\(|__import__|subprocess|os\.system"
    )
    found = set()
    for name, (dataset, _) in DATASETS.items():
        module = Path(inspect.getfile(dataset))
        files = module.parent.glob("*.py") if module.parent.name in (name, "gsm_symbolic") else [module]
        if any(evaluators.search(re.sub(r"re\.compile\(", "", file.read_text())) for file in files):
            found.add(name)
    assert found == reasoning.EVALUATED | looked_at


HOSTILE = """
import json, sys, time
sys.set_int_max_str_digits(4300)
from gtpo_verl.tasks import reasoning
from gtpo_verl.tasks.rewards import compute_score
slow = {"acre", "arc_agi", "codeio", "figlet_font", "futoshiki", "group_anagrams", "knight_swap", "zebra_puzzles"}
answers = [
    "__import__('pathlib').Path('PLANTED').touch()", "[__import__('pathlib').Path('PLANTED').touch()]",
    "9**9**9", "1e999999999", "1E+999_999_999", "1/1e-999999", "9" * 8000, "(" * 4000 + ")" * 4000, "[" * 8000,
    "{" * 4000, "1 " * 4000, "a" * 8000, "10" * 4000 + "!", "\\x00", "\\ud800", "", "[]", "{}", "null",
    "nan", "inf", "-1",
]
for name in reasoning.task_names():
    if name in slow:
        continue
    try:
        row = reasoning.rows("train", 1, 0, [reasoning.tagged_task(name)])[0]
    except ValueError:
        continue
    for answer in answers:
        started = time.monotonic()
        compute_score(row["data_source"], f"<answer>{answer}</answer>", "", row["extra_info"])
        if time.monotonic() - started > 5:
            print("slow", name, answer[:20])
    print("done", name)
"""


@pytest.mark.timeout(300)
def test_no_verifier_runs_or_hangs_on_an_answer(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", HOSTILE], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "slow" not in result.stdout
    assert result.stdout.count("done") > 70
    assert not (tmp_path / "PLANTED").exists()


@pytest.mark.timeout(600)
def test_which_tasks_can_be_trained_on():
    """docs/data.md names the others."""
    refused = {}
    for name in set(reasoning.task_names()) - reasoning.EVALUATED:
        try:
            reasoning.rows("train", 2, 0, [reasoning.tagged_task(name)])
        except ValueError as error:
            refused[name] = str(error)
    no_answer = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
    assert {name for name, reason in refused.items() if "states no answer" in reason} == no_answer
    assert {name for name, reason in refused.items() if "its own answers" in reason} == {"arc_agi", "rearc"}
    assert set(refused) - no_answer - {"arc_agi", "rearc"} == {"composite"}


# Each with its own first import: threads of a reward worker that grade the first responses at the same moment.
AT_ONCE = """
    import json, sys, threading, time
    from gtpo_verl.tasks.reasoning import score, task_names

    row, seen = json.loads(sys.argv[1]), []

    def grade(after):
        time.sleep(after)
        try:
            seen.append(score(row["data_source"], str(row["reward_model"]["ground_truth"]), row["extra_info"])[0])
            seen.append(float("letter_counting" in task_names()))
        except Exception as error:
            seen.append(repr(error))

    threads = [threading.Thread(target=grade, args=(index / 20,)) for index in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted(set(map(str, seen))), len(seen))
"""


def test_threads_that_grade_at_once_wait_for_the_library():
    (row,) = reasoning.rows("train", 1, seed=1, tasks=TASKS[1:])
    command = [sys.executable, "-c", textwrap.dedent(AT_ONCE), json.dumps(row)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "['1.0'] 80\n", done.stdout + done.stderr
