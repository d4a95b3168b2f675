"""Tasks of the library reasoning-gym, easy enough for a model of 135M parameters, with that library's own verifiers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DATA_SOURCE_PREFIX = "reasoning_gym/"
SPLITS = ("train", "validation")
_VALIDATION_PERCENT = 10

# With this the model is right more often than under its own system prompt: it ends on a number rather than chatting on.
SYSTEM_PROMPT = "Answer briefly and end with the answer."

_NUMBER = re.compile(r"-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?")


@dataclass(frozen=True)
class ReasoningTask:
    """A data set of reasoning-gym: its registered name and the settings that make it easy."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data_source(self) -> str:
        return DATA_SOURCE_PREFIX + self.name


# Chosen because SmolLM2-135M-Instruct, sampled at temperature 1, is sometimes right and sometimes wrong on them.
TASKS = (
    ReasoningTask("chain_sum", {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}),
    ReasoningTask("letter_counting", {"min_words": 2, "max_words": 4}),
)


def rows(split: str, count: int, seed: int, tasks: Sequence[ReasoningTask] = TASKS) -> list[dict[str, Any]]:
    """Return ``count`` rows in the form verl's ``RLHFDataset`` reads, the tasks taking turns, all questions different.

    The splits are disjoint whatever the seed: a hash of the question decides where it belongs.

    Raises:
        ValueError: the split is unknown, or a task holds too few different questions.
    """
    import reasoning_gym

    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    tries = 40 * count + 1000
    pools = [iter(reasoning_gym.create_dataset(t.name, size=tries, seed=seed, **t.settings)) for t in tasks]
    seen: set[str] = set()
    found: list[dict[str, Any]] = []
    for task, pool in itertools.islice(itertools.cycle(zip(tasks, pools, strict=True)), count):
        entry = next((e for e in pool if e["question"] not in seen and split_of(e["question"]) == split), None)
        if entry is None:
            raise ValueError(f"reasoning-gym's {task.name} holds too few different questions for {count} rows")
        seen.add(entry["question"])
        found.append(_row(task, entry, split, len(found)))
    return found


def split_of(question: str) -> str:
    """Return the split a question belongs to."""
    bucket = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") % 100
    return "validation" if bucket < _VALIDATION_PERCENT else "train"


def _row(task: ReasoningTask, entry: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": task.data_source,
        "prompt": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": entry["question"]},
        ],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": str(entry["answer"])},
        # The verifier wants the whole entry; as text, for parquet gives every row of a file the same structure.
        "extra_info": {"split": split, "index": index, "entry": json.dumps(entry, default=str)},
    }


def extract_answer(response: str) -> str | None:
    """Return the last number of a response, without thousands separators, or None without one."""
    found = _NUMBER.findall(response)
    return found[-1].replace(",", "") if found else None


def score(data_source: str, response: str, extra_info: Mapping[str, Any] | None) -> tuple[float, str | None]:
    """Return what the verifier of reasoning-gym gives a response, 0 to 1, and the answer that was found in it.

    A response without an answer, or with one that the verifier cannot digest, scores 0.

    Raises:
        ValueError: the row does not carry the entry that the verifier needs, or names no task of reasoning-gym.
    """
    name = data_source.removeprefix(DATA_SOURCE_PREFIX)
    try:
        entry = json.loads((extra_info or {})["entry"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a row of {data_source} needs extra_info.entry, reasoning-gym's entry as JSON") from error
    verify = _verifier(name)
    answer = extract_answer(response)
    if answer is None:
        return 0.0, None
    try:
        return float(verify(answer, entry)), answer
    except Exception:  # verifiers parse the answer in a hundred ways, and no answer of a model may end a training
        return 0.0, answer


@functools.cache
def _verifier(name: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym.factory import get_score_answer_fn

    return get_score_answer_fn(name)
