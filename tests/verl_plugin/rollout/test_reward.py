"""verl's reward worker as we extend it, with verl's DAPO reward manager: what is no number is an error of that
response, and the penalty on length is the reward's, not the metric's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gtpo_verl.tasks import tiny_model

MAX, BUFFER = 112, 32

REWARD = """
class NoAnswer(Exception):
    pass

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    if ground_truth == "raises":
        raise ZeroDivisionError("division by zero")
    if ground_truth == "raises its own":
        raise NoAnswer("none found")
    return eval(ground_truth)
"""

SCRIPT = """
import asyncio, json, pickle, sys
from gtpo_verl.verl_plugin import cpu
cpu.install()
import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin.batching import Failure
from gtpo_verl.verl_plugin.rollout import reward
from gtpo_verl.verl_plugin.rollout.reward import BatchingRewardLoopWorker, pack

folder, cases = sys.argv[1], json.loads(sys.argv[2])
config = compose_config([
    "algorithm=gtpo_v1", "model=tiny", f"actor_rollout_ref.model.path={folder}",
    f"reward.custom_reward_function.path={folder}/reward.py", "reward.custom_reward_function.name=compute_score",
])
PROMPT = 5

def response(truth, length):
    tokens = torch.full((1, length), 65)
    whole = torch.ones(1, PROMPT + length, dtype=torch.int64)
    fields = {"prompts": whole[:, :PROMPT], "responses": tokens, "input_ids": whole, "attention_mask": whole}
    rows = {"data_source": np.array(["x"]), "reward_model": np.array([{"ground_truth": truth}])}
    return DataProto(TensorDict(fields, batch_size=1), rows)

async def ask():
    worker = BatchingRewardLoopWorker(config)
    del reward.deciding_metrics  # to read the configuration costs as much as a response: never once responses come
    scores = pickle.dumps(await worker.compute_scores([pack(response(truth, length)) for truth, length in cases]))
    # As in the agent loop's process, which does not know the file.
    for name in [name for name, module in sys.modules.items() if "NoAnswer" in vars(module)]:
        del sys.modules[name]
    return pickle.loads(scores)

results = []
for (_, length), got in zip(cases, asyncio.run(ask()), strict=True):
    if isinstance(got, Failure):
        error = got.error()
        results.append(f"{type(error).__name__}: {error}" + str(error.__cause__))
        continue
    # A tensor would be printed into a warning, in the agent loop's process, of every response.
    given = got["reward_score"], *got["reward_extra_info"].values()
    assert not any(isinstance(value, torch.Tensor) for value in given)
    row = AgentLoopOutput(prompt_ids=[1] * PROMPT, response_ids=[65] * length, response_mask=[1] * length,
                          reward_score=float(got["reward_score"]), metrics=AgentLoopMetrics()).as_dict()
    results.append([row["rm_scores"].tolist(), got["reward_extra_info"]])

# verl has no place for the reward of a response without tokens.
try:
    AgentLoopOutput(prompt_ids=[1], response_ids=[], response_mask=[], reward_score=1.0,
                    metrics=AgentLoopMetrics()).as_dict()
    results.append("taken")
except IndexError:
    results.append("refused")
print(json.dumps(results, default=float))
"""

NO_NUMBER = {
    "float('nan')": "the reward of a response must be a finite number, not nan",
    "{'score': float('inf'), 'acc': 1.0}": "the reward of a response must be a finite number, not inf",
    "{'score': '1.0', 'acc': 1.0}": "TypeError",  # verl adds the penalty to it
    "{'score': None, 'acc': 1.0}": "TypeError",
    "None": "TypeError",
    "{'score': 1.0, 'acc': 'yes'}": "`acc` of a response, which algorithm.gtpo.success.key and "
    "algorithm.filter_groups.metric asks for, must be a finite number, not 'yes'",
    "{'score': 1.0, 'acc': float('nan')}": "must be a finite number, not nan",
    "{'acc': 1.0}": "KeyError: 'score'",
    "raises": "ZeroDivisionError: division by zero",
    "raises its own": "RuntimeError: NoAnswer: none found",
}
NUMBERS = ["1", "1.0", "True", "{'score': 1.0, 'acc': True, 'pred': 'text'}", "__import__('numpy').float32(1)"]
LENGTHS = [1, MAX - BUFFER - 1, MAX - BUFFER, MAX - BUFFER + 1, MAX]
LONG = [("{'score': 1.0, 'acc': 1.0}", length) for length in LENGTHS]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list:
    """Of all cases, in a process of its own, in which verl has the platform `cpu`; the last is the empty response."""
    folder: Path = tmp_path_factory.mktemp("model")
    tokenizer = tiny_model.build_tokenizer()
    tiny_model.save(tiny_model.build_model(tiny_model.ModelConfig(), tokenizer), tokenizer, folder)
    (folder / "reward.py").write_text(REWARD)
    cases = [*((truth, 3) for truth in (*NO_NUMBER, *NUMBERS)), *LONG]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(cases)],
        env={**os.environ, "VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_no_number_is_an_error_of_that_response_alone(results: list) -> None:
    got = results[: len(NO_NUMBER)]
    for (case, named), one in zip(NO_NUMBER.items(), got, strict=True):
        assert isinstance(one, str), case
        assert named in one, case
        assert "raises" not in case or "reward.py" in one, "where in the user's file"


def test_numbers_of_any_type_are_taken(results: list) -> None:
    got = results[len(NO_NUMBER) : len(NO_NUMBER) + len(NUMBERS)]
    assert [one[0] for one in got] == [[0.0, 0.0, 1.0]] * len(NUMBERS)


def test_the_penalty_on_length_is_in_the_reward_and_not_in_the_metric(results: list) -> None:
    got = results[-1 - len(LONG) : -1]
    penalties = torch.tensor([0, 0, 0, 1, BUFFER]) / BUFFER
    torch.testing.assert_close(torch.tensor([one[0][-1] for one in got]), 1 - penalties)
    assert [one[1]["acc"] for one in got] == [1.0] * len(LONG)


def test_a_response_without_tokens_fails_instead_of_losing_its_reward(results: list) -> None:
    assert results[-1] == "refused"
