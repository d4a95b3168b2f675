"""The reward that grades: the one that a run was trained with."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from gtpo_verl.evaluation.problems import Problem, ProblemFile
from gtpo_verl.rewards import math
from gtpo_verl.rewards.truth import problem_with_truth
from gtpo_verl.tasks import rewards as task_rewards
from gtpo_verl.tasks.data_files import DataFileError

MATH, TASKS = "pkg://gtpo_verl.rewards.math", "pkg://gtpo_verl.tasks.rewards"


@dataclass(frozen=True)
class Reward:
    """How a response is graded.

    Attributes:
        path: of the module, as in ``reward.custom_reward_function.path``; None for what verl has for a data source.
        name: of the function; without a path, of verl's reward manager.
        kwargs: ``reward.custom_reward_function.reward_kwargs``, as JSON.
        key, threshold: what makes a response right, as ``algorithm.gtpo.success``.
    """

    path: str | None = MATH
    name: str = "compute_score"
    kwargs: str = "{}"
    key: str = "acc"
    threshold: float = 0.5

    @classmethod
    def of_run(cls, config: Any) -> Reward:
        """The reward of a run's configuration."""
        function: Any = OmegaConf.select(config, "reward.custom_reward_function") or {}
        success = OmegaConf.select(config, "algorithm.gtpo.success") or {}
        right = {"key": success.get("key", cls.key), "threshold": success.get("threshold", cls.threshold)}
        if not function.get("path"):
            return cls(None, OmegaConf.select(config, "reward.reward_manager.name") or "naive", **right)
        kwargs = OmegaConf.to_container(function.get("reward_kwargs") or OmegaConf.create({}))
        return cls(function.path, function.get("name") or cls.name, json.dumps(kwargs, sort_keys=True), **right)

    def __str__(self) -> str:
        path = self.path or "verl"
        kwargs = "" if self.kwargs == Reward.kwargs else f" {self.kwargs}"
        return f"{path}:{self.name}{kwargs}, right where {self.key} > {self.threshold:g}"

    def function(self, data_source: str) -> Callable[..., Any]:
        """What grades the rows of a data source. The two rewards of this package are one: each grades what is its own.

        Raises:
            ValueError: it cannot be loaded.
        """
        if self.path in (MATH, TASKS) and self.name == Reward.name and self.kwargs == Reward.kwargs:
            return task_rewards.compute_score if task_rewards.knows(data_source) else math.compute_score
        return _loaded(self.path, self.name, self.kwargs)

    def check(self, files: Sequence[ProblemFile]) -> None:
        """Refuses what it could not grade: asks it for an empty response to the first row of each data source.

        Raises:
            ValueError: it cannot be loaded, or gives no verdict; names the file and the row.
        """
        for file in files:
            seen: set[str] = set()
            for problem in file.problems:
                where = f"{file.path}: row {problem.row}"
                function = self.function(problem.data_source)
                reason = problem_with_truth(problem.truth) if function is math.compute_score else None
                if reason:
                    raise DataFileError(f"{where}: ground truth cannot be graded: {reason}")
                if problem.data_source not in seen:
                    seen.add(problem.data_source)
                    try:
                        self.grade(problem, "")
                    except Exception as error:
                        raise ValueError(f"{where}: the reward {self} fails: {error}") from error

    def grade(self, problem: Problem, text: str) -> Verdict:
        """Grades one response; may be called from any thread.

        Raises:
            ValueError: the reward returns no `key`.
        """
        function = self.function(problem.data_source)
        call = functools.partial(
            function,
            data_source=problem.data_source,
            solution_str=text,
            ground_truth=problem.truth,
            extra_info=dict(problem.extra_info or {}),
        )
        asynchronous = inspect.iscoroutinefunction(getattr(function, "args", [function])[0])
        result = asyncio.run(call()) if asynchronous else call()
        # A plain number is what verl's reward managers call `acc` themselves.
        given: Mapping[str, Any] = result if isinstance(result, Mapping) else {"score": result, "acc": result}
        for key in ("score", self.key):
            if key not in given:
                raise ValueError(f"it returns {', '.join(given)} but no `{key}`")
        answer = given.get("pred")
        answered = given.get("answered")
        if answered is None and answer is not None:
            answered = answer not in ("", task_rewards.NO_ANSWER)
        return Verdict(
            score=float(given["score"]),
            right=float(given[self.key]) > self.threshold,
            answered=None if answered is None else bool(answered),
            answer=str(answer) if answered and answer is not None else None,
        )


@dataclass(frozen=True)
class Verdict:
    """What the reward says of a response.

    Attributes:
        score: the reward, without the reward manager's penalties on length.
        right: by the reward's raw metric.
        answered: whether an answer was found; None where the reward does not say.
        answer: the answer that was found; None without.
    """

    score: float
    right: bool
    answered: bool | None
    answer: str | None


@functools.cache
def _loaded(path: str | None, name: str, kwargs: str) -> Callable[..., Any]:
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import get_default_compute_score

    if path is None:
        return get_default_compute_score(name)
    function = {"path": path, "name": name, "reward_kwargs": json.loads(kwargs)}
    try:
        loaded = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": function}}))
    except Exception as error:  # whatever a user's module raises when it is imported
        raise ValueError(f"the reward {path}:{name} cannot be loaded: {type(error).__name__}: {error}") from error
    assert loaded is not None
    return loaded
