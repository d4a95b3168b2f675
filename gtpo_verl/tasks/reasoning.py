"""Tasks of the library reasoning-gym, with that library's own verifiers.

`TASKS`, `STEPS_TASKS` and `TRANSFER_TASKS` are easy enough for a model of 135M parameters; `tagged_task` makes any
other, for models that follow a format.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DATA_SOURCE_PREFIX = "reasoning_gym/"
SPLITS = ("train", "validation")
_VALIDATION_PERCENT = 10

AnswerFormat = Literal["number", "tag"]

SYSTEM_PROMPTS: dict[AnswerFormat, str] = {
    # With this the small model is right more often than under its own: it ends on a number rather than chatting on.
    "number": "Answer briefly and end with the answer.",
    "tag": "Think step by step. Then give the final answer, and nothing else, between <answer> and </answer>.",
}

# Their verifiers pass the answer to eval or to sympy's parse_expr, which runs it as Python. A number cannot do harm
# there; any other text of a model could.
EVALUATED = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)

_POOL = 1000  # some data sets are made whole at once, and some refuse to be large
_MAX_ANSWER_CHARS = 8192
# Fraction("1e999999999") computes that power.
_HUGE_EXPONENT = re.compile(r"[eE][+-]?[0-9_]{4,}")
_NUMBER = re.compile(r"-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?")


@dataclass(frozen=True)
class ReasoningTask:
    """A data set of reasoning-gym.

    Attributes:
        name: as registered there.
        settings: those that differ from its defaults.
        answer_format: what counts as the answer: the last ``number`` of a response, or the text within the last
            ``tag`` pair ``<answer>``, ``</answer>``.
        examples: questions with worked answers, earlier turns of every chat. No row asks them.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    answer_format: AnswerFormat = "number"
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def data_source(self) -> str:
        return DATA_SOURCE_PREFIX + self.name


def _letters(letter: str, text: str) -> str:
    return f'How many times does the letter "{letter}" appear in the text: "{text}"?'


def _final_answer(expression: str) -> str:
    return f"State the final answer to the following arithmetic problem: {expression} ="


# Chosen because SmolLM2-135M-Instruct, sampled at temperature 1, is sometimes right and sometimes wrong on the same
# question (docs/performance.md). Without the examples it chats on, and most groups are wrong throughout.
TASKS = (
    ReasoningTask(
        "basic_arithmetic",
        {
            "min_terms": 3,
            "max_terms": 3,
            "min_digits": 1,
            "max_digits": 1,
            "operators": ["+"],
            "allow_parentheses": False,
            "allow_negation": False,
        },
        examples=(
            ("Calculate 3 + 5 + 2.", "3 + 5 = 8\n8 + 2 = 10"),
            ("Calculate 6 + 2 + 4.", "6 + 2 = 8\n8 + 4 = 12"),
            ("Calculate 1 + 4 + 2.", "1 + 4 = 5\n5 + 2 = 7"),
            ("Calculate 8 + 1 + 6.", "8 + 1 = 9\n9 + 6 = 15"),
            ("Calculate 4 + 3 + 0.", "4 + 3 = 7\n7 + 0 = 7"),
        ),
    ),
    ReasoningTask(
        "letter_counting",
        {"min_words": 3, "max_words": 6},
        examples=(
            (_letters("a", "planet"), 'The letter "a" appears 1 time.'),
            (_letters("e", "seed"), 'The letter "e" appears 2 times.'),
            (_letters("o", "moon light"), 'The letter "o" appears 2 times.'),
            (_letters("r", "bread"), 'The letter "r" appears 1 time.'),
        ),
    ),
)

# The experiment's (docs/experiment.md has what was measured): one to three steps, of which the model, sampled at
# temperature 1, mostly gets one wrong. More than half of the training questions have numbers of two digits: those of
# one digit are learnt too soon to tell algorithms apart.
STEPS_TASKS = (
    ReasoningTask(
        "basic_arithmetic",
        {
            "min_terms": 3,
            "max_terms": 3,
            "min_digits": 1,
            "max_digits": 2,
            "operators": ["+"],
            "allow_parentheses": False,
            "allow_negation": False,
        },
        examples=(
            ("Calculate 34 + 5 + 12.", "34 + 5 = 39\n39 + 12 = 51"),
            ("Calculate 6 + 27 + 8.", "6 + 27 = 33\n33 + 8 = 41"),
            ("Calculate 8 + 1 + 6.", "8 + 1 = 9\n9 + 6 = 15"),
            ("Calculate 41 + 14 + 20.", "41 + 14 = 55\n55 + 20 = 75"),
            ("Calculate 4 + 3 + 9.", "4 + 3 = 7\n7 + 9 = 16"),
        ),
    ),
    ReasoningTask(
        "chain_sum",
        {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 2},
        examples=(
            (_final_answer("57 - 15"), "57 - 15 = 42"),
            (_final_answer("6 + 38 - 4"), "6 + 38 = 44\n44 - 4 = 40"),
            (_final_answer("9 - 24 + 62 + 5"), "9 - 24 = -15\n-15 + 62 = 47\n47 + 5 = 52"),
            (_final_answer("83 + 10 - 55"), "83 + 10 = 93\n93 - 55 = 38"),
            (_final_answer("40 + 16"), "40 + 16 = 56"),
        ),
    ),
)

# Validated beside them and never trained on: a difference, as in chain_sum, of larger numbers and asked for otherwise.
TRANSFER_TASKS = (
    ReasoningTask(
        "simple_equations",
        {
            "min_terms": 2,
            "max_terms": 2,
            "min_value": 1,
            "max_value": 20,
            "operators": ["+"],
            "operators_weights": [1.0],
        },
        examples=(
            ("Solve for x: x + 5 = 20", "x = 20 - 5 = 15"),
            ("Determine the value of k that satisfies: k + 4 = 12", "k = 12 - 4 = 8"),
            ("Find the value of b in the equation: b + 9 = 11", "b = 11 - 9 = 2"),
            ("Solve for t: t + 13 = 17", "t = 17 - 13 = 4"),
            ("Find the value of n in the equation: n + 6 = 18", "n = 18 - 6 = 12"),
            ("Determine the value of w that satisfies: w + 7 = 17", "w = 17 - 7 = 10"),
        ),
    ),
)


def task_names() -> list[str]:
    """Returns the names of reasoning-gym's data sets, sorted."""
    import reasoning_gym  # noqa: F401  (see `_verifier`)
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def tagged_task(name: str) -> ReasoningTask:
    """Returns a task with the library's own settings whose answers stand in tags.

    Raises:
        ValueError: there is no such task, or its verifier would run an answer as a program.
    """
    if name not in task_names():
        raise ValueError(f"reasoning-gym has no task {name!r}")
    if name in EVALUATED:
        raise ValueError(
            f"reasoning-gym's verifier of {name} runs the answer as Python; a model's text must not be run"
        )
    return ReasoningTask(name, answer_format="tag")


def rows(split: str, count: int, seed: int, tasks: Sequence[ReasoningTask] = TASKS) -> list[dict[str, Any]]:
    """Return ``count`` rows in the form verl's ``RLHFDataset`` reads, the tasks taking turns, all questions different.

    The splits are disjoint whatever the seed: a hash of the question decides where it belongs.

    Raises:
        ValueError: the split is unknown, a task holds too few different questions, or a task cannot be trained on: the
            library cannot make it, states no answer, or does not accept its own.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    tries = 40 * count + 1000
    pools = [_entries(task, seed, tries) for task in tasks]
    seen = {question for task in tasks for question, _ in task.examples}
    found: list[dict[str, Any]] = []
    for task, pool in itertools.islice(itertools.cycle(zip(tasks, pools, strict=True)), count):
        entry = next((e for e in pool if e["question"] not in seen and split_of(e["question"]) == split), None)
        if entry is None:
            raise ValueError(f"reasoning-gym's {task.name} holds too few different questions for {count} rows")
        seen.add(entry["question"])
        found.append(_row(task, entry, split, len(found)))
    return found


def _entries(task: ReasoningTask, seed: int, count: int) -> Iterator[Mapping[str, Any]]:
    import reasoning_gym

    for start in range(0, count, _POOL):
        try:
            # An entry depends on the sum of seed and position, so that pools do not repeat each other.
            yield from reasoning_gym.create_dataset(task.name, size=_POOL, seed=seed + start, **task.settings)
        except Exception as error:  # a hundred data sets refuse their settings in as many ways
            raise ValueError(f"reasoning-gym cannot make {task.name}: {error}") from error


def split_of(question: str) -> str:
    """Return the split a question belongs to."""
    bucket = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") % 100
    return "validation" if bucket < _VALIDATION_PERCENT else "train"


def _row(task: ReasoningTask, entry: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
    # The verifier wants the whole entry; as text, for parquet gives every row of a file the same structure.
    text = json.dumps(entry, default=str)
    if entry["answer"] is None:
        raise ValueError(f"reasoning-gym's {task.name} states no answer to its questions")
    if not _accepts(task.name, str(entry["answer"]), json.loads(text)):
        raise ValueError(
            f"reasoning-gym's verifier of {task.name} does not accept its own answers once they are stored"
        )
    return {
        "data_source": task.data_source,
        "prompt": _prompt(task, entry["question"]),
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": str(entry["answer"])},
        "extra_info": {"split": split, "index": index, "answer_format": task.answer_format, "entry": text},
    }


def _prompt(task: ReasoningTask, question: str) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": SYSTEM_PROMPTS[task.answer_format]}]
    for asked, answered in task.examples:
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return [*turns, {"role": "user", "content": question}]


def _accepts(name: str, answer: str, entry: dict[str, Any]) -> bool:
    try:
        return float(_verifier(name)(answer, entry)) >= 1.0
    except Exception:  # as in score
        return False


def extract_answer(response: str) -> str | None:
    """Return the last number of a response, without thousands separators, or None without one."""
    found = _NUMBER.findall(response)
    return found[-1].replace(",", "") if found else None


def extract_tagged(response: str) -> str | None:
    """Return the text within the last ``<answer>``, ``</answer>``, or None without one or with a very long one."""
    end = response.rfind("</answer>")
    start = response.rfind("<answer>", 0, max(end, 0))
    if start < 0 or end - start > _MAX_ANSWER_CHARS:
        return None
    return response[start + len("<answer>") : end].strip()


def score(data_source: str, response: str, extra_info: Mapping[str, Any] | None) -> tuple[float, str | None]:
    """Return what the verifier of reasoning-gym gives a response, 0 to 1, and the answer that was found in it.

    A response without an answer, or with one that the verifier cannot digest, scores 0.

    Raises:
        ValueError: the row does not carry the entry that the verifier needs, names no task of reasoning-gym, or asks
            for tagged answers of a task whose verifier would run them.
    """
    name = data_source.removeprefix(DATA_SOURCE_PREFIX)
    info = extra_info or {}
    try:
        entry = json.loads(info["entry"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a row of {data_source} needs extra_info.entry, reasoning-gym's entry as JSON") from error
    verify = _verifier(name)
    tagged = info.get("answer_format", "number") == "tag"
    if tagged and name in EVALUATED:
        raise ValueError(f"{data_source}: the verifier runs the answer as Python; a model's text must not be run")
    answer = extract_tagged(response) if tagged else extract_answer(response)
    if answer is None:
        return 0.0, None
    if _HUGE_EXPONENT.search(answer):
        return 0.0, answer
    try:
        return float(verify(answer, entry)), answer
    except Exception:  # verifiers parse the answer in a hundred ways, and no answer of a model may end a training
        return 0.0, answer


@functools.cache
def _verifier(name: str) -> Callable[[str, dict[str, Any]], float]:
    # The package first: a thread that asks for its module alone does not wait for another that is still importing the
    # package, whose end registers the tasks.
    import reasoning_gym  # noqa: F401
    from reasoning_gym.factory import get_score_answer_fn

    return get_score_answer_fn(name)
