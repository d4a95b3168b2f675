"""Log-probabilities taken many at a time are those that vLLM takes one by one."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm")
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists

from gtpo_verl.verl_plugin.rollout.logprobs import SampledLogprobs, SampledLogprobsProcessor


def processor(kind, **asked):
    params = SamplingParams(detokenize=False, **{"logprobs": 0, "flat_logprobs": True, **asked})
    return kind.from_new_request(None, SimpleNamespace(sampling_params=params))


def outputs(tokens: list[int], width: int = 1) -> LogprobsLists:
    ids = np.array(tokens, np.int32)[:, None] + np.arange(width, dtype=np.int32)
    return LogprobsLists(ids, (-ids / 3).astype(np.float32), np.array(tokens, np.int32) + 1)


def test_as_vllm_would_have_them() -> None:
    vllm, ours = processor(LogprobsProcessor), processor(SampledLogprobsProcessor)
    for part in ([5], [7, 7, 130_000], [1]):
        vllm._update_sample_logprobs(outputs(part))
        ours._update_sample_logprobs(outputs(part))
    assert type(ours.logprobs) is SampledLogprobs
    assert vars(ours.logprobs) == vars(vllm.logprobs)
    assert ours.cumulative_logprob == pytest.approx(vllm.cumulative_logprob)
    assert [ours.logprobs[i] for i in range(5)] == list(vllm.logprobs)
    # As verl reads them (vllm_async_server.py, `generate`).
    tokens = [5, 7, 7, 130_000, 1]
    read = [
        [entry[tokens[i]].logprob for i, entry in enumerate(logprobs)] for logprobs in (ours.logprobs, vllm.logprobs)
    ]
    assert read[0] == read[1]
    assert {type(value) for value in read[0]} == {float}


@pytest.mark.parametrize("asked", [{"logprobs": 2}, {"flat_logprobs": False}])
def test_whoever_asks_for_more_gets_vllms_own(asked) -> None:
    vllm, ours = (processor(kind, **asked) for kind in (LogprobsProcessor, SampledLogprobsProcessor))
    for each in (vllm, ours):
        each._update_sample_logprobs(outputs([4, 9], width=1 + asked.get("logprobs", 0)))
    assert type(ours.logprobs) is type(vllm.logprobs)
    assert list(ours.logprobs) == list(vllm.logprobs)
